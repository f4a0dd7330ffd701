"""Writes one decision of the policy as the samples that it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..agents.acting import Draft
from ..agents.base import View
from ..agents.comap import CoMapAgent, CoMapConfig
from ..agents.prompting import converse
from .decided import Decided
from .feedback import feedback_prompt
from .policy_options import PolicyOptions
from .reflect_reply import on_one_line, reflect_reply
from .samples import Sample

__all__ = ["Judged", "SampleWriter"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A draft that was judged.

    Attributes:
        draft: The draft.
        future: What the reflection is told of what follows it; empty for nothing.
        revise: The label y.
        target: The action that the reflection shall end with.
        analysis: The policy's own reflection; empty where there is none.

    Example:
        >>> Judged(Draft("Action: look", "look", True, "free"), "", False, "look").revise
        False
    """

    draft: Draft
    future: str
    revise: bool
    target: str
    analysis: str = ""


class SampleWriter:
    """Makes samples of decisions.

    Args:
        config: How the policy is asked.
        options: Which samples, and how much each counts.

    Example:
        >>> SampleWriter(CoMapConfig(p_source="verbal"), PolicyOptions()).learns_p
        False
    """

    def __init__(self, config: CoMapConfig, options: PolicyOptions):
        self.config, self.options = config, options
        self._agent = CoMapAgent(config)
        self.learns_p = config.p_source in ("head", "verbalizer")

    def reflection(
        self,
        kind: str,
        view: View,
        replies: Mapping[int, str],
        judged: Judged,
    ) -> Sample:
        """Return a sample of the reflect mode, whose loss is alpha (NLL + beta BCE)."""
        options = self.options
        return Sample(
            kind=kind,
            messages=self._agent.question(view, replies, judged.draft, judged.future),
            reply=reflect_reply(
                self.config,
                judged.revise,
                judged.target,
                judged.analysis,
                form_loss=options.form_loss,
                count_tokens=view.count_tokens,
            ),
            weight=options.alpha,
            label=float(judged.revise) if self.learns_p else None,
            label_weight=options.alpha * options.beta if self.learns_p else 0.0,
            task=view.task,
            step=view.step,
        )

    def of_episode(
        self,
        view: View,
        replies: Mapping[int, str],
        decided: Decided,
        label: int,
        success: bool,
    ) -> Iterator[Sample]:
        """Yield the sample of a reflected step; as often as the options count it."""
        target = decided.ref_action if label else decided.draft.action
        if target is None or not on_one_line(target):
            return
        judged = Judged(decided.draft, decided.context, bool(label), target, decided.analysis)
        for kind in self._kinds(decided, bool(label), success):
            yield self.reflection(kind, view, replies, judged)

    def _kinds(self, decided: Decided, revise: bool, success: bool) -> tuple[str, ...]:
        if not revise:
            return ("keep_draft",)
        least, found = self.options.min_agreement, decided.agreement
        good = success or not self.options.require_success_for_hq
        if not good or (least is not None and (found is None or found < least)):
            return ("revise_positive",)
        return ("revise_positive", "hq_reflect") if self.options.repeat_hq else ("hq_reflect",)

    def further(
        self, view: View, replies: Mapping[int, str], decided: Decided, taken: str
    ) -> Iterator[Sample]:
        """Yield the samples that only the authors' code has, where they have a weight."""
        options, revised = self.options, decided.ref_action
        wanted = [("own_anchor", options.own_anchor, taken)]
        if decided.reflected and decided.gate and decided.changed and revised is not None:
            wanted.append(("draft_distill", options.draft_distill, revised))
        if not decided.reflected:
            wanted.append(("fallback", options.fallback, taken))
        common: dict[str, Any] = {"task": view.task, "step": view.step}
        for kind, weight, action in wanted:
            if weight > 0 and on_one_line(action):
                yield Sample(
                    kind=kind,
                    messages=converse(view, self.config, replies),
                    reply=((decided.reply_with(action), True),),
                    weight=weight,
                    **common,
                )
        if options.self_distill > 0 and decided.answer is not None and decided.draft.text:
            yield Sample(
                kind="self_distill",
                messages=converse(view, self.config, replies),
                reply=((decided.draft.text, True),),
                weight=0.0,
                teacher=feedback_prompt(view, self.config, replies, decided.answer, decided.where),
                distill_weight=options.self_distill,
                **common,
            )
