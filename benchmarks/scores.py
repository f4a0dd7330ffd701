"""Scores of answers to tool tasks, and of world models on a fixed set of transitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..agents.requests import ModelWork
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
from ..trainers.results import to_json
from ..worldmodel import Transition, WorldModel
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
    for name, number in (("--runs", runs), ("--rounds", rounds)):
        if number is not None and number < 1:
            raise OptionError(f"{name} must be a whole number of at least 1, not {number!r}")
    notes: list[str] = []
    judge, passed, sowr = answers.judge(judge), None, None
    if judge is None:
        notes.append("no SoPR: name a --judge, or recorded --verdicts")
    else:
        if not answers.queries:
            notes.append(_UNKNOWN.format(n=len(answers.attempts)))
        progress(f"judging {len(answers.attempts)} answers of {one_line(answers.name, 60)}")
        passed = _pass_rate(answers, judge, runs)
    if against is not None:
        if against_judge is None:
            against_judge = judge if isinstance(judge, LMJudge) else against.judge(None)
        if passed is None or against_judge is None:
            raise OptionError(
                "SoWR needs a --judge, or verdicts on both: --verdicts and --against-verdicts"
            )
        comparing = judge if isinstance(judge, LMJudge) else None
        other = _shared(answers, against)
        answers_compared = answers.only(other.scored)
        progress(f"judging {len(other.attempts)} answers of {one_line(against.name, 60)}")
        other_passed = _pass_rate(other, against_judge, runs)
        progress(f"comparing {len(other.scored)} pairs of answers")
        sowr = _win_rate(answers_compared, passed, other, other_passed, comparing, rounds)
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
    if runs is None:
        recorded_runs = judge.runs if isinstance(judge, RecordedJudge) else _RUNS
        runs = 1 if judge.name == CHECKER else max(recorded_runs, 1)
    report = pass_rate(answers.scored, judge, runs)
    attempts = answers.attempts.values()
    judged = [one for one in attempts if one.finish == "give_answer" and one.answer.strip()]
    if judged and report.failures == len(judged) * runs:
        (said,) = judge.verdicts_of([(judged[0], 0)])
        if isinstance(said, LanguageModelError):
            failure = LanguageModelError(
                f"the judge {judge.name} gave no verdict on any answer: {said}"
            )
            failure.transient = said.transient
            raise failure
    return report


def _pass_data(report: PassReport, answers: Answers) -> dict[str, Any]:
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
    """Return the SoPR of some queries."""
    rows = [[VERDICTS[said] for said in report.verdicts[key] if said] for key in keys]
    means = [sum(row) / len(row) for row in rows if row]
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
        ours, theirs = next(iter(answers.attempts)), next(iter(against.attempts))
        raise OptionError(
            f"expected queries that {answers.name} and {against.name} both answer, found none (such "
            f"as {ours!r:.60} here, {theirs!r:.60} there)"
        )
    return against.only(shared)


def _win_rate(
    answers: Answers,
    passed: PassReport,
    other: Answers,
    other_passed: PassReport,
    judge: LMJudge | None,
    rounds: int,
) -> dict[str, Any]:
    """Return SoWR as plain data; without a model that judges, what verdicts do not decide is a tie.

    Some answer is better than none, whatever it is.
    """

    def compare(first: Attempt, second: Attempt, number: int) -> int:
        if is_blank(first) or is_blank(second):
            return (2 if is_blank(first) else 1) if is_blank(first) != is_blank(second) else 0
        return judge.better(first, second, number) if judge else 0

    verdicts = (passed.verdicts, other_passed.verdicts)
    report = win_rate(answers.scored, other.scored, compare, *verdicts, rounds)
    rate = report.interval
    return asdict(report) | {
        "low": rate.low,
        "high": rate.high,
        "rounds": rounds if judge else 0,
        "judge": passed.judge,
        "against_judge": other_passed.judge,
        "prompt_sha256": passed.prompt_sha256,
        "against_sopr": _pass_data(other_passed, other),
    }


def scores_table(result: Mapping[str, Any]) -> Table:
    about, sopr, sowr, process = (result[key] for key in ("answers", "sopr", "sowr", "process"))
    title = "SoPR" if about["queries"] else "SoPR of the answers found"
    rows = [*_answer_rows(about), (title, None if sopr is None else _rate(sopr, "mean"))]
    if sopr is not None:
        if about["missing"]:
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
    if sowr is not None:
        name = one_line(sowr["against"]["name"], 40)
        counts = f"{sowr['wins']} won, {sowr['ties']} tied, {sowr['losses']} lost"
        rows.append((f"SoWR against {name}", _rate(sowr, "rate")))
        rows.append(("pairs", f"{counts}; {sowr['by_verdict']} by verdicts"))
        rows.append((f"SoPR of {name}", _rate(sowr["against_sopr"], "mean")))
        if sowr["failures"]:
            rows.append(("missing comparisons", f"{sowr['failures']:,}"))
    rows += _process_rows(process)
    return Table(one_line(about["name"], 60), ("", "value"), tuple(rows))


def _answer_rows(about: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return what is known of the queries, which all rates are of, and of the answers to them."""
    kind = "of a run of comap" if about["kind"] == "run" else "in the reference's format"
    rows: list[tuple[str, str | None]] = [
        ("queries", _queries_in_words(about)),
        ("answers", f"{about['n']:,} {kind}"),
    ]
    for name, title in {
        "missing": "missing answers, counted as unsolved",
        "empty": "empty answers, counted as unsolved",
        "others": "answers to other queries, left out",
    }.items():
        keys = about[name]
        if keys:
            named = ", ".join(one_line(key, 60) for key in keys[:_MOST_NAMED])
            more = ", ..." if len(keys) > _MOST_NAMED else ""
            rows.append((title, f"{len(keys):,}: {named}{more}"))
    return rows


def _queries_in_words(about: Mapping[str, Any]) -> str:
    """Return how many queries there are, and how many of their split's that is."""
    number = about["queries"]
    if number is None:
        return "not known: rates are of the answers found"
    sizes = ", ".join(f"{group} has {size:,}" for group, size in about["sizes"].items())
    if about["kind"] != "run":
        return f"{number:,} ({sizes})"
    generated = number if about["generated"] == about["n"] else about["generated"]
    return f"{tasks_in_words(number, generated)} of the run" + (f" ({sizes})" if sizes else "")


def _process_rows(process: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return what the calls tell."""
    rows: list[tuple[str, str | None]] = []
    for key, title in {
        "errors": "calls answered with an error",
        "cache_misses": "calls that no source could answer (cache misses)",
        "finished": "answers that finished",
        "answered": "answers with a final answer",
    }.items():
        share = process[key]
        rows.append((title, None if share is None else f"{100 * share:.1f} %"))
    if process["cache_misses"] is None:
        rows[1] = (rows[1][0], "not told by these answers")
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
        self._model, self._transitions = world_model, transitions
        self._canonicalizer = environment.get_wrapper_attr("canonicalizer")
        self._about, self._out = about, out
        self.scored: list[ScoredTransition] = []

    def run(self, shown: Display) -> dict[str, Any]:
        """Predict all transitions, say how far it is, and return the result.

        Where it is interrupted, what was predicted is scored and kept.
        """
        total, saved_at = len(self._transitions), time.monotonic()
        parts = scored_in_parts(self._model, self._transitions, self._canonicalizer, _PART)
        lm = getattr(self._model, "lm", None)
        usage: Usage = getattr(lm, "usage", Usage())
        before = usage.prompt_tokens + usage.completion_tokens
        shown.begin("Predicting")
        try:
            while len(self.scored) < total:
                done = len(self.scored)
                tokens = usage.prompt_tokens + usage.completion_tokens - before
                if lm is not None:
                    shown.work(ModelWork(min(done + _PART, total), done, tokens))
                self.scored += next(parts)
                shown.move(len(self.scored), total, "transitions")
                if time.monotonic() - saved_at >= _SAVE_SECONDS:
                    self.save()
                    saved_at = time.monotonic()
        finally:
            shown.end()
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
    unreadable = [one for one in result["predictions"] if not one["readable"]]
    lines = [
        f"  after {one_line(one['action'], 60)!r}: {one_line(one['predicted'], 160)!r}"
        for one in unreadable[:most]
    ]
    if lines:
        lines.insert(0, f"{len(unreadable)} predictions cannot be read as observations, such as:")
    return lines


def read_transitions(path: Path, env_id: str) -> tuple[list[Transition], str | None]:
    """Return the transitions of a file, or the frozen ones of a training's folder.

    With them comes of which tasks they are, in words; None where the file does not say it.
    """
    if path.is_dir():
        found = sorted(path.glob(_FROZEN))
        if not found:
            raise DataNotFound(
                f"expected the frozen transitions of a training in {path}, found none; give a folder "
                "of comap train comap, or a file"
            )
        path = found[0]
    transitions = load_transitions(path)
    strange = {query.env_id for query, _ in transitions} - {env_id}
    if strange:
        raise OptionError(
            f"expected transitions of {env_id} in {path}, found some of {min(strange)}; add "
            f"--env {min(strange)}"
        )
    return transitions, tasks_of_transitions(path)


def world_model_table(title: str, scores: Mapping[str, Any]) -> Table:
    parts = {
        "nonempty": "those that change a fact",
        "all": "all",
        "predictable": "those whose facts can be foreseen",
        "unpredictable": "the others",
    }
    rows = [
        (
            name,
            scores[part]["n"],
            *(scores[part][key] for key in ("delta_f1", "stderr", "exact_text")),
        )
        for part, name in parts.items()
        if scores[part]["n"]
    ]
    unread = f"Unreadable predictions: {100 * (scores['parse_failure_rate'] or 0):.1f} %."
    refusals = scores["refusals"]
    right, found = (
        "–" if refusals[name] is None else f"{refusals[name]:.1f} %"
        for name in ("precision", "recall")
    )
    note = f"{unread} That nothing changes is predicted {refusals['foreseen']:,} times (right: {right}) "
    note += f"and happens {refusals['real']:,} times (predicted: {found}). "
    note += f"Fingerprint of the transitions: {scores['fingerprint']}."
    return Table(title, ("transitions", "n", "Delta-F1", "s.e.", "same text"), tuple(rows), note)
