"""What turns text into facts.

A canonicalizer sees only what an agent sees, the goal, the actions and the observations, and folds
them into a belief `State`. It never asks the engine, so real and predicted observations go through
exactly the same code.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..facts import State

__all__ = ["Canonicalizer", "Describer", "collapse"]


@runtime_checkable
class Canonicalizer(Protocol):
    """Folds the text of an episode into a belief.

    Every method is a total function: any text is allowed, none raises. `version` names the fact
    schema and is part of the environment's fingerprint.
    """

    version: str

    def initial(self, goal: str, observation: str) -> State:
        """Return what the goal and the first observation say."""
        ...

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`.

        Text that fits no rule leaves the facts as they were and sets ``parsed=False``.
        """
        ...

    def action(self, text: str) -> str:
        """Return the canonical form of an action, for comparing actions (``Canon(a)``)."""
        ...


@runtime_checkable
class Describer(Protocol):
    """A canonicalizer that can also put facts into the environment's words.

    World models that predict facts, not text, use it to answer in text.
    """

    def describe(self, before: State, action: str, after: State) -> str:
        """Return an observation from which `Canonicalizer.update` reads `after`.

        Args:
            before: The belief before the action.
            action: The action, as the agent wrote it.
            after: The belief that the observation shall lead to.
        """
        ...


def collapse(text: str) -> str:
    """Return `text` in lower case, with single blanks and without a final period.

    Example:
        >>> collapse("  Go to  the fridge. ")
        'go to the fridge'
    """
    return " ".join(text.lower().split()).rstrip(".").rstrip()
