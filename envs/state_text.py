"""The present in words: what a prompt tells instead of the whole history."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts import State
from ..trajectory import Turn
from .classes import class_of

__all__ = ["plain_state_text", "state_text"]

_LAST = 2


def state_text(
    env_id: str, goal: str, history: Sequence[Turn], state: State, action: str | None = None
) -> str:
    """Return a belief as text for a prompt, as its environment words it.

    Args:
        env_id: The environment; one that is not registered gets `plain_state_text`.
        goal: The task in words.
        history: The turns so far.
        state: The belief of the present.
        action: If given, the text is for predicting what follows this action, and tells what matters
            for that; else it is for choosing an action.

    Example:
        >>> import comap
        >>> state = State(frozenset({("at", "agent", "desk 1"), ("exists", "desk 1"),
        ...                          ("exists", "bed 2"), ("seen", "desk 1")}))
        >>> print(state_text("comap/ALFWorld-v0", "put a pen in desk.", (), state))
        goal: put a pen in desk.
        held: nothing
        here: desk 1
        known: desk 1 has nothing
        new: bed 2
    """
    owner = class_of(env_id)
    tell = getattr(owner, "state_text", plain_state_text)
    text: str = tell(goal, history, state, action)
    return text


def plain_state_text(
    goal: str, history: Sequence[Turn], state: State, action: str | None = None
) -> str:
    """Return the goal, all facts and the last turns, for environments without words of their own.

    Example:
        >>> state = State(frozenset({("open", "box")}))
        >>> print(plain_state_text("Close it.", [Turn(None, "A box."), Turn("wait", "...")], state))
        goal: Close it.
        facts: open(box)
        last: wait -> ...
    """
    lines = [f"goal: {goal}", "facts: " + "; ".join(state.to_text().splitlines())]
    lines += [f"last: {t.action} -> {t.observation}" for t in history[1:][-_LAST:]]
    return "\n".join(lines)
