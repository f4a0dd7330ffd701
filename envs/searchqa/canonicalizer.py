"""Search QA's canonicalizer: actions and results to belief facts and back, and beliefs in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...facts import Fact, State
from ...trajectory import Turn
from ..canon import collapse, names
from .protocol import (
    ACTIONS,
    ActionForm,
    Style,
    is_refusal,
    normalize_answer,
    read_move,
    read_results,
    refusal_of,
    write_results,
    written_answer,
    written_search,
)
from .retriever import Hit

_NAME = re.compile(
    r"[A-Z\u00c0-\u00de\u0100-\u017f][\w'’.-]*"
    r"(?:(?: (?:of|the|and|de|van|von|&))* [A-Z\u00c0-\u00de\u0100-\u017f0-9][\w'’.-]*)*"
)
_QUESTION_WORDS = frozenset(
    """
    a an are at by did do does for from had has have how if in is it of on the to was were what
    when where which who whom whose why with
    """.split()  # noqa: SIM905
)
_LONGEST = 20_000  # characters of a text that are looked through


def names_in(text: str) -> list[str]:
    """Return the names in a text, each once, in order; words that only begin a question are none."""
    found_names = []
    for match in _NAME.finditer(text[:_LONGEST]):
        words = match[0].rstrip(".'’-").split()
        # "Who" alone is no name; before a name it belongs to it, unless the text begins with it.
        while (
            words
            and words[0].lower() in _QUESTION_WORDS
            and (match.start() == 0 or len(words) == 1)
        ):
            words = words[1:]
        if words:
            found_names.append(" ".join(words).removesuffix("'s").removesuffix("’s"))
    return list(dict.fromkeys(found_names))


def asked(state: State) -> dict[str, int]:
    """Return the queries of an episode, each with the first turn that asked it."""
    queries = sorted((int(fact[1]), fact[2]) for fact in state.facts if _is(fact, "query", 3))
    # The last entry of a query counts, which, in reverse, is its first turn.
    return {words: turn for turn, words in reversed(queries)}


def hits_of(state: State, turn: int) -> list[str]:
    """Return the titles that a turn's search showed, best first."""
    ranked_titles = sorted(
        (int(fact[2]), fact[3])
        for fact in state.facts
        if _is(fact, "hit", 4) and fact[1] == str(turn) and fact[2].isdecimal()
    )
    return [title for _, title in ranked_titles]


def seen_titles(state: State) -> list[str]:
    """Return the titles that searches showed, sorted."""
    return sorted(fact[1] for fact in state.facts if _is(fact, "seen", 2) and len(fact) == 2)


def has_answered(state: State) -> bool:
    """Return whether the facts say that an answer was given."""
    return any(fact[0] == "answer" for fact in state.facts)


def suggested(question: str, state: State, form: ActionForm) -> tuple[str, ...]:
    """Return actions that make sense by question and belief alone; others are as welcome."""
    if has_answered(state) or ("turns_left", "0") in state.facts:
        return ()
    things: Sequence[str] = tuple(dict.fromkeys([*names_in(question), *seen_titles(state)]))
    searches = [written_search(query, form) for query in (question, *things)]
    answers = [written_answer(thing, form) for thing in things]
    return tuple(dict.fromkeys([*searches, *answers]))


def _is(fact: Fact, predicate: str, length: int) -> bool:
    """Return whether a fact is well formed and of a predicate; predicted beliefs may hold any."""
    return fact[0] == predicate and len(fact) == length and (length < 3 or fact[1].isdecimal())


_MOST_TURNS = 999


class SearchQACanonicalizer:
    r"""Folds searches, results and answers into a belief: see `comap.envs.searchqa.canonicalizer`.

    It reads results of both styles. An observation that is neither results nor a refusal nor empty
    fits no rule.

    Args:
        turns: How many turns an episode has.
        form: How actions are written.
        style: Whose rules actions follow, and how `describe` writes.

    Example:
        >>> canon = SearchQACanonicalizer()
        >>> state = canon.initial("Who wrote Emma?", "Question: Who wrote Emma?")
        >>> found = write_results([Hit("1", "Emma (novel)", "A novel by Jane Austen.", 1.0)])
        >>> print(canon.update(state, "<search>Emma</search>", found).to_text())
        hit(1, 1, emma \(novel\))
        new_docs(1, 1)
        query(1, emma)
        seen(emma \(novel\))
        turns_left(3)
        >>> canon.action("<think>Hm.</think><search> Emma </search>")
        '<search>emma</search>'
    """

    version = "searchqa-1"

    def __init__(self, turns: int = 4, form: ActionForm = "tags", style: Style = "search_r1"):
        self.turns = turns
        self.form = form
        self.style = style

    def initial(self, goal: str, observation: str) -> State:
        """Return how many turns there are."""
        return State(frozenset({("turns_left", str(self.turns))}))

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        if has_answered(state):
            return state

        move = read_move(action, self.form, self.style)
        passages = read_results(observation)
        turns_left = _turns_left(state)
        turn = str(max(self.turns - turns_left, 0) + 1)
        facts: set[Fact] = {fact for fact in state.facts if fact[0] != "turns_left"}
        facts.add(("turns_left", str(max(turns_left - 1, 0))))

        # Nothing follows an answer; in verl-agent's style nothing follows what is no action, either.
        if passages is None:
            if is_refusal(observation) or (not observation.strip() and not move.kind):
                return State(frozenset(facts | {("invalid", turn)}))
            if observation.strip() or move.kind != "answer":
                return State(state.facts, parsed=False)
            return State(frozenset(facts | {("answer", normalize_answer(move.text))}))

        if move.kind == "search":
            facts.add(("query", turn, _plain(move.text)))
        titles = [_plain(passage.title) for passage in passages]
        facts |= {("hit", turn, str(rank), title) for rank, title in enumerate(titles, 1)}
        before = {fact[1] for fact in state.facts if fact[0] == "seen"}
        facts |= {("seen", title) for title in titles}
        facts.add(("new_docs", turn, str(len(set(titles) - before))) if titles else ("empty", turn))
        return State(frozenset(facts))

    def action(self, text: str) -> str:
        """Return the canonical form of an action: lower case, single blanks; answers normalized."""
        move = read_move(text, self.form, self.style)
        if move.kind == "search":
            return written_search(_plain(move.text), self.form)
        if move.kind == "answer":
            return written_answer(normalize_answer(move.text), self.form)
        return collapse(text)

    def describe(self, before: State, action: str, after: State) -> str:
        """Return an observation from which `update` reads `after`; texts of passages are empty."""
        turn = max(self.turns - _turns_left(before), 0) + 1
        if ("invalid", str(turn)) in after.facts:
            return refusal_of(self.form, self.style)
        if has_answered(after):
            return ""
        titles = hits_of(after, turn)
        return write_results([Hit("", title, "", 0.0) for title in titles], self.style)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a search found what nobody could foresee: see `comap.envs.Revealer`.

        A query that the episode asked before repeats its list. A new one is foreseeable only where
        each title that it shows was named: by the question, the query or a text so far.
        """
        move = read_move(action, self.form, self.style)
        if move.kind != "search" or _plain(move.text) in asked(before):
            return False

        turn = max(self.turns - _turns_left(before), 0) + 1
        texts_so_far = _plain(
            "\n".join([goal, move.text, *(earlier.observation for earlier in history)])
        )
        return not all(names(texts_so_far, title) for title in hits_of(after, turn))


def _turns_left(state: State) -> int:
    """Return the turns left; 0 where the belief does not say."""
    for fact in state.facts:
        if fact[0] == "turns_left" and len(fact) == 2 and fact[1].isdecimal():
            # A predicted belief may have a number of any length.
            return min(int(fact[1][:4]), _MOST_TURNS)
    return 0


def _plain(text: str) -> str:
    """Return a text in lower case and with single blanks."""
    return " ".join(text.lower().split())


_LONGEST_SHOWN = 400


def narrate(goal: str, history: Sequence[Turn], state: State) -> str:
    """Return question, searches and what they showed, for choosing an action."""
    turns_left = next((fact[1] for fact in state.facts if fact[0] == "turns_left"), "?")
    lines = [f"question: {goal}", f"turns left: {turns_left}"]
    shown_before = set[tuple[str, str]]()
    for turn in history[1:]:
        passages = read_results(turn.observation)
        if passages is None:
            lines.append("refused: no search, no answer")
            continue

        # The form in which actions are written is not known here: one of them reads it.
        moves = (read_move(turn.action or "", form) for form in ACTIONS)
        query = next((move.text for move in moves if move.kind == "search"), "?")
        lines.append(f"searched: {query}")
        if not passages:
            lines.append("found: nothing")
        for passage in passages:
            text = "" if passage in shown_before else f": {passage.text[:_LONGEST_SHOWN]}"
            shown_before.add(passage)
            lines.append(f"found: {passage.title}{text}")
    return "\n".join(lines)


def narrate_scene(goal: str, history: Sequence[Turn], state: State, action: str) -> str:
    """Return what matters for predicting what an action will show: what was asked and seen."""
    queries = "; ".join(asked(state)) or "nothing"
    titles = "; ".join(seen_titles(state)) or "nothing"
    return f"question: {goal}\nasked: {queries}\nseen: {titles}"
