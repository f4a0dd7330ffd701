"""The report of a training of any method: one HTML page, and its metrics line by line."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..trainers.baselines.config import BASELINES
from ..trainers.comap.config import ABLATIONS, CoMapTraining
from ..trainers.paw.config import PaWTraining
from ..trainers.paw.training import METRICS
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

Point: TypeAlias = "tuple[float | None, ...]"
"""x, y and perhaps the ends of an interval; with a None there is nothing to draw."""

_NOTHING = "—"
_SETS = {"frozen": "frozen transitions", "on_policy": "the agent's own transitions"}
_GROUPS = {
    "nonempty": "of changes",  # first: predicting no change is right of what changes nothing
    "all": "all",
    "predictable": "predictable",
    "unpredictable": "unpredictable",
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
_Z = 1.959964  # of a 95 % interval


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
    training, root = read_training(folder), Path(folder)
    if training.stages:
        lines = [json.dumps(line, ensure_ascii=True) + "\n" for line in flat_metrics(training)]
        write_whole(root / METRICS, "".join(lines))
    page = root / "report.html"
    title = f"{_method(training)} training: {root.resolve().name}"
    write_whole(page, render_page(title, _summary(training), _sections(training)))
    return page


def _method(training: TrainingRecord) -> str:
    """Return what the method of a training is called."""
    method = str(get(training.described, "method") or ("comap" if training.stages else "paw"))
    return _METHODS.get(method, method.upper())


def _sections(training: TrainingRecord) -> list[Section]:
    results = [results_table(training), prediction_table(training), revision_table(training)]
    tables: dict[str, Sequence[Table]] = {
        "Results": results,
        "Gates": [gate_table(training), truth_table(training)],
        "Samples": [sample_table(training)],
        **dict.fromkeys(("Losses", "Rollouts", "Policy", "Observations"), ()),
        "Cost": [cost_table(training)],
        "Further measures": (),
        "Faults": [fault_table(training)],
        "Settings": settings_tables(training),
    }
    plots, sections = plots_of(training), []
    for title, every in tables.items():
        known = [table for table in every if table.rows]
        drawn = [plot for plot in plots.get(title, []) if len(plot.positions) > 1]
        if title != "Results":  # what its plots show is in its tables
            known += _tables_of_points(plots.get(title, []))
        if known or drawn or title == "Faults":
            note = "" if known and title == "Faults" else _NOTES.get(title, "")
            sections.append(Section(title, known, drawn, note))
    return sections


def _tables_of_points(plots: Sequence[Plot]) -> list[Table]:
    """Return what was measured but once as a table: a plot of one point shows nothing."""
    rows = [
        (plot.title, one.name, f"{one.y[0]:.4g}", plot.ylabel, f"{plot.xlabel} {one.x[0]:g}")
        for plot in plots
        if len(plot.positions) == 1
        for one in plot.series
    ]
    columns = ("measure", "of", "value", "unit", "at")
    return [Table("Measured once", columns, tuple(rows))] if rows else []


def _summary(training: TrainingRecord) -> dict[str, str]:
    described = training.described
    last = training.sessions[-1] if training.sessions else {}
    config = members(described, "config")
    splits = members(described, "env", "tasks")
    tasks = "; ".join(f"{split}: {words}" for split, words in splits.items())
    facts = {
        "environment": get(described, "env", "id"),
        "tasks": tasks or None,
        "model": get(described, "model", "name"),
        "preset": get(described, "preset"),
        "seed": get(config, "seed"),
        "comap": get(last, "versions", "comap"),
        "last begun": get(last, "started"),
    }
    summary = {name: "unknown" if value is None else str(value) for name, value in facts.items()}
    if asked := training.world_models():
        summary["world model"] = asked
    if training.stages:
        off = [label for name, label in ABLATIONS.items() if get(config, *name.split(".")) is False]
        done = len(list(training.done()))
        begun = "" if done == len(training.stages) else ", 1 begun"
        summary |= {"switched off": ", ".join(off) or "nothing", "stages": f"{done} done{begun}"}
    else:
        algorithm = get(described, "row") or get(config, "algorithm") or "unknown"
        summary |= {"algorithm": str(algorithm), "updates": str(len(training.updates))}
    return summary


def results_table(training: TrainingRecord) -> Table:
    """Return the table that a training ends with: what came out after each round, or some updates."""
    columns: dict[str, dict[int, str]] = {}
    evaluated, rounds = training.evaluated(), training.evaluations()
    kinds = training.evaluated_tasks()
    title = "Evaluations"
    if len({*kinds.values()}) == 1:  # then the title says it once for all columns
        title += f" on {kind}" if (kind := next(iter(kinds.values()))) else ""
        kinds = {}
    for split, found in evaluated.items():
        name = f"{split}, {kinds[split]}" if kinds.get(split) else split
        columns[f"success, {name}"] = {one.at: str(one.rate) for one in found}
        scores = {one.at: f"{one.score:.3f}" for one in found if one.score is not None}
        columns[f"score, {name}"] = scores
    shares = zip(*training.curve("success", 100), strict=True)
    times = {one.at for found in evaluated.values() for one in found}
    columns["success, rollouts"] = {int(at): f"{x:.1f} %" for at, x in shares if at in times}
    for name, label in (("frozen", "frozen"), ("on_policy", "on-policy")):
        scored = {at: _score(get(result, "world_model", name, "nonempty")) for at, result in rounds}
        columns[f"Delta-F1 of changes, {label}"] = scored
    adopted = _Column("predictions adopted", "gates/adoption/run", "gates/agreement/n")
    columns[adopted.head] = {
        at: next(_cells(found, [adopted])) for at, found in training.rollouts() if at in times
    }
    columns = {head: cells for head, cells in columns.items() if {*cells.values()} - {_NOTHING}}
    rows = [(at, *(cells.get(at, _NOTHING) for cells in columns.values())) for at in sorted(times)]
    unit = "update" if training.tests else "round"
    note = (
        f"{unit.capitalize()} 0 is before the first. Success with 95 % intervals, Delta-F1 ± one "
        "standard error. The best of several evaluations is better than it would be again."
    )
    if not rounds and not training.tests:  # a baseline's only evaluation
        rows = [(get(training.described, "method"), *row[1:]) for row in rows]
        unit, note = "method", "Success with 95 % intervals."
    return Table(title, (unit, *columns), tuple(rows), note)


class _Column(NamedTuple):
    """A column: a number in the data of a row, and how many cases stand behind it."""

    head: str
    path: str
    n: str
    times: float = 100
    digits: int = 1


def _cells(found: object, columns: Iterable[_Column]) -> Iterator[str]:
    for one in columns:
        value, n = (number(found, *path.split("/")) for path in (one.path, one.n))
        if value is None or n is None:
            yield _NOTHING
        else:
            unit = " %" if one.times == 100 else ""
            yield f"{one.times * value:.{one.digits}f}{unit} (n={n:.0f})"


_PREDICTIONS = (
    _Column("same words", "all/exact_text", "all/n", 1),
    _Column("unreadable", "parse_failure_rate", "n"),
    _Column("nats per change token", "change_token_nll/nll", "change_token_nll/tokens", 1, 3),
)
_REVISIONS = (
    _Column("unnecessary (URR)", "revisions/urr", "revisions/drafts_succeed"),
    _Column("harmful (HRR)", "revisions/hrr", "revisions/drafts_succeed"),
    _Column("beneficial (BRP)", "revisions/brp", "revisions/revised"),
)
_GATES = (
    _Column("action gate opened", "opened", "paths/reflected"),
    _Column("action changed", "changed", "paths/reflected"),
    _Column("agreement r", "agreement/mean", "agreement/n", 1, 3),
    _Column("unreadable drafts", "unparsed/drafts", "steps"),
    _Column("unreadable reflections", "unparsed/reflections", "paths/reflected"),
    _Column("unreadable predictions", "unparsed/students", "agreement/n"),
    _Column("refused actions", "invalid_actions", "steps"),
)
_TRUTH = (
    _Column("student F1", "student_f1/mean", "student_f1/n"),
    _Column("teacher F1", "teacher_f1/mean", "teacher_f1/n"),
    _Column("precision of the gate", "gate_precision/value", "gate_precision/n"),
    _Column("precision of foreseen refusals", "foreseen_refusals/precision", "foreseen_refusals/n"),
    _Column("recall of refusals", "foreseen_refusals/recall", "foreseen_refusals/real"),
)


def prediction_table(training: TrainingRecord) -> Table:
    """Return how well the world model predicts, by kinds of transitions (CoMap, section 4)."""
    rows = []
    for at, found in training.evaluations():
        for name, label in _SETS.items():
            if (scored := get(found, "world_model", name)) is not None:
                scores = (_score(get(scored, group)) for group in _GROUPS)
                rows.append((at, label, *scores, *_cells(scored, _PREDICTIONS)))
    heads = [f"Delta-F1 {_GROUPS['nonempty']}", *list(_GROUPS.values())[1:]]
    columns = ("round", "transitions", *heads, *(one.head for one in _PREDICTIONS))
    return Table("Predictions", columns, tuple(rows), "Delta-F1 and 'same words' times 100.")


def gate_table(training: TrainingRecord) -> Table:
    """Return what the gates did in rollouts and evaluations (CoMap, eq. 2-6)."""
    rows = []
    for name, found in training.done():
        if (gates := found.get("gates")) is not None:
            counts = (number(gates, "steps"), number(gates, "paths", "reflected"))
            rows.append((name, *(int(n or 0) for n in counts), *_cells(gates, _GATES)))
    columns = ("stage", "steps", "reflected", *(one.head for one in _GATES))
    return Table("Gates and what could not be read", columns, tuple(rows))


def truth_table(training: TrainingRecord) -> Table:
    """Return how predictions in rollouts compare with what really followed."""
    rows = [
        (name, *_cells(gates, _TRUTH))
        for name, found in training.done()
        if get(gates := found.get("gates"), "student_f1") is not None
    ]
    columns = ("stage", *(one.head for one in _TRUTH))
    note = (
        "F1 of changed facts, times 100. The gate is right where it opens on a prediction of exactly the "
        "real changes."
    )
    return Table("Predictions and the real next state", columns, tuple(rows), note)


def revision_table(training: TrainingRecord) -> Table:
    """Return what revisions did, by playing out drafts and revisions (CoMap, Table 3)."""
    rows = []
    for at, found in training.evaluations():
        if (result := found.get("revisions")) is not None:
            counts = (int(number(result, name) or 0) for name in ("n", "failed"))
            rows.append((at, *counts, *_cells(found, _REVISIONS)))
    heads = ("round", "decisions", "could not be played", *(one.head for one in _REVISIONS))
    note = (
        "Unnecessary revision rate: the share of drafts that would succeed and were revised all the same. "
        "Harmful revision rate: the share of drafts that would succeed and whose revision fails. "
        "Beneficial revision precision: the share of revisions that succeed where the draft would fail."
    )
    return Table("Revisions", heads, tuple(rows), note)


def sample_table(training: TrainingRecord) -> Table:
    """Return how many samples of which kind both models learned from (CoMap, Figure 7)."""
    rows = [
        (_ROLES.get(found["role"], found["role"]), stage, kind.replace("_", " "), int(n or 0))
        for stage, found in training.learned()
        for kind in members(found, "samples")
        for n in [number(found, "samples", kind)]
    ]
    note = "Each stage's first epoch. Anchors are demonstrations."
    return Table("Samples", ("model", "stage", "kind", "n"), tuple(rows), note)


def _score(group: object) -> str:
    value, error, n = (number(group, name) for name in ("delta_f1", "stderr", "n"))
    if value is None or n is None:
        return _NOTHING
    return f"{value:.1f} ± {error or 0:.1f} (n={n:.0f})"


def cost_table(training: TrainingRecord) -> Table:
    """Return what phases cost (CoMap, Table 6; PaW, Figure 5)."""
    last = training.sessions[-1] if training.sessions else {}
    processes = int(number(last, "hardware", "processes") or 1)
    named = get(last, "hardware", "gpus")
    used = min(processes, len(named) if isinstance(named, list) else 0)
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for stage in training.stages:
        spent[_phase(stage.name)] += number(stage.result, "seconds") or 0.0
    for name, label in PHASES.items():
        if seconds := training.curve(name)[1]:
            spent["update", label] = sum(seconds)
    whole = sum(spent.values())
    phases = [
        (
            *phase,
            f"{seconds:,.1f}",
            f"{100 * seconds / max(whole, 1e-9):.1f} %",
            f"{seconds * used / 3600:.3f}" if used else None,
        )
        for phase, seconds in (*spent.items(), (("all", ""), whole))
        if spent
    ]
    note = (
        f"By the clock; processes: {processes}, GPUs: {used}. A stage that was interrupted counts from "
        "when it was last gone on with; of updates, evaluations and checkpoints are not in it."
    )
    heads = ("phase", "part", "seconds", "share", "GPU-hours")
    return Table("Cost by phase", heads, tuple(phases), note)


def _phase(name: str) -> tuple[str, str]:
    for prefix, phase in (("warmup-", "warm-up"), ("reflection-", "reflection mode")):
        if name.startswith(prefix):
            return phase, name.removeprefix(prefix).replace("-", " ")
    part = name.split("-", 2)[-1] if name.startswith("round-") else name
    if part in ("evaluation", "frozen-transitions"):
        return "evaluation", part.replace("-", " ")
    return ("training" if part == name else "co-evolution"), part.replace("-", " ")


def fault_table(training: TrainingRecord) -> Table:
    rows: list[tuple[object, ...]] = [
        ("updates", "episodes that failed", fault.n, None, f"{fault.kind}: {fault.first}")
        for fault in training.faults
    ]
    for stage in training.stages:
        played = stage.episodes
        for kind, count, first in stage.faults:
            rows.append((stage.name, "episodes that failed", count, played, f"{kind}: {first}"))
        for what, failed, n in _failures(stage.result or {}):
            if failed:
                rows.append((stage.name, what, int(failed), int(n or 0), ""))
    return Table("Faults", ("stage", "what", "count", "of", "the first"), tuple(rows))


def _failures(found: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float | None]]:
    failed, n = (number(found, "revisions", name) for name in ("failed", "n"))
    yield "decisions whose branches failed", failed, (n or 0) + (failed or 0)
    if "branches" in found:
        branches = number(found, "branches")
        yield "states whose branches failed", number(found, "counts", "failed"), branches
    for name, label in _SETS.items():
        scored = get(found, "world_model", name)
        n, failed = number(scored, "transitions"), number(scored, "change_token_nll", "failed")
        yield f"{label} without a truth to read", number(scored, "dropped"), n
        yield f"{label} that could not be scored", failed, n


def settings_tables(training: TrainingRecord) -> list[Table]:
    """Return all settings (CoMap, Table 5), the environment, the models and the versions."""
    config, method = members(training.described, "config"), get(training.described, "method")
    kind = PaWTraining if "algorithm" in config else CoMapTraining
    usual = dict(leaves(BASELINES.get(method, kind)().describe()))
    rows = [
        (name, _plain(value), "" if usual.get(name) == value else _plain(usual.get(name)))
        for name, value in leaves(config)
    ]
    about = {name: value for name, value in training.described.items() if name != "config"}
    facts = tuple((name, _plain(value)) for name, value in leaves(about))
    sessions = [dict(leaves(session)) for session in training.sessions]
    ends = sessions[:1] + sessions[-1:]
    versions = tuple(
        (name, *(_plain(session.get(name, "")) for session in ends))
        for name in dict.fromkeys(name for session in ends for name in session)
    )
    heads = ("", "first session", f"last session of {len(sessions)}")
    return [
        Table("Settings", ("setting", "value", "where the default differs"), tuple(rows)),
        Table("What it was trained on", ("", "value"), facts),
        Table("Sessions", heads, versions),
    ]


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


PHASES = {
    "seconds_rollout": "rollouts",
    "seconds_old_logps": "old log-probabilities",
    "seconds_advantages": "advantages",
    "seconds_update": "update",
}
"""The measures that time the phases of an update, and what these are called (PaW, Figure 5)."""


class _Curves(NamedTuple):
    section: str
    source: str
    title: str
    ylabel: str
    columns: tuple[_Column, ...]

    @classmethod
    def of(
        cls, section: str, title: str, y: str, names: dict[str, str], times: float = 1
    ) -> _Curves:
        """Return curves over updates: measures, and what they are called."""
        columns = tuple(_Column(label, name, "", times) for name, label in names.items())
        return cls(section, "update", title, y, columns)


_LIKELIHOOD = tuple(
    _Column(f"{label}, tokens", f"{path}/nll", f"{path}/tokens", 1)
    for name, label in _SETS.items()
    for path in [f"world_model/{name}/change_token_nll"]
)
_TAUS = {"0.4": "τ = 0.4", "0.6": "τ = 0.6", "0.8": "τ = 0.8", "run": "this training's τ"}
_ADOPTED = tuple(
    _Column(label, f"gates/adoption/{tau}", "gates/agreement/n") for tau, label in _TAUS.items()
)
_ENTROPIES = "Entropy of the paper's formula against that of the vocabulary"
_GATE = "Predictions adopted by the world-state gate"
_CURVES = (
    _Curves("Results", "round", "Likelihood of what changed", "nats a token", _LIKELIHOOD),
    _Curves("Results", "round", "Revisions", "% of cases", _REVISIONS),
    _Curves("Gates", "rollouts", _GATE, "% of predictions", _ADOPTED),
    _Curves.of("Rollouts", "Success of rollouts", "% of episodes", {"success": "success"}, 100),
    _Curves.of("Rollouts", "Reward of an episode", "", {"return": "return"}),
    _Curves.of("Rollouts", "Reward of a row", "", {"reward_mean": "mean reward"}),
    _Curves.of("Rollouts", "Invalid replies", "% of rows", {"invalid": "invalid"}, 100),
    _Curves.of("Rollouts", "Steps of an episode", "mean", {"steps": "steps"}),
    _Curves.of("Rollouts", "Rows of an update", "rows", {"rows": "rows"}),
    _Curves.of("Policy", "Policy loss", "", {"policy_loss": "policy loss"}),
    _Curves.of("Policy", "Clipped ratios", "% of tokens", {"clip_fraction": "clipped"}, 100),
    _Curves.of("Policy", "Divergence from the first policy", "nats a token", {"kl": "KL"}),
    _Curves.of("Policy", "Entropy of the policy", "nats a token", {"entropy": "entropy"}),
    _Curves.of("Policy", "Norm of the gradient", "", {"grad_norm": "norm"}),
    _Curves.of("Policy", "Critic", "", {"value_loss": "value loss"}),
    _Curves.of("Observations", "Adaptive weight λ", "mean over groups", {"wm_lambda": "λ"}),
    _Curves.of("Observations", "Loss on observations", "", {"wm_loss": "loss"}),
    _Curves.of(
        "Observations", "Tokens left out (p > ρ)", "%", {"wm_clipped_ratio": "left out"}, 100
    ),
    _Curves.of("Observations", "Probability of observed tokens", "mean p", {"wm_probability": "p"}),
    _Curves.of("Observations", "Rows whose observation is learned", "rows", {"wm_rows": "rows"}),
    _Curves.of(
        "Observations", _ENTROPIES, "rank correlation", {"entropy_correlation": "correlation"}
    ),
    _Curves.of("Observations", _ENTROPIES, "selected by both", {"entropy_overlap": "share"}),
    _Curves.of("Cost", "Time by phase", "seconds", PHASES),
    _Curves.of("Cost", "Memory", "GiB", {"peak_memory": "peak", "mean_memory": "mean"}, 2**-30),
)
"""What is drawn over rounds (CoMap, Figures 5 and 6) and over updates (PaW, Figures 5, 10 and 11)."""

_SHARES = ("mean score", "mean over groups", "mean p", "selected by both", "share")  # of 1
_MOST_FURTHER = 24  # plots of measures that are not known here


def plots_of(training: TrainingRecord) -> dict[str, list[Plot]]:
    """Return the plots of each section; a measure of updates that is not known here has one too."""
    known = {"update", *(column.path for curves in _CURVES for column in curves.columns)}
    names = dict.fromkeys(str(name) for line in training.updates for name in line)
    others = [name for name in names if name not in known and training.curve(name)[0]]
    further = [_Curves.of("Further measures", n, "", {n: n}) for n in others[:_MOST_FURTHER]]
    sources: dict[str, Sequence[tuple[int, object]]] = {
        "round": training.evaluations(),
        "rollouts": training.rollouts(),
        "update": [(line["update"], line) for line in training.updates],
    }
    plots = {"Results": _success_plots(training), "Losses": _loss_plots(training)}
    for section, source, title, ylabel, columns in (*_CURVES, *further):
        series = [_numbers(sources[source], column) for column in columns]
        unit = "update" if source == "update" else "round"
        plots.setdefault(section, []).extend(_plot(title, unit, ylabel, series))
    return plots


def _numbers(source: Sequence[tuple[int, object]], column: _Column) -> Series | None:
    values = ((at, number(found, *column.path.split("/"))) for at, found in source)
    points = ((at, None if y is None else column.times * y) for at, y in values)
    if not column.n:
        return _series(column.head, points)
    n = _counted(number(found, *column.n.split("/")) for _, found in source)
    return _series(f"{column.head} ({n})", points)


def _success_plots(training: TrainingRecord) -> list[Plot]:
    unit, rounds = "update" if training.tests else "round", training.evaluations()
    rates, means = [], []
    kinds = training.evaluated_tasks()
    for split, found in training.evaluated().items():
        about = filter(None, (kinds.get(split), _counted(one.rate.n for one in found)))
        name = f"{split} ({', '.join(about)})"
        values = ((one.rate.value, one.rate.low, one.rate.high) for one in found)
        shares = ((100 * value, 100 * low, 100 * high) for value, low, high in values)
        points = zip((one.at for one in found), shares, strict=True)
        rates.append(_series(name, ((at, *share) for at, share in points)))
        means.append(_series(name, ((one.at, one.score) for one in found)))
    plots = _plot("Success of evaluations, with 95 % intervals", unit, "% of episodes", rates)
    plots += _plot("Score of evaluations", unit, "mean score", means)
    for name, label in _SETS.items():
        groups = []
        for group, shown in _GROUPS.items():
            scores = [(at, get(result, "world_model", name, group)) for at, result in rounds]
            n = _counted(number(score, "n") for _, score in scores)
            groups.append(_series(f"{shown} ({n})", (_delta_f1(at, one) for at, one in scores)))
        plots += _plot(f"Delta-F1: {label}", unit, "Delta-F1", groups)
    return plots


def _delta_f1(at: float, group: object) -> Point:
    mean, error = number(group, "delta_f1"), number(group, "stderr")
    if mean is None or error is None:
        return at, None
    return at, mean, max(mean - _Z * error, 0.0), min(mean + _Z * error, 100.0)


def _loss_plots(training: TrainingRecord) -> list[Plot]:
    plots = []
    for role, who in _ROLES.items():
        stages = [(name, found) for name, found in training.learned() if found["role"] == role]
        for metric, label in _LOSSES.items():
            series, before = [], 0.0
            for name, found in stages:
                log, updates = found.get("log"), number(found, "updates") or 0.0
                points = []
                for line in log if isinstance(log, list) else []:
                    step, loss = number(line, "step"), number(line, metric)
                    if metric == "nll" and loss is None:  # plain fine-tuning has the loss alone
                        loss = number(line, "loss")
                    points.append((None if step is None else before + step, loss))
                series.append(_series(f"{name} ({updates:,.0f} updates)", points))
                before += updates
            title = f"{who.capitalize()}: {label}"
            ylabel = "share" if metric == "label_accuracy" else ""
            plots += _plot(title, f"updates of the {who}", ylabel, series)
    return plots


def _counted(values: Iterable[float | None]) -> str:
    """Return how many cases stand behind values, for a legend."""
    known = sorted(int(value) for value in values if value is not None)
    if not known:
        return "n=0"
    low, high = known[0], known[-1]
    return f"n={low}" if low == high else f"n={low}–{high}"


def _series(name: str, points: Iterable[Point]) -> Series | None:
    """Return the points that are known as a series; None where none is."""
    known = [point for point in points if None not in point]
    return Series(name, *zip(*known, strict=True)) if known else None


def _plot(title: str, xlabel: str, ylabel: str, series: Iterable[Series | None]) -> list[Plot]:
    drawn = tuple(one for one in series if one is not None)
    labels = None
    if xlabel == "round":  # of which there are few
        labels = tuple(f"{x:.0f}" for x in sorted({x for one in drawn for x in one.x}))
    full = 100.0 if ylabel.startswith(("%", "Delta-F1")) else 1.0 if ylabel in _SHARES else None
    return [Plot(title, xlabel, ylabel, drawn, labels=labels, full=full)] if drawn else []
