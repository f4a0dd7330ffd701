"""Predictions of searches scored in layers: protocol, redundancy, retrieval, usefulness.

What a passage says is knowledge of the world, not dynamics of the environment. So a world model is
asked four things apart (env/searchqa.md 2.8): does it know the rules; does it know whether a search
will bring anything new; does it know which passages will be shown; does it know whether they will be
of use. Golden answers are labels here: they are given to the scorer, and never to the world model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from ...facts import State
from ...trajectory import Turn
from ..canon import names
from .answers import contains_answer
from .canonicalizer import SearchQACanonicalizer
from .facts import PROTOCOL, asked, hits_of
from .names import names_in
from .protocol import read_move, read_results

__all__ = ["Foretold", "LayerReport", "copied_titles", "score_layers"]


@dataclass(frozen=True, slots=True)
class Foretold:
    """A prediction beside what followed.

    Attributes:
        goal: The question.
        history: The turns so far; the first has no action.
        state: The belief before the action.
        action: The action.
        predicted: The observation that was predicted.
        actual: The observation that followed.
        golden: The answers that count as right: for the label alone.
        titles: Titles of the passages that answer, where they are known: for the label alone.
        useful: The predicted probability that a passage of use is shown; None takes 1 or 0, as the
            predicted passages are of use or not.
        over: Whether the episode was predicted to end; None where that was not said.
    """

    goal: str
    history: tuple[Turn, ...]
    state: State
    action: str
    predicted: str
    actual: str
    golden: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    useful: float | None = None
    over: bool | None = None


@dataclass(frozen=True, slots=True)
class LayerReport:
    """Scores in layers; all shares from 0 to 1, None where nothing of the kind was there.

    Attributes:
        n: Number of predictions.
        searches: Number of those of which a search followed.
        protocol: Share whose protocol facts (turns, query, refusal, answer) are all right.
        done: Share of the predictions that say whether the episode ends that are right.
        form: Share of the searches whose predicted text is results.
        repeats: Share of the repeated queries whose list was predicted as it was before.
        redundancy: Share of the searches where it was right whether any new title is shown.
        title_f1: Mean F1 of predicted and shown titles over searches for the first time.
        title_recall: Mean share of shown titles that were predicted, over the same.
        copied_f1: The same F1 of the baseline that predicts the names in the query.
        named_recall: Of the shown titles that question, query or texts so far had named, the share that
            was predicted.
        bridge_recall: Of all others, which nobody could know from text, the share that was predicted.
        brier: Mean squared error of the probability that a passage of use is shown (0 is best).
        brier_base: The same of who always says the share of searches that are of use.
    """

    n: int
    searches: int
    protocol: float | None
    done: float | None
    form: float | None
    repeats: float | None
    redundancy: float | None
    title_f1: float | None
    title_recall: float | None
    copied_f1: float | None
    named_recall: float | None
    bridge_recall: float | None
    brier: float | None
    brier_base: float | None

    def __str__(self) -> str:
        told = ((part.name, getattr(self, part.name)) for part in fields(self))
        return ", ".join(
            f"{name} {value}" if isinstance(value, int) else f"{name} {value:.3f}"
            for name, value in told
            if value is not None
        )


def score_layers(
    predictions: Iterable[Foretold], canonicalizer: SearchQACanonicalizer | None = None
) -> LayerReport:
    """Return the scores of some predictions.

    Args:
        predictions: Predictions beside what followed.
        canonicalizer: The environment's; None for the default one.

    Example:
        >>> from comap.envs.searchqa.protocol import write_results
        >>> from comap.envs.searchqa.retriever import Hit
        >>> found = write_results([Hit("1", "Emma", "By Jane Austen.", 1.0)])
        >>> start = SearchQACanonicalizer().initial("Who wrote Emma?", "Question: Who wrote Emma?")
        >>> one = Foretold("Who wrote Emma?", (Turn(None, "Question: Who wrote Emma?"),), start,
        ...                "<search>Emma</search>", found, found, ("Jane Austen",))
        >>> report = score_layers([one])
        >>> report.protocol, report.title_f1, report.brier
        (1.0, 1.0, 0.0)
    """
    canon = canonicalizer or SearchQACanonicalizer()
    tally = _Tally()
    for one in predictions:
        tally.add(one, canon)
    return tally.report()


def copied_titles(query: str) -> list[str]:
    """Return the titles that who only copies names from a query would predict, in lower case.

    Example:
        >>> copied_titles("Who directed Polish-Russian War?")
        ['polish-russian war']
    """
    found = [name.lower() for name in names_in(query)]
    return found or [" ".join(query.lower().split())]


class _Tally:
    """Collects the values that means are taken of."""

    def __init__(self) -> None:
        self.n = self.searches = 0
        self.values: dict[str, list[float]] = {}
        self.chances: list[tuple[float, bool]] = []

    def add(self, one: Foretold, canon: SearchQACanonicalizer) -> None:
        """Count one prediction."""
        before = one.state
        actual = canon.update(before, one.action, one.actual)
        predicted = canon.update(before, one.action, one.predicted)
        self.n += 1
        self._note("protocol", float(_rules(predicted) == _rules(actual) and predicted.parsed))
        move = read_move(one.action, canon.form, canon.style)
        if one.over is not None:
            ends = move.kind == "answer" or ("turns_left", "0") in actual.facts
            self._note("done", float(one.over == ends))
        shown, expected = read_results(one.actual), read_results(one.predicted)
        if move.kind != "search" or shown is None:
            return
        self.searches += 1
        self._note("form", float(expected is not None))
        turn = next(iter(_turn_of(before, actual)), 0)
        titles, guessed = hits_of(actual, turn), hits_of(predicted, turn)
        query = " ".join(move.text.lower().split())
        self._note("redundancy", float(_is_new(titles, before) == _is_new(guessed, before)))
        if query in asked(before):
            self._note("repeats", float(guessed == hits_of(before, asked(before)[query])))
        else:
            self._identity(one, query, move.text, titles, guessed)
        self._use(one, [text.text for text in shown], titles, expected, guessed)

    def _identity(
        self, one: Foretold, query: str, written: str, titles: Sequence[str], guessed: Sequence[str]
    ) -> None:
        """Count which titles were predicted, those that were named and those that were not apart."""
        self._note("title_f1", _set_f1(guessed, titles))
        self._note("copied_f1", _set_f1(copied_titles(written), titles))
        if titles:
            self._note("title_recall", len(set(titles) & set(guessed)) / len(set(titles)))
        told = "\n".join([one.goal, query, *(turn.observation for turn in one.history)]).lower()
        for title in dict.fromkeys(titles):
            kind = "named_recall" if names(" ".join(told.split()), title) else "bridge_recall"
            self._note(kind, float(title in guessed))

    def _use(
        self,
        one: Foretold,
        texts: Sequence[str],
        titles: Sequence[str],
        expected: Sequence[tuple[str, str]] | None,
        guessed: Sequence[str],
    ) -> None:
        """Count the probability that a passage of use is shown, beside whether one was."""
        if not (one.golden or one.titles):
            return
        chance = one.useful
        if chance is None:
            said = [text for _, text in expected or ()]
            chance = float(_useful(one, said, guessed))
        self.chances.append((chance, _useful(one, texts, titles)))

    def _note(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def report(self) -> LayerReport:
        """Return the means."""
        means = {name: sum(found) / len(found) for name, found in self.values.items()}
        names_of_means = [part.name for part in fields(LayerReport)][2:]
        told: dict[str, float | None] = {name: means.get(name) for name in names_of_means}
        if self.chances:
            share = sum(truth for _, truth in self.chances) / len(self.chances)
            errors = [(chance - truth) ** 2 for chance, truth in self.chances]
            told["brier"] = sum(errors) / len(errors)
            told["brier_base"] = share * (1 - share)
        return LayerReport(self.n, self.searches, **told)


def _rules(state: State) -> frozenset[tuple[str, ...]]:
    return frozenset(fact for fact in state.facts if fact[0] in PROTOCOL)


def _turn_of(before: State, after: State) -> Iterable[int]:
    """Yield the turn that an action was."""
    for fact in after.facts - before.facts:
        if fact[0] in ("query", "hit", "empty") and fact[1].isdecimal():
            yield int(fact[1])


def _is_new(titles: Sequence[str], before: State) -> bool:
    return any(("seen", title) not in before.facts for title in titles)


def _set_f1(guessed: Sequence[str], titles: Sequence[str]) -> float:
    one, other = set(guessed), set(titles)
    return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0


def _useful(one: Foretold, texts: Sequence[str], titles: Sequence[str]) -> bool:
    """Return whether passages are of use: one of the right title, or one with a golden answer."""
    wanted = {" ".join(title.lower().split()) for title in one.titles}
    if wanted:
        return not wanted.isdisjoint(titles)
    return any(contains_answer(text, one.golden) for text in texts)
