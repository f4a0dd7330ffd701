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
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from ...agents.run import TRAJECTORIES, recorded
from ...envs.alfworld.goal import Goal
from ...envs.generated import kind_in_words
from ...envs.searchqa.questions import DATASETS
from ...errors import CoMapError, DataCorrupt, DataNotFound
from ...jsonl import read_json
from ...metrics import normal_quantile, wilson
from ...trainers.comap.config import preset
from ...trainers.results import (
    PredictionReport,
    RevisionReport,
    RoundEvaluation,
    UpdateEvaluation,
    from_json,
)
from ...trainers.setup import Environments
from ...trajectory import Trajectory
from ...worldmodel.naming import NOT_TO_REPORT
from ..training_record import TrainingRecord, get, members, number, read_training
from .definition import Column, Experiment, ResultRow, read_data
from .plan import VERDICTS, Job, Paths, Plan, PlannedCell
from .runner import job_record

T = TypeVar("T")

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


_FIELDS_OF_ROWS = [field.name for field in fields(Measure) if field.name not in ("over", "method")]


class _Outcome(NamedTuple):
    """What a job measured, its record, and why it measured nothing."""

    measures: Sequence[Measure] = ()
    record: Mapping[str, Any] = {}
    why: str | None = None


def collect(plan: Plan, experiments: Sequence[Experiment], paths: Paths) -> list[ResultRow]:
    """Return the rows of all planned cells; a cell without a value has one row that says why."""
    experiments_by_id = {experiment.id: experiment for experiment in experiments}
    job_names = dict.fromkeys(cell.job for cell in plan.cells if cell.job is not None)
    # A job is read once, however many cells show what it measured.
    outcomes = {name: _outcome(plan.jobs[name], paths) for name in job_names}

    rows = []
    for cell in plan.cells:
        if cell.why == "cited only":
            continue
        outcome = _Outcome(why=cell.why) if cell.job is None else outcomes[cell.job]
        rows += _rows_of(cell, experiments_by_id[cell.experiment], outcome)
    return rows


def _rows_of(cell: PlannedCell, experiment: Experiment, outcome: _Outcome) -> list[ResultRow]:
    """Return the rows of a planned cell: one a measure that a column shows, else one with the reason."""
    circumstances = _circumstances(cell, experiment, outcome.record)
    rows = []
    for row_fields in _measured_fields(cell, experiment, outcome.measures):
        rows.append(ResultRow(**circumstances, **row_fields))
    if rows:
        return rows

    # The reason stands in the first column that the method has.
    columns = experiment.columns
    judging = (
        column for column in columns if experiment.judges(column, cell.method.name, cell.env)
    )
    column = next(judging, Column(label="", unit=""))
    reason = outcome.why or "measured nothing that a column shows"
    row = ResultRow(
        **circumstances,
        metric=column.metric,
        unit=column.unit,
        x=_x(cell, experiment),
        error=reason[:2000],
    )
    return [row]


def _outcome(job: Job, paths: Paths) -> _Outcome:
    """Return what a job measured, or why it measured nothing; what it wrote may be damaged."""
    record = job_record(paths, job)
    if record is None:
        return _Outcome(why="not run yet")
    if record["status"] != "done":
        return _Outcome(record=record, why=f"{record['status']}: {record['why']}")

    folder = paths.of(job.id)
    record["fingerprint"] = _fingerprint(folder)
    record["tasks"] = _kind_of_tasks(folder)
    record["caution"] = _caution(folder)
    try:
        return _Outcome(measures_of(job, folder), record)
    except CoMapError as error:
        return _Outcome(record=record, why=f"failed: {error}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # One file that is not understood must not cost the rows of all other jobs.
        why = f"failed: what it wrote is not understood ({error!r:.200})"
        return _Outcome(record=record, why=why)


def _measured_fields(
    cell: PlannedCell, experiment: Experiment, measures: Iterable[Measure]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of a row for each measure that a column of the experiment shows."""
    experiment_axis = None if experiment.axis is None else experiment.axis.over
    for measure in measures:
        column = experiment.column(cell.method.name, measure.metric, cell.env, measure.split)
        if column is None or measure.method not in (None, cell.method.name):
            continue

        # A training has points over rounds or updates; a panel shows those over its own axis.
        axis = column.over or experiment_axis
        if measure.over not in (None, axis):
            continue

        # A measure that is no point of a curve stands where its cell does. On a curve over rounds or
        # updates that is nowhere: such a measure repeats the curve's last point.
        x = measure.x
        if measure.over is None:
            x = _x(cell, experiment)
            if x is None and axis in ("round", "update"):
                continue

        # The method of the row is the cell's, and its axis the column's.
        row_fields = {name: getattr(measure, name) for name in _FIELDS_OF_ROWS}
        row_fields["x"] = x
        if measure.trajectories:
            row_fields["trajectories"] = f"jobs/{cell.job}/out/{measure.trajectories}"
        yield row_fields


def _x(cell: PlannedCell, experiment: Experiment) -> float | None:
    """Return where a cell stands on an axis over settings or sizes of models."""
    axis = experiment.axis
    if axis is not None and axis.over == "parameters" and cell.backbone is not None:
        return cell.backbone.parameters
    return cell.method.x


def _circumstances(
    cell: PlannedCell, experiment: Experiment, record: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that all rows of a cell share: what was run, with what code, at what cost."""
    cost = dict(record.get("cost") or {})
    seconds = cost.pop("seconds", None)
    machine = record.get("hardware")
    hardware = None
    if isinstance(machine, Mapping):
        hardware = f"{get(machine, 'cpu')}, {get(machine, 'cores')} cores"
        for gpu in machine.get("gpus") or ():
            hardware += f", {gpu}"

    return {
        "experiment": experiment.id,
        "method": cell.method.name,
        "backbone": None if cell.backbone is None else cell.backbone.name,
        "env": cell.env,
        "seed": cell.seed if experiment.seeds else None,
        "config_hash": record.get("config_hash"),
        "code_version": record.get("code"),
        "fingerprint": record.get("fingerprint"),
        "tasks": record.get("tasks"),
        "caution": record.get("caution"),
        "hardware": hardware,
        "seconds": seconds,
        "cost": cost or None,
        "job": cell.job if record else None,
    }


def _records(folder: Path) -> Iterator[Any]:
    """Yield what runs, a training and a score in a job's folder say of themselves."""
    for path in [folder / "run.json", *sorted(folder.glob("*/run.json")), folder / "result.json"]:
        with suppress(OSError, ValueError):
            yield json.loads(path.read_bytes())


def _kind_of_tasks(folder: Path) -> str | None:
    """Return "generated tasks" or "partly generated tasks" for those of a job; None for neither."""
    tasks = 0.0
    generated_tasks = 0.0
    for record in _records(folder):
        # A run counts its tasks.
        count = number(record, "tasks", "number")
        generated_count = number(record, "tasks", "generated")
        if count is not None and generated_count is not None:
            tasks += count
            generated_tasks += generated_count

        # A training and a score only have words, such as "9 tasks, 3 of them generated". In the end it
        # only counts whether all, some or none were generated: so each description weighs as one task.
        for description in _descriptions_of_tasks(record):
            tasks += 1
            if "generated" in description:
                is_partly = "of them" in description or "partly" in description
                generated_tasks += 0.5 if is_partly else 1

    return kind_in_words(tasks, generated_tasks) or None


def _descriptions_of_tasks(record: object) -> list[str]:
    """Return what a score says of its tasks, or a training of those of each split."""
    words = get(record, "tasks")
    if isinstance(words, str):
        return [words]
    return list(map(str, members(record, "described", "env", "tasks").values()))


def _caution(folder: Path) -> str | None:
    """Return in words that runs of a job asked an oracle; None where they did not."""
    world_models = set()
    for path in sorted(folder.glob("*/summary.json")):
        with suppress(DataCorrupt, OSError, ValueError):
            world_models |= set(map(str, members(read_json(path), "world_models").values()))
    return "; ".join(sorted(words for words in world_models if NOT_TO_REPORT in words)) or None


def _fingerprint(folder: Path) -> str | None:
    """Return twelve digits for the fingerprints of the environments that a job was run in."""
    fingerprints = []
    for record in _records(folder):
        # A training, a run and a score each have it at a place of their own.
        fingerprint = (
            get(record, "described", "env", "fingerprint")
            or get(record, "environment")
            or get(record, "env", "fingerprint")
        )
        if isinstance(fingerprint, Mapping):
            fingerprints.append(fingerprint)

    if not fingerprints:
        return None
    return hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()[:12]


def measures_of(job: Job, folder: Path) -> list[Measure]:
    """Return all that a job measured, in the order of its reader, without what is no number."""
    measures = list(_READERS[job.recipe.kind](job, folder))

    # On search QA success is exact match, and PaW's table of it asks for that name.
    if job.setup is not None and "/SearchQA-" in job.setup.env:
        successes = [measure for measure in measures if measure.metric == "success_rate"]
        measures += [replace(measure, metric="exact_match") for measure in successes]
    return [
        measure for measure in measures if measure.value is None or math.isfinite(measure.value)
    ]


def _comap(job: Job, folder: Path) -> Iterator[Measure]:
    """Yield what a training in stages measured: CoMap's, and the warm-ups before it."""
    training = read_training(folder)
    rounds = training.evaluations()
    if not rounds:
        raise DataNotFound(f"expected an evaluation in {folder}, found none")

    last_round, last_evaluation = rounds[-1]
    yield from _evaluation(last_evaluation, folder, f"round-{last_round}-evaluation")
    if last_evaluation.revisions is not None:
        yield from _revisions(last_evaluation.revisions)
    yield from _rounds(training)

    trainings = [training]
    if job.recipe.start is not None:
        # The warm-up was a job of its own, but its samples and its cost belong to this training.
        warmup_folder = folder.parents[1] / job.needs[job.recipe.start] / "out"
        trainings.insert(0, read_training(warmup_folder))
    yield from _samples(trainings)
    yield from _costs(trainings)


def _revisions(revisions: RevisionReport) -> Iterator[Measure]:
    """Yield how often decisions were revised, and whether that helped (CoMap, Table 3)."""
    counts = {
        "n": revisions.n,
        "drafts_succeed": revisions.drafts_succeed,
        "revised": revisions.revised,
    }
    for name, count in counts.items():
        if count is not None:
            yield Measure(metric=f"revisions.{name}", value=count, unit="count")

    rates = {
        "urr": (revisions.urr, revisions.drafts_succeed),
        "hrr": (revisions.hrr, revisions.drafts_succeed),
        "brp": (revisions.brp, revisions.revised),
    }
    for name, (rate, n) in rates.items():
        if rate is not None and n:  # a rate of nothing says nothing
            yield Measure(metric=name, value=rate, unit="share", n=n)


def _rounds(training: TrainingRecord) -> Iterator[Measure]:
    """Yield the points of curves over rounds: evaluations, then how many steps each gate adopted."""
    for x, evaluation in training.evaluations():
        yield from _points(_evaluation(evaluation), "round", x)

    for x, rollouts in training.rollouts():
        adoption = {} if rollouts.gates is None else rollouts.gates.adoption
        for tau, share in adoption.items():
            if share is not None:
                steps = _known(rollouts.played.steps, "the steps of rollouts")
                adopted = _percent(f"adoption.{tau}", share, n=steps)
                yield from _points([adopted], "round", x)


def _samples(trainings: Sequence[TrainingRecord]) -> Iterator[Measure]:
    """Yield how many samples of each kind models learned from (CoMap, Figure 7)."""
    fits = []
    for training in trainings:
        fits += training.learned()

    for metric, (stage_prefix, sample_kind) in _NAMES["samples"].items():
        count = 0
        for stage, fit in fits:
            if stage.startswith(stage_prefix) and fit.samples is not None:
                count += fit.samples.get(sample_kind, 0)
        yield Measure(metric=metric, value=float(count), unit="count")


def _points(measures: Iterable[Measure], over: str, x: float) -> Iterator[Measure]:
    """Return measures as the points of curves at `x`."""
    return (replace(measure, over=over, x=float(x), trajectories=None) for measure in measures)


def _evaluation(
    evaluation: RoundEvaluation, folder: Path | None = None, stage: str = ""
) -> Iterator[Measure]:
    """Yield success, score and Delta-F1 of an evaluation."""
    parts: list[_Part] = []
    for split, result in evaluation.splits.items():
        n = _known(result.episodes, f"the episodes of {split}")
        trajectories = None
        if folder is not None:
            files = sorted(folder.glob(f"stages/*-{stage}/{split}-0/rank-*/{TRAJECTORIES}"))
            trajectories = files[0].relative_to(folder).as_posix() if files else None
        successes = round(_known(result.success, f"the success of {split}") * n)
        parts.append(_Part(split, successes, n, result.score, trajectories))
    yield from _rates(parts)

    report = evaluation.world_model.get("frozen")
    if report is None:
        return
    yield from _delta_f1(report)
    tokens = report.change_token_nll
    if tokens is not None and tokens.nll is not None:
        n = tokens.tokens or 0
        yield Measure(metric="change_token_nll", value=tokens.nll, unit="nats", n=n)


def _delta_f1(report: PredictionReport) -> Iterator[Measure]:
    """Yield Delta-F1 of a world model with its interval, and how well it foresees refusals."""
    delta_f1 = report.all.delta_f1
    standard_error = report.all.stderr
    if delta_f1 is not None:
        low = None
        high = None
        if standard_error is not None:
            half_width = normal_quantile() * standard_error
            low = max(delta_f1 - half_width, 0.0)
            high = min(delta_f1 + half_width, 100.0)
        n = _known(report.all.n, "the transitions that Delta-F1 is of")
        yield Measure(metric="delta_f1", value=delta_f1, low=low, high=high, n=n)

    # Precision is a share of the refusals that were foreseen, recall one of those that came.
    refusals = report.refusals
    shares = {
        "precision": (refusals.precision, refusals.foreseen),
        "recall": (refusals.recall, refusals.real),
    }
    for name, (share, base) in shares.items():
        if share is not None:
            n = _known(base, "the refusals that a share is of")
            yield Measure(metric=f"refusals.{name}", value=share, n=n)


def _known(value: T | None, name: str) -> T:
    """Return a value that a cell cannot do without: what a job wrote may be damaged."""
    if value is None:
        raise DataCorrupt(f"expected {name} in what the job wrote, found none; run the job again")
    return value


class _StageCost(NamedTuple):
    """What a stage of a training took."""

    stage: str
    hours: float
    gpu_hours: float


def _costs(trainings: Sequence[TrainingRecord]) -> Iterator[Measure]:
    """Yield wall-clock time and GPU-hours of each phase and module (CoMap, Table 6)."""
    stage_costs = []
    for training in trainings:
        # A training that was continued elsewhere counts as if all of it had run on the last machine.
        hardware = members(training.sessions[-1], "hardware") if training.sessions else {}
        gpus = 0.0
        if hardware.get("gpus"):
            gpus = number(hardware, "processes") or 0.0
        for stage, result in training.done():
            hours = (result.seconds or 0.0) / 3600
            stage_costs.append(_StageCost(stage, hours, gpus * hours))

    for part, stage_pattern in _NAMES["costs"].items():
        part_costs = [cost for cost in stage_costs if re.fullmatch(stage_pattern, cost.stage)]
        wall_clock = sum((cost.hours for cost in part_costs), 0.0)
        gpu_hours = sum(cost.gpu_hours for cost in part_costs)
        yield Measure(metric="wall_clock", value=wall_clock, unit="h", method=part)
        if gpu_hours:
            yield Measure(metric="gpu_hours", value=gpu_hours, unit="GPU-h", method=part)


def _paw(job: Job, folder: Path) -> Iterator[Measure]:
    """Yield what a training in updates measured: its last evaluation, and curves over updates."""
    record = read_training(folder)
    if not record.tests:
        raise DataNotFound(f"expected an evaluation in {folder}, found none")
    evaluations: dict[int, list[UpdateEvaluation]] = {}
    for result in record.tests:
        evaluations.setdefault(_known(result.update, "an update"), []).append(result)

    last_update = max(evaluations)
    yield from _paw_evaluation(evaluations[last_update])
    for result in evaluations[last_update]:
        split = str(result.split)
        files = folder.glob(f"evaluations/{last_update:04}-{split}-0/rank-*/{TRAJECTORIES}")
        yield from _by_kind(chain.from_iterable(map(recorded, sorted(files))), split)
        yield from _by_data_set(_won(result))

    for update in sorted(evaluations):
        yield from _points(_paw_evaluation(evaluations[update]), "update", update)
    for name, (metric, unit, factor) in _NAMES["curves"].items():
        for x, value in zip(*record.curve(name, factor), strict=True):
            yield Measure(metric=metric, value=value, unit=unit, over="update", x=x)
    yield from _steps(record)


def _steps(record: TrainingRecord) -> Iterator[Measure]:
    """Yield what a step of training takes (PaW, Figure 5)."""
    phases = {name: record.curve(f"seconds_{name}")[1] for name in _PHASES}
    if not all(phases.values()):
        return

    phases["step"] = tuple(map(sum, zip(*phases.values(), strict=True)))
    for name, seconds in phases.items():
        yield Measure(metric=f"seconds.{name}", value=fmean(seconds), unit="s", n=len(seconds))

    # The largest peak of any update says which GPU the training fits on.
    for name, over_updates in (("peak_memory", max), ("mean_memory", fmean)):
        sizes = record.curve(name, 2**-30)[1]
        if sizes:
            yield Measure(metric=name, value=over_updates(sizes), unit="GiB", n=len(sizes))


def _paw_evaluation(results: Sequence[UpdateEvaluation]) -> Iterator[Measure]:
    """Return the rates of an evaluation between updates, of which each split has a line."""
    parts = []
    for result in results:
        successes = _won(result).values()
        parts.append(_Part(str(result.split), sum(successes), len(successes), result.score))
    return _rates(parts)


def _won(result: UpdateEvaluation) -> Mapping[str, int]:
    """Return how often each task was solved; a task without a number would change the rate."""
    won = _known(result.won, f"the tasks of {result.split}")
    if result.tasks not in (None, len(won)):
        raise DataCorrupt(
            f"expected {result.tasks} tasks of {result.split}, found {len(won)}; run the job again"
        )
    return won


class _Part(NamedTuple):
    """How a split of an evaluation went."""

    split: str
    successes: int
    n: int
    score: float | None
    trajectories: str | None = None


def _rates(parts: Sequence[_Part]) -> Iterator[Measure]:
    """Yield success and score of each split and then of all tasks, each of which counts alike."""
    for part in parts:
        yield _success(part.successes, part.n, part.split, trajectories=part.trajectories)
        if part.score is not None:
            yield Measure(metric="score", value=100 * part.score, split=part.split, n=part.n)

    n = sum(part.n for part in parts)
    scores = [part.n * part.score for part in parts if part.score is not None]
    if n:
        yield _success(sum(part.successes for part in parts), n)
    if n and len(scores) == len(parts):
        yield Measure(metric="score", value=100 * sum(scores) / n, n=n)


def _by_data_set(won: Mapping[str, Any]) -> Iterator[Measure]:
    """Yield success by data set, on search QA: there a task's id begins with the set's name."""
    successes: dict[str, list[bool]] = {}
    for task, times in won.items():
        name = task.partition("/")[0]
        if name in DATASETS:
            successes.setdefault(name, []).append(times > 0)

    for name, outcomes in successes.items():
        yield _success(sum(outcomes), len(outcomes), name)


def _by_kind(episodes: Iterable[Trajectory], split: str) -> Iterator[Measure]:
    """Yield success by kind of task, on ALFWorld: there a goal's sentence says which kind it is."""
    successes: dict[str, list[bool]] = {}
    for episode in episodes:
        if "/ALFWorld-" not in episode.env_id:
            return
        goal = Goal.from_sentence(episode.goal)
        if goal is not None:
            kind = _NAMES["kinds"].get(goal.family, goal.family)
            successes.setdefault(kind, []).append(episode.success)

    for kind, outcomes in sorted(successes.items()):
        yield _success(sum(outcomes), len(outcomes), split, metric=f"success_rate.{kind}")


def _play(job: Job, folder: Path) -> Iterator[Measure]:
    """Yield what an agent's runs measured, split by split, and then over all of them."""
    parts: list[_Part] = []
    assert job.setup is not None
    for split in job.setup.splits:
        summary = _json(folder / split / "summary.json")
        n = int(summary["n"])
        score = summary["score"]
        successes = round(summary["success"]["value"] * n)
        if job.setup.judge is None:
            parts.append(_Part(split, successes, n, score, f"{split}/{TRAJECTORIES}"))
        else:  # columns pool verdicts themselves
            yield _judged(folder / f"{split}-{VERDICTS}", split)
            yield Measure(metric="score", value=100 * score, split=split, n=n)

        steps = int(summary["steps"]["all"])
        yield _percent("refused", summary["invalid_actions"], n=steps, split=split)
        yield from _replies(summary, split)
        gate = summary.get("gate")
        if gate is not None:
            share = gate["opened"] / max(gate["reflections"], 1)
            yield _percent("gate_open", share, n=int(gate["reflections"]), split=split)
        yield from _by_kind(recorded(folder / split / TRAJECTORIES), split)
    yield from _rates(parts)


def _replies(summary: dict[str, Any], split: str) -> Iterator[Measure]:
    """Yield the share of replies in which no action could be read, and the tokens of a step."""
    unread = members(summary, "unread_replies", "without_action")
    if unread:
        replies = int(unread["of"])
        share = unread["all"] / max(replies, 1)
        yield _percent("unreadable", share, n=replies, split=split)

    per_step = members(summary, "language_model", "per_step")
    for metric, name in (("tokens_read", "prompt_tokens"), ("tokens_written", "completion_tokens")):
        tokens = number(per_step, name)
        if tokens is not None:
            yield Measure(metric=metric, value=tokens, split=split, n=int(summary["steps"]["all"]))


def _judged(path: Path, split: str) -> Measure:
    """Return SoPR by a judge, from the file of scores of a split's answers."""
    sopr = members(_json(path), "sopr")
    mean = number(sopr, "mean")
    low = number(sopr, "low")
    high = number(sopr, "high")
    n = number(sopr, "n")
    if mean is None or low is None or high is None or n is None:
        raise DataCorrupt(f"expected SoPR with its interval in {path}, found none")

    rate = _percent("success_rate", mean, low=100 * low, high=100 * high, n=int(n), split=split)
    return replace(rate, trajectories=f"{split}/{TRAJECTORIES}")


def _predict(job: Job, folder: Path) -> Iterator[Measure]:
    scores = _json(folder / "result.json").get("scores")
    return _delta_f1(from_json(PredictionReport, scores))


def _noise(job: Job, folder: Path) -> Iterator[Measure]:
    """Yield which share of the gradient is noise, for each way to weigh tokens."""
    result = _json(folder / "result.json")
    for weighting, part in result["shares"].items():
        if part["share"] is None:
            continue
        low = None if part["low"] is None else 100 * part["low"]
        high = None if part["high"] is None else 100 * part["high"]
        yield _percent(
            "noise_gradient_share",
            part["share"],
            low=low,
            high=high,
            n=result["transitions"],
            method=weighting.upper(),
        )


def _facts(job: Job, folder: Path) -> Iterator[Measure]:
    """Yield what needs no run: sizes of data sets, settings."""
    if job.recipe.fact == "statistics":
        yield from _statistics(job)
        return

    config = preset(job.preset, **job.settings)
    for name, path in _NAMES["settings"].items():
        # The optimizer is no setting.
        setting = "AdamW" if path is None else reduce(getattr, path.split("."), config)
        if setting is None or (name.startswith("LoRA") and config.weights == "full"):
            setting = "none"
        yield Measure(metric="setting", unit="", method=name, text=str(setting))


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
        except CoMapError:  # no data here: the cell says so
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
    successes: int,
    n: int,
    split: str | None = None,
    *,
    metric: str = "success_rate",
    trajectories: str | None = None,
) -> Measure:
    """Return a rate in per cent with Wilson's interval."""
    rate = wilson(successes / n if n else 0.0, n)
    measure = _percent(
        metric, rate.value, low=100 * rate.low, high=100 * rate.high, n=n, split=split
    )
    return replace(measure, trajectories=trajectories)


def _percent(metric: str, share: float, **other_fields: Any) -> Measure:
    return Measure(metric=metric, value=100 * share, **other_fields)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except OSError as error:
        raise DataNotFound(f"expected a result in {path}, found none") from error
    if not isinstance(content, dict):
        raise DataCorrupt(f"expected a result in {path}, found {type(content).__name__}")
    return content
