"""The facts of search QA: their names, and what follows from them.

====================== =====================================================================
fact                   meaning
====================== =====================================================================
turns_left(n)          so many turns are left
query(i, words)        turn i searched for these words (lower case, single blanks)
hit(i, rank, title)    that search showed a passage of this title at this rank
seen(title)            a passage of this title was shown
new_docs(i, n)         so many of the titles of turn i had not been shown before
empty(i)               the search of turn i found nothing
invalid(i)             turn i was no action
answer(words)          the answer, normalised as it is scored; the episode is over
====================== =====================================================================

Observations show titles, not ids: a title is what names a passage, and several passages of one title
count as one. Texts of passages are knowledge, not dynamics, and are no facts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...facts import Fact, State
from .names import names_in
from .protocol import ActionForm, written_answer, written_search

__all__ = ["PROTOCOL", "RETRIEVAL", "asked", "has_answered", "hits_of", "seen_titles", "suggested"]

PROTOCOL = ("turns_left", "query", "invalid", "answer")
"""Predicates of the protocol: they follow from the action alone."""

RETRIEVAL = ("hit", "seen", "new_docs", "empty")
"""Predicates that the index decides."""


def asked(state: State) -> dict[str, int]:
    """Return the queries of an episode, each with the first turn that asked it.

    Example:
        >>> asked(State(frozenset({("query", "2", "emma"), ("query", "1", "emma")})))
        {'emma': 1}
    """
    found = sorted((int(fact[1]), fact[2]) for fact in state.facts if _is(fact, "query", 3))
    return {words: turn for turn, words in reversed(found)}


def hits_of(state: State, turn: int) -> list[str]:
    """Return the titles that a turn's search showed, best first.

    Example:
        >>> hits_of(State(frozenset({("hit", "1", "2", "b"), ("hit", "1", "1", "a")})), 1)
        ['a', 'b']
    """
    found = sorted(
        (int(fact[2]), fact[3])
        for fact in state.facts
        if _is(fact, "hit", 4) and fact[1] == str(turn) and fact[2].isdecimal()
    )
    return [title for _, title in found]


def seen_titles(state: State) -> list[str]:
    """Return all titles that were shown, in alphabetical order.

    Example:
        >>> seen_titles(State(frozenset({("seen", "emma")})))
        ['emma']
    """
    return sorted(fact[1] for fact in state.facts if _is(fact, "seen", 2) and len(fact) == 2)


def has_answered(state: State) -> bool:
    """Return whether the answer was given.

    Example:
        >>> has_answered(State(frozenset({("answer", "jane austen")})))
        True
    """
    return any(fact[0] == "answer" for fact in state.facts)


def suggested(question: str, state: State, form: ActionForm) -> tuple[str, ...]:
    """Return actions that make sense by question and belief alone; others are as welcome.

    Searches for the question, for names in it and for titles that were shown; answers that are such
    titles or names.

    Example:
        >>> suggested("Who wrote Emma?", State(), "react")
        ('search[Who wrote Emma?]', 'search[Emma]', 'finish[Emma]')
    """
    if has_answered(state) or ("turns_left", "0") in state.facts:
        return ()
    things: Sequence[str] = tuple(dict.fromkeys([*names_in(question), *seen_titles(state)]))
    searches = [written_search(query, form) for query in (question, *things)]
    return tuple(dict.fromkeys([*searches, *(written_answer(thing, form) for thing in things)]))


def _is(fact: Fact, predicate: str, length: int) -> bool:
    return fact[0] == predicate and len(fact) == length and (length < 3 or fact[1].isdecimal())
