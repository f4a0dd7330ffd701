"""What a folder of results holds, experiment after experiment, ready to be written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import DataNotFound
from ..marks import one_line
from .cited import CitedTable, load_cited
from .definition import Experiment, experiment, experiment_ids
from .known import known_plan
from .panels import Panel, panels
from .quoted import Quotes
from .rows import ResultRow, read_rows
from .scale import scale_named
from .sheets import Sheet, sheet

__all__ = ["ROWS", "Results", "Shown", "read_results", "results_of"]

ROWS = "rows.jsonl"
"""The file of result rows, in the results' folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An experiment with its results.

    Attributes:
        experiment: What it is.
        quotes: What the paper has.
        sheet: Its table; None for a figure.
        panels: Its panels; none for a table.
        rows: Its rows, of our runs.
    """

    experiment: Experiment
    quotes: Quotes
    sheet: Sheet | None
    panels: tuple[Panel, ...]
    rows: tuple[ResultRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All experiments of a folder.

    Attributes:
        shown: Those with a row, in the order of their definitions.
        about: What was run, in a few names and values.
        left_out: What is not shown, in sentences.
        notes: What a reader should know of the scale.
    """

    shown: tuple[Shown, ...]
    about: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_results(
    folder: Path,
    experiments: Sequence[Experiment] | None = None,
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> Results:
    """Return what a folder of results holds.

    Args:
        folder: The folder; its rows are in ``rows.jsonl``.
        experiments: Which are shown, in their order; None for all that comap has.
        cited: What returns an experiment's published numbers.

    Raises:
        DataNotFound: There are no rows.
        DataCorrupt: A row or a definition is not what it should be.

    Example:
        >>> from comap.benchmarks.experiments.rows import write_rows
        >>> row = ResultRow(experiment="comap-t2", method="SFT", metric="delta_f1", value=1.0)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_rows(Path(place, ROWS), [row])
        ...     [one.experiment.id for one in read_results(Path(place)).shown]
        ['comap-t2']
    """
    found = results_of(list(read_rows(folder / ROWS)), experiments, cited)
    try:
        scale = scale_named(known_plan(folder)["scale"])
    except DataNotFound:  # the rows came here without their jobs
        return found
    return replace(
        found, about=(("scale", f"{scale.name}: {scale.about}"), *found.about), notes=scale.notes
    )


def results_of(
    rows: Sequence[ResultRow],
    experiments: Sequence[Experiment] | None = None,
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> Results:
    """Return what rows of results come to.

    Args:
        rows: The rows.
        experiments: Which are shown, in their order; None for all that comap has.
        cited: What returns an experiment's published numbers.

    Example:
        >>> results_of([], []).shown
        ()
    """
    known = list(experiments or ())
    if experiments is None:
        known = [experiment(name) for name in experiment_ids()]
    shown, empty = [], []
    for one in known:
        own = tuple(row for row in rows if row.experiment == one.id and not row.cited)
        if not own:
            empty.append(one)
            continue
        quotes = Quotes.of(one, cited(one.id), rows)
        is_table = one.kind == "table"
        shown.append(
            Shown(
                experiment=one,
                quotes=quotes,
                sheet=sheet(one, own, quotes) if is_table else None,
                panels=() if is_table else panels(one, own),
                rows=own,
            )
        )
    ids = {*(one.id for one in known), *experiment_ids()}
    strange = [row for row in rows if row.experiment not in ids]
    about = _about([row for one in shown for row in one.rows])
    return Results(shown=tuple(shown), about=about, left_out=tuple(_left_out(empty, strange)))


def _about(rows: Sequence[ResultRow]) -> tuple[tuple[str, str], ...]:
    """Return what was run, with which version and on what, as the rows say."""
    told = {
        "models": _listed(row.backbone for row in rows),
        "seeds": _listed(
            str(seed) for seed in sorted({r.seed for r in rows if r.seed is not None})
        ),
        "comap": _listed(row.code_version for row in rows),
        "hardware": _listed(row.hardware for row in rows),
        "jobs": f"{len({row.job for row in rows if row.job is not None}):,}",
    }
    seconds = {row.job: row.seconds for row in rows if row.job and row.seconds is not None}
    if seconds:
        told["time of all jobs"] = f"{sum(seconds.values()) / 3600:,.1f} h"
    failed = Counter(row.job for row in rows if row.job is not None and row.error is not None)
    if failed:
        told["failed"] = f"{len(failed):,} job{'s' if len(failed) > 1 else ''}"
    return tuple((name, value) for name, value in told.items() if value)


def _listed(names: Iterable[str | None]) -> str:
    found = list(dict.fromkeys(name for name in names if name))
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return ", ".join(one_line(str(name), 120) for name in found[:6]) + more


def _left_out(empty: Sequence[Experiment], strange: Sequence[ResultRow]) -> list[str]:
    told = []
    if empty:
        names = ", ".join(f"{one.paper} {one.published} ({one.id})" for one in empty)
        told.append(f"Not run: {names}.")
    if strange:
        names = ", ".join(dict.fromkeys(one_line(row.experiment, 60) for row in strange))
        told.append(
            f"Not shown: {len(strange)} rows of experiments that this version does not know: {names}."
        )
    return told
