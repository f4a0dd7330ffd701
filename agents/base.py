"""What an agent is: written once, as a generator of requests, for real and imagined environments."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..facts import State
from ..trajectory import Turn
from ..worldmodel import Imagined

__all__ = ["Agent", "Decision", "Imagine", "Reply", "Request", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """What an agent sees when it decides.

    Attributes:
        env_id: The environment.
        task: The task's id; for seeding, it tells nothing of the solution.
        goal: The task in words.
        history: The turns so far; the last one's observation is the present.
        facts: The belief.
        admissible_actions: The actions that would do something now, or None.
        step: Number of actions taken.
        expert_action: Asks the environment's expert for the next action; only experts use it.
    """

    env_id: str
    task: str
    goal: str
    history: tuple[Turn, ...]
    facts: State
    admissible_actions: tuple[str, ...] | None
    step: int
    expert_action: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Imagine:
    """A request: what would follow this action? The reply is an `Imagined`."""

    action: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What an agent decided.

    Attributes:
        action: The action to take, or None to give the episode up.
        imagined: What a world model said of this action, if it was asked; kept in the trajectory.
    """

    action: str | None
    imagined: Imagined | None = None


Request: TypeAlias = "Imagine | list[Imagine]"
"""What an agent may yield. (Requests to language models join these.)"""

Reply: TypeAlias = Any
"""What comes back: an `Imagined` for an `Imagine`, a list of replies for a list."""


class Agent(Protocol):
    """Decides on actions; `name` tells it in results."""

    name: str

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Yield requests, receive their replies, and return the decision."""
        ...
