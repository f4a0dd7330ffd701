"""From jobs that have run to result rows: what each job measured, and which cells show it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, fields, replace
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ...agents.run import TRAJECTORIES, recorded
from ...envs.alfworld.goal import Goal
from ...envs.generated import kind_in_words
from ...envs.searchqa.questions import DATASETS
from ...errors import CoMapError, DataCorrupt, DataNotFound
from ...jsonl import read_json
from ...metrics import wilson
from ...trainers.comap.config import preset
from ...trainers.setup import Environments
from ...trajectory import Trajectory
from ...worldmodel.naming import NOT_TO_REPORT
from ..training_record import TrainingRecord, get, members, number, read_training
from .definition import Column, Experiment, ResultRow, read_data
from .plan import VERDICTS, Job, Paths, Plan, PlannedCell
from .runner import job_record

_NORMAL = 1.959964  # the 97.5 % quantile
_PHASES = ("rollout", "old_logps", "advantages", "update")  # of a step of PaW's training
_NAMES: Mapping[str, Mapping[str, Any]] = read_data("measures.json", dict)
"""Which measures are read from what jobs write, and what they are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One value that a job measured."""

    metric: str
    value: float | None = None
    unit: str = "%"
    split: str | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    over: str | None = None
    """what the curve is over that it is a point of, at `x`"""
    x: float | None = None
    method: str | None = None
    """the method that it is of, where one job measures several"""
    text: str | None = None
    trajectories: str | None = None
    """the file of what was played, relative to the job's folder"""


def collect(plan: Plan, experiments: Sequence[Experiment], paths: Paths) -> list[ResultRow]:
    known = {one.id: one for one in experiments}
    jobs = dict.fromkeys(cell.job for cell in plan.cells if cell.job is not None)
    measured = {name: _measured(plan.jobs[name], paths) for name in jobs}
    rows = []
    for cell in plan.cells:
        if cell.why == "cited only":
            continue
        one = known[cell.experiment]
        measures, record, why = ([], {}, cell.why) if cell.job is None else measured[cell.job]
        about = _about(cell, one, record)
        own = [ResultRow(**about, **values) for values in _shown(one, cell, measures)]
        if not own:
            shown = (c for c in one.columns if one.judges(c, cell.method.name, cell.env))
            column = next(shown, Column(label="", unit=""))
            about |= {"metric": column.metric, "unit": column.unit, "x": _x(one, cell)}
            error = (why or "measured nothing that a column shows")[:2000]
            own = [ResultRow(**about, error=error)]
        rows += own
    return rows


def _measured(job: Job, paths: Paths) -> tuple[list[Measure], dict[str, Any], str | None]:
    record = job_record(paths, job)
    if record is None:
        return [], {}, "not run yet"
    if record["status"] != "done":
        return [], record, f"{record['status']}: {record['why']}"
    folder = paths.of(job.id)
    record["fingerprint"] = _fingerprint(folder)
    record |= {"tasks": _tasks(folder), "caution": _caution(folder)}
    try:
        return measures_of(job, folder), record, None
    except CoMapError as error:
        return [], record, f"failed: {error}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [], record, f"failed: what it wrote is not understood ({error!r:.200})"


def _shown(
    one: Experiment, cell: PlannedCell, measures: Iterable[Measure]
) -> Iterator[dict[str, Any]]:
    usual = None if one.axis is None else one.axis.over
    for measure in measures:
        column = one.column(cell.method.name, measure.metric, cell.env, measure.split)
        if column is None or measure.method not in (None, cell.method.name):
            continue
        over = column.over or usual
        values = {part.name: getattr(measure, part.name) for part in fields(measure)}
        del values["over"], values["method"]
        if measure.over is None:
            values["x"] = _x(one, cell)
            if over in ("round", "update") and values["x"] is None:
                continue  # the end of a curve, which has points of its own
        elif measure.over != over:
            continue
        if measure.trajectories:
            values["trajectories"] = f"jobs/{cell.job}/out/{measure.trajectories}"
        yield values


def _x(one: Experiment, cell: PlannedCell) -> float | None:
    """Return where a cell stands on an axis over settings or sizes of models."""
    if one.axis is not None and one.axis.over == "parameters" and cell.backbone is not None:
        return cell.backbone.parameters
    return cell.method.x


def _about(cell: PlannedCell, one: Experiment, record: Mapping[str, Any]) -> dict[str, Any]:
    cost = dict(record.get("cost") or {})
    machine = record.get("hardware")
    named = isinstance(machine, Mapping)
    return {
        "experiment": one.id,
        "method": cell.method.name,
        "backbone": None if cell.backbone is None else cell.backbone.name,
        "env": cell.env,
        "seed": cell.seed if one.seeds else None,
        "config_hash": record.get("config_hash"),
        "code_version": record.get("code"),
        "fingerprint": record.get("fingerprint"),
        "tasks": record.get("tasks"),
        "caution": record.get("caution"),
        "hardware": f"{get(machine, 'cpu')}, {get(machine, 'cores')} cores" if named else None,
        "seconds": cost.pop("seconds", None),
        "cost": cost or None,
        "job": cell.job if record else None,
    }


def _records(folder: Path) -> Iterator[Any]:
    """Yield what runs, a training and a score in a job's folder say of themselves."""
    for path in [folder / "run.json", *sorted(folder.glob("*/run.json")), folder / "result.json"]:
        with suppress(OSError, ValueError):
            yield json.loads(path.read_bytes())


def _tasks(folder: Path) -> str | None:
    """Return in words that a job's tasks were generated; None where they were not, or nobody says it."""
    counted: list[tuple[float, float]] = []
    for record in _records(folder):
        played = number(record, "tasks", "number"), number(record, "tasks", "generated")
        if played[0] is not None and played[1] is not None:
            counted.append((played[0], played[1]))
        words = get(record, "tasks")  # of a score
        told = (
            [words]
            if isinstance(words, str)
            else members(record, "described", "env", "tasks").values()
        )
        for text in map(str, told):
            some = "generated" in text
            counted.append((1, some * (0.5 if "of them" in text or "partly" in text else 1)))
    return kind_in_words(sum(n for n, _ in counted), sum(n for _, n in counted)) or None


def _caution(folder: Path) -> str | None:
    """Return in words that runs of a job asked an oracle; None where they did not."""
    asked = set()
    for path in sorted(folder.glob("*/summary.json")):
        with suppress(DataCorrupt, OSError, ValueError):
            asked |= {str(words) for words in members(read_json(path), "world_models").values()}
    return "; ".join(sorted(words for words in asked if NOT_TO_REPORT in words)) or None


def _fingerprint(folder: Path) -> str | None:
    """Return twelve digits for the fingerprints of the environments that a job was run in."""
    found = []
    for run in _records(folder):
        known = get(run, "described", "env", "fingerprint")
        found.append(known or get(run, "environment") or get(run, "env", "fingerprint"))
    found = [one for one in found if isinstance(one, Mapping)]
    if not found:
        return None
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]


def measures_of(job: Job, folder: Path) -> list[Measure]:
    found = list(_READERS[job.recipe.kind](job, folder))
    if job.setup is not None and "/SearchQA-" in job.setup.env:
        exact = [one for one in found if one.metric == "success_rate"]
        found += [replace(one, metric="exact_match") for one in exact]
    return [one for one in found if one.value is None or math.isfinite(one.value)]


def _comap(job: Job, folder: Path) -> Iterator[Measure]:
    """Yield what a training in stages measured: CoMap's, and the warm-ups before it."""
    training = read_training(folder)
    rounds = training.evaluations()
    if not rounds:
        raise DataNotFound(f"expected an evaluation in {folder}, found none")
    last, final = rounds[-1]
    yield from _evaluation(final, folder, f"round-{last}-evaluation")
    revisions = members(final, "revisions")
    for name in ("n", "drafts_succeed", "revised"):
        count = number(revisions, name)
        if count is not None:
            yield Measure(metric=f"revisions.{name}", value=count, unit="count")
    for name, of in (("urr", "drafts_succeed"), ("hrr", "drafts_succeed"), ("brp", "revised")):
        value, n = number(revisions, name), number(revisions, of)
        if value is not None and n:  # a rate of nothing says nothing
            yield Measure(metric=name, value=value, unit="share", n=int(n))
    for x, found in rounds:
        yield from _points(_evaluation(found), "round", x)
    for x, found in training.rollouts():
        for tau, share in members(found, "gates", "adoption").items():
            if share is not None:
                adopted = _percent(f"adoption.{tau}", share, n=found["steps"])
                yield from _points([adopted], "round", x)
    whole = [training]
    if job.recipe.start is not None:  # whose warm-up belongs to this training
        whole.insert(0, read_training(folder.parents[1] / job.needs[job.recipe.start] / "out"))
    learned = [stage for one in whole for stage in one.learned()]
    for metric, (start, kind) in _NAMES["samples"].items():
        counts = (
            int(members(result, "samples").get(kind, 0))
            for name, result in learned
            if name.startswith(start)
        )
        yield Measure(metric=metric, value=float(sum(counts)), unit="count")
    yield from _costs(whole)


def _points(measures: Iterable[Measure], over: str, x: float) -> Iterator[Measure]:
    return (replace(one, over=over, x=float(x), trajectories=None) for one in measures)


def _evaluation(
    found: Mapping[str, Any], folder: Path | None = None, stage: str = ""
) -> Iterator[Measure]:
    """Yield success, score and Delta-F1 of an evaluation."""
    parts: list[_Part] = []
    for split, one in members(found, "splits").items():
        n, played = int(one["episodes"]), None
        if folder is not None:
            files = sorted(folder.glob(f"stages/*-{stage}/{split}-0/rank-*/{TRAJECTORIES}"))
            played = files[0].relative_to(folder).as_posix() if files else None
        parts.append(_Part(split, round(one["success"] * n), n, one["score"], played))
    yield from _rates(parts)
    scores = members(found, "world_model", "frozen")
    yield from _delta_f1(scores)
    nll = number(scores, "change_token_nll", "nll")
    if nll is not None:
        tokens = int(number(scores, "change_token_nll", "tokens") or 0)
        yield Measure(metric="change_token_nll", value=nll, unit="nats", n=tokens)


def _delta_f1(scores: Mapping[str, Any]) -> Iterator[Measure]:
    value, error = number(scores, "all", "delta_f1"), number(scores, "all", "stderr")
    if value is not None:
        low = None if error is None else max(value - _NORMAL * error, 0.0)
        high = None if error is None else min(value + _NORMAL * error, 100.0)
        n = int(scores["all"]["n"])
        yield Measure(metric="delta_f1", value=value, low=low, high=high, n=n)
    refusals = members(scores, "refusals")
    for name, of in (("precision", "foreseen"), ("recall", "real")):
        if (share := number(refusals, name)) is not None:
            yield Measure(metric=f"refusals.{name}", value=share, n=int(refusals[of]))


def _costs(whole: Sequence[TrainingRecord]) -> Iterator[Measure]:
    """Yield wall-clock time and GPU-hours of each phase and module (CoMap, Table 6)."""
    spent = []
    for training in whole:
        hardware = members(training.sessions[-1], "hardware") if training.sessions else {}
        gpus = number(hardware, "processes") or 0.0 if hardware.get("gpus") else 0.0
        for name, result in training.done():
            spent.append((name, (number(result, "seconds") or 0.0) / 3600, gpus))
    for part, stages in _NAMES["costs"].items():
        found = [(hours, gpus * hours) for name, hours, gpus in spent if re.fullmatch(stages, name)]
        wall_clock, gpu_hours = (sum(values) for values in zip((0.0, 0.0), *found, strict=True))
        yield Measure(metric="wall_clock", value=wall_clock, unit="h", method=part)
        if gpu_hours:
            yield Measure(metric="gpu_hours", value=gpu_hours, unit="GPU-h", method=part)


def _paw(job: Job, folder: Path) -> Iterator[Measure]:
    record = read_training(folder)
    if not record.tests:
        raise DataNotFound(f"expected an evaluation in {folder}, found none")
    by_update: dict[int, list[Mapping[str, Any]]] = {}
    for line in record.tests:
        by_update.setdefault(int(line["update"]), []).append(line)
    last = max(by_update)
    yield from _paw_evaluation(by_update[last])
    for line in by_update[last]:
        split = str(line["split"])
        files = folder.glob(f"evaluations/{last:04}-{split}-0/rank-*/{TRAJECTORIES}")
        yield from _by_kind((e for path in sorted(files) for e in recorded(path)), split)
        yield from _by_data_set(line["won"])
    for update in sorted(by_update):
        yield from _points(_paw_evaluation(by_update[update]), "update", update)
    for name, (metric, unit, factor) in _NAMES["curves"].items():
        for x, y in zip(*record.curve(name, factor), strict=True):
            yield Measure(metric=metric, value=y, unit=unit, over="update", x=x)
    yield from _steps(record)


def _steps(record: TrainingRecord) -> Iterator[Measure]:
    """Yield what a step of training takes (PaW, Figure 5)."""
    phases = {name: record.curve(f"seconds_{name}")[1] for name in _PHASES}
    if not all(phases.values()):
        return
    phases["step"] = tuple(map(sum, zip(*phases.values(), strict=True)))
    for name, seconds in phases.items():
        yield Measure(metric=f"seconds.{name}", value=fmean(seconds), unit="s", n=len(seconds))
    for name, of in (("peak_memory", max), ("mean_memory", fmean)):
        if sizes := record.curve(name, 2**-30)[1]:
            yield Measure(metric=name, value=of(sizes), unit="GiB", n=len(sizes))


def _paw_evaluation(lines: Sequence[Mapping[str, Any]]) -> Iterator[Measure]:
    won = [[int(value) for value in line["won"].values()] for line in lines]
    return _rates(
        [
            _Part(str(line["split"]), sum(own), len(own), number(line, "score"))
            for line, own in zip(lines, won, strict=True)
        ]
    )


class _Part(NamedTuple):
    """How a split of an evaluation went."""

    split: str
    won: int
    n: int
    score: float | None
    trajectories: str | None = None


def _rates(parts: Sequence[_Part]) -> Iterator[Measure]:
    for one in parts:
        yield _success(one.won, one.n, one.split, trajectories=one.trajectories)
        if one.score is not None:
            yield Measure(metric="score", value=100 * one.score, split=one.split, n=one.n)
    n = sum(one.n for one in parts)
    scores = [one.n * one.score for one in parts if one.score is not None]
    if n:
        yield _success(sum(one.won for one in parts), n)
    if n and len(scores) == len(parts):
        yield Measure(metric="score", value=100 * sum(scores) / n, n=n)


def _by_data_set(won: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield success by data set, on search QA: there a task's id begins with the set's name."""
    found: dict[str, list[bool]] = {}
    for task, times in won.items():
        name = task.partition("/")[0]
        if name in DATASETS:
            found.setdefault(name, []).append(times > 0)
    for name, own in found.items():
        yield _success(sum(own), len(own), name)


def _by_kind(episodes: Iterable[Trajectory], split: str) -> Iterator[Measure]:
    found: dict[str, list[bool]] = {}
    for episode in episodes:
        if "/ALFWorld-" not in episode.env_id:
            return
        goal = Goal.from_sentence(episode.goal)
        if goal is not None:
            found.setdefault(_NAMES["kinds"].get(goal.family, goal.family), []).append(
                episode.success
            )
    for kind, won in sorted(found.items()):
        yield _success(sum(won), len(won), split, metric=f"success_rate.{kind}")


def _play(job: Job, folder: Path) -> Iterator[Measure]:
    parts: list[_Part] = []
    assert job.setup is not None
    for split in job.setup.splits:
        summary = _json(folder / split / "summary.json")
        n, score = int(summary["n"]), summary["score"]
        won = round(summary["success"]["value"] * n)
        if job.setup.judge is None:
            parts.append(_Part(split, won, n, score, f"{split}/{TRAJECTORIES}"))
        else:  # columns pool verdicts themselves
            yield _judged(folder / f"{split}-{VERDICTS}", split)
            yield Measure(metric="score", value=100 * score, split=split, n=n)
        steps, gate = int(summary["steps"]["all"]), summary.get("gate")
        yield _percent("refused", summary["invalid_actions"], n=steps, split=split)
        if gate is not None:
            share = gate["opened"] / max(gate["reflections"], 1)
            yield _percent("gate_open", share, n=int(gate["reflections"]), split=split)
        yield from _by_kind(recorded(folder / split / TRAJECTORIES), split)
    yield from _rates(parts)


def _judged(path: Path, split: str) -> Measure:
    """Return SoPR by a judge, from the file of scores of a split's answers."""
    sopr = members(_json(path), "sopr")
    mean, low, high, n = (number(sopr, name) for name in ("mean", "low", "high", "n"))
    if mean is None or low is None or high is None or n is None:
        raise DataCorrupt(f"expected SoPR with its interval in {path}, found none")
    found = _percent("success_rate", mean, low=100 * low, high=100 * high, n=int(n), split=split)
    return replace(found, trajectories=f"{split}/{TRAJECTORIES}")


def _predict(job: Job, folder: Path) -> Iterator[Measure]:
    return _delta_f1(members(_json(folder / "result.json"), "scores"))


def _noise(job: Job, folder: Path) -> Iterator[Measure]:
    result = _json(folder / "result.json")
    for key, one in result["shares"].items():
        if one["share"] is not None:
            low, high = (None if one[end] is None else 100 * one[end] for end in ("low", "high"))
            more = {"low": low, "high": high, "n": result["transitions"], "method": key.upper()}
            yield _percent("noise_gradient_share", one["share"], **more)


def _facts(job: Job, folder: Path) -> Iterator[Measure]:
    """Yield what needs no run: sizes of data sets, settings."""
    if job.recipe.fact == "statistics":
        yield from _statistics(job)
        return
    config = preset(job.preset, **job.settings)
    for name, path in _NAMES["settings"].items():
        value = "AdamW" if path is None else reduce(getattr, path.split("."), config)
        if value is None or (name.startswith("LoRA") and config.weights == "full"):
            value = "none"
        yield Measure(metric="setting", unit="", method=name, text=str(value))


def _statistics(job: Job) -> Iterator[Measure]:
    """Yield how many tasks the splits have (CoMap, Table 4)."""
    assert job.setup is not None
    make_env = Environments(job.setup.env, job.setup.options)
    splits = job.setup.splits
    for name, split in (("train", "train"), ("seen", splits[0]), ("unseen", splits[-1])):
        if name == "seen" and len(splits) == 1:
            continue  # the one that there is counts as unseen
        try:
            with closing(make_env(split)) as env:
                n = len(env.get_wrapper_attr("tasks").ids)
        except CoMapError:
            continue
        yield Measure(metric=f"tasks.{name}", value=float(n), unit="count")


_READERS: Mapping[str, Callable[[Job, Path], Iterable[Measure]]] = {
    "comap": _comap,
    "baseline": lambda job, folder: (),
    "paw": _paw,
    "play": _play,
    "predict": _predict,
    "noise": _noise,
    "told": _facts,
}


def _success(
    won: int,
    n: int,
    split: str | None = None,
    *,
    metric: str = "success_rate",
    trajectories: str | None = None,
) -> Measure:
    rate = wilson(won / n if n else 0.0, n)
    found = _percent(metric, rate.value, low=100 * rate.low, high=100 * rate.high, n=n, split=split)
    return replace(found, trajectories=trajectories)


def _percent(metric: str, share: float, **more: Any) -> Measure:
    return Measure(metric=metric, value=100 * share, **more)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except OSError as error:
        raise DataNotFound(f"expected a result in {path}, found none") from error
    if not isinstance(found, dict):
        raise DataCorrupt(f"expected a result in {path}, found {type(found).__name__}")
    return found
