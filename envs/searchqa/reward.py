"""What an episode is worth: exact match, containment, F1, or Search-R1's reward with a format part."""

from __future__ import annotations

from collections.abc import Sequence

from ...trajectory import Turn
from .answers import contains_answer, exact_match, f1_score, sub_exact_match
from .protocol import ActionForm, Style, read_move, read_results

__all__ = ["REWARDS", "format_reward", "is_well_formed", "reward_of"]

REWARDS = ("em", "sub_em", "f1", "format")
"""The kinds of rewards, the default first."""


def reward_of(
    kind: str,
    answer: str | None,
    golden: Sequence[str],
    turns: Sequence[Turn] = (),
    form: ActionForm = "tags",
    style: Style = "search_r1",
    retrieval_score: float = 0.0,
) -> float:
    """Return what an episode is worth, 0 to 1.

    Args:
        kind: One of `REWARDS`.
        answer: The last answer that the policy gave, or None.
        golden: The answers that count as right.
        turns: The episode, for the kind ``format``.
        form: How its actions are written.
        style: Whose rules they follow.
        retrieval_score: See `format_reward`.

    Example:
        >>> reward_of("em", "Jane Austen", ["jane austen"]), reward_of("f1", "Austen", ["Jane Austen"])
        (1.0, 0.6666666666666666)
    """
    if kind == "format":
        formed = is_well_formed(turns, form, style)
        texts = [turn.observation for turn in turns if turn.action is not None]
        shown = (" ".join(one.text for one in read_results(text) or ()) for text in texts)
        useful = any(contains_answer(text, golden) for text in shown)
        return format_reward(answer, golden, formed, useful, retrieval_score)
    if answer is None:
        return 0.0
    if kind == "f1":
        return f1_score(answer, golden)
    return float((exact_match if kind == "em" else sub_exact_match)(answer, golden))


def format_reward(
    answer: str | None,
    golden: Sequence[str],
    formed: bool,
    useful: bool,
    retrieval_score: float = 0.0,
) -> float:
    """Return Search-R1's reward with a part for the form (env/searchqa.md 2.5).

    Right and formed 1, right only 0.8; formed 0.2, and `retrieval_score` more where a search showed a
    golden answer; else 0.1 where there is an answer.

    Args:
        answer: The answer, or None.
        golden: The answers that count as right.
        formed: Whether the episode kept the form.
        useful: Whether a golden answer stands in a passage that was shown.
        retrieval_score: What that is worth.

    Example:
        >>> format_reward("Emma", ["emma"], False, True), format_reward("x", ["emma"], True, True, 0.1)
        (0.8, 0.30000000000000004)
    """
    if answer is not None and exact_match(answer, golden):
        return 1.0 if formed else 0.8
    if formed:
        return 0.2 + (retrieval_score if useful else 0.0)
    return 0.1 if answer is not None else 0.0


def is_well_formed(
    turns: Sequence[Turn], form: ActionForm = "tags", style: Style = "search_r1"
) -> bool:
    """Return whether an episode is searches, each with results, and then one answer, all well formed.

    Example:
        >>> start = Turn(None, "Question: Who wrote Emma?")
        >>> is_well_formed([start, Turn("<answer>Jane Austen</answer>", "")])
        True
    """
    taken = [turn for turn in turns if turn.action is not None]
    moves = [read_move(turn.action or "", form, style) for turn in taken]
    if not moves or not all(move.formed for move in moves) or moves[-1].kind != "answer":
        return False
    return all(
        move.kind == "search" and read_results(turn.observation) is not None
        for move, turn in zip(moves[:-1], taken, strict=False)
    )
