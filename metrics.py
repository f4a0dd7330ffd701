"""Scores of world models and agents: pure functions of facts, trajectories and counts.

*Delta-F1* asks of a predicted observation: are the facts that the action changed the ones that were
predicted to change? With ``D(x) = {+f: f added} | {-f: f removed}`` relative to the state before,
``F1 = 2 |D(predicted) & D(actual)| / (|D(predicted)| + |D(actual)|)`` (CoMap, arXiv 2606.02372).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from .errors import OptionError
from .facts import Delta, Fact, State, diff

Facts: TypeAlias = State | Collection[Fact]

_EPSILON = 1e-8  # of CoMap's appendix C.2: a rate of nothing is 0


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of successes with its Wilson score interval.

    Attributes:
        value: The share, 0 to 1 (0 where `n` is 0).
        low: Lower end of the interval.
        high: Upper end of the interval.
        n: Number of trials.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return (
            f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}] (n={self.n})"
        )


@dataclass(frozen=True, slots=True)
class PredicateScore:
    """How well the changes of one predicate were predicted.

    Attributes:
        precision: Share of the predicted changes that happened.
        recall: Share of the changes that were predicted.
        f1: Their harmonic mean, over all transitions together (micro).
        support: Number of changes that happened.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class DeltaF1Report:
    """Delta-F1 over many transitions (0 to 1; multiply by 100 to compare with papers).

    Attributes:
        mean: Mean over all transitions whose truth was parsed (macro).
        nonempty_mean: The same over those in which something changed; 0 where none did.
        no_op_share: Share of transitions in which nothing changed.
        parse_failure_rate: Share of transitions whose prediction fitted no rule; these score 0.
        exact_share: Share of transitions whose change was predicted exactly.
        n: Number of transitions scored.
        n_nonempty: Number of those in which something changed.
        dropped: Number of transitions left out because the truth itself fitted no rule.
        stderr: Standard error of `mean`.
        by_predicate: Micro scores of each predicate.
    """

    mean: float
    nonempty_mean: float
    no_op_share: float
    parse_failure_rate: float
    exact_share: float
    n: int
    n_nonempty: int
    dropped: int
    stderr: float
    by_predicate: Mapping[str, PredicateScore] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RevisionRates:
    """What revising drafted actions did (CoMap, appendix C.2).

    Attributes:
        urr: Unnecessary revision rate: share of the drafts that would have succeeded that were
            revised.
        hrr: Harmful revision rate: share of the drafts that would have succeeded that were revised
            into failure; never above `urr`.
        brp: Beneficial revision precision: share of the revisions that turned failure into success.
        n: Number of decisions.
    """

    urr: float
    hrr: float
    brp: float
    n: int


@dataclass(frozen=True, slots=True)
class Consistency:
    """How plans made in imagination fare in the real environment.

    Attributes:
        imagined: Share of plans that succeed in imagination.
        real: Share of the same plans that succeed when they are really executed.
        agreement: Share of plans that end the same way in both.
        precision: Share of the plans that succeed in imagination that really succeed.
        recall: Share of the plans that really succeed that succeed in imagination.
        n: Number of plans.
    """

    imagined: Rate
    real: Rate
    agreement: float
    precision: float
    recall: float
    n: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an episode came to; `compare` pairs those of two runs.

    Attributes:
        task: The task.
        seed: The seed that it was played with, if there was one.
        success: Whether the task was solved.
        score: The progress at the end, 0 to 1.
        steps: Number of steps.
        delta_f1: Mean Delta-F1 of what a world model predicted of the steps; None where none was asked.
        delta_f1_nonempty: The same over the steps that changed something; None where none did.
    """

    task: str
    seed: int | None
    success: bool
    score: float
    steps: int
    delta_f1: float | None = None
    delta_f1_nonempty: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """What a second run has more than a first one, as a mean over tasks.

    Attributes:
        first: Mean of the first run.
        second: Mean of the second run.
        value: The second mean minus the first.
        low: Lower end of the difference's interval; None where there is one task only.
        high: Upper end of the interval.
        n: Number of tasks.
    """

    first: float
    second: float
    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the tasks that both played.

    Attributes:
        n: Number of tasks that were compared.
        episodes: Number of episodes of each run that were compared.
        paired_by: ``"task and seed"``, or ``"task"`` where the runs have no seed in common.
        differences: By measure: ``success``, ``score``, ``steps``, ``delta_f1`` and ``delta_f1_nonempty``
            where both runs have predictions, and ``pass@2``, ``pass^2`` and so on with several seeds.
        p_value: Two-sided exact p of the difference in success: McNemar's test with one attempt at a
            task, the sign test over tasks with several.
        first_wins: Tasks that the first run solves and the second does not; with several attempts those
            that it solves more often.
        second_wins: The same of the second run.
    """

    n: int
    episodes: tuple[int, int]
    paired_by: Literal["task and seed", "task"]
    differences: Mapping[str, Difference]
    p_value: float
    first_wins: tuple[str, ...]
    second_wins: tuple[str, ...]


def delta_f1(before: Facts, predicted: Facts, actual: Facts) -> float:
    """Return the Delta-F1 of one transition; each belief is a `State` or a set of facts.

    Args:
        before: The belief before the action.
        predicted: The belief that the predicted observation leads to.
        actual: The belief that the real observation leads to (or a teacher's, in the gate).

    Returns:
        0 to 1. Both changes empty is 1, exactly one empty is 0, and a state that was not parsed
        scores 0.

    Example:
        >>> before = {("closed", "safe 1")}
        >>> after = {("open", "safe 1"), ("in", "pen 1", "safe 1")}
        >>> delta_f1(before, {("open", "safe 1")}, after)
        0.8
    """
    before, predicted, actual = map(_state, (before, predicted, actual))
    if not (predicted.parsed and actual.parsed):
        return 0.0
    return _f1(diff(before, predicted), diff(before, actual))


def _state(facts: Facts) -> State:
    return facts if isinstance(facts, State) else State(facts)  # type: ignore[arg-type]


def _f1(guess: Delta, truth: Delta) -> float:
    """Return the Delta-F1 of two changes."""
    # That nothing changes is right where nothing does: both empty is 1. The paper leaves this open.
    total = len(guess) + len(truth)
    return 2 * _shared(guess, truth) / total if total else 1.0


def _shared(guess: Delta, truth: Delta) -> int:
    """Return how many changed facts both have."""
    return len(guess.added & truth.added) + len(guess.removed & truth.removed)


def delta_f1_report(transitions: Iterable[tuple[Facts, Facts, Facts]]) -> DeltaF1Report:
    """Return Delta-F1 over transitions ``(before, predicted, actual)``, as `delta_f1` takes them.

    A transition whose truth was not parsed is dropped and counted; one whose prediction was not
    parsed scores 0.

    Example:
        >>> a, b = State(frozenset({("a",)})), State(frozenset({("b",)}))
        >>> report = delta_f1_report([(a, b, b), (a, a, a), (a, State(a.facts, parsed=False), b)])
        >>> report.n, round(report.mean, 3), report.nonempty_mean, round(report.no_op_share, 3)
        (3, 0.667, 0.5, 0.333)
    """
    scores: list[float] = []
    nonempty: list[float] = []
    failures = dropped = exact = 0
    counts: dict[str, list[int]] = {}
    for transition in transitions:
        before, predicted, actual = map(_state, transition)

        # A truth that no rule reads is the canonicalizer's failure, and none of the model.
        if not actual.parsed:
            dropped += 1
            continue

        # A prediction that no rule reads is the model's. It scores 0 also where nothing changed: silence
        # would be rewarded otherwise.
        truth = diff(before, actual)
        guess = Delta()
        score = 0.0
        if predicted.parsed:
            guess = diff(before, predicted)
            score = _f1(guess, truth)
        else:
            failures += 1

        scores.append(score)
        exact += score == 1.0
        if len(truth):
            nonempty.append(score)
        _count(counts, guess, truth)

    n = len(scores)
    mean = _mean(scores)
    variance = sum((score - mean) ** 2 for score in scores) / max(n - 1, 1)

    return DeltaF1Report(
        mean=mean,
        nonempty_mean=_mean(nonempty),
        no_op_share=_share(n - len(nonempty), n),
        parse_failure_rate=_share(failures, n),
        exact_share=_share(exact, n),
        n=n,
        n_nonempty=len(nonempty),
        dropped=dropped,
        stderr=math.sqrt(variance / n) if n else 0.0,
        by_predicate={name: _predicate_score(*counts[name]) for name in sorted(counts)},
    )


def _count(counts: dict[str, list[int]], guess: Delta, truth: Delta) -> None:
    """Add one transition to the counts (shared, predicted, true) of each predicate."""
    # Added and removed facts apart: a fact that was wrongly removed is no match for one that was added.
    for guessed, true in ((guess.added, truth.added), (guess.removed, truth.removed)):
        for index, facts in enumerate((guessed & true, guessed, true)):
            for fact in facts:
                counts.setdefault(fact[0], [0, 0, 0])[index] += 1


def _predicate_score(shared: int, guessed: int, true: int) -> PredicateScore:
    return PredicateScore(
        precision=_share(shared, guessed),
        recall=_share(shared, true),
        f1=_share(2 * shared, guessed + true),
        support=true,
    )


def _share(part: float, whole: float) -> float:
    """Return a share; 0 of nothing."""
    return part / whole if whole else 0.0


def _mean(numbers: Sequence[float]) -> float:
    """Return the mean; 0 of nothing."""
    # Exactly rounded: the mean does not depend on the order of processes that played.
    return math.fsum(numbers) / len(numbers) if numbers else 0.0


def success_rate(outcomes: Iterable[bool], confidence: float = 0.95) -> Rate:
    """Return the share of successes with its Wilson score interval.

    Args:
        outcomes: Whether each episode succeeded.
        confidence: How likely such an interval contains the true share.

    Example:
        >>> str(success_rate([True] * 8 + [False] * 2))
        '80.0 % [49.0, 94.3] (n=10)'
    """
    successes = [bool(outcome) for outcome in outcomes]
    n = len(successes)
    return wilson(_share(sum(successes), n), n, confidence)


def wilson(share: float, n: int, confidence: float = 0.95) -> Rate:
    """Return a share with its Wilson score interval.

    Where trials count in parts, such as a verdict that counts half, their variance is at most that of
    successes and failures with the same mean, so that the interval is rather too wide than too narrow.

    Args:
        share: The mean of `n` values from 0 to 1.
        n: How many these are.
        confidence: How likely such an interval contains the true share.

    Raises:
        OptionError: The share is not from 0 to 1, `n` is below 0, or the confidence is not between 0 and 1.

    Example:
        >>> str(wilson(0.75, 4))
        '75.0 % [30.1, 95.4] (n=4)'
    """
    if not 0 <= share <= 1 or n < 0:
        raise OptionError(f"expected a share from 0 to 1 of at least 0, found {share!r} of {n!r}")
    if not n:
        return Rate(0.0, 0.0, 1.0, 0)

    # Wilson (1927). At a share of 0 or 1 an end of the interval is exact, and rounding would miss it.
    z = normal_quantile(confidence)
    square = z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return Rate(share, low, high, n)


def normal_quantile(confidence: float = 0.95) -> float:
    """Return how many standard errors to each side a normal interval of some confidence reaches.

    Args:
        confidence: How likely the interval contains the true value.

    Raises:
        OptionError: The confidence is not between 0 and 1.

    Example:
        >>> round(normal_quantile(), 2)
        1.96
    """
    # scipy.stats.norm.ppf is this function, behind an import that takes most of a second.
    from scipy.special import ndtri

    _check_confidence(confidence)
    return float(ndtri((1 + confidence) / 2))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return Student's interval for the mean of two or more values.

    Args:
        values: What the mean is of, such as the results of several seeds.
        confidence: How likely the interval contains the true mean.

    Raises:
        OptionError: There are fewer than two values, or the confidence is not between 0 and 1.

    Example:
        >>> low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    from scipy.special import stdtrit

    _check_confidence(confidence)
    if len(values) < 2:
        raise OptionError(f"expected two or more values, found {len(values)}")
    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    half = quantile * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise OptionError(f"expected a confidence between 0 and 1, found {confidence!r}")


def pass_at_k(attempts: Iterable[Collection[bool]]) -> dict[int, float]:
    """Return pass@k: how likely one of `k` attempts at a task succeeds, as a mean over tasks.

    Each task's share is estimated without bias from its `n` attempts, `c` of them successful:
    ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374).

    Args:
        attempts: Whether each attempt at each task succeeded.

    Returns:
        The value for `k` = 1, 2, 4 and so on, up to the fewest attempts at a task.

    Example:
        >>> pass_at_k([[True, False, False, False], [False] * 4])
        {1: 0.125, 2: 0.25, 4: 0.5}
    """
    return _over_tasks(attempts, _one_succeeds)


def pass_hat_k(attempts: Iterable[Collection[bool]]) -> dict[int, float]:
    """Return pass^k: how likely all of `k` attempts at a task succeed, as a mean over tasks.

    Each task's share is estimated without bias from its `n` attempts, `c` of them successful:
    ``C(c, k) / C(n, k)`` (tau-bench, Yao et al. 2024, arXiv 2406.12045).

    Args:
        attempts: Whether each attempt at each task succeeded.

    Returns:
        The value for `k` = 1, 2, 4 and so on, up to the fewest attempts at a task.

    Example:
        >>> pass_hat_k([[True, True, True, False], [True] * 4])
        {1: 0.875, 2: 0.75, 4: 0.5}
    """
    return _over_tasks(attempts, _all_succeed)


_Estimate: TypeAlias = "Callable[[int, int, int], float]"
"""Estimates a task's share from the number of its attempts, of its successes, and `k`."""


# Whole binomials, which Python has exactly: in floating point those of many attempts overflow.
def _one_succeeds(n: int, successes: int, k: int) -> float:
    return 1 - math.comb(n - successes, k) / math.comb(n, k)


def _all_succeed(n: int, successes: int, k: int) -> float:
    return math.comb(successes, k) / math.comb(n, k)


def _over_tasks(attempts: Iterable[Collection[bool]], estimate: _Estimate) -> dict[int, float]:
    """Return the mean over tasks of an estimate for each `k`."""
    counts = [(len(outcomes), sum(map(bool, outcomes))) for outcomes in attempts]
    fewest = min((n for n, _ in counts), default=0)
    return {k: _mean([estimate(n, wins, k) for n, wins in counts]) for k in _powers(fewest)}


def _powers(largest: int) -> list[int]:
    """Return 1, 2, 4 and so on up to a number."""
    return [2**power for power in range(largest.bit_length())]


def goal_condition_success(scores: Iterable[float]) -> float:
    """Return the mean share of goal conditions met at the end of episodes (ALFRED's measure).

    Example:
        >>> goal_condition_success([1.0, 0.5])
        0.75
    """
    return _mean(list(scores))


def histogram(values: Iterable[float], bins: int = 10) -> list[int]:
    """Return how many values lie in each of some equal parts of 0 to 1.

    A value on the border of two parts counts in the upper one, and 1 in the last.

    Args:
        values: Numbers from 0 to 1.
        bins: Number of parts.

    Raises:
        OptionError: A value is outside of 0 to 1 or no number, or `bins` is below 1.

    Example:
        >>> histogram([0.0, 0.5, 0.7, 1.0], bins=2)
        [1, 3]
    """
    if bins < 1:
        raise OptionError(f"expected at least 1 bin, found {bins}")
    counts = [0] * bins
    for value in values:
        if not 0 <= value <= 1:
            raise OptionError(f"expected values from 0 to 1, found {value!r}")
        counts[min(int(value * bins), bins - 1)] += 1
    return counts


def revision_rates(decisions: Iterable[tuple[bool, bool, bool]]) -> RevisionRates:
    """Return URR, HRR and BRP of decisions ``(revised, draft succeeds, revision succeeds)``.

    ``URR = sum m [zD=1] / sum [zD=1]``, ``HRR = sum m [zD=1, zR=0] / sum [zD=1]`` and
    ``BRP = sum m [zD=0, zR=1] / sum m``, with 1e-8 added to each denominator.

    Args:
        decisions: For each: whether the reflected action differs from the draft (``m``), and whether
            following the draft (``zD``) and the reflected action (``zR``) ends in success.

    Example:
        >>> rates = revision_rates([(True, True, False), (True, False, True), (False, True, True)])
        >>> round(rates.urr, 3), round(rates.hrr, 3), round(rates.brp, 3)
        (0.5, 0.5, 0.5)
    """
    # The letters of the paper: m, zD and zR.
    rows = [(bool(m), bool(d), bool(r)) for m, d, r in decisions]
    good_drafts = sum(d for _, d, _ in rows) + _EPSILON
    revised = sum(m for m, _, _ in rows) + _EPSILON
    return RevisionRates(
        sum(m and d for m, d, _ in rows) / good_drafts,
        sum(m and d and not r for m, d, r in rows) / good_drafts,
        sum(m and r and not d for m, d, r in rows) / revised,
        len(rows),
    )


def consistency(imagined: Sequence[bool], real: Sequence[bool]) -> Consistency:
    """Return how imagined plans fare when they are really executed.

    Args:
        imagined: Whether each plan succeeded in imagination.
        real: Whether the same plan, executed action by action, really succeeded.

    Raises:
        OptionError: The two are not of one length.

    Example:
        >>> result = consistency([True, True, False], [True, False, False])
        >>> result.precision, round(result.agreement, 3)
        (0.5, 0.667)
    """
    if len(imagined) != len(real):
        raise OptionError(
            f"expected one real outcome for each imagined one, found {len(imagined)} and {len(real)}"
        )
    outcomes = [(bool(i), bool(r)) for i, r in zip(imagined, real, strict=True)]
    succeeded_in_both = sum(i and r for i, r in outcomes)
    ended_alike = sum(i == r for i, r in outcomes)
    succeeded_imagined = sum(i for i, _ in outcomes)
    succeeded_really = sum(r for _, r in outcomes)

    return Consistency(
        imagined=success_rate(imagined),
        real=success_rate(real),
        agreement=_share(ended_alike, len(outcomes)),
        precision=_share(succeeded_in_both, succeeded_imagined),
        recall=_share(succeeded_in_both, succeeded_really),
        n=len(outcomes),
    )


_Attempts: TypeAlias = "Mapping[int | None, Outcome]"
_Pair: TypeAlias = "tuple[list[Outcome], list[Outcome]]"

_OF_EPISODES = ("success", "score", "steps", "delta_f1", "delta_f1_nonempty")
_RESAMPLES = 9_999
_MOST_DRAWN = 5_000_000  # numbers that the bootstrap holds at a time


def compare(
    first: Iterable[Outcome], second: Iterable[Outcome], *, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Return how two runs differ on the tasks that both played.

    Episodes are paired by task and seed; where no seed is in both runs, by task alone. A task counts
    once, with the mean of its episodes, since episodes of one task depend on each other.

    Args:
        first: How the episodes of a run ended. Of several with the same task and seed the last counts.
        second: The same of another run.
        confidence: How likely an interval contains the true difference.
        seed: Seed of the bootstrap.

    Raises:
        OptionError: No task was played by both.

    Example:
        >>> tasks = [f"task {number}" for number in range(8)]
        >>> first = [Outcome(task, 0, False, 0.5, 10) for task in tasks]
        >>> second = [Outcome(task, 0, task > "task 1", 1.0, 7) for task in tasks]
        >>> comparison = compare(first, second)
        >>> success = comparison.differences["success"]
        >>> success.value, success.low, success.high, comparison.p_value
        (0.75, 0.375, 1.0, 0.03125)
    """
    paired_by, pairs = _paired(_attempts_at(first), _attempts_at(second))

    fewest = min(min(map(len, pair)) for pair in pairs.values())
    differences: dict[str, Difference] = {}
    for name, measure in _measures(fewest).items():
        first_values = []
        second_values = []
        for first_attempts, second_attempts in pairs.values():
            first_value = measure(first_attempts)
            second_value = measure(second_attempts)
            if first_value is not None and second_value is not None:
                first_values.append(first_value)
                second_values.append(second_value)
        if first_values:
            differences[name] = paired_difference(
                first_values, second_values, confidence=confidence, seed=seed
            )

    first_wins, second_wins = _wins(pairs)
    return Comparison(
        n=len(pairs),
        episodes=(
            sum(len(attempts) for attempts, _ in pairs.values()),
            sum(len(attempts) for _, attempts in pairs.values()),
        ),
        paired_by=paired_by,
        differences=differences,
        p_value=mcnemar(len(first_wins), len(second_wins)),
        first_wins=first_wins,
        second_wins=second_wins,
    )


def _attempts_at(outcomes: Iterable[Outcome]) -> dict[str, dict[int | None, Outcome]]:
    """Return the outcomes by task and seed."""
    attempts: dict[str, dict[int | None, Outcome]] = {}
    for outcome in outcomes:
        attempts.setdefault(outcome.task, {})[outcome.seed] = outcome
    return attempts


def _paired(
    first: Mapping[str, _Attempts], second: Mapping[str, _Attempts]
) -> tuple[Literal["task and seed", "task"], dict[str, _Pair]]:
    """Return by what episodes are paired, and each task's episodes of both runs."""
    shared = [task for task in first if task in second]
    if not shared:
        examples = [f"{next(iter(tasks), 'no task')!r:.80}" for tasks in (first, second)]
        raise OptionError(
            "expected tasks that both runs played, found none: they played such as "
            f"{examples[0]} and {examples[1]}"
        )

    # The same seed makes the same world and, of the same agent, the same draws.
    pairs: dict[str, _Pair] = {}
    for task in shared:
        seeds = [seed for seed in first[task] if seed in second[task]]
        if seeds:
            pairs[task] = (
                [first[task][seed] for seed in seeds],
                [second[task][seed] for seed in seeds],
            )
    if pairs:
        return "task and seed", pairs

    for task in shared:
        pairs[task] = (list(first[task].values()), list(second[task].values()))
    return "task", pairs


_Measure: TypeAlias = "Callable[[Sequence[Outcome]], float | None]"
"""Measures the attempts at a task; None where none of them has what is measured."""


def _measures(fewest: int) -> dict[str, _Measure]:
    """Return what is measured, by name, where each task has at least so many attempts."""
    measures: dict[str, _Measure] = {name: partial(_mean_of, name) for name in _OF_EPISODES}
    for k in _powers(fewest)[1:]:  # with k = 1 both are the success
        measures[f"pass@{k}"] = partial(_share_of, _one_succeeds, k)
        measures[f"pass^{k}"] = partial(_share_of, _all_succeed, k)
    return measures


def _mean_of(name: str, attempts: Sequence[Outcome]) -> float | None:
    """Return the mean of a field over the attempts that have it."""
    values = [getattr(attempt, name) for attempt in attempts]
    numbers = [float(value) for value in values if value is not None]
    return _mean(numbers) if numbers else None


def _share_of(estimate: _Estimate, k: int, attempts: Sequence[Outcome]) -> float:
    return estimate(len(attempts), sum(attempt.success for attempt in attempts), k)


def _wins(pairs: Mapping[str, _Pair]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tasks that the first run solves more often, and those that the second does."""
    first_wins = []
    second_wins = []
    for task, (first, second) in pairs.items():
        # Shares of attempts as whole numbers: in floating point equal ones might differ.
        first_share = sum(attempt.success for attempt in first) * len(second)
        second_share = sum(attempt.success for attempt in second) * len(first)
        if first_share > second_share:
            first_wins.append(task)
        elif second_share > first_share:
            second_wins.append(task)
    return tuple(first_wins), tuple(second_wins)


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """Return the mean difference of paired values, with its percentile bootstrap interval.

    Args:
        first: A value for each task.
        second: Values for the same tasks, in the same order.
        confidence: How likely such an interval contains the true difference.
        seed: Seed of the bootstrap: the same values give the same interval.

    Raises:
        OptionError: There are no values, not as many of each, or the confidence is not between 0 and 1.

    Example:
        >>> difference = paired_difference([0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0])
        >>> difference.value, difference.low, difference.high
        (0.5, 0.0, 1.0)
    """
    _check_confidence(confidence)
    if len(first) != len(second) or not len(first):
        raise OptionError(
            f"expected a value of both for each task, found {len(first)} and {len(second)}"
        )
    gains = [after - before for before, after in zip(first, second, strict=True)]
    low = None
    high = None
    if len(gains) > 1:
        import numpy as np
        from scipy.stats import bootstrap

        # The percentile method: bias-corrected ones have no interval where all tasks agree.
        interval = bootstrap(
            (np.array(gains),),
            np.mean,
            n_resamples=_RESAMPLES,
            batch=max(1, _MOST_DRAWN // len(gains)),
            confidence_level=confidence,
            method="percentile",
            rng=seed,
        ).confidence_interval
        low = float(interval.low)
        high = float(interval.high)
    return Difference(_mean(first), _mean(second), _mean(gains), low, high, len(gains))


def mcnemar(first_only: int, second_only: int) -> float:
    """Return the two-sided p of McNemar's exact test: do two runs solve equally many tasks?

    Args:
        first_only: Number of tasks that only the first run solved.
        second_only: Number of tasks that only the second run solved.

    Raises:
        OptionError: A number is below 0.

    Example:
        >>> mcnemar(0, 6), mcnemar(3, 3), mcnemar(0, 0)
        (0.03125, 1.0, 1.0)
    """
    if min(first_only, second_only) < 0:
        raise OptionError(
            f"expected numbers of tasks of at least 0, found {first_only} and {second_only}"
        )
    # Where no task is solved by one alone, nothing speaks against equality.
    discordant = first_only + second_only
    if not discordant:
        return 1.0

    from scipy.stats import binomtest

    return float(binomtest(second_only, discordant).pvalue)
