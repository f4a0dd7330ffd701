"""CoMap's agent as it gathers training data: with probes, a teacher and the world-state gate.

It is the mode *train_rollout* of METHODS.md 1.2. The teacher is told what really follows, so nothing
that evaluates may use this agent; `CoMapAgent` is the one for that.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ..agents.acting import Draft
from ..agents.base import Decision, Imagine, Probe, Probed, Reply, Request, View
from ..agents.comap import CoMapAgent, CoMapConfig
from ..agents.comap_record import Foreseen
from ..agents.gates import WorldStateGate, world_state_gate
from ..agents.ranges import require_between
from ..agents.refinement import RefinementHead
from ..errors import OptionError
from ..facts import Delta, diff
from ..lm import Completion, Generate
from ..worldmodel import Imagined, LanguageWorldModel, Query
from ..worldmodel.language import prediction_of
from .privileged import privileged_prompt

__all__ = ["Context", "GateReference", "RolloutAgent", "RolloutConfig"]

GateReference: TypeAlias = Literal["teacher", "env", "teacher_unprivileged"]
"""What the student's prediction is compared with: what the teacher says, who is told the truth; the
truth itself; what the teacher says when asked as the student is (METHODS.md 1.4)."""

Context: TypeAlias = Literal["gated", "student", "env"]
"""What the reflection is told: the student's prediction where the gate is open, else the truth; always
the prediction (the ablation "w/o WS Gate"); always the truth (METHODS.md 1.13)."""

_DIGITS = 6
_NOTHING: dict[str, Any] = {
    "wm_teacher": None,
    "agreement": None,
    "wm_gate": None,
    "context_source": "none",
    "context": "",
    "env_next_of_draft": None,
    "canon_ok_student": None,
    "canon_ok_teacher": None,
}


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(CoMapConfig):
    """Settings of CoMap's training rollouts (METHODS.md 1.2, 1.4, 1.11).

    With ``future_state=False`` no world model, no teacher and no probe is asked at all.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> RolloutConfig(context="student").tau_wm
        0.6
    """

    tau_wm: float = 0.6
    """The reflection is told the student's prediction if the agreement is at least this (CoMap, 5)."""
    gate_reference: GateReference = "teacher"
    """teacher (told the truth), env (the truth itself) or teacher_unprivileged."""
    context: Context = "gated"
    """gated, student (the ablation "w/o WS Gate") or env. The last two ask no teacher."""
    reflect_after_terminal_probe: bool = False
    """True reflects also on a draft that ends the episode; else it is taken (METHODS.md 1.2)."""
    teacher_adapter: str | None = "wm_ema"
    """Which adapter of the language model is the teacher."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0, 1, "tau_wm")


class _Reference(NamedTuple):
    """What the student's prediction is compared with; `text` is the teacher's, if it was asked."""

    delta: Delta
    parsed: bool
    text: str | None


class RolloutAgent(CoMapAgent):
    """Acts as `CoMapAgent` does, but is told the truth where its world model is not to be trusted.

    Each step (METHODS.md 1.2, train_rollout): draft an action; ask the student what follows, and the
    environment what really does (`Probe`); ask the teacher, who is told the latter; where student and
    teacher agree on what changes (``r >= tau_wm``), the reflection is told the student's prediction,
    else the truth. The action that is taken is chosen as ever.

    The runner's world model is the student: pass `world_model` to it as well.

    A draft that ends the episode, by its own rules or at the step limit, is taken without a reflection,
    unless the settings say otherwise. Where the draft cannot be read, nothing is probed.

    Deviation: the paper does not say what else than the privileged teacher the student may be compared
    with, nor when it is told the truth throughout; those settings are ours.

    Args:
        config: Settings; None for the defaults.
        head: See `CoMapAgent`.
        world_model: The student: says how prompts are built, for the teacher too.

    Raises:
        OptionError: `world_model` is not a `LanguageWorldModel`.

    Example:
        >>> RolloutAgent(None, None, LanguageWorldModel(None)).config.teacher_adapter
        'wm_ema'
    """

    name = "comap-rollout"
    config: RolloutConfig

    def __init__(
        self,
        config: RolloutConfig | None,
        head: RefinementHead | str | Path | None,
        world_model: LanguageWorldModel,
    ):
        if not isinstance(world_model, LanguageWorldModel):
            raise OptionError(
                "a training rollout needs the student world model, a LanguageWorldModel, found "
                f"{world_model!r:.80}"
            )
        super().__init__(config or RolloutConfig(), head)
        self.world_model = world_model

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft, look ahead, reflect and choose; the notes tell all of it, the gate's part included."""
        decision = yield from super().decide(view)
        return replace(decision, notes={**_NOTHING, **decision.notes})

    def look_ahead(self, view: View, draft: Draft) -> Generator[Request, Reply, Foreseen]:
        """Return what the reflection is told of the future: a prediction, or the truth.

        Args:
            view: What the agent sees.
            draft: A draft that could be read.
        """
        config = self.config
        if not config.future_state:
            return Foreseen()
        replies: tuple[Imagined, Probed] = yield [Imagine(draft.action), Probe(draft.action)]
        imagined, probed = replies
        trusted = config.context == "student"
        teacher: _Reference | None = None
        gate: WorldStateGate | None = None
        if config.context == "gated":
            teacher = yield from self._reference(view, draft.action, probed)
            gate = self._gate(imagined, teacher)
            trusted = gate.open
        context = imagined.observation if trusted else probed.observation
        read = None if teacher is None or teacher.text is None else teacher.parsed
        notes = {
            "predicted_next_state": imagined.observation or None,
            "wm_teacher": teacher and teacher.text,
            "agreement": gate and round(gate.agreement, _DIGITS),
            "wm_gate": gate and gate.open,
            "context_source": "wm" if trusted else "env",
            "context": context,
            "env_next_of_draft": _told(probed),
            "canon_ok_student": imagined.facts.parsed,
            "canon_ok_teacher": read,
        }
        reflect = config.reflect_after_terminal_probe or not probed.ended
        return Foreseen(context, imagined, notes, reflect)

    def _reference(
        self, view: View, action: str, probed: Probed
    ) -> Generator[Request, Reply, _Reference]:
        """Return what the student's prediction is compared with."""
        config, model = self.config, self.world_model
        if config.gate_reference == "env":
            return _Reference(probed.delta, probed.facts.parsed, None)
        query = Query(
            view.env_id, view.goal, view.history, view.facts, action, view.admissible_actions
        )
        if config.gate_reference == "teacher":
            messages = privileged_prompt(model, query, probed.observation)
        else:
            messages = model.prompt(query)
        said: Completion = yield Generate(
            messages, model.sampling, adapter=config.teacher_adapter, purpose="teacher"
        )
        text = prediction_of(said, model.source, model.ending).observation
        facts = probed.reads(text)
        return _Reference(diff(view.facts, facts), facts.parsed, text)

    def _gate(self, imagined: Imagined, reference: _Reference) -> WorldStateGate:
        return world_state_gate(
            imagined.delta,
            reference.delta,
            student_parsed=imagined.facts.parsed,
            teacher_parsed=reference.parsed,
            tau=self.config.tau_wm,
        )


def _told(probed: Probed) -> dict[str, Any]:
    return {
        "observation": probed.observation,
        "reward": probed.reward,
        "terminated": probed.terminated,
        "truncated": probed.truncated,
        "success": probed.success,
    }
