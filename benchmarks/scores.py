"""Scores of answers to tool tasks, and of world models on a fixed set of transitions."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from ..agents.requests import ModelWork
from ..agents.run import TRAJECTORIES
from ..envs.generated import tasks_in_words
from ..envs.stabletoolbench.scoring import (
    VERDICTS,
    Attempt,
    Judge,
    LMJudge,
    PassReport,
    RecordedJudge,
    pass_rate,
    process_report,
    win_rate,
)
from ..errors import DataNotFound, LanguageModelError, OptionError
from ..lm import Usage
from ..metrics import Rate, delta_f1, wilson
from ..trainers.evaluation import (
    ScoredTransition,
    load_transitions,
    scored_in_parts,
    scores_of,
    tasks_of_transitions,
)
from ..trainers.results import PredictionReport, to_json
from ..trajectory import read_trajectories
from ..worldmodel import Transition, WorldModel, transitions_of
from .answers import CHECKER, Answers, is_blank
from .display import Display
from .record import circumstances, write_result
from .tables import Table, one_line

_RUNS = 3
_MOST_NAMED = 6  # queries, of those that a table names
_UNKNOWN = (
    "WARNING: SoPR is of the {n:,} answers found. The queries of the split are not known, so missing "
    "answers are not counted; give --data-dir, the folder that holds test_instruction/"
)


def score_answers(
    answers: Answers,
    judge: Judge | None = None,
    *,
    against: Answers | None = None,
    against_judge: Judge | None = None,
    runs: int | None = None,
    rounds: int = _RUNS,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Return SoPR of the answers, SoWR against others where there are some, and what calls tell."""
    for name, number in (("--runs", runs), ("--rounds", rounds)):
        if number is not None and number < 1:
            raise OptionError(f"{name} must be a whole number of at least 1, not {number!r}")

    notes: list[str] = []
    judge = answers.judge(judge)
    passed = None
    if judge is None:
        notes.append("no SoPR: name a --judge, or recorded --verdicts")
    else:
        if not answers.queries:
            notes.append(_UNKNOWN.format(n=len(answers.attempts)))
        progress(f"judging {len(answers.attempts)} answers of {one_line(answers.name, 60)}")
        passed = _pass_rate(answers, judge, runs)

    sowr = None
    if against is not None:
        # A model judges both alike; recorded verdicts are on one side's answers alone.
        if against_judge is None:
            against_judge = judge if isinstance(judge, LMJudge) else against.judge(None)
        if passed is None or against_judge is None:
            raise OptionError(
                "SoWR needs a --judge, or verdicts on both: --verdicts and --against-verdicts"
            )

        comparing_judge = judge if isinstance(judge, LMJudge) else None
        opponents = _shared(answers, against)
        answers_compared = answers.only(opponents.scored)
        progress(f"judging {len(opponents.attempts)} answers of {one_line(against.name, 60)}")
        opponents_passed = _pass_rate(opponents, against_judge, runs)
        progress(f"comparing {len(opponents.scored)} pairs of answers")
        sowr = _win_rate(
            answers_compared, passed, opponents, opponents_passed, comparing_judge, rounds
        )
        sowr["against"] = against.about()

    return {
        "benchmark": "tool scores",
        **circumstances(),
        "answers": answers.about(),
        "sopr": None if passed is None else _pass_data(passed, answers),
        "sowr": sowr,
        "process": process_report(answers.attempts),
        "notes": notes,
    }


def _pass_rate(answers: Answers, judge: Judge, runs: int | None) -> PassReport:
    """Return how many answers pass; raise where the judge failed at every one of them."""
    if runs is None:
        recorded_runs = judge.runs if isinstance(judge, RecordedJudge) else _RUNS
        runs = 1 if judge.name == CHECKER else max(recorded_runs, 1)  # a checker never wavers
    report = pass_rate(answers.scored, judge, runs)

    # A judge that cannot be reached is a mistake to mend, not a rate of 0. A report has no reasons:
    # it is asked once more for one.
    judged = [
        attempt
        for attempt in answers.attempts.values()
        if attempt.finish == "give_answer" and attempt.answer.strip()
    ]
    if judged and report.failures == len(judged) * runs:
        (verdict,) = judge.verdicts_of([(judged[0], 0)])
        if isinstance(verdict, LanguageModelError):
            failure = LanguageModelError(
                f"the judge {judge.name} gave no verdict on any answer: {verdict}"
            )
            failure.transient = verdict.transient
            raise failure
    return report


def _pass_data(report: PassReport, answers: Answers) -> dict[str, Any]:
    """Return a pass rate as JSON data, with its interval, and by group."""
    by_group = {}
    for group, keys in answers.groups.items():
        by_group[group] = asdict(_rate_of(report, keys))
    rate = report.interval
    names = ("mean", "std", "failures", "judge", "prompt_sha256")
    return {
        **{name: getattr(report, name) for name in names},
        "low": rate.low,
        "high": rate.high,
        "n": rate.n,
        "runs": list(report.runs),
        "by_group": by_group,
        "of_answers": asdict(_rate_of(report, answers.attempts)),
        "verdicts": {key: list(row) for key, row in report.verdicts.items()},
    }


def _rate_of(report: PassReport, keys: Iterable[str]) -> Rate:
    """Return the SoPR of some queries: the mean over queries of their means over the judge's runs."""
    means = []
    for key in keys:
        # A run in which the judge failed has no verdict.
        scores = [VERDICTS[verdict] for verdict in report.verdicts[key] if verdict]
        if scores:
            means.append(sum(scores) / len(scores))
    mean = sum(means) / len(means) if means else 0.0
    return wilson(min(mean, 1.0), len(means))


def _shared(answers: Answers, against: Answers) -> Answers:
    """Return the other answers to the queries that both have, and of which one or both are answered."""
    shared = [
        key
        for key in answers.scored
        if key in against.scored and (key in answers.attempts or key in against.attempts)
    ]
    if not shared:
        ours = next(iter(answers.attempts))
        theirs = next(iter(against.attempts))
        raise OptionError(
            f"expected queries that {answers.name} and {against.name} both answer, found none (such "
            f"as {ours!r:.60} here, {theirs!r:.60} there)"
        )
    return against.only(shared)


def _win_rate(
    answers: Answers,
    passed: PassReport,
    opponents: Answers,
    opponents_passed: PassReport,
    judge: LMJudge | None,
    rounds: int,
) -> dict[str, Any]:
    """Return SoWR as plain data; without a model that judges, what verdicts do not decide is a tie.

    Some answer is better than none, whatever it is.
    """

    def compare(first: Attempt, second: Attempt, number: int) -> int:
        if is_blank(first) and is_blank(second):
            return 0
        if is_blank(first):
            return 2
        if is_blank(second):
            return 1
        return judge.better(first, second, number) if judge else 0

    report = win_rate(
        answers.scored,
        opponents.scored,
        compare,
        passed.verdicts,
        opponents_passed.verdicts,
        rounds,
    )
    rate = report.interval
    return asdict(report) | {
        "low": rate.low,
        "high": rate.high,
        "rounds": rounds if judge else 0,
        "judge": passed.judge,
        "against_judge": opponents_passed.judge,
        "prompt_sha256": passed.prompt_sha256,
        "against_sopr": _pass_data(opponents_passed, opponents),
    }


_TableRow: TypeAlias = "tuple[str, str | None]"
"""A name and what is known of it, in words."""


def scores_table(result: Mapping[str, Any]) -> Table:
    """Return the result of `score_answers` as a table."""
    answers = result["answers"]
    rows = _answer_rows(answers)
    rows += _pass_rows(result["sopr"], answers)
    if result["sowr"] is not None:
        rows += _win_rows(result["sowr"])
    rows += _process_rows(result["process"])
    return Table(one_line(answers["name"], 60), ("", "value"), tuple(rows))


def _answer_rows(answers: Mapping[str, Any]) -> list[_TableRow]:
    """Return what is known of the queries, which all rates are of, and of the answers to them."""
    kind = "of a run of comap" if answers["kind"] == "run" else "in the reference's format"
    rows: list[_TableRow] = [
        ("queries", _queries_in_words(answers)),
        ("answers", f"{answers['n']:,} {kind}"),
    ]
    for name, title in {
        "missing": "missing answers, counted as unsolved",
        "empty": "empty answers, counted as unsolved",
        "others": "answers to other queries, left out",
    }.items():
        keys = answers[name]
        if keys:
            examples = ", ".join(one_line(key, 60) for key in keys[:_MOST_NAMED])
            dots = ", ..." if len(keys) > _MOST_NAMED else ""
            rows.append((title, f"{len(keys):,}: {examples}{dots}"))
    return rows


def _queries_in_words(answers: Mapping[str, Any]) -> str:
    """Return how many queries there are, and how many of their split's that is."""
    number = answers["queries"]
    if number is None:
        return "not known: rates are of the answers found"
    sizes = ", ".join(f"{group} has {size:,}" for group, size in answers["sizes"].items())
    if answers["kind"] != "run":
        return f"{number:,} ({sizes})"

    # Tasks that have not ended count as generated where all that have ended are.
    generated = number if answers["generated"] == answers["n"] else answers["generated"]
    return f"{tasks_in_words(number, generated)} of the run" + (f" ({sizes})" if sizes else "")


def _pass_rows(sopr: Mapping[str, Any] | None, answers: Mapping[str, Any]) -> list[_TableRow]:
    """Return the pass rate, and who judged; without a judge that there is none."""
    title = "SoPR" if answers["queries"] else "SoPR of the answers found"
    if sopr is None:
        return [(title, None)]

    rows: list[_TableRow] = [(title, _rate(sopr, "mean"))]
    if answers["missing"]:
        rows.append(("SoPR of the answers found alone", _rate(sopr["of_answers"], "value")))
    if len(sopr["by_group"]) > 1:
        for group, rate in sopr["by_group"].items():
            rows.append((f"SoPR, {group or 'group unknown'}", _rate(rate, "value")))

    spread = f"{len(sopr['runs'])}, standard deviation {100 * sopr['std']:.1f} %"
    rows += [("judge", one_line(sopr["judge"], 60)), ("runs of the judge", spread)]
    if sopr["prompt_sha256"]:
        rows.append(("its prompts (SHA-256)", one_line(sopr["prompt_sha256"], 64)[:16]))
    if sopr["failures"]:
        rows.append(("missing verdicts", f"{sopr['failures']:,}"))
    return rows


def _win_rows(sowr: Mapping[str, Any]) -> list[_TableRow]:
    """Return the win rate, and the pass rate of the answers that were compared with."""
    name = one_line(sowr["against"]["name"], 40)
    counts = f"{sowr['wins']} won, {sowr['ties']} tied, {sowr['losses']} lost"
    rows: list[_TableRow] = [
        (f"SoWR against {name}", _rate(sowr, "rate")),
        ("pairs", f"{counts}; {sowr['by_verdict']} by verdicts"),
        (f"SoPR of {name}", _rate(sowr["against_sopr"], "mean")),
    ]
    if sowr["failures"]:
        rows.append(("missing comparisons", f"{sowr['failures']:,}"))
    return rows


def _process_rows(process: Mapping[str, Any]) -> list[_TableRow]:
    """Return what the calls tell."""
    rows: list[_TableRow] = []
    for key, title in {
        "errors": "calls answered with an error",
        "cache_misses": "calls that no source could answer (cache misses)",
        "finished": "answers that finished",
        "answered": "answers with a final answer",
    }.items():
        share = process[key]
        if share is not None:
            rows.append((title, f"{100 * share:.1f} %"))
        elif key == "cache_misses":  # a reference pipeline does not record them
            rows.append((title, "not told by these answers"))
        else:
            rows.append((title, None))

    rows.append(("calls in an answer", f"{process['calls']:.2f}"))
    sources = [f"{one_line(key, 20)} {n:,}" for key, n in sorted(process["sources"].items())]
    rows.append(("calls answered by", ", ".join(sources) or None))
    return rows


def _rate(rate: Mapping[str, Any], name: str) -> str:
    return str(Rate(rate[name], rate["low"], rate["high"], rate["n"]))


_FROZEN = "stages/*-frozen-transitions/transitions.jsonl"
_PART = 32  # transitions that are predicted together
_SAVE_SECONDS = 10.0  # between two times that a result under way is written


class WorldModelScoring:
    """The scores of a world model on transitions: as a whole, or of what was predicted so far.

    Args:
        world_model: What is scored.
        environment: An environment of the transitions, whose canonicalizer reads their texts.
        transitions: What is predicted.
        about: What else the result says.
        out: The file of the result; None for none.
    """

    def __init__(
        self,
        world_model: WorldModel,
        environment: Any,
        transitions: Sequence[Transition],
        about: Mapping[str, Any],
        out: Path | None = None,
    ):
        self._model = world_model
        self._transitions = transitions
        self._canonicalizer = environment.get_wrapper_attr("canonicalizer")
        self._about = about
        self._out = out
        self.scored: list[ScoredTransition] = []

    def run(self, display: Display) -> dict[str, Any]:
        """Predict all transitions, say how far it is, and return the result.

        Where it is interrupted, what was predicted is scored and kept.
        """
        total = len(self._transitions)
        saved_at = time.monotonic()
        parts = scored_in_parts(self._model, self._transitions, self._canonicalizer, _PART)

        # A model may have been used before: its tokens of then are not this work's.
        lm = getattr(self._model, "lm", None)
        usage: Usage = getattr(lm, "usage", Usage())
        tokens_before = usage.prompt_tokens + usage.completion_tokens
        display.begin("Predicting")
        try:
            while len(self.scored) < total:
                scored_count = len(self.scored)
                tokens = usage.prompt_tokens + usage.completion_tokens - tokens_before
                if lm is not None:
                    requested = min(scored_count + _PART, total)
                    display.work(ModelWork(requested, scored_count, tokens))
                self.scored += next(parts)
                display.move(len(self.scored), total, "transitions")

                if time.monotonic() - saved_at >= _SAVE_SECONDS:
                    self.save()
                    saved_at = time.monotonic()
        finally:
            display.end()
            result = self.save()
        return result

    def save(self) -> dict[str, Any]:
        """Return the result of what was predicted so far, and write it to its file."""
        result = {
            "benchmark": "world model",
            **self._about,
            "complete": len(self.scored) == len(self._transitions),
            "scores": to_json(scores_of(self.scored)),
            "predictions": [_prediction_data(row) for row in self.scored],
            **circumstances(("gymnasium", "numpy", "torch", "transformers", "openai")),
        }
        if self._out is not None and self.scored:
            write_result(self._out, result)
        return result


def _prediction_data(row: ScoredTransition) -> dict[str, Any]:
    """Return what was predicted of a transition, as JSON data."""
    before, predicted, actual = row.beliefs
    query, observation = row.transition
    return {
        "goal": query.goal,
        "action": query.action,
        "observed": observation,
        "predicted": row.prediction.observation,
        "readable": predicted.parsed,
        "delta_f1": delta_f1(before, predicted, actual) if actual.parsed else None,
    }


def unreadable_examples(result: Mapping[str, Any], most: int = 3) -> list[str]:
    """Return lines about a few predictions that could not be read; none where all could be."""
    unreadable = [prediction for prediction in result["predictions"] if not prediction["readable"]]
    if not unreadable:
        return []

    lines = [f"{len(unreadable)} predictions cannot be read as observations, such as:"]
    for prediction in unreadable[:most]:
        action = one_line(prediction["action"], 60)
        text = one_line(prediction["predicted"], 160)
        lines.append(f"  after {action!r}: {text!r}")
    return lines


def read_transitions(
    path: Path, env_id: str, most: int | None = None, seed: int = 0
) -> tuple[list[Transition], str | None]:
    """Return the transitions of a file, the frozen ones of a training's folder, or those of episodes.

    With them comes of which tasks they are, in words; None where the file does not say it.

    Args:
        path: A file of transitions, a training's folder, or a run's folder or its trajectories.
        env_id: The environment.
        most: Of episodes, how many transitions are drawn; None for all.
        seed: The seed of that draw.
    """
    if path.is_dir() and (path / TRAJECTORIES).is_file():
        return _of_episodes(path / TRAJECTORIES, env_id, most, seed)
    if path.name == TRAJECTORIES:
        return _of_episodes(path, env_id, most, seed)

    if path.is_dir():
        files = sorted(path.glob(_FROZEN))
        if not files:
            raise DataNotFound(
                f"expected the frozen transitions of a training in {path}, found none; give a folder "
                f"of comap train comap, one with {TRAJECTORIES}, or a file"
            )
        path = files[0]

    transitions = load_transitions(path)
    other_env_ids = {query.env_id for query, _ in transitions} - {env_id}
    if other_env_ids:
        raise OptionError(
            f"expected transitions of {env_id} in {path}, found some of {min(other_env_ids)}; add "
            f"--env {min(other_env_ids)}"
        )
    return transitions, tasks_of_transitions(path)


def _of_episodes(
    path: Path, env_id: str, most: int | None, seed: int
) -> tuple[list[Transition], str]:
    """Return transitions of recorded or imported episodes, drawn at random in one pass over the file."""
    rng = random.Random(seed)
    drawn: list[tuple[int, Transition]] = []
    count = 0
    other_env_ids: set[str] = set()
    kinds: set[str] = set()
    splits: set[str] = set()
    for trajectory in read_trajectories(path):
        if trajectory.env_id != env_id:
            other_env_ids.add(trajectory.env_id)
            continue
        kinds.add("imported" if trajectory.origin else "recorded")
        splits.add(trajectory.split)
        for transition in transitions_of(trajectory):
            count += 1
            # Each has the same chance to be among the drawn ones: Vitter's algorithm R.
            if most is None or len(drawn) < most:
                drawn.append((count, transition))
            elif (place := rng.randrange(count)) < most:
                drawn[place] = (count, transition)

    if not drawn:
        others = f", but some of {min(other_env_ids)}: add --env" if other_env_ids else ""
        raise DataNotFound(
            f"expected transitions of {env_id} in {path}, found none{others}; name another run"
        )
    transitions = [transition for _, transition in sorted(drawn, key=lambda pair: pair[0])]
    of_splits = f"split {', '.join(sorted(splits))}"
    return transitions, f"{' and '.join(sorted(kinds))} tasks ({of_splits})"


def world_model_table(title: str, report: PredictionReport) -> Table:
    """Return the scores of a world model as a table, by kinds of transitions that there are."""
    groups = {
        "those that change a fact": report.nonempty,
        "all": report.all,
        "those whose facts can be foreseen": report.predictable,
        "the others": report.unpredictable,
    }
    rows = []
    for name, group in groups.items():
        if group.n:
            rows.append((name, group.n, group.delta_f1, group.stderr, group.exact_text))

    refusals = report.refusals
    note = (
        f"Unreadable predictions: {100 * (report.parse_failure_rate or 0):.1f} %. "
        f"That nothing changes is predicted {refusals.foreseen:,} times "
        f"(right: {_percent(refusals.precision)}) "
        f"and happens {refusals.real:,} times (predicted: {_percent(refusals.recall)}). "
        f"Fingerprint of the transitions: {report.fingerprint}."
    )
    return Table(title, ("transitions", "n", "Delta-F1", "s.e.", "same text"), tuple(rows), note)


def _percent(percentage: float | None) -> str:
    return "–" if percentage is None else f"{percentage:.1f} %"
