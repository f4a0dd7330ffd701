"""The states in which a policy was asked for a draft, as a `DraftingAgent`'s episodes tell them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..envs import canonical_action
from ..errors import DataCorrupt
from ..trajectory import Step, Trajectory
from .suffix_play import Branch

__all__ = ["Drafted", "drafted_states"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """A state of an expert, and what the policy would have done there.

    Attributes:
        env_id: The environment.
        task: The task's id.
        prefix: The actions before.
        draft_action: The drafted action.
        draft_response: The policy's reply with the draft in it.
        parsed: Whether an action could be read from that.
        predicted: What a world model said would follow the draft; None where none was asked.
        expert_action: What the expert did.
        observation: What followed that.
        failed: Whether the environment broke at that.

    Example:
        >>> state = Drafted(
        ...     env_id="comap/ALFWorld-v0", task="a", prefix=("look",), draft_action="Look.",
        ...     draft_response="Action: Look.", parsed=True, predicted=None, expert_action="look",
        ...     observation="A room.", failed=False)
        >>> state.same, state.branch("look", 0).prefix
        (True, ('look',))
    """

    env_id: str
    task: str
    prefix: tuple[str, ...]
    draft_action: str
    draft_response: str
    parsed: bool
    predicted: str | None
    expert_action: str
    observation: str
    failed: bool

    @property
    def same(self) -> bool:
        """Whether the draft means the expert's action."""
        draft, expert = self.draft_action, self.expert_action
        return canonical_action(self.env_id, draft) == canonical_action(self.env_id, expert)

    def branch(self, action: str, seed: int) -> Branch:
        """Return the branch that takes an action here."""
        return Branch(self.task, self.prefix, action, seed)


def drafted_states(trajectories: Iterable[Trajectory]) -> Iterator[Drafted]:
    """Yield the states in which the policy was asked for a draft.

    Args:
        trajectories: Episodes of a `DraftingAgent`.

    Raises:
        DataCorrupt: A draft's notes are not what they should be.

    Example:
        >>> list(drafted_states([]))
        []
    """
    for trajectory in trajectories:
        actions = tuple(step.action for step in trajectory.steps)
        for number, step in enumerate(trajectory.steps):
            if "draft_parsed" not in step.notes:
                continue
            silent = step.notes.get("predicted_next_state") is None
            yield Drafted(
                env_id=trajectory.env_id,
                task=trajectory.task,
                prefix=actions[:number],
                draft_action=_text(step, "draft_action"),
                draft_response=_text(step, "draft_response"),
                parsed=step.notes["draft_parsed"] is True,
                predicted=None if silent else _text(step, "predicted_next_state"),
                expert_action=step.action,
                observation=step.observation,
                failed=trajectory.error is not None and step.truncated,
            )


def _text(step: Step, name: str) -> str:
    value: Any = step.notes.get(name)
    if not isinstance(value, str):
        raise DataCorrupt(
            f"expected a text in the note {name!r} of step {step.t}, found {value!r:.80}; give "
            "episodes of a DraftingAgent"
        )
    return value
