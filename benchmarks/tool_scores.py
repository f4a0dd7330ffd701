"""`comap score tools`: SoPR, SoWR and process metrics of answers to tool tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..envs.stabletoolbench.attempts import Attempt
from ..envs.stabletoolbench.judges import (
    VERDICTS,
    CallableJudge,
    Comparing,
    Judge,
    LMJudge,
    RecordedJudge,
    Verdict,
)
from ..envs.stabletoolbench.scoring import PassReport, pass_rate, process_report, win_rate
from ..errors import LanguageModelError, OptionError
from ..metrics import Rate, wilson
from .marks import one_line
from .record import circumstances
from .tables import Table
from .tool_answers import Answers

__all__ = ["recorded", "score_answers", "scores_table"]

_RUNS = 3
_CHECKER = "the generated tasks' checker"


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
    """Return the scores of answers as plain data.

    Generated tasks are judged by their own checkers where no judge is given. Official queries without a
    judge get process metrics alone.

    Args:
        answers: What is scored.
        judge: Who judges final answers.
        against: Answers to be won against, for SoWR.
        against_judge: Who judges these; None for `judge`, or the checkers.
        runs: How often each answer is judged; None for 3, for all that was recorded, or for once by a
            checker.
        rounds: How often two answers are compared by a language model.
        progress: Told what is done next.

    Raises:
        OptionError: Nothing can be compared, or a number is below 1.
        LanguageModelError: The judge failed on every answer that it was asked about.

    Example:
        >>> answers = Answers("mine", "reference", "reference")
        >>> answers.attempts["1"] = Attempt("1", "?", (), "give_answer", "7")
        >>> score = score_answers(answers, CallableJudge(lambda attempt, run: "solved", "optimist"))
        >>> score["sopr"]["mean"], score["sopr"]["judge"], score["process"]["answered"]
        (1.0, 'optimist', 1.0)
    """
    for name, number in (("--runs", runs), ("--rounds", rounds)):
        if number is not None and (type(number) is not int or number < 1):
            raise OptionError(f"{name} must be a whole number of at least 1, not {number!r}")
    notes: list[str] = []
    judge = _judge_of(answers, judge)
    result: dict[str, Any] = {
        "benchmark": "tool scores",
        **circumstances(("jsonschema",)),
        "answers": _about(answers),
        "sopr": None,
        "sowr": None,
        "process": _process(answers, notes),
        "notes": notes,
    }
    passed = None
    if judge is None:
        notes.append("no SoPR: name a --judge, or recorded --verdicts")
    else:
        progress(f"judging {len(answers.attempts)} answers of {one_line(answers.name, 60)}")
        passed = _passed(answers, judge, runs)
        result["sopr"] = _told(passed, answers)
    if against is not None:
        result["sowr"] = _won(
            answers, against, judge, against_judge, passed, runs, rounds, progress
        )
    return result


def recorded(path: str | os.PathLike[str], answers: Answers) -> RecordedJudge:
    """Return a judge that says what was recorded of these answers.

    Args:
        path: A result of a reference evaluation or of `comap score tools`.
        answers: What was judged there.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is no such result.
        OptionError: It says nothing of these answers.
    """
    judge = RecordedJudge(path)
    known = judge.verdicts.keys()
    if not any(key in known or key.rpartition("/")[2] in known for key in answers.attempts):
        raise OptionError(
            f"expected verdicts on the answers of {answers.name} in {path}, found those on other "
            f"queries ({one_line(', '.join(sorted(known)[:3]), 60) or 'none'})"
        )
    return judge


def _judge_of(answers: Answers, judge: Judge | None) -> Judge | None:
    """Return a given judge, or the checker of generated tasks."""
    if judge is not None or not answers.is_checked:
        return judge

    def said(attempt: Attempt, run: int) -> Verdict:
        return "solved" if answers.checked[attempt.query_id] else "unsolved"

    return CallableJudge(said, _CHECKER)


def _about(answers: Answers) -> dict[str, Any]:
    groups = {group: len(keys) for group, keys in answers.groups.items()}
    told = {"name": answers.name, "kind": answers.kind, "compat": answers.compat}
    return told | {"n": len(answers.attempts), "groups": groups}


def _process(answers: Answers, notes: list[str]) -> dict[str, Any]:
    known = answers.records.keys() >= answers.attempts.keys()
    if not known:
        lacking = len(answers.attempts) - len(answers.records)
        notes.append(
            f"relevant APIs and valid arguments are not known: {lacking} of "
            f"{len(answers.attempts)} queries are in no official file here; name --data-dir"
        )
    report = process_report(answers.attempts, answers.records if known else None, answers.compat)
    return asdict(report)


class _Noting:
    """A judge, and what it said when it failed.

    Args:
        judge: The judge.
    """

    def __init__(self, judge: Judge):
        self.name, self.prompt_sha256 = judge.name, judge.prompt_sha256
        self._judge, self.problem = judge, ""

    def verdict(self, attempt: Attempt, run: int) -> Verdict:
        """Return the judge's verdict."""
        try:
            return self._judge.verdict(attempt, run)
        except LanguageModelError as error:
            self.problem = self.problem or str(error)
            raise


def _passed(answers: Answers, judge: Judge, runs: int | None) -> PassReport:
    if runs is None:
        runs = judge.runs if isinstance(judge, RecordedJudge) else _RUNS
        runs = 1 if judge.name == _CHECKER else max(runs, 1)
    report = pass_rate(answers.attempts, judge, runs)
    judged = [
        key
        for key, one in answers.attempts.items()
        if one.finish == "give_answer" and one.answer.strip()
    ]
    if judged and report.failures == len(judged) * runs:
        noting = _Noting(judge)
        pass_rate({judged[0]: answers.attempts[judged[0]]}, noting, 1)
        if noting.problem:
            raise LanguageModelError(
                f"the judge {judge.name} gave no verdict on any answer: {noting.problem}"
            )
    return report


def _told(report: PassReport, answers: Answers) -> dict[str, Any]:
    """Return a pass report as plain data, with the groups' own rates."""
    rate = report.interval
    by_group = {}
    for group, keys in answers.groups.items():
        rows = [_counted(report.verdicts[key]) for key in keys]
        counted = [value for value in rows if value is not None]
        mean = sum(counted) / len(counted) if counted else 0.0
        by_group[group] = asdict(wilson(min(mean, 1.0), len(counted)))
    return {
        "mean": report.mean,
        "low": rate.low,
        "high": rate.high,
        "n": rate.n,
        "runs": list(report.runs),
        "std": report.std,
        "failures": report.failures,
        "judge": report.judge,
        "prompt_sha256": report.prompt_sha256,
        "by_group": by_group,
        "verdicts": {key: list(row) for key, row in report.verdicts.items()},
    }


def _counted(row: tuple[Verdict | None, ...]) -> float | None:
    values = [VERDICTS[said] for said in row if said is not None]
    return sum(values) / len(values) if values else None


def _won(
    answers: Answers,
    against: Answers,
    judge: Judge | None,
    against_judge: Judge | None,
    passed: PassReport | None,
    runs: int | None,
    rounds: int,
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """Return SoWR as plain data."""
    if against_judge is None:
        against_judge = judge if isinstance(judge, LMJudge) else _judge_of(against, None)
    if passed is None or against_judge is None:
        raise OptionError(
            "SoWR needs a --judge, or verdicts on both: --verdicts and --against-verdicts"
        )
    shared = [key for key in answers.attempts if key in against.attempts]
    if not shared:
        ours, theirs = next(iter(answers.attempts)), next(iter(against.attempts))
        raise OptionError(
            f"expected queries that {answers.name} and {against.name} both answer, found none (such "
            f"as {ours!r:.60} here, {theirs!r:.60} there)"
        )
    theirs_of = _only(against, shared)
    progress(f"judging {len(shared)} answers of {one_line(against.name, 60)}")
    other = _passed(theirs_of, against_judge, runs)
    compare: Comparing = judge.better if isinstance(judge, LMJudge) else _no_one
    progress(f"comparing {len(shared)} pairs of answers")
    report = win_rate(
        answers.attempts, against.attempts, compare, passed.verdicts, other.verdicts, rounds
    )
    rate = report.interval
    told = asdict(report) | {"low": rate.low, "high": rate.high, "against": _about(against)}
    return told | {
        "rounds": rounds if isinstance(judge, LMJudge) else 0,
        "judge": passed.judge,
        "against_judge": other.judge,
        "prompt_sha256": passed.prompt_sha256,
        "against_sopr": _told(other, theirs_of),
    }


def _no_one(first: Attempt, second: Attempt, number: int) -> int:
    """Compare by verdicts alone: what these do not decide is a tie."""
    return 0


def _only(answers: Answers, keys: list[str]) -> Answers:
    """Return answers to these queries alone."""
    return Answers(
        answers.name,
        answers.kind,
        answers.compat,
        {key: answers.attempts[key] for key in keys},
        {key: answers.records[key] for key in keys if key in answers.records},
        {key: answers.checked[key] for key in keys if key in answers.checked},
    )


def scores_table(result: Mapping[str, Any]) -> Table:
    """Return scores as a table for the terminal.

    Args:
        result: What `score_answers` returned.
    """
    about = result["answers"]
    kind = "of a run of comap" if about["kind"] == "run" else "in the reference's format"
    rows: list[tuple[str, str | None]] = [("answers", f"{about['n']:,} {kind}")]
    rows += _sopr_rows(result["sopr"]) + _sowr_rows(result["sowr"])
    process = result["process"]
    names = {
        "relevant_recall": "relevant APIs that were called",
        "relevant_precision": "called APIs that are relevant",
        "valid_arguments": "calls with valid arguments",
        "errors": "calls answered with an error",
        "finished": "attempts that finished",
        "answered": "attempts with an answer",
    }
    rows += [(title, _percent(process[name])) for name, title in names.items()]
    rows.append(("calls in an attempt", f"{process['calls']:.2f}"))
    shares = ", ".join(
        f"{one_line(name, 20)} {100 * share:.1f} %" for name, share in process["sources"].items()
    )
    coverage = f"{shares} (n={process['sourced']:,})" if shares else None
    rows.append(("calls answered by", coverage))
    return Table(one_line(about["name"], 60), ("", "value"), tuple(rows))


def _sopr_rows(sopr: Mapping[str, Any] | None) -> list[tuple[str, str | None]]:
    if sopr is None:
        return [("SoPR", None)]
    rows: list[tuple[str, str | None]] = [("SoPR", _rate(sopr, "mean"))]
    if len(sopr["by_group"]) > 1:
        rows += [
            (f"SoPR, {group or 'group unknown'}", _rate(rate, "value"))
            for group, rate in sopr["by_group"].items()
        ]
    spread = f"{len(sopr['runs'])}, standard deviation {100 * sopr['std']:.1f} %"
    rows += [("judge", one_line(sopr["judge"], 60)), ("runs of the judge", spread)]
    if sopr["prompt_sha256"]:
        rows.append(("its prompts (SHA-256)", one_line(sopr["prompt_sha256"], 64)[:16]))
    if sopr["failures"]:
        rows.append(("verdicts not to be had", f"{sopr['failures']:,}"))
    return rows


def _sowr_rows(sowr: Mapping[str, Any] | None) -> list[tuple[str, str | None]]:
    if sowr is None:
        return []
    counts = f"{sowr['wins']} won, {sowr['ties']} tied, {sowr['losses']} lost"
    rows: list[tuple[str, str | None]] = [
        (f"SoWR against {one_line(sowr['against']['name'], 40)}", _rate(sowr, "rate")),
        ("pairs", f"{counts}; {sowr['by_verdict']} by verdicts"),
        (f"SoPR of {one_line(sowr['against']['name'], 40)}", _rate(sowr["against_sopr"], "mean")),
    ]
    if sowr["failures"]:
        rows.append(("comparisons not to be had", f"{sowr['failures']:,}"))
    return rows


def _rate(told: Mapping[str, Any], name: str) -> str:
    return str(Rate(told[name], told["low"], told["high"], told["n"]))


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"
