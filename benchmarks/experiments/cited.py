"""Published numbers of both papers: ``cited/ID.json``, as tables that stand beside ours, never among them.

A number is in a file only if it was read somewhere: ``source`` says where, ``missing`` what could not be
seen, and footnotes what is wrong with the printed numbers. A row is shown in the column of the definition
with its metric, environment, split and unit, and in a list below where there is none; the metric
``average`` belongs to the column of averages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..tables import one_line
from .cells import Cell, best, joined
from .definition import Column, Experiment, file_stems, read_data
from .table import DIGITS, Block, Entry, Footnotes, Row, Table, block_name, head, label


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
        if row.note == self.id:
            return True
        if not self.applies_to:
            return False

        for name, accepted in self.applies_to.items():
            accepted_values = accepted if isinstance(accepted, list) else [accepted]
            if getattr(row, name) not in accepted_values:
                return False
        return True


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
        footnotes = (footnote for footnote in self.footnotes if footnote.about(row))
        return tuple(sorted(footnotes, key=lambda footnote: footnote.id != row.note))


def cited_ids() -> tuple[str, ...]:
    """Return the names of the tables and figures that there are published numbers of."""
    return tuple(sorted(file_stems("cited")))


def load_cited(name: str) -> CitedTable | None:
    """Return the published numbers of a table or figure; None where there are none."""
    if name not in cited_ids():
        return None
    return read_data(f"cited/{name}.json", cited_of)


def cited_of(data: dict[str, Any]) -> CitedTable:
    """Return the published numbers of a file."""
    parts = {
        "footnotes": tuple(Footnote(**record) for record in data["footnotes"]),
        "rows": tuple(CitedRow(**record) for record in data["rows"]),
    }
    return CitedTable(**{**data, **parts})


def column_of(experiment: Experiment, row: CitedRow) -> int | None:
    """Return the index of a cited value's column; None where the definition has none."""
    if row.metric == "average":
        return _column_of_averages(experiment, row)

    matching = []
    for column_index, column in enumerate(experiment.columns):
        if _is_measure_of(column, row):
            matching.append(column_index)
    for column_index in matching:
        if experiment.columns[column_index].split == row.split:
            return column_index

    # A value of all splits may stand in the column of one, where no other column could be meant.
    return matching[0] if row.split is None and len(matching) == 1 else None


def _column_of_averages(experiment: Experiment, row: CitedRow) -> int | None:
    """Return the index of the first column of averages, for an average over all splits."""
    if row.split is not None:
        return None
    averages = (i for i, column in enumerate(experiment.columns) if column.average)
    return next(averages, None)


def _is_measure_of(column: Column, row: CitedRow) -> bool:
    """Return whether a column shows a cited value's measure, of whatever split."""
    if column.average or (column.metric, column.unit) != (row.metric, row.unit):
        return False
    return column.env in (None, row.env)  # None: the method says which environment


_RowsByColumn = dict[int, CitedRow]
"""A method's cited values by the index of their column."""


class _CitedBlock(NamedTuple):
    """The cited values of one language model that have a column, by method."""

    backbone: str | None
    methods: dict[str, _RowsByColumn]


def cited_tables(
    experiment: Experiment, cited: CitedTable | None
) -> tuple[Table | None, Table | None]:
    """Return the values that have a column of a table, and a list of the others; None for no value."""
    if cited is None:
        return None, None

    blocks: dict[str | None, _CitedBlock] = {}
    others = []
    for row in cited.rows:
        column_index = column_of(experiment, row) if experiment.kind == "table" else None
        if column_index is None:
            others.append(row)
        else:
            block = blocks.setdefault(row.backbone, _CitedBlock(row.backbone, {}))
            block.methods.setdefault(row.method, {})[column_index] = row

    in_columns = None
    if blocks:
        in_columns = _in_columns(experiment, cited, list(blocks.values()))
    listed = None
    if others:
        listed = _listed(experiment, cited, others)
    return in_columns, listed


def _in_columns(experiment: Experiment, cited: CitedTable, blocks: Sequence[_CitedBlock]) -> Table:
    """Return the values in the columns that have some; an average is as printed, none is computed."""
    filled: set[int] = set()
    for block in blocks:
        for method_rows in block.methods.values():
            filled |= method_rows.keys()
    column_indices = sorted(filled)

    columns = experiment.columns
    footnotes = Footnotes()
    laid_out = [_block(experiment, cited, block, column_indices, footnotes) for block in blocks]
    return Table(
        title=f"Cited: {experiment.published} of the paper",
        head=("method (cited)", *(head(columns[i], columns) for i in column_indices)),
        blocks=tuple(laid_out),
        notes=_source(cited),
        footnotes=footnotes.written(),
    )


def _block(
    experiment: Experiment,
    cited: CitedTable,
    block: _CitedBlock,
    column_indices: Sequence[int],
    footnotes: Footnotes,
) -> Block:
    """Return the lines of a language model, the experiment's methods first, the best of each marked."""
    order = {method.name: i for i, method in enumerate(experiment.methods)}
    names = sorted(block.methods, key=lambda name: order.get(name, len(order)))

    best_lines = {}
    for column_index in column_indices:
        cells = []
        for name in names:
            row = block.methods[name].get(column_index)
            cells.append(Cell(status="value", value=None if row is None else row.value))
        # No published number here has more than two decimals.
        best_lines[column_index] = best(cells, experiment.columns[column_index].better, 2)

    lines = []
    for line_index, name in enumerate(names):
        entries = [label(name)]
        for column_index in column_indices:
            row = block.methods[name].get(column_index)
            is_best = line_index in best_lines[column_index]
            entries.append(_entry(cited, row, footnotes, is_best))
        lines.append(Row(tuple(entries)))

    return Block(block_name(block.backbone), tuple(lines))


def _listed(experiment: Experiment, cited: CitedTable, rows: Sequence[CitedRow]) -> Table:
    """Return cited values one below the other, which fits any measure."""
    footnotes = Footnotes()
    lines = []
    for row in rows:
        env_and_split = joined(row.env or "", row.split or "")
        names = (row.method, row.backbone or "–", env_and_split or "–", row.metric)
        unit = f" {row.unit}" if row.unit not in ("", "share", "count") else ""
        value = _entry(cited, row, footnotes)
        value = replace(value, mean=f"{value.text}{unit}", spread="")
        lines.append(Row((*map(label, names), value)))

    is_table = experiment.kind == "table"
    content = "values without a column above" if is_table else "numbers of the paper"
    return Table(
        title=f"Cited: {content}",
        head=("method (cited)", "model", "where", "measure", "value"),
        blocks=(Block(None, tuple(lines)),),
        notes=_source(cited),
        footnotes=footnotes.written(),
        texts=4,
    )


def _entry(
    cited: CitedTable, row: CitedRow | None, footnotes: Footnotes, is_best: bool = False
) -> Entry:
    """Return a cited value as it is printed, with the marks of its footnotes; a dash for None."""
    if row is None:
        return Entry("–", status="missing")
    spread = "" if row.spread is None else _printed(row.spread, row.unit)
    marks = {footnotes.mark(footnote.text) for footnote in cited.notes(row)}
    # The mark aa comes after z.
    ordered_marks = tuple(sorted(marks, key=lambda mark: (len(mark), mark)))
    return Entry(_printed(row.value, row.unit), spread, "value", is_best, ordered_marks)


def _printed(value: float, unit: str) -> str:
    """Return a cited number with the decimals that it has, two at most where ours have few."""
    if isinstance(value, int):
        return f"{value:,}"
    most_decimals = 2 if unit in DIGITS else 6
    decimals = len(f"{value:.6f}".rstrip("0").partition(".")[2])
    decimals = min(max(decimals, 1), most_decimals)
    return f"{value:,.{decimals}f}"


def _source(cited: CitedTable) -> tuple[str, ...]:
    """Return notes on where the numbers were read, and which could not be seen."""
    source = one_line(cited.source, 600)
    lines = [f"Cited from arXiv {cited.arxiv}, {cited.table}; seen in: {source}."]
    if cited.missing:
        lines.append(f"Not seen: {one_line(cited.missing, 600)}")
    return tuple(lines)
