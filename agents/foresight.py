"""Looking ahead: the view after imagined steps, foresight in words, and actions brought home."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from ..trajectory import Turn
from ..worldmodel import Imagined
from .acting import draft_action
from .base import Imagine, Reply, Request, View
from .config import AgentConfig
from .prompting import converse, cut_text

__all__ = [
    "canonical",
    "ended",
    "listed_actions",
    "matching_action",
    "roll_out",
    "told_steps",
    "view_after",
]


def view_after(view: View, steps: Sequence[Imagined]) -> View:
    """Return what an agent would see after imagined steps.

    The number of the step stays the real one: nothing was done.

    Example:
        >>> from comap.facts import State
        >>> view = View("id", "task", "goal", (Turn(None, "Hello."),), State(), ("wait",), 0, str)
        >>> view_after(view, ()) is view
        True
    """
    if not steps:
        return view
    turns = tuple(Turn(step.action, step.observation) for step in steps)
    last = steps[-1]
    return replace(
        view,
        history=view.history + turns,
        facts=last.facts,
        admissible_actions=last.admissible_actions,
    )


def ended(step: Imagined) -> bool:
    """Return whether nothing follows an imagined step: the goal is reached, or the model says so."""
    return bool(step.goal_reached) or bool(step.prediction.terminated)


def roll_out(
    view: View,
    config: AgentConfig,
    steps: int,
    *,
    start: Sequence[Imagined] = (),
    replies: dict[int, str] | None = None,
    purpose: str = "foresight",
) -> Generator[Request, Reply, list[Imagined]]:
    """Imagine steps of the agent's own policy: draft an action, ask what follows, and so on.

    The policy is greedy. The rollout stops early where the episode would end.

    Args:
        view: The present.
        config: How to draft.
        steps: How many steps to imagine.
        start: Steps that are imagined already; they come first in what is returned.
        replies: What the agent said in earlier turns, by step.
        purpose: What it is for.
    """
    greedy = replace(config, temperature=0.0)
    path = list(start)
    while steps > 0 and not (path and ended(path[-1])):
        steps -= 1
        there = view_after(view, path)
        name = f"{purpose}: action {len(path) + 1}"
        draft = yield from draft_action(there, greedy, converse(there, greedy, replies), name)
        imagined: Imagined = yield Imagine(draft.action, tuple(path))
        path.append(imagined)
    return path


def told_steps(steps: Sequence[Imagined], view: View, budget: int) -> str:
    """Return imagined steps in words, a pair of lines each; each gets an equal part of the budget.

    Args:
        steps: The steps.
        view: Counts tokens.
        budget: The most tokens of the whole.
    """
    room = max(budget // max(len(steps), 1), 16)
    lines = []
    for number, step in enumerate(steps, 1):
        lines.append(f"{number}. {cut_text(step.action, room // 2, view.count_tokens)}")
        said = cut_text(step.observation, room, view.count_tokens) or "(nothing is said)"
        lines.append(f"   {said}")
    return "\n".join(lines)


def listed_actions(view: View, budget: int) -> str:
    """Return the admissible actions, one a line, the first that fit; empty where there are none.

    Example:
        >>> from comap.facts import State
        >>> view = View("id", "task", "goal", (), State(), ("look", "wait"), 0, str)
        >>> print(listed_actions(view, 100))
        look
        wait
    """
    actions = view.admissible_actions or ()
    if view.count_tokens("\n".join(actions)) <= budget:
        return "\n".join(actions)
    kept: list[str] = []
    for action in actions:
        budget -= view.count_tokens(f"{action}\n")
        if budget < 0:
            break
        kept.append(action)
    return "\n".join(kept)


def matching_action(action: str, admissible: Sequence[str] | None, least: float) -> tuple[str, str]:
    """Return the admissible action that was meant, and how it was found (METHODS.md 3, ITP).

    Tried in this order: the same text (``"exact"``), the same but for case and blanks (``"case"``),
    the most similar one if it is similar enough (``"fuzzy"``), the first one (``"first"``).

    Args:
        action: What the model wrote.
        admissible: The actions; None or empty for an open action space (``"open"``).
        least: The least similarity of a fuzzy match, 0 to 1.

    Example:
        >>> matching_action("take the pen 1", ["look", "take pen 1"], 0.72)
        ('take pen 1', 'fuzzy')
    """
    if not admissible:
        return action, "open"
    if action in admissible:
        return action, "exact"
    plain = canonical(action)
    for known in admissible:
        if canonical(known) == plain:
            return known, "case"
    from rapidfuzz import fuzz

    scores = [fuzz.ratio(plain, canonical(known)) / 100 for known in admissible]
    best = max(range(len(scores)), key=lambda i: (scores[i], -i))
    return (admissible[best], "fuzzy") if scores[best] >= least else (admissible[0], "first")


def canonical(action: str) -> str:
    """Return an action in lower case with single blanks, for comparing what models wrote.

    Example:
        >>> canonical(" Go  to Desk 1 ")
        'go to desk 1'
    """
    return " ".join(action.split()).casefold()
