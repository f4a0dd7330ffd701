"""The report of a training of any method: one HTML page, and its metrics line by line."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..metrics import normal_quantile
from ..trainers.baselines.config import BASELINES
from ..trainers.comap.config import ABLATIONS, CoMapTraining
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.training import METRICS
from ..trainers.results import (
    Fit,
    GateReport,
    GroupScore,
    PredictionReport,
    RevisionReport,
    StageResult,
    Truthfulness,
)
from .report import Section, render_page, write_whole
from .tables import Plot, Series, Table
from .training_record import (
    TrainingRecord,
    flat_metrics,
    get,
    leaves,
    members,
    number,
    read_training,
)

T = TypeVar("T")

Counted: TypeAlias = "tuple[float | None, int | None]"
"""A number, and how many cases stand behind it."""

Point: TypeAlias = "tuple[float | None, ...]"
"""x, y and perhaps the ends of an interval; with a None there is nothing to draw."""

_NOTHING = "—"
_SETS = {"frozen": "frozen transitions", "on_policy": "the agent's own transitions"}
_GROUPS: Mapping[str, Callable[[PredictionReport], GroupScore]] = {
    # First: predicting no change is right of what changes nothing.
    "of changes": lambda report: report.nonempty,
    "all": lambda report: report.all,
    "predictable": lambda report: report.predictable,
    "unpredictable": lambda report: report.unpredictable,
}
_METHODS = {"comap": "CoMap", "paw": "PaW", "webevolver": "WebEvolver"}
_ROLES = {"agent": "policy", "wm": "world model"}
_LOSSES = {
    "nll": "negative log-likelihood",
    "distillation": "distillation (divergence)",
    "bce": "refinement probability (cross-entropy)",
    "label_accuracy": "refinement probability (share right)",
}
_NOTES = {
    "Losses": "Plain fine-tuning (warm-up) averages over tokens, all else over samples: the curves of "
    "different stages are on different scales.",
    "Observations": "What PaW learns from observations: selected rows alone; a token counts while the "
    "policy gives it at most ρ.",
    "Faults": "No fault is on record.",
}


def write_report(folder: str | Path) -> Path:
    """Write the report of a training into its folder, finished or not, and return the page's path.

    Of a training in stages, ``metrics.jsonl`` is written as well: a line of numbers for each stage.

    Args:
        folder: The folder that `comap train` or a training class wrote.

    Raises:
        DataNotFound: There is no training in the folder.
        DataCorrupt: A file of the training is damaged.

    Example:
        >>> write_report("runs/nothing")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a training at runs/nothing, found no run.json; \
'comap train' makes one
    """
    training = read_training(folder)
    root = Path(folder)

    # A training in updates has written its metrics itself, and reads them when it is gone on with.
    if training.stages:
        lines = [json.dumps(line, ensure_ascii=True) + "\n" for line in flat_metrics(training)]
        write_whole(root / METRICS, "".join(lines))

    page = root / "report.html"
    title = f"{_method(training)} training: {root.resolve().name}"
    write_whole(page, render_page(title, _summary(training), _sections(training)))
    return page


def _method(training: TrainingRecord) -> str:
    """Return what the method of a training is called."""
    usual = "comap" if training.stages else "paw"
    method = str(get(training.described, "method") or usual)
    return _METHODS.get(method, method.upper())


def _sections(training: TrainingRecord) -> list[Section]:
    """Return the sections of the page in order, without those that have nothing to show."""
    results = [results_table(training), prediction_table(training), revision_table(training)]
    tables_by_section: dict[str, Sequence[Table]] = {
        "Results": results,
        "Gates": [gate_table(training), truth_table(training)],
        "Samples": [sample_table(training)],
        **dict.fromkeys(("Losses", "Rollouts", "Policy", "Observations"), ()),
        "Cost": [cost_table(training)],
        "Further measures": (),
        "Faults": [fault_table(training)],
        "Settings": settings_tables(training),
    }
    plots_by_section = plots_of(training)

    sections = []
    for title, section_tables in tables_by_section.items():
        section_plots = plots_by_section.get(title, [])
        tables = [table for table in section_tables if table.rows]
        plots = [plot for plot in section_plots if len(plot.positions) > 1]
        if title != "Results":  # what its plots show is in its tables
            tables += _tables_of_points(section_plots)

        # That there is no fault is news; any other section without contents is left out.
        if tables or plots or title == "Faults":
            note = "" if tables and title == "Faults" else _NOTES.get(title, "")
            sections.append(Section(title, tables, plots, note))
    return sections


def _tables_of_points(plots: Sequence[Plot]) -> list[Table]:
    """Return what was measured but once as a table: a plot of one point shows nothing."""
    rows = []
    for plot in plots:
        if len(plot.positions) == 1:
            for series in plot.series:
                x = f"{plot.xlabel} {series.x[0]:g}"
                rows.append((plot.title, series.name, f"{series.y[0]:.4g}", plot.ylabel, x))

    columns = ("measure", "of", "value", "unit", "at")
    return [Table("Measured once", columns, tuple(rows))] if rows else []


def _summary(training: TrainingRecord) -> dict[str, str]:
    """Return the facts under the title of the page."""
    described = training.described
    last_session = training.sessions[-1] if training.sessions else {}
    config = members(described, "config")
    splits = members(described, "env", "tasks")
    tasks = "; ".join(f"{split}: {words}" for split, words in splits.items())
    facts = {
        "environment": get(described, "env", "id"),
        "tasks": tasks or None,
        "model": get(described, "model", "name"),
        "preset": get(described, "preset"),
        "seed": get(config, "seed"),
        "comap": get(last_session, "versions", "comap"),
        "last begun": get(last_session, "started"),
    }
    summary = {name: "unknown" if fact is None else str(fact) for name, fact in facts.items()}

    if world_models := training.world_models():
        summary["world model"] = world_models

    if training.stages:
        # What a file does not tell is not switched off: only a false counts.
        ablations = [
            label for path, label in ABLATIONS.items() if get(config, *path.split(".")) is False
        ]
        summary["switched off"] = ", ".join(ablations) or "nothing"

        # Stages follow one another, so that at most one is under way.
        stages_done = len(list(training.done()))
        is_complete = stages_done == len(training.stages)
        summary["stages"] = f"{stages_done} done" + ("" if is_complete else ", 1 begun")
    else:
        algorithm = get(described, "row") or get(config, "algorithm") or "unknown"
        summary["algorithm"] = str(algorithm)
        summary["updates"] = str(len(training.updates))
    return summary


def results_table(training: TrainingRecord) -> Table:
    """Return the table that a training ends with: what came out after each round, or some updates."""
    evaluated = training.evaluated()
    times: set[int] = set()
    for evaluations in evaluated.values():
        times.update(evaluation.time for evaluation in evaluations)

    # Where all splits have tasks of one kind, the title says it once for all columns.
    title = "Evaluations"
    kinds = training.evaluated_tasks()
    different_kinds = {*kinds.values()}
    if len(different_kinds) == 1:
        kind = different_kinds.pop()
        title = f"Evaluations on {kind}" if kind else title
        kinds = {}

    columns: dict[str, dict[int, str]] = {}
    for split, evaluations in evaluated.items():
        name = f"{split}, {kinds[split]}" if kinds.get(split) else split
        columns[f"success, {name}"] = {row.time: str(row.rate) for row in evaluations}
        columns[f"score, {name}"] = {
            row.time: f"{row.score:.3f}" for row in evaluations if row.score is not None
        }
    columns |= _rollout_columns(training, times)
    columns = {head: cells for head, cells in columns.items() if {*cells.values()} - {_NOTHING}}

    rows: list[tuple[object, ...]] = []
    for time in sorted(times):
        cells_at_time = [cells.get(time, _NOTHING) for cells in columns.values()]
        rows.append((time, *cells_at_time))

    unit = "update" if training.tests else "round"
    note = (
        f"{unit.capitalize()} 0 is before the first. Success with 95 % intervals, Delta-F1 ± one "
        "standard error. The best of several evaluations is better than it would be again."
    )
    if not training.evaluations() and not training.tests:  # a baseline's only evaluation
        method = get(training.described, "method")
        rows = [(method, *row[1:]) for row in rows]
        unit = "method"
        note = "Success with 95 % intervals."
    return Table(title, (unit, *columns), tuple(rows), note)


def _rollout_columns(training: TrainingRecord, times: set[int]) -> dict[str, dict[int, str]]:
    """Return the columns beside success: of rollouts, of predictions and of the gate, by their heads."""
    columns: dict[str, dict[int, str]] = {}

    # Rollouts are played at every update, evaluations at a few: only the latter have a line.
    successes = columns.setdefault("success, rollouts", {})
    for update, success in zip(*training.curve("success", 100), strict=True):
        if update in times:
            successes[int(update)] = f"{success:.1f} %"

    for name, label in (("frozen", "frozen"), ("on_policy", "on-policy")):
        scores = columns.setdefault(f"Delta-F1 of changes, {label}", {})
        for round_number, report in training.predictions(name):
            scores[round_number] = _score(report.nonempty)

    adopted = _Column("predictions adopted", _adoption("run"))
    shares = columns.setdefault(adopted.head, {})
    for round_number, gates in training.gates_of_rollouts():
        if round_number in times:
            shares[round_number] = _cell(gates, adopted)
    return columns


class _Column(NamedTuple, Generic[T]):
    """A column: a number of what a row is about, and how many cases stand behind it."""

    head: str
    counted: Callable[[T], Counted]
    times: float = 100
    digits: int = 1


def _cell(report: T, column: _Column[T]) -> str:
    """Return what a column shows of a report: the number and its n, or that there is none."""
    value, n = column.counted(report)
    if value is None or n is None:
        return _NOTHING
    unit = " %" if column.times == 100 else ""
    return f"{column.times * value:.{column.digits}f}{unit} (n={n:.0f})"


def _cells(report: T, columns: Iterable[_Column[T]]) -> list[str]:
    return [_cell(report, column) for column in columns]


def _heads(columns: Iterable[_Column[Any]]) -> list[str]:
    return [column.head for column in columns]


def _change_tokens(report: PredictionReport) -> Counted:
    """Return the likelihood of the tokens that state what changed."""
    tokens = report.change_token_nll
    return (None, None) if tokens is None else (tokens.nll, tokens.tokens)


def _adoption(tau: str) -> Callable[[GateReport], Counted]:
    """Return what reads the share of predictions that a threshold of the world-state gate adopts."""
    return lambda gates: (gates.adoption.get(tau), gates.agreement.n)


_PREDICTIONS: tuple[_Column[PredictionReport], ...] = (
    _Column("same words", lambda report: (report.all.exact_text, report.all.n), 1),
    _Column("unreadable", lambda report: (report.parse_failure_rate, report.n)),
    _Column("nats per change token", _change_tokens, 1, 3),
)
_REVISIONS: tuple[_Column[RevisionReport], ...] = (
    _Column("unnecessary (URR)", lambda report: (report.urr, report.drafts_succeed)),
    _Column("harmful (HRR)", lambda report: (report.hrr, report.drafts_succeed)),
    _Column("beneficial (BRP)", lambda report: (report.brp, report.revised)),
)
_GATES: tuple[_Column[GateReport], ...] = (
    _Column("action gate opened", lambda gates: (gates.opened, gates.reflected)),
    _Column("action changed", lambda gates: (gates.changed, gates.reflected)),
    _Column("agreement r", lambda gates: (gates.agreement.mean, gates.agreement.n), 1, 3),
    _Column("unreadable drafts", lambda gates: (gates.unparsed.drafts, gates.steps)),
    _Column("unreadable reflections", lambda gates: (gates.unparsed.reflections, gates.reflected)),
    _Column("unreadable predictions", lambda gates: (gates.unparsed.students, gates.agreement.n)),
    _Column("refused actions", lambda gates: (gates.invalid_actions, gates.steps)),
)
_TRUTH: tuple[_Column[Truthfulness], ...] = (
    _Column("student F1", lambda truth: (truth.student_f1.mean, truth.student_f1.n)),
    _Column("teacher F1", lambda truth: (truth.teacher_f1.mean, truth.teacher_f1.n)),
    _Column(
        "precision of the gate",
        lambda truth: (truth.gate_precision.value, truth.gate_precision.n),
    ),
    _Column(
        "precision of foreseen refusals",
        lambda truth: (truth.foreseen_refusals.precision, truth.foreseen_refusals.n),
    ),
    _Column(
        "recall of refusals",
        lambda truth: (truth.foreseen_refusals.recall, truth.foreseen_refusals.real),
    ),
)


def prediction_table(training: TrainingRecord) -> Table:
    """Return how well the world model predicts, by kinds of transitions (CoMap, section 4)."""
    rows = []
    for round_number, evaluation in training.evaluations():
        for name, label in _SETS.items():
            report = evaluation.world_model.get(name)
            if report is not None:
                scores = [_score(group_of(report)) for group_of in _GROUPS.values()]
                rows.append((round_number, label, *scores, *_cells(report, _PREDICTIONS)))

    changes, *other_groups = _GROUPS
    groups = [f"Delta-F1 {changes}", *other_groups]
    columns = ("round", "transitions", *groups, *_heads(_PREDICTIONS))
    return Table("Predictions", columns, tuple(rows), "Delta-F1 and 'same words' times 100.")


def gate_table(training: TrainingRecord) -> Table:
    """Return what the gates did in rollouts and evaluations (CoMap, eq. 2-6)."""
    rows = []
    for stage, gates in training.gates():
        rows.append((stage, gates.steps or 0, gates.reflected or 0, *_cells(gates, _GATES)))

    columns = ("stage", "steps", "reflected", *_heads(_GATES))
    return Table("Gates and what could not be read", columns, tuple(rows))


def truth_table(training: TrainingRecord) -> Table:
    """Return how predictions in rollouts compare with what really followed."""
    rows = []
    for stage, gates in training.gates():
        if gates.truth is not None:
            rows.append((stage, *_cells(gates.truth, _TRUTH)))

    columns = ("stage", *_heads(_TRUTH))
    note = (
        "F1 of changed facts, times 100. The gate is right where it opens on a prediction of exactly the "
        "real changes."
    )
    return Table("Predictions and the real next state", columns, tuple(rows), note)


def revision_table(training: TrainingRecord) -> Table:
    """Return what revisions did, by playing out drafts and revisions (CoMap, Table 3)."""
    rows = []
    for round_number, report in training.revisions():
        counts = (report.n or 0, report.failed or 0)
        rows.append((round_number, *counts, *_cells(report, _REVISIONS)))

    columns = ("round", "decisions", "could not be played", *_heads(_REVISIONS))
    note = (
        "Unnecessary revision rate: the share of drafts that would succeed and were revised all the same. "
        "Harmful revision rate: the share of drafts that would succeed and whose revision fails. "
        "Beneficial revision precision: the share of revisions that succeed where the draft would fail."
    )
    return Table("Revisions", columns, tuple(rows), note)


def sample_table(training: TrainingRecord) -> Table:
    """Return how many samples of which kind both models learned from (CoMap, Figure 7)."""
    rows = []
    for stage, fit in training.learned():
        role = str(fit.role)
        for kind, count in (fit.samples or {}).items():
            rows.append((_ROLES.get(role, role), stage, kind.replace("_", " "), count))

    note = "Each stage's first epoch. Anchors are demonstrations."
    return Table("Samples", ("model", "stage", "kind", "n"), tuple(rows), note)


def _score(group: GroupScore) -> str:
    if group.delta_f1 is None or group.n is None:
        return _NOTHING
    return f"{group.delta_f1:.1f} ± {group.stderr or 0:.1f} (n={group.n:.0f})"


def cost_table(training: TrainingRecord) -> Table:
    """Return what phases cost (CoMap, Table 6; PaW, Figure 5)."""
    last_session = training.sessions[-1] if training.sessions else {}
    processes = int(number(last_session, "hardware", "processes") or 1)
    gpu_names = get(last_session, "hardware", "gpus")
    gpus = min(processes, len(gpu_names) if isinstance(gpu_names, list) else 0)

    # Stages time themselves as a whole, updates phase by phase.
    seconds_by_phase: dict[tuple[str, str], float] = defaultdict(float)
    for stage in training.stages:
        seconds_by_phase[_phase(stage.name)] += stage.result.seconds or 0.0
    for name, label in PHASES.items():
        if seconds_of_updates := training.curve(name)[1]:
            seconds_by_phase["update", label] = sum(seconds_of_updates)
    total = sum(seconds_by_phase.values())
    if seconds_by_phase:
        seconds_by_phase["all", ""] = total

    rows = []
    for (phase, part), seconds in seconds_by_phase.items():
        share = f"{100 * seconds / max(total, 1e-9):.1f} %"
        gpu_hours = f"{seconds * gpus / 3600:.3f}" if gpus else None
        rows.append((phase, part, f"{seconds:,.1f}", share, gpu_hours))

    note = (
        f"By the clock; processes: {processes}, GPUs: {gpus}. A stage that was interrupted counts from "
        "when it was last gone on with; of updates, evaluations and checkpoints are not in it."
    )
    columns = ("phase", "part", "seconds", "share", "GPU-hours")
    return Table("Cost by phase", columns, tuple(rows), note)


def _phase(name: str) -> tuple[str, str]:
    """Return the phase of a training that a stage belongs to, and which part of it the stage is."""
    for prefix, phase in (("warmup-", "warm-up"), ("reflection-", "reflection mode")):
        if name.startswith(prefix):
            return phase, name.removeprefix(prefix).replace("-", " ")

    in_round = name.startswith("round-")
    part = name.split("-", 2)[-1] if in_round else name
    if part in ("evaluation", "frozen-transitions"):
        return "evaluation", part.replace("-", " ")
    return ("training" if part == name else "co-evolution"), part.replace("-", " ")


def fault_table(training: TrainingRecord) -> Table:
    """Return what failed: episodes by kind of error, and what stages could not play, read or score."""
    rows: list[tuple[object, ...]] = []
    for fault in training.faults:
        message = f"{fault.kind}: {fault.first}"
        rows.append(("updates", "episodes that failed", fault.n, None, message))

    for stage in training.stages:
        for fault in stage.faults:
            message = f"{fault.kind}: {fault.first}"
            rows.append((stage.name, "episodes that failed", fault.n, stage.episodes, message))
        for failure in _failures(stage.result):
            if failure.n:
                rows.append((stage.name, failure.label, failure.n, failure.total or 0, ""))

    return Table("Faults", ("stage", "what", "count", "of", "the first"), tuple(rows))


class _Failure(NamedTuple):
    """What may have failed in a stage, how often it did, and of how many."""

    label: str
    n: int | None
    total: int | None


def _failures(result: StageResult) -> Iterator[_Failure]:
    """Yield what may have failed in a stage beside episodes."""
    revisions = result.evaluation.revisions
    if revisions is not None:
        # Its n counts only the decisions that could be played.
        failed = revisions.failed or 0
        yield _Failure("decisions whose branches failed", failed, (revisions.n or 0) + failed)

    labeling = result.labeling
    if labeling.branches is not None:
        # Of all states in which a draft was asked for: those with a label and those left out. The number
        # of branches says nothing of states, which have two or more, or none where both actions are one.
        failed = labeling.counts.get("failed", 0)
        states = (labeling.labels or 0) + sum(labeling.counts.values())
        yield _Failure("states whose branches failed", failed, states)

    for name, label in _SETS.items():
        report = result.evaluation.world_model.get(name)
        if report is not None:
            total = report.transitions
            yield _Failure(f"{label} without a truth to read", report.dropped, total)
            if report.change_token_nll is not None:
                unscored = report.change_token_nll.failed
                yield _Failure(f"{label} that could not be scored", unscored, total)


def settings_tables(training: TrainingRecord) -> list[Table]:
    """Return all settings (CoMap, Table 5), the environment, the models and the versions."""
    config = members(training.described, "config")
    method = get(training.described, "method")
    trainer = PaWTraining if "algorithm" in config else CoMapTraining
    defaults = dict(leaves(BASELINES.get(method, trainer)().describe()))
    settings = []
    for name, setting in leaves(config):
        is_default = defaults.get(name) == setting
        settings.append((name, _plain(setting), "" if is_default else _plain(defaults.get(name))))

    described = {name: part for name, part in training.described.items() if name != "config"}
    facts = tuple((name, _plain(fact)) for name, fact in leaves(described))

    # The first and the last session tell whether the code or the machine changed on the way.
    sessions = [dict(leaves(session)) for session in training.sessions]
    ends = sessions[:1] + sessions[-1:]
    names: dict[str, None] = {}
    for session in ends:
        names |= dict.fromkeys(session)
    circumstances = [(name, *(_plain(end.get(name, "")) for end in ends)) for name in names]

    heads = ("", "first session", f"last session of {len(sessions)}")
    return [
        Table("Settings", ("setting", "value", "where the default differs"), tuple(settings)),
        Table("What it was trained on", ("", "value"), facts),
        Table("Sessions", heads, tuple(circumstances)),
    ]


def _plain(setting: object) -> str:
    if isinstance(setting, list):
        return ", ".join(map(_plain, setting))
    if isinstance(setting, str):
        return setting
    return "none" if setting is None else json.dumps(setting)


PHASES = {
    "seconds_rollout": "rollouts",
    "seconds_old_logps": "old log-probabilities",
    "seconds_advantages": "advantages",
    "seconds_update": "update",
}
"""The measures that time the phases of an update, and what these are called (PaW, Figure 5)."""


class _Curves(NamedTuple):
    """What is drawn together of updates: measures by name, and what each is called."""

    section: str
    title: str
    ylabel: str
    labels: Mapping[str, str]
    times: float = 1


_TAUS = {"0.4": "τ = 0.4", "0.6": "τ = 0.6", "0.8": "τ = 0.8", "run": "this training's τ"}
_ENTROPIES = "Entropy of the paper's formula against that of the vocabulary"
_CURVES = (
    _Curves("Rollouts", "Success of rollouts", "% of episodes", {"success": "success"}, 100),
    _Curves("Rollouts", "Reward of an episode", "", {"return": "return"}),
    _Curves("Rollouts", "Reward of a row", "", {"reward_mean": "mean reward"}),
    _Curves("Rollouts", "Invalid replies", "% of rows", {"invalid": "invalid"}, 100),
    _Curves("Rollouts", "Steps of an episode", "mean", {"steps": "steps"}),
    _Curves("Rollouts", "Rows of an update", "rows", {"rows": "rows"}),
    _Curves("Policy", "Policy loss", "", {"policy_loss": "policy loss"}),
    _Curves("Policy", "Clipped ratios", "% of tokens", {"clip_fraction": "clipped"}, 100),
    _Curves("Policy", "Divergence from the first policy", "nats a token", {"kl": "KL"}),
    _Curves("Policy", "Entropy of the policy", "nats a token", {"entropy": "entropy"}),
    _Curves("Policy", "Norm of the gradient", "", {"grad_norm": "norm"}),
    _Curves("Policy", "Critic", "", {"value_loss": "value loss"}),
    _Curves("Observations", "Adaptive weight λ", "mean over groups", {"wm_lambda": "λ"}),
    _Curves("Observations", "Loss on observations", "", {"wm_loss": "loss"}),
    _Curves("Observations", "Tokens left out (p > ρ)", "%", {"wm_clipped_ratio": "left out"}, 100),
    _Curves("Observations", "Probability of observed tokens", "mean p", {"wm_probability": "p"}),
    _Curves("Observations", "Rows whose observation is learned", "rows", {"wm_rows": "rows"}),
    _Curves("Observations", _ENTROPIES, "rank correlation", {"entropy_correlation": "correlation"}),
    _Curves("Observations", _ENTROPIES, "selected by both", {"entropy_overlap": "share"}),
    _Curves("Cost", "Time by phase", "seconds", PHASES),
    _Curves("Cost", "Memory", "GiB", {"peak_memory": "peak", "mean_memory": "mean"}, 2**-30),
)
"""What is drawn over updates (PaW, Figures 5, 10 and 11)."""

_SHARES = ("mean score", "mean over groups", "mean p", "selected by both", "share")  # of 1
_MOST_FURTHER = 24  # plots of measures that are not known here


def plots_of(training: TrainingRecord) -> dict[str, list[Plot]]:
    """Return the plots of each section; a measure of updates that is not known here has one too."""
    plots = {
        "Results": _success_plots(training) + _prediction_plots(training),
        "Gates": _adoption_plots(training),
        "Losses": _loss_plots(training),
    }
    further = []
    for name in _further_measures(training)[:_MOST_FURTHER]:
        further.append(_Curves("Further measures", name, "", {name: name}))

    for curves in (*_CURVES, *further):
        series = []
        for name, label in curves.labels.items():
            points = zip(*training.curve(name, curves.times), strict=True)
            series.append(_series(label, points))
        section_plots = plots.setdefault(curves.section, [])
        section_plots += _plot(curves.title, "update", curves.ylabel, series)
    return plots


def _further_measures(training: TrainingRecord) -> list[str]:
    """Return the measures of updates that no curve of this page is made for, such as a user's own."""
    curves_made = {"update"}
    for curves in _CURVES:
        curves_made.update(curves.labels)

    # A dict keeps the order in which the updates name them.
    names: dict[str, None] = {}
    for line in training.updates:
        names |= dict.fromkeys(map(str, line))
    return [name for name in names if name not in curves_made and training.curve(name)[0]]


def _numbers(reports: Sequence[tuple[int, T]], column: _Column[T]) -> Series | None:
    """Return a column's numbers over rounds; None where there are none."""
    points: list[Point] = []
    counts = []
    for round_number, report in reports:
        value, n = column.counted(report)
        points.append((round_number, None if value is None else column.times * value))
        counts.append(n)
    return _series(f"{column.head} ({_counted(counts)})", points)


def _success_plots(training: TrainingRecord) -> list[Plot]:
    """Return the plots of success and score by split."""
    kinds = training.evaluated_tasks()
    rates = []
    scores = []
    for split, evaluations in training.evaluated().items():
        count = _counted(row.rate.n for row in evaluations)
        kind = kinds.get(split)
        name = f"{split} ({kind}, {count})" if kind else f"{split} ({count})"

        rate_points: list[Point] = []
        for row in evaluations:
            rate = row.rate
            rate_points.append((row.time, 100 * rate.value, 100 * rate.low, 100 * rate.high))
        rates.append(_series(name, rate_points))
        scores.append(_series(name, [(row.time, row.score) for row in evaluations]))

    unit = "update" if training.tests else "round"
    plots = _plot("Success of evaluations, with 95 % intervals", unit, "% of episodes", rates)
    plots += _plot("Score of evaluations", unit, "mean score", scores)
    return plots


def _prediction_plots(training: TrainingRecord) -> list[Plot]:
    """Return the plots of Delta-F1, likelihood and revisions over rounds (CoMap, Figures 5 and 6)."""
    plots = []
    likelihood_curves = []
    for name, label in _SETS.items():
        reports = training.predictions(name)
        f1_curves = []
        for group_label, group_of in _GROUPS.items():
            count = _counted(group_of(report).n for _, report in reports)
            points = [_delta_f1(time, group_of(report)) for time, report in reports]
            f1_curves.append(_series(f"{group_label} ({count})", points))
        plots += _plot(f"Delta-F1: {label}", "round", "Delta-F1", f1_curves)

        column = _Column(f"{label}, tokens", _change_tokens, times=1)
        likelihood_curves.append(_numbers(reports, column))
    plots += _plot("Likelihood of what changed", "round", "nats a token", likelihood_curves)

    revision_curves = [_numbers(training.revisions(), column) for column in _REVISIONS]
    plots += _plot("Revisions", "round", "% of cases", revision_curves)
    return plots


def _delta_f1(time: float, group: GroupScore) -> Point:
    """Return a score at a round with its 95 % interval, as a point; without an error there is none."""
    mean = group.delta_f1
    error = group.stderr
    if mean is None or error is None:
        return time, None
    half_width = normal_quantile() * error
    return time, mean, max(mean - half_width, 0.0), min(mean + half_width, 100.0)


def _adoption_plots(training: TrainingRecord) -> list[Plot]:
    """Return the plot of what the world-state gate adopts, by its threshold."""
    reports = training.gates_of_rollouts()
    shares = [_numbers(reports, _Column(label, _adoption(tau))) for tau, label in _TAUS.items()]
    title = "Predictions adopted by the world-state gate"
    return _plot(title, "round", "% of predictions", shares)


def _loss_plots(training: TrainingRecord) -> list[Plot]:
    """Return a plot of each loss of each model, with a curve for each stage in which it learned."""
    plots = []
    for role, model in _ROLES.items():
        fits = [(stage, fit) for stage, fit in training.learned() if fit.role == role]
        for metric, label in _LOSSES.items():
            series = []
            updates_before = 0  # a stage begins where the one before has ended
            for stage, fit in fits:
                updates = fit.updates or 0
                points = _loss_points(fit, metric, updates_before)
                series.append(_series(f"{stage} ({updates:,.0f} updates)", points))
                updates_before += updates

            title = f"{model.capitalize()}: {label}"
            ylabel = "share" if metric == "label_accuracy" else ""
            plots += _plot(title, f"updates of the {model}", ylabel, series)
    return plots


def _loss_points(fit: Fit, metric: str, updates_before: int) -> list[Point]:
    points: list[Point] = []
    for line in fit.log:
        step = line.get("step")
        loss = line.get(metric)
        if metric == "nll" and loss is None:  # plain fine-tuning has the loss alone
            loss = line.get("loss")
        points.append((None if step is None else updates_before + step, loss))
    return points


def _counted(counts: Iterable[float | None]) -> str:
    """Return how many cases stand behind values, for a legend: "n=8", or "n=3–8" where values differ."""
    known_counts = sorted(int(count) for count in counts if count is not None)
    if not known_counts:
        return "n=0"
    low = known_counts[0]
    high = known_counts[-1]
    return f"n={low}" if low == high else f"n={low}–{high}"


def _series(name: str, points: Iterable[Point]) -> Series | None:
    """Return the points that have all their numbers as a series; None where none has."""
    complete = [point for point in points if None not in point]
    return Series(name, *zip(*complete, strict=True)) if complete else None


def _plot(title: str, xlabel: str, ylabel: str, series: Iterable[Series | None]) -> list[Plot]:
    """Return a plot of the series that there are, in a list; an empty list where there are none."""
    curves = tuple(curve for curve in series if curve is not None)
    if not curves:
        return []

    # Rounds are few and whole: each is labeled, and none has a label such as 0.5 between two.
    labels = None
    if xlabel == "round":
        rounds: set[float] = set()
        for curve in curves:
            rounds.update(curve.x)
        labels = tuple(f"{x:.0f}" for x in sorted(rounds))

    # No share is above the whole, and shares that hardly differ must look so: see tables.py.
    full = None
    if ylabel.startswith(("%", "Delta-F1")):
        full = 100.0
    elif ylabel in _SHARES:
        full = 1.0
    return [Plot(title, xlabel, ylabel, curves, labels=labels, full=full)]
