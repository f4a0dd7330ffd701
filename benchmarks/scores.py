"""Scores of answers to tool tasks, and of world models on a fixed set of transitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..agents.run import RUN, TRAJECTORIES, recorded
from ..envs.generated import is_generated
from ..envs.stabletoolbench import StableToolBenchEnv
from ..envs.stabletoolbench.scoring import (
    VERDICTS,
    Attempt,
    CallableJudge,
    Comparing,
    Judge,
    LMJudge,
    PassReport,
    RecordedJudge,
    attempt_of,
    pass_rate,
    process_report,
    read_attempts,
    win_rate,
)
from ..envs.stabletoolbench.tasks import GROUPS, SIZES, read_queries
from ..envs.storage import comap_home
from ..errors import DataNotFound, LanguageModelError, OptionError
from ..metrics import Rate, wilson
from ..trainers.evaluation import load_transitions, score_transitions
from ..trainers.setup import Environments
from ..trajectory import Trajectory
from ..worldmodel import Transition, WorldModel
from .record import circumstances
from .tables import Table, one_line

_QUERIES = "test_instruction"
_RUNS = 3
_CHECKER = "the generated tasks' checker"


@dataclass(frozen=True)
class Answers:
    """Attempts at queries by ``group/id``, and what is known of these."""

    name: str
    kind: str
    attempts: Mapping[str, Attempt]
    checked: Mapping[str, bool] = field(default_factory=dict)
    """What the checkers of generated tasks say."""

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The keys of each group's attempts; of those without a group under an empty name."""
        found: dict[str, list[str]] = {}
        for key in self.attempts:
            group = key.rpartition("/")[0].rpartition("/")[2]
            found.setdefault(group if group in SIZES else "", []).append(key)
        return dict(sorted(found.items()))

    def about(self) -> dict[str, Any]:
        about = {"name": self.name, "kind": self.kind}
        groups = {group: len(keys) for group, keys in self.groups.items()}
        return {**about, "n": len(self.attempts), "groups": groups}

    def only(self, keys: Iterable[str]) -> Answers:
        return replace(self, attempts={key: self.attempts[key] for key in keys})

    def judge(self, given: Judge | None) -> Judge | None:
        if given is not None or not self.attempts.keys() <= self.checked.keys():
            return given
        return CallableJudge(
            lambda one, run: "solved" if self.checked[one.query_id] else "unsolved", _CHECKER
        )


def read_answers(
    path: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> Answers:
    """Return the answers in a folder or file: of a run of comap, or in the reference's format."""
    path = Path(path)
    if not path.exists():
        raise DataNotFound(f"expected answers at {path}, found nothing there; name a folder")
    home = comap_home() / "stabletoolbench" if data_dir is None else Path(data_dir)
    if data_dir is not None and not (home / _QUERIES).is_dir():
        raise DataNotFound(
            f"expected the official queries in {home / _QUERIES}, found no such folder; name the "
            f"folder that holds {_QUERIES}/ with --data-dir"
        )
    played = path / TRAJECTORIES if path.is_dir() else path
    if played.suffix == ".jsonl" and played.is_file():
        return _of_run(path.name or str(path), played)
    if path.is_dir() and (path / RUN).exists():
        raise DataNotFound(
            f"expected {TRAJECTORIES} in the run's folder {path}, found none; no task has ended yet"
        )
    if path.is_file() and path.suffix != ".json":
        raise OptionError(f"expected a folder of answers, a .json or a .jsonl file, found {path}")
    return _of_reference(path, home / _QUERIES)


def _group_of(folder: Path, key: str, text: str) -> str:
    """Return the group that has a query of this id and text; empty where none here has."""
    for path in (folder / f"{group}.json" for group in GROUPS):
        record = read_queries(path).get(key) if path.is_file() else None
        if record is not None and record["query"].split() == text.split():
            return path.stem
    return ""


def _of_reference(path: Path, queries: Path) -> Answers:
    attempts: dict[str, Attempt] = {}
    for group, file in _files(path):
        for query, attempt in read_attempts(file).items():
            where = group or _group_of(queries, query, attempt.query)
            key = f"{where}/{query}" if where else query
            if key in attempts:
                raise OptionError(
                    f"expected one answer to each query, found a second to {key[:80]!r} in {file}; "
                    "give a folder of one method"
                )
            attempts[key] = replace(attempt, query_id=key)
    if not attempts:
        raise DataNotFound(f"expected answers in {path}, found files without any")
    name = path.name or str(path)
    return Answers(name, "reference", attempts)


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield files of answers with their groups, empty where a name has none."""

    def group_in(*names: str) -> str:
        return next((name for name in names if name in GROUPS), "")

    if path.is_file():
        yield group_in(path.stem, path.parent.name), path
        return
    own = sorted(path.glob("*.json"))
    parts = [group for group in GROUPS if (path / group).is_dir()]
    if not own and not parts:
        inside = sorted(child.name for child in path.iterdir() if child.is_dir())
        hint = f"; it has the folders {', '.join(inside[:4])}: name one of these" if inside else ""
        raise DataNotFound(
            f"expected answer files (<query_id>_<method>.json), folders of groups ({GROUPS[0]}, ...) "
            f"or a run of comap in {path}, found none{hint}"
        )
    yield from ((group_in(file.stem, path.name), file) for file in own)
    for group in parts:
        yield from ((group, file) for file in sorted((path / group).glob("*.json")))


def _of_run(name: str, played: Path) -> Answers:
    last = {one.task: one for one in _episodes(played)}
    if not last:
        raise DataNotFound(f"expected episodes in {played}, found none; has a task ended yet?")
    attempts = {task: replace(attempt_of(one), query_id=task) for task, one in last.items()}
    checked = {task: one.success for task, one in last.items() if is_generated(task)}
    return Answers(name, "run", attempts, checked)


def _episodes(played: Path) -> Iterator[Trajectory]:
    for episode in recorded(played):
        if episode.env_id != StableToolBenchEnv.env_id:
            raise OptionError(
                f"expected episodes of {StableToolBenchEnv.env_id} in {played}, found one of "
                f"{episode.env_id!r:.60}; other environments need no such scores"
            )
        if episode.imagined:
            raise OptionError(
                f"expected real episodes in {played}, found an imagined one: what tools answered "
                "there was predicted; run without --imagined"
            )
        yield episode


def recorded_judge(path: str | os.PathLike[str], answers: Answers) -> RecordedJudge:
    judge = RecordedJudge(path)
    known = judge.verdicts.keys()
    if not any(key in known or key.rpartition("/")[2] in known for key in answers.attempts):
        raise OptionError(
            f"expected verdicts on the answers of {answers.name} in {path}, found those on other "
            f"queries ({one_line(', '.join(sorted(known)[:3]), 60) or 'none'})"
        )
    return judge


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
        progress(f"judging {len(other.attempts)} answers of {one_line(against.name, 60)}")
        other_passed = _pass_rate(other, against_judge, runs)
        progress(f"comparing {len(other.attempts)} pairs of answers")
        sowr = _win_rate(answers, passed, other, other_passed, comparing, rounds)
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
        runs = 1 if judge.name == _CHECKER else max(recorded_runs, 1)
    report = pass_rate(answers.attempts, judge, runs)
    attempts = answers.attempts.values()
    judged = [one for one in attempts if one.finish == "give_answer" and one.answer.strip()]
    if judged and report.failures == len(judged) * runs:
        (said,) = judge.verdicts_of([(judged[0], 0)])
        if isinstance(said, LanguageModelError):
            raise LanguageModelError(
                f"the judge {judge.name} gave no verdict on any answer: {said}"
            )
    return report


def _pass_data(report: PassReport, answers: Answers) -> dict[str, Any]:
    by_group = {}
    for group, keys in answers.groups.items():
        rows = [[VERDICTS[said] for said in report.verdicts[key] if said] for key in keys]
        means = [sum(row) / len(row) for row in rows if row]
        mean = sum(means) / len(means) if means else 0.0
        by_group[group] = asdict(wilson(min(mean, 1.0), len(means)))
    rate = report.interval
    names = ("mean", "std", "failures", "judge", "prompt_sha256")
    return {
        **{name: getattr(report, name) for name in names},
        "low": rate.low,
        "high": rate.high,
        "n": rate.n,
        "runs": list(report.runs),
        "by_group": by_group,
        "verdicts": {key: list(row) for key, row in report.verdicts.items()},
    }


def _shared(answers: Answers, against: Answers) -> Answers:
    """Return the other answers to the queries that both answer."""
    shared = [key for key in answers.attempts if key in against.attempts]
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
    """Return SoWR as plain data; without a model that judges, what verdicts do not decide is a tie."""
    compare: Comparing = judge.better if judge else lambda first, second, number: 0
    verdicts = (passed.verdicts, other_passed.verdicts)
    report = win_rate(answers.attempts, other.attempts, compare, *verdicts, rounds)
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
    kind = "of a run of comap" if about["kind"] == "run" else "in the reference's format"
    rows: list[tuple[str, str | None]] = [("answers", f"{about['n']:,} {kind}")]
    rows.append(("SoPR", None if sopr is None else _rate(sopr, "mean")))
    if sopr is not None:
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
    for key, title in {
        "errors": "calls answered with an error",
        "finished": "attempts that finished",
        "answered": "attempts with an answer",
    }.items():
        share = process[key]
        rows.append((title, None if share is None else f"{100 * share:.1f} %"))
    rows.append(("calls in an attempt", f"{process['calls']:.2f}"))
    sources = [f"{one_line(key, 20)} {n:,}" for key, n in sorted(process["sources"].items())]
    rows.append(("calls answered by", ", ".join(sources) or None))
    return Table(one_line(about["name"], 60), ("", "value"), tuple(rows))


def _rate(rate: Mapping[str, Any], name: str) -> str:
    return str(Rate(rate[name], rate["low"], rate["high"], rate["n"]))


_FROZEN = "stages/*-frozen-transitions/transitions.jsonl"


def world_model_result(
    world_model: WorldModel,
    environments: Environments,
    split: str | None,
    transitions: Sequence[Transition],
) -> dict[str, Any]:
    with closing(environments(split)) as env:
        canonicalizer = env.get_wrapper_attr("canonicalizer")
    return {
        "benchmark": "world model",
        "env": environments.describe([split]),
        "split": split,
        "scores": score_transitions(world_model, transitions, canonicalizer),
        **circumstances(("gymnasium", "numpy", "torch", "transformers", "openai")),
    }


def read_transitions(path: Path, env_id: str) -> list[Transition]:
    """Return the transitions of a file, or the frozen ones of a training's folder."""
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
    return transitions


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
