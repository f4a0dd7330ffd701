"""The grids of cited values: in the columns of a table, or one below the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..marks import one_line
from .aggregate import Cell
from .cited import CitedRow
from .grid import Grid, GridRow, Written
from .quoted import Quotes
from .sheets import Sheet
from .wording import Notes, head, printed, value

__all__ = ["cited_grid", "cited_list"]


def cited_grid(sheet: Sheet) -> Grid:
    """Return what the paper prints of a table; columns that nothing was seen of are left out."""
    columns, notes = sheet.experiment.columns, Notes()
    kept = [
        place
        for place in range(len(columns))
        if any(line.cells[place].value is not None for b in sheet.cited for line in b.lines)
    ]
    rows = list[GridRow]()
    for block in sheet.cited:
        if block.backbone is not None:
            rows.append(GridRow((Written(one_line(block.backbone)),), "block"))
        for line in block.lines:
            written = [Written(one_line(line.method, 60))]
            for place in kept:
                cell = line.cells[place]
                said = cell.reason.splitlines() if cell.value is not None else []
                marks = _sorted(notes.mark(one) for one in said)
                text = _printed(cell, columns[place].unit)
                written.append(Written(text, place in line.best, marks))
            rows.append(GridRow(tuple(written)))
    return Grid(
        title=f"Cited: {sheet.experiment.published} of the paper",
        head=("method (cited)", *(f"{head(columns[place], columns)}" for place in kept)),
        rows=tuple(rows),
        notes=_source(sheet.quotes),
        footnotes=notes.told(),
        cited=True,
    )


def _printed(cell: Cell, unit: str) -> str:
    if cell.value is None:
        return value(cell, unit)
    spread = "" if cell.sd is None else f" ± {printed(cell.sd, unit)}"
    return printed(cell.value, unit) + spread


def _sorted(marks: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(marks, key=lambda mark: (len(mark), mark)))


def _source(quotes: Quotes) -> tuple[str, ...]:
    table = quotes.table
    if table is None:
        return ()
    source = f"arXiv {table.arxiv}, {table.table}" if table.arxiv else table.table
    told = [f"Cited from {source}; seen in: {one_line(table.source, 600)}."]
    if table.missing:
        told.append(f"Not seen: {one_line(table.missing, 600)}")
    return tuple(told)


def cited_list(
    quotes: Quotes,
    rows: Sequence[CitedRow],
    title: str = "Cited: numbers of the paper",
) -> Grid:
    """Return cited values one below the other, which fits any measure."""
    notes, listed = Notes(), list[GridRow]()
    for row in rows:
        told = () if quotes.table is None else quotes.table.notes(row)
        marks = _sorted(notes.mark(one.text) for one in told)
        where = ", ".join(one for one in (row.env, row.split) if one)
        unit = f" {row.unit}" if row.unit not in ("", "share", "count") else ""
        spread = "" if row.spread is None else f" ± {printed(row.spread, row.unit)}"
        cells = (
            Written(one_line(row.method, 60)),
            Written(one_line(row.backbone or "–", 60)),
            Written(one_line(where or "–", 60)),
            Written(one_line(row.metric, 60)),
            Written(f"{printed(row.value, row.unit)}{spread}{unit}", marks=marks),
        )
        listed.append(GridRow(cells))
    return Grid(
        title=title,
        head=("method (cited)", "model", "where", "measure", "value"),
        rows=tuple(listed),
        notes=_source(quotes),
        footnotes=notes.told(),
        cited=True,
        text=4,
    )
