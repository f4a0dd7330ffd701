"""CoMap's agent as it gathers training data: with probes, a teacher and the world-state gate.

The teacher reads what really follows, so nothing that evaluates may use this agent; `CoMapAgent` is the
one for that.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...agents import CoMapConfig
from ...agents.base import Decision, Imagine, Probe, ProbeResult, Reply, Request, View
from ...agents.comap import (
    ActionGate,
    CoMapAgent,
    LookAhead,
    StateGate,
    WorldStateGate,
    action_gate,
    agreement,
    world_state_gate,
)
from ...agents.heads import RefinementHead
from ...agents.prompting import Draft
from ...facts import Delta, State, diff
from ...lm import Completion, Generate
from ...worldmodel import Imagined, LanguageWorldModel, Query
from ...worldmodel.language import prediction_of
from .samples import privileged_prompt

_DIGITS = 6

# The notes of a step in which the agent did not look ahead.
_NO_LOOK_AHEAD: dict[str, Any] = {
    "wm_teacher": None,
    "agreement": None,
    "wm_gate": None,
    "context_source": "none",
    "context": "",
    "env_next_of_draft": None,
    "canon_ok_student": None,
    "canon_ok_teacher": None,
    "student_f1": None,
    "teacher_f1": None,
    "foresees_refusal": None,
}


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(CoMapConfig):
    """Settings of CoMap's training rollouts."""

    tau_wm: float = 0.6
    """The reflection sees the student's prediction if the agreement is at least this (Figure 5)."""
    world_state_gate: bool = True
    """False: it always does, and no teacher is asked (the ablation "w/o WS Gate")."""
    teacher_adapter: str | None = "wm_ema"
    """Which adapter of the language model is the teacher."""


class RolloutAgent(CoMapAgent):
    """Acts as `CoMapAgent` does, but reads the truth where its world model is not to be trusted.

    Each step: draft an action; ask the student what follows, and the environment what really does
    (`Probe`); ask the teacher, whose prompt has the latter; where student and teacher agree on what
    changes (``r >= tau_wm``), the reflection sees the student's prediction, else the truth. The action
    is chosen as ever.
    """

    name = "comap-rollout"
    config: RolloutConfig

    def __init__(
        self,
        config: RolloutConfig,
        head: RefinementHead | str | Path | None,
        world_model: LanguageWorldModel,
        *,
        gate: ActionGate = action_gate,
        state_gate: StateGate = world_state_gate,
    ):
        super().__init__(config, head, gate=gate)
        self.world_model = world_model
        self.state_gate = state_gate

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft, look ahead, reflect and choose; the notes have all of it, the gate's part included."""
        decision = yield from super().decide(view)
        return replace(decision, notes={**_NO_LOOK_AHEAD, **decision.notes})

    def look_ahead(self, view: View, draft: Draft) -> Generator[Request, Reply, LookAhead]:
        """Return what the reflection sees of the future: a prediction, or the truth."""
        if not self.config.future_state:
            return LookAhead()

        # Both in one round: prediction and probe do not wait for each other.
        replies: tuple[Imagined, ProbeResult] = yield [Imagine(draft.action), Probe(draft.action)]
        imagined, probed = replies
        gate: WorldStateGate | None = None
        gate_notes: dict[str, Any] = {}
        if self.config.world_state_gate:
            gate, gate_notes = yield from self._gate(view, draft.action, imagined, probed)

        # Without the gate the prediction is always trusted (the ablation "w/o WS Gate").
        is_trusted = gate is None or gate.open
        context = imagined.observation if is_trusted else probed.observation
        real_step = {
            "observation": probed.observation,
            "reward": probed.reward,
            "terminated": probed.terminated,
            "truncated": probed.truncated,
            "success": probed.success,
            "invalid_action": probed.invalid_action,
        }
        notes = {
            "predicted_next_state": imagined.observation or None,
            "context_source": "wm" if is_trusted else "env",
            "context": context,
            "env_next_of_draft": real_step,
            "canon_ok_student": imagined.facts.parsed,
            "student_f1": _f1_to_truth(imagined.delta, imagined.facts, probed),
            "foresees_refusal": probed.refuses(imagined.observation),
            **gate_notes,
        }
        return LookAhead(context, imagined, notes)

    def _gate(
        self, view: View, action: str, imagined: Imagined, probed: ProbeResult
    ) -> Generator[Request, Reply, tuple[WorldStateGate, dict[str, Any]]]:
        """Ask the teacher, and return whether student and teacher agree on what changes."""
        # The teacher's prompt has the real next observation (CoMap's privileged teacher). The student's
        # never has it.
        model = self.world_model
        query = Query(
            view.env_id,
            view.goal,
            view.history,
            view.facts,
            action,
            view.admissible_actions,
            view.briefing,
        )
        reply: Completion = yield Generate(
            privileged_prompt(model, query, probed.observation),
            model.sampling,
            adapter=self.config.teacher_adapter,
            purpose="teacher",
        )
        teacher_text = prediction_of(reply, model.source, model.ending).observation
        teacher_facts = probed.reads(teacher_text)
        teacher_delta = diff(view.facts, teacher_facts)

        gate = self.state_gate(
            imagined.delta,
            teacher_delta,
            student_parsed=imagined.facts.parsed,
            teacher_parsed=teacher_facts.parsed,
            tau=self.config.tau_wm,
        )
        return gate, {
            "wm_teacher": teacher_text,
            "agreement": round(gate.agreement, _DIGITS),
            "wm_gate": gate.open,
            "canon_ok_teacher": teacher_facts.parsed,
            "teacher_f1": _f1_to_truth(teacher_delta, teacher_facts, probed),
        }


def _f1_to_truth(delta: Delta, facts: State, probed: ProbeResult) -> float | None:
    """Return the F1 of predicted fact changes to the real ones; None where these cannot be read."""
    if not probed.facts.parsed:
        return None
    return round(agreement(delta, probed.delta, student_parsed=facts.parsed), _DIGITS)
