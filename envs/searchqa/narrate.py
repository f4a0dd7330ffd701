"""A belief in few words, for prompts."""

from __future__ import annotations

from collections.abc import Sequence

from ...facts import State
from ...trajectory import Turn
from .facts import asked, seen_titles
from .protocol import read_move, read_results

__all__ = ["narrate", "narrate_scene"]

_LONGEST = 400


def narrate(goal: str, history: Sequence[Turn], state: State) -> str:
    """Return question, searches and what they showed, for choosing an action.

    A passage is told once, where it was shown first.

    Args:
        goal: The question.
        history: The turns so far.
        state: The belief.

    Example:
        >>> print(narrate("Who wrote Emma?", [], State(frozenset({("turns_left", "4")}))))
        question: Who wrote Emma?
        turns left: 4
    """
    lines = [f"question: {goal}", _left(state)]
    told = set[tuple[str, str]]()
    for turn in history[1:]:
        shown = read_results(turn.observation)
        lines.append(f"searched: {_sought(turn.action or '')}")
        if shown is None:
            lines[-1] = "refused: no search, no answer"
        elif not shown:
            lines.append("found: nothing")
        for one in shown or ():
            again = one in told
            told.add(one)
            lines.append(f"found: {one.title}" + ("" if again else f": {one.text[:_LONGEST]}"))
    return "\n".join(lines)


def narrate_scene(goal: str, history: Sequence[Turn], state: State, action: str) -> str:
    """Return what matters for predicting what an action will show: what was asked and seen.

    Args:
        goal: The question.
        history: The turns so far.
        state: The belief.
        action: The action.

    Example:
        >>> print(narrate_scene("Who wrote Emma?", [], State(), "<search>Emma</search>"))
        question: Who wrote Emma?
        asked: nothing
        seen: nothing
    """
    titles, queries = seen_titles(state), asked(state)
    return "\n".join(
        [
            f"question: {goal}",
            f"asked: {'; '.join(queries) or 'nothing'}",
            f"seen: {'; '.join(titles) or 'nothing'}",
        ]
    )


def _left(state: State) -> str:
    left = next((fact[1] for fact in state.facts if fact[0] == "turns_left"), "?")
    return f"turns left: {left}"


def _sought(action: str) -> str:
    for form in ("tags", "react"):
        move = read_move(action, form)
        if move.kind == "search":
            return move.text
    return "?"
