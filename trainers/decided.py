"""One decision of CoMap, read with care from the notes of a trajectory's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..agents.acting import Draft
from ..agents.convert_rows import number_of, text_of, value_of
from ..agents.parsing import parse_action
from ..envs import canonical_action
from ..trajectory import Step, Trajectory

__all__ = ["Decided"]


@dataclass(frozen=True, slots=True)
class Decided:
    """What a policy drafted and reflected at one step (METHODS.md 1.0.1, StepRecord).

    Attributes:
        path: How the decision was made: see `comap.agents.comap_record.step_notes`.
        draft: The draft.
        ref_action: The reflected action; None where there is none.
        analysis: The reflection itself, the policy's own words; empty where there is none.
        changed: Whether draft and reflected action mean different actions.
        gate: Whether the action gate opened.
        context: The future that the reflection was shown; empty where it was shown none.
        agreement: r, how far student and teacher agree, 0 to 1; None where it was not measured.
        shown: The reply as later prompts show it; empty where it is not noted.
        answer: What the environment answered to the draft: of the probe, or of the step itself where
            the draft was taken; None where it is not known.
        where: How to call the step in a message.
    """

    path: str
    draft: Draft
    ref_action: str | None
    analysis: str
    changed: bool
    gate: bool
    context: str
    agreement: float | None
    shown: str
    answer: Mapping[str, Any] | None
    where: str

    @classmethod
    def of(cls, trajectory: Trajectory, step: Step) -> Decided | None:
        """Read a step's notes; None where no agent of CoMap's noted a decision.

        Args:
            trajectory: The episode.
            step: One of its steps.

        Raises:
            DataCorrupt: A note is missing or of another kind; the message says which and where.

        Example:
            >>> from comap.facts import Delta, State
            >>> step = Step(1, "look", "A room.", 0.0, False, False, False, State(), Delta())
            >>> whole = Trajectory("id", "task", "train", "goal", "random", "Hello.", State(), (step,))
            >>> Decided.of(whole, step) is None
            True
        """
        notes, where = step.notes, f"task {trajectory.task!r:.80}, step {step.t}"
        if "path" not in notes or "draft_action" not in notes:
            return None
        draft = Draft(
            text_of(notes, "draft_response", where),
            text_of(notes, "draft_action", where),
            value_of(notes, "draft_parsed", where, bool, False),
            text_of(notes, "decoding", where, "free"),
        )
        revised: str | None = value_of(notes, "ref_action", where, str, None)
        agreement = None
        if notes.get("agreement") is not None:
            agreement = number_of(notes, "agreement", where)
        return cls(
            text_of(notes, "path", where),
            draft,
            revised,
            text_of(notes, "reflection_text", where, ""),
            revised is not None
            and canonical_action(trajectory.env_id, revised)
            != canonical_action(trajectory.env_id, draft.action),
            value_of(notes, "gate", where, bool, False),
            _context(notes, where),
            agreement,
            text_of(notes, "shown", where, ""),
            _answer(step, draft, where),
            where,
        )

    @property
    def reflected(self) -> bool:
        """Whether a draft and a reflected action can both be read."""
        return self.path == "reflected" and self.draft.parsed and self.ref_action is not None

    def reply_with(self, action: str) -> str:
        """Return a draft's reply with this action: the one that was shown, if it has it.

        Args:
            action: The action.
        """
        return self.shown if parse_action(self.shown) == action else f"Action: {action}"


def _context(notes: Mapping[str, Any], where: str) -> str:
    """Return what the reflection was shown; at inference that is the prediction."""
    if notes.get("context_source") == "none":
        return ""
    predicted = text_of(notes, "predicted_next_state", where, "")
    return text_of(notes, "context", where, predicted)


def _answer(step: Step, draft: Draft, where: str) -> Mapping[str, Any] | None:
    probed: Mapping[str, Any] | None = value_of(step.notes, "env_next_of_draft", where, dict, None)
    if probed is not None or draft.action != step.action:
        return probed
    names = ("observation", "reward", "terminated", "truncated", "success")
    return {name: getattr(step, name) for name in names}
