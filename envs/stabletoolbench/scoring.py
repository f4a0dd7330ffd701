"""Scores of attempts: SoPR and SoWR by judges, and what the calls alone tell."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import LanguageModelError, OptionError
from ...metrics import Rate, wilson
from .attempts import Attempt
from .calls import parse_call
from .checking import Checker, coerced
from .functions import FINISH, Offer, offers
from .judges import VERDICTS, Comparing, Judge, LMJudge, Verdict

__all__ = ["PassReport", "ProcessReport", "WinReport", "pass_rate", "process_report", "win_rate"]


@dataclass(frozen=True, slots=True)
class PassReport:
    """Solvable pass rate (SoPR).

    Attributes:
        mean: Mean over runs of the mean over queries: solved 1, unsure 0.5, unsolved 0.
        std: Standard deviation of the runs' means (of the population; 0 for one run).
        runs: The mean of each run.
        verdicts: By query, one for each run; None where the judge failed.
        failures: How many verdicts were not to be had; they count in no mean.
        judge: The judge's name.
        prompt_sha256: SHA-256 of its prompts; empty where it has none.
        n: How many queries.
        interval: `mean` with its interval, over the queries that have a verdict: runs of one query are
            not independent.
    """

    mean: float
    std: float
    runs: tuple[float, ...]
    verdicts: Mapping[str, tuple[Verdict | None, ...]]
    failures: int
    judge: str
    prompt_sha256: str
    n: int

    @property
    def interval(self) -> Rate:
        """See above."""
        judged = sum(any(said is not None for said in row) for row in self.verdicts.values())
        return wilson(min(self.mean, 1.0), judged)


def pass_rate(attempts: Mapping[str, Attempt], judge: Judge, runs: int = 3) -> PassReport:
    """Return the solvable pass rate.

    An attempt without ``Finish``, with an empty answer or that gave up is unsolved; no judge is asked.

    Args:
        attempts: By query.
        judge: Who judges final answers.
        runs: How often each is judged.

    Raises:
        OptionError: There is no attempt, or less than one run, or the judge says what is no verdict.

    Example:
        >>> from comap.envs.stabletoolbench.judges import CallableJudge
        >>> judge = CallableJudge(lambda attempt, run: ("solved", "unsure")[run], "two minds")
        >>> tried = {"1": Attempt("1", "?", (), "give_answer", "7"), "2": Attempt("2", "?", ())}
        >>> report = pass_rate(tried, judge, runs=2)
        >>> report.mean, report.std, report.verdicts["2"]
        (0.375, 0.125, ('unsolved', 'unsolved'))
    """
    if not attempts or type(runs) is not int or runs < 1:
        raise OptionError(
            f"expected attempts and at least one run, found {len(attempts)} and {runs!r}"
        )
    verdicts = _verdicts(attempts, judge, runs)
    means = []
    for run in range(runs):
        values = [VERDICTS[said] for row in verdicts.values() if (said := row[run]) is not None]
        if values:
            means.append(statistics.fmean(values))
    failures = sum(said is None for row in verdicts.values() for said in row)
    return PassReport(
        statistics.fmean(means) if means else 0.0,
        statistics.pstdev(means) if means else 0.0,
        tuple(means),
        verdicts,
        failures,
        judge.name,
        judge.prompt_sha256,
        len(attempts),
    )


def _verdicts(
    attempts: Mapping[str, Attempt], judge: Judge, runs: int
) -> dict[str, tuple[Verdict | None, ...]]:
    """Return the verdict on each attempt in each run; None where the judge failed."""
    judged = [
        attempt
        for attempt in attempts.values()
        if attempt.finish == "give_answer" and attempt.answer.strip()
    ]
    pairs = [(attempt, run) for attempt in judged for run in range(runs)]
    found: list[Verdict | LanguageModelError]
    if isinstance(judge, LMJudge):
        found = judge.verdicts_of(pairs)
    else:
        found = [_said(judge, attempt, run) for attempt, run in pairs]
    said = iter(found)
    answered = {id(attempt) for attempt in judged}
    return {
        key: tuple(_checked(next(said), judge) for _ in range(runs))
        if id(attempt) in answered
        else ("unsolved",) * runs
        for key, attempt in attempts.items()
    }


def _said(judge: Judge, attempt: Attempt, run: int) -> Verdict | LanguageModelError:
    try:
        return judge.verdict(attempt, run)
    except LanguageModelError as error:
        return error


def _checked(said: Verdict | LanguageModelError, judge: Judge) -> Verdict | None:
    if isinstance(said, LanguageModelError):
        return None
    if said not in VERDICTS:
        raise OptionError(
            f"expected {', '.join(VERDICTS)} of the judge {judge.name}, found {said!r:.80}"
        )
    return said


@dataclass(frozen=True, slots=True)
class WinReport:
    """Solvable win rate (SoWR) of attempts against reference attempts.

    Attributes:
        rate: Queries won, ties counted half, of all that were compared.
        wins: Queries won.
        ties: Queries with as many rounds won as lost.
        losses: Queries lost.
        by_verdict: How many of these were decided by solved against unsolved.
        failures: Rounds in which the comparison failed.
        n: Queries that both attempted.
        interval: `rate` with its interval.
    """

    rate: float
    wins: int
    ties: int
    losses: int
    by_verdict: int
    failures: int
    n: int

    @property
    def interval(self) -> Rate:
        """See above."""
        return wilson(self.rate, self.n)


def win_rate(
    attempts: Mapping[str, Attempt],
    reference: Mapping[str, Attempt],
    compare: Comparing,
    verdicts: Mapping[str, Sequence[Verdict | None]] | None = None,
    reference_verdicts: Mapping[str, Sequence[Verdict | None]] | None = None,
    rounds: int = 3,
) -> WinReport:
    """Return the solvable win rate.

    Where the majority of verdicts says solved of one attempt and unsolved of the other, that decides;
    otherwise the comparison does, by most wins over rounds. Upstream means that too, but its published
    code always compares, and never swaps positions; `comap.envs.stabletoolbench.judges.LMJudge.better`
    does in every other round.

    Args:
        attempts: By query.
        reference: Those to be won against.
        compare: Says which is better in a round.
        verdicts: Of `attempts`, as in `PassReport`.
        reference_verdicts: Of `reference`.
        rounds: How often two attempts are compared.

    Raises:
        OptionError: No query is in both, or there is no round.

    Example:
        >>> mine = {"1": Attempt("1", "?", (), "give_answer", "7")}
        >>> win_rate(mine, mine, lambda first, second, number: 1 + number % 2, rounds=2).ties
        1
    """
    shared = [key for key in attempts if key in reference]
    if not shared or type(rounds) is not int or rounds < 1:
        raise OptionError(
            f"expected shared queries and a round, found {len(shared)} and {rounds!r}"
        )
    found: Counter[str] = Counter()
    for key in shared:
        ours, theirs = _majority(verdicts, key), _majority(reference_verdicts, key)
        if {ours, theirs} == {"solved", "unsolved"}:
            found["by_verdict"] += 1
            found["wins" if ours == "solved" else "losses"] += 1
            continue
        balance = 0
        for number in range(rounds):
            try:
                better = compare(attempts[key], reference[key], number)
            except LanguageModelError:
                found["failures"] += 1
                continue
            balance += {1: 1, 2: -1}.get(better, 0)
        found["wins" if balance > 0 else "losses" if balance else "ties"] += 1
    rate = (found["wins"] + found["ties"] / 2) / len(shared)
    return WinReport(
        rate,
        found["wins"],
        found["ties"],
        found["losses"],
        found["by_verdict"],
        found["failures"],
        len(shared),
    )


def _majority(verdicts: Mapping[str, Sequence[Verdict | None]] | None, key: str) -> Verdict | None:
    said = [one for one in (verdicts or {}).get(key, ()) if one is not None]
    if not said:
        return None
    (first, count), *rest = Counter(said).most_common()
    return None if rest and rest[0][1] == count else first


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What the calls alone tell; rates are of all attempts or calls, None where there were none.

    Attributes:
        relevant_recall: Of a query's relevant APIs, the share that was called; mean over queries.
        relevant_precision: Of the APIs that were called, the share that is relevant; mean over queries
            with calls.
        valid_arguments: Of calls, the share that names an offered function and fits its schema.
        errors: Of calls, the share that was answered with an error.
        finished: Of attempts, the share that called ``Finish``.
        answered: Of attempts, the share that gave an answer.
        calls: Calls for each attempt, without ``Finish``.
        sources: By backend, the share of calls that it answered, of those where that is known.
        sourced: How many those are.
        n: How many attempts.
    """

    relevant_recall: float | None
    relevant_precision: float | None
    valid_arguments: float | None
    errors: float | None
    finished: float
    answered: float
    calls: float
    sources: Mapping[str, float]
    sourced: int
    n: int


def process_report(
    attempts: Mapping[str, Attempt],
    queries: Mapping[str, Mapping[str, Any]] | None,
    compat: str = "strict",
) -> ProcessReport:
    """Return what calls tell of attempts, without any judge.

    Args:
        attempts: By query.
        queries: The queries' records, by id; None where these are not at hand: then relevant APIs and
            valid arguments are not known.
        compat: How functions were offered: ``"strict"``, or ``"reference"`` as upstream does.

    Raises:
        OptionError: There is no attempt, or one at a query that is not given.

    Example:
        >>> record = {"query_id": 1, "query": "?", "api_list": [], "relevant APIs": []}
        >>> process_report({"1": Attempt("1", "?", (), "give_answer", "7")}, {"1": record}).finished
        1.0
    """
    if not attempts:
        raise OptionError("expected attempts, found none")
    recalls: list[float] = []
    precisions: list[float] = []
    valid: list[bool] = []
    for key, attempt in attempts.items() if queries is not None else ():
        assert queries is not None
        if key not in queries:
            raise OptionError(
                f"expected the record of query {key!r:.40}, found none among the queries"
            )
        listed = _offered(queries[key], compat)
        pairs = {(str(t), str(a)) for t, a in queries[key].get("relevant APIs", [])}
        relevant = {o.name for o in listed if (o.tool_title, o.api_title) in pairs}
        meant = [_meant(listed, made.name, compat) for made in attempt.calls]
        called = {offer.name for offer in meant if offer is not None}
        if relevant:
            recalls.append(len(relevant & called) / len(relevant))
            if called:
                precisions.append(len(relevant & called) / len(called))
        checker = Checker(listed)
        for made, offer in zip(attempt.calls, meant, strict=True):
            valid.append(offer is not None and _fits(checker, offer, made.arguments))
    sources = Counter(source for one in attempts.values() for source in one.sources if source)
    made_calls = [made for attempt in attempts.values() for made in attempt.calls]
    known = sum(sources.values())
    return ProcessReport(
        _mean(recalls),
        _mean(precisions),
        _mean(valid),
        _mean([made.status != "ok" for made in made_calls]),
        statistics.fmean(bool(attempt.finish) for attempt in attempts.values()),
        statistics.fmean(attempt.finish == "give_answer" for attempt in attempts.values()),
        len(made_calls) / len(attempts),
        {source: count / known for source, count in sorted(sources.items())},
        known,
        len(attempts),
    )


def _offered(record: Mapping[str, Any], compat: str) -> list[Offer]:
    """Return a query's functions, without the empty name that upstream requires of each."""
    return [
        replace(offer, parameters={**offer.parameters, "required": list(offer.required)})
        for offer in offers(record, compat)
    ]


def _meant(listed: Sequence[Offer], name: str, compat: str) -> Offer | None:
    """Return the function that a call names; upstream takes any end of a name for it."""
    named = next((offer for offer in listed if offer.name == name), None)
    if named is None and name and compat == "reference":
        named = next((offer for offer in listed if offer.name.endswith(name)), None)
    return named


def _fits(checker: Checker, offer: Offer, said: Any) -> bool:
    call = parse_call(json.dumps({"name": offer.name, "arguments": said}, default=str))
    if call is None or call.problem or call.name == FINISH:
        return False
    return not checker.problem(offer, coerced(offer, call.arguments))


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None
