"""The tables of a PaW training's report: what came out, what it cost, and how it was set."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..trainers.paw.config import PaWTraining
from .paw_curves import PHASES
from .paw_record import PaWRecord
from .tables import Table
from .training_costs import settings_tables
from .training_record import TrainingRecord, members

__all__ = ["phase_table", "results_table", "setting_tables"]

_NOTHING = "—"


def results_table(record: PaWRecord) -> Table:
    """Return the table that a training ends with: success of rollouts and evaluations.

    Example:
        >>> updates = ({"update": 1, "success": 0.25}, {"update": 2, "success": 0.5})
        >>> results_table(PaWRecord(updates=updates)).rows
        (('rollouts', '25.0 % (update 1)', '50.0 % (update 2)', '50.0 % (update 2)'),)
    """
    rows: list[tuple[object, ...]] = []
    x, y = record.curve("success", 100)
    if x:
        best = y.index(max(y))
        told = [f"{y[at]:.1f} % (update {x[at]:.0f})" for at in (0, -1, best)]
        rows.append(("rollouts", *told))
    for split in record.splits():
        found = record.evaluated(split)
        if found:
            best = max(range(len(found)), key=lambda at: (found[at][1].value, -at))
            rows.append(
                (split, *(f"{found[at][1]} (update {found[at][0]})" for at in (0, -1, best)))
            )
            scores = [score for _, _, score in found]
            if any(score is not None for score in scores):
                told = [_score(scores[at]) for at in (0, -1, best)]
                rows.append((f"{split}, mean score", *told))
    note = (
        "Rollouts are on training tasks, at the temperature of training. Evaluations with 95 % "
        "intervals; the best of several is better than it would be again."
    )
    return Table("Success", ("", "first", "last", "best"), tuple(rows), note)


def _score(score: float | None) -> str:
    return _NOTHING if score is None else f"{score:.3f}"


def phase_table(record: PaWRecord) -> Table:
    """Return what an update costs by phase (PaW, Figure 5).

    Example:
        >>> lines = ({"update": 1, "seconds_rollout": 3.0, "seconds_update": 1.0},)
        >>> [row[0] for row in phase_table(PaWRecord(updates=lines)).rows]
        ['rollouts', 'update', 'all']
    """
    spent = {told: record.curve(name)[1] for name, told in PHASES.items()}
    spent = {told: seconds for told, seconds in spent.items() if seconds}
    whole = sum(map(sum, spent.values()))
    rows: list[tuple[object, ...]] = [
        (told, f"{sum(y) / len(y):,.2f}", f"{100 * sum(y) / whole:.1f} %", f"{sum(y):,.1f}", len(y))
        for told, y in spent.items()
        if whole
    ]
    if rows:
        most = max(map(len, spent.values()))
        rows.append(("all", f"{whole / most:,.2f}", "100.0 %", f"{whole:,.1f}", most))
    note = "By the clock of the first process; evaluations and checkpoints are not in it."
    peak = record.curve("peak_memory", 2**-30)[1]
    if peak:
        note += (
            f" Peak memory {max(peak):.2f} GiB, on average of updates {sum(peak) / len(peak):.2f}."
        )
    heads = ("phase", "seconds an update", "share", "seconds in all", "updates")
    return Table("Cost of an update", heads, tuple(rows), note)


def setting_tables(record: PaWRecord) -> list[Table]:
    """Return all settings, the environment, the model and the versions.

    Example:
        >>> [table.title for table in setting_tables(PaWRecord())]
        ['Settings', 'What it was trained on', 'Sessions']
    """
    others = settings_tables(TrainingRecord(record.described, record.sessions, ()))
    heads = ("setting", "value", "where the preset alfworld differs")
    return [Table("Settings", heads, tuple(_settings(record))), *others[1:]]


def _settings(record: PaWRecord) -> Iterator[tuple[object, ...]]:
    usual = PaWTraining().describe()
    for name, value in members(record.described, "config").items():
        other = usual.get(name)
        yield str(name), _plain(value), "" if other == value else _plain(other)


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return "none" if value is None else json.dumps(value)
