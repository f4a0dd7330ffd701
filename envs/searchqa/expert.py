"""Experts: one that knows how a question is taken apart, one that knows only what it read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...trajectory import Turn
from .answers import normalize_answer
from .names import names_in
from .protocol import ActionForm, Shown, read_move, read_results, written_answer, written_search
from .questions import Question
from .quiz import told_by, unravel

__all__ = ["explore", "plan"]


def plan(question: Question, turns: Sequence[Turn], left: int, form: ActionForm) -> str:
    """Return the next action of an expert that knows decomposition and answer.

    It searches hop by hop until the passage of each hop was shown, and answers when all were, or when
    one turn is left.

    Args:
        question: The question.
        turns: The episode so far.
        left: Turns left.
        form: How actions are written.

    Example:
        >>> plan(Question("1", "Who wrote Emma?", ("Jane Austen",)), [Turn(None, "")], 4, "tags")
        '<search>Who wrote Emma?</search>'
    """
    asked, shown = _so_far(turns, form)
    if left > 1:
        seen = {one.title.lower() for one in shown}
        for query, title in _wanted(question):
            if title.lower() not in seen or not title:
                choices = (query, title) if title else (query,)
                fresh = next((one for one in choices if one.lower() not in asked), None)
                if fresh is not None:
                    return written_search(fresh, form)
    return written_answer(question.golden[0], form)


def explore(question: str, turns: Sequence[Turn], left: int, form: ActionForm) -> str:
    """Return the next action of an expert that knows the question and what was shown.

    It reads the articles of generated encyclopedias, hop by hop. In any other text it searches for the
    question and for a name in it, and answers with the name that most passages have.

    Args:
        question: The question.
        turns: The episode so far.
        left: Turns left.
        form: How actions are written.

    Example:
        >>> explore("Who wrote The Iron Key?", [Turn(None, "")], 4, "react")
        'search[Who wrote The Iron Key?]'
    """
    asked, shown = _so_far(turns, form)
    taken_apart = unravel(question)
    if taken_apart is None:
        return _browse(question, asked, shown, left, form)
    thing, chain = taken_apart
    for relation in chain:
        article = next((one for one in shown if one.title == thing), None)
        told = None if article is None else told_by(article.text, thing, relation)
        if told is None:
            query = _question_of(relation, thing)
            fresh = next((one for one in (query, thing) if one.lower() not in asked), None)
            if left <= 1 or fresh is None:
                return _browse(question, asked, shown, 1, form)
            return written_search(fresh, form)
        thing = told
    return written_answer(thing, form)


def _browse(
    question: str, asked: set[str], shown: Sequence[Shown], left: int, form: ActionForm
) -> str:
    """Return what to do with a question of which no form is known."""
    if left > 1:
        for query in (question, *names_in(question)[:1]):
            if query.lower() not in asked:
                return written_search(query, form)
    said = f" {normalize_answer(question)} "
    counts: Counter[str] = Counter()
    for one in shown:
        counts.update({one.title, *names_in(one.text)})
    fitting = [name for name in counts if f" {normalize_answer(name)} " not in said]
    return written_answer(
        min(fitting, key=lambda name: (-counts[name], name), default="unknown"), form
    )


def _wanted(question: Question) -> list[tuple[str, str]]:
    """Return queries with the titles that they shall find, as far as these are known."""
    if question.hops:
        return [(hop.question, hop.title) for hop in question.hops]
    if question.titles:
        return [(title, title) for title in dict.fromkeys(question.titles)]
    return [(question.text, "")]


def _question_of(relation: str, thing: str) -> str:
    from .encyclopedia import lexicon

    wording: str = lexicon()["relations"][relation]["questions"][0]
    return wording.format(s=thing)


def _so_far(turns: Sequence[Turn], form: ActionForm) -> tuple[set[str], list[Shown]]:
    """Return the queries so far, lower case, and the passages that were shown."""
    asked, shown = set(), list[Shown]()
    for turn in turns:
        move = read_move(turn.action or "", form)
        if move.kind == "search":
            asked.add(move.text.lower())
        shown += read_results(turn.observation) or ()
    return asked, shown
