"""What environments tell: of a step, of what an engine says, and of a moment to go back to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from ..facts import Delta, State
from ..trajectory import Turn

__all__ = ["Info", "Outcome", "Snapshot"]


class _Fault(TypedDict, total=False):
    error: str


class Info(_Fault):
    """What `reset` and `step` tell beside the observation; the same keys in both.

    Attributes:
        task: The task's id.
        split: The split that the task is from.
        goal: The task in words.
        admissible_actions: All actions that would do something now, or None where any text may.
        facts: The belief: what follows from the goal and the observations so far.
        delta: What the last action changed in the belief.
        score: Progress, 0 to 1; each environment says how it counts.
        success: Whether the task is solved.
        invalid_action: Whether the environment refused the last action.
        step: Number of actions taken in this episode.
        imagined: Whether the observation was predicted by a world model.
        error: Only after a fault: its type and message.
    """

    task: str
    split: str
    goal: str
    admissible_actions: tuple[str, ...] | None
    facts: State
    delta: Delta
    score: float
    success: bool
    invalid_action: bool
    step: int
    imagined: bool


class Outcome(NamedTuple):
    """What an engine says of one step.

    Attributes:
        observation: The text for the agent.
        reward: The reward of this step.
        score: Progress so far, 0 to 1.
        success: Whether the task is solved now.
        terminated: Whether the episode is over by the environment's own rules.
        invalid: Whether the action was refused.
        admissible: The actions that would do something now, or None.
    """

    observation: str
    reward: float = 0.0
    score: float = 0.0
    success: bool = False
    terminated: bool = False
    invalid: bool = False
    admissible: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of one episode; picklable, and valid in any process that has the same data.

    Attributes:
        env_id: The environment's id.
        settings: What must agree for the snapshot to fit: engine, dialect and the like.
        task: The task's id.
        step: Number of actions taken.
        running: Whether the episode could go on.
        history: The turns so far, the start included.
        facts: The belief of that moment.
        delta: The belief's last change.
        outcome: The engine's last word.
        engine: The engine's own state; its form is the engine's affair.
    """

    env_id: str
    settings: tuple[tuple[str, str], ...]
    task: str
    step: int
    running: bool
    history: tuple[Turn, ...]
    facts: State
    delta: Delta
    outcome: Outcome
    engine: Any
