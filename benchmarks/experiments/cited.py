"""Published numbers of both papers: ``cited/ID.json``, as tables that stand beside ours, never among them.

A number is in a file only if it was read somewhere: ``source`` says where, ``missing`` what could not be
seen, and footnotes what is wrong with the printed numbers. A row is shown in the column of the definition
with its metric, environment, split and unit, and in a list below where there is none; the metric
``average`` belongs to the column of averages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..tables import one_line
from .cells import Cell, best
from .definition import FOLDER, Experiment, read_data
from .table import DIGITS, Block, Entry, Footnotes, Row, Table, head, label


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedRow:
    """One published number."""

    method: str
    metric: str
    unit: str
    value: float
    backbone: str | None = None
    env: str | None = None
    split: str | None = None
    spread: float | None = None
    n: int | None = None
    note: str | None = None
    """the footnote that comes first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footnote:
    """What a reader should know of some numbers."""

    id: str
    text: str
    applies_to: Mapping[str, Any] = field(default_factory=dict)
    """fields of the rows that it is about, each with a value or a list of values"""

    def about(self, row: CitedRow) -> bool:
        """Return whether the footnote is about `row`."""
        if row.note == self.id or not self.applies_to:
            return row.note == self.id
        return all(
            getattr(row, name) in (wanted if isinstance(wanted, list) else [wanted])
            for name, wanted in self.applies_to.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedTable:
    """The published numbers of one table or figure."""

    id: str
    paper: str
    arxiv: str
    table: str
    source: str
    status: str = "complete"
    missing: str | None = None
    footnotes: tuple[Footnote, ...] = ()
    rows: tuple[CitedRow, ...] = ()

    def notes(self, row: CitedRow) -> tuple[Footnote, ...]:
        """Return the footnotes that are about a row, its own first."""
        found = (note for note in self.footnotes if note.about(row))
        return tuple(sorted(found, key=lambda note: note.id != row.note))


def cited_ids() -> tuple[str, ...]:
    """Return the names of the tables and figures that there are published numbers of."""
    names = (path.name for path in (FOLDER / "cited").iterdir())
    return tuple(sorted(name[:-5] for name in names if name.endswith(".json")))


def load_cited(name: str) -> CitedTable | None:
    """Return the published numbers of a table or figure; None where there are none."""
    return read_data(f"cited/{name}.json", cited_of) if name in cited_ids() else None


def cited_of(data: dict[str, Any]) -> CitedTable:
    """Return the published numbers of a file."""
    parts = {
        "footnotes": tuple(Footnote(**one) for one in data["footnotes"]),
        "rows": tuple(CitedRow(**one) for one in data["rows"]),
    }
    return CitedTable(**{**data, **parts})


def column_of(experiment: Experiment, row: CitedRow) -> int | None:
    """Return the index of a cited value's column; None where the definition has none."""
    columns = list(enumerate(experiment.columns))
    if row.metric == "average":
        return next((i for i, one in columns if one.average and row.split is None), None)
    alike = [
        (i, one)
        for i, one in columns
        if not one.average
        and (one.metric, one.unit) == (row.metric, row.unit)
        and one.env in (None, row.env)  # None: the method says which environment
    ]
    exact = [i for i, one in alike if one.split == row.split]
    if exact:
        return exact[0]
    return alike[0][0] if row.split is None and len(alike) == 1 else None


def cited_tables(
    experiment: Experiment, cited: CitedTable | None
) -> tuple[Table | None, Table | None]:
    """Return the values that have a column of a table, and a list of the others; None for no value."""
    if cited is None:
        return None, None
    found: dict[str | None, dict[str, dict[int, CitedRow]]] = {}
    others = []
    for row in cited.rows:
        column = column_of(experiment, row) if experiment.kind == "table" else None
        if column is None:
            others.append(row)
        else:
            found.setdefault(row.backbone, {}).setdefault(row.method, {})[column] = row
    return (
        _in_columns(experiment, cited, found) if found else None,
        _listed(experiment, cited, others) if others else None,
    )


def _in_columns(
    experiment: Experiment,
    cited: CitedTable,
    found: Mapping[str | None, Mapping[str, Mapping[int, CitedRow]]],
) -> Table:
    """Return the values in the columns that have some; an average is as printed, none is computed."""
    order = {one.name: i for i, one in enumerate(experiment.methods)}
    filled = sorted({i for methods in found.values() for rows in methods.values() for i in rows})
    footnotes, blocks = Footnotes(), []
    for backbone, methods in found.items():
        names = sorted(methods, key=lambda name: order.get(name, len(order)))
        bests = {}
        for i in filled:
            rows = [methods[name].get(i) for name in names]
            cells = [Cell(status="value", value=row.value if row else None) for row in rows]
            bests[i] = best(cells, experiment.columns[i].better, 2)
        lines = []
        for at, name in enumerate(names):
            own = methods[name]
            entries = (_entry(cited, own.get(i), footnotes, at in bests[i]) for i in filled)
            lines.append(Row((label(name), *entries)))
        blocks.append(Block(None if backbone is None else one_line(backbone), tuple(lines)))
    columns = experiment.columns
    return Table(
        title=f"Cited: {experiment.published} of the paper",
        head=("method (cited)", *(head(columns[i], columns) for i in filled)),
        blocks=tuple(blocks),
        notes=_source(cited),
        footnotes=footnotes.written(),
    )


def _listed(experiment: Experiment, cited: CitedTable, rows: Sequence[CitedRow]) -> Table:
    """Return cited values one below the other, which fits any measure."""
    footnotes, lines = Footnotes(), []
    for row in rows:
        unit = f" {row.unit}" if row.unit not in ("", "share", "count") else ""
        value = _entry(cited, row, footnotes)
        where = ", ".join(one for one in (row.env, row.split) if one)
        names = (row.method, row.backbone or "–", where or "–", row.metric)
        value = replace(value, mean=f"{value.text}{unit}", spread="")
        lines.append(Row((*map(label, names), value)))
    without = "values without a column above"
    return Table(
        title=f"Cited: {without if experiment.kind == 'table' else 'numbers of the paper'}",
        head=("method (cited)", "model", "where", "measure", "value"),
        blocks=(Block(None, tuple(lines)),),
        notes=_source(cited),
        footnotes=footnotes.written(),
        texts=4,
    )


def _entry(
    cited: CitedTable, row: CitedRow | None, footnotes: Footnotes, is_best: bool = False
) -> Entry:
    if row is None:
        return Entry("–", status="missing")
    marks = {footnotes.mark(note.text) for note in cited.notes(row)}
    spread = "" if row.spread is None else _printed(row.spread, row.unit)
    in_order = tuple(sorted(marks, key=lambda mark: (len(mark), mark)))
    return Entry(_printed(row.value, row.unit), spread, "value", is_best, in_order)


def _printed(value: float, unit: str) -> str:
    """Return a cited number with the decimals that it has, two at most where ours have few."""
    if isinstance(value, int):
        return f"{value:,}"
    decimals = len(f"{value:.6f}".rstrip("0").partition(".")[2])
    return f"{value:,.{min(max(decimals, 1), 2 if unit in DIGITS else 6)}f}"


def _source(cited: CitedTable) -> tuple[str, ...]:
    seen = one_line(cited.source, 600)
    lines = [f"Cited from arXiv {cited.arxiv}, {cited.table}; seen in: {seen}."]
    if cited.missing:
        lines.append(f"Not seen: {one_line(cited.missing, 600)}")
    return tuple(lines)
