"""Tables as plain grids of written cells: ours, and the cited one under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..marks import one_line
from .aggregate import Cell
from .cited_grids import cited_grid, cited_list
from .definition import Column
from .grid import Grid, GridRow, Written
from .sheets import Block, Sheet
from .wording import Notes, caption, head, interval, seeds, usual, value

__all__ = ["every_value", "our_grid", "sheet_grids"]


def sheet_grids(sheet: Sheet) -> list[Grid]:
    """Return our grid of a table, and the cited one under it.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> from comap.benchmarks.experiments.sheets import sheet
        >>> sheet_grids(sheet(experiment("comap-t2"), []))
        []
    """
    grids = []
    if sheet.ours:
        grids.append(our_grid(sheet))
    if sheet.cited:
        grids.append(cited_grid(sheet))
    if sheet.quotes.others:
        others = "Cited: values without a column above"
        grids.append(cited_list(sheet.quotes, sheet.quotes.others, others))
    return grids


def every_value(blocks: Sequence[Block], columns: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each value that was measured: what, mean, deviation, interval, n and seeds.

    Example:
        >>> list(every_value([], []))
        []
    """
    for block in blocks:
        for line in block.lines:
            for column, cell in zip(columns, line.cells, strict=True):
                if cell.value is None:
                    continue
                method = (
                    line.method if block.backbone is None else f"{line.method}, {block.backbone}"
                )
                yield (
                    one_line(method),
                    one_line(column.label),
                    value(cell, column.unit),
                    interval(cell, column.unit),
                    _count(cell),
                    seeds(cell),
                )


def our_grid(sheet: Sheet) -> Grid:
    """Return what we measured of a table."""
    columns, notes = sheet.experiment.columns, Notes()
    cells = [
        [line.cells[place] for block in sheet.ours for line in block.lines]
        for place in range(len(columns))
    ]
    usual_n = [usual(_count(cell) for cell in of_column) for of_column in cells]
    usual_seeds = usual(seeds(cell) for of_column in cells for cell in of_column)
    rows = list[GridRow]()
    for block in sheet.ours:
        if block.backbone is not None:
            rows.append(GridRow((Written(one_line(block.backbone)),), "block"))
        group = block.lines[0].group if block.lines else None
        for line in block.lines:
            written = [Written(one_line(line.method, 60))]
            for place, (cell, column) in enumerate(zip(line.cells, columns, strict=True)):
                marks = _marks(cell, column, usual_n[place], usual_seeds, notes)
                best = place in line.best
                written.append(Written(value(cell, column.unit), best, marks))
            rows.append(GridRow(tuple(written), rule=line.group != group))
            group = line.group
    if any(usual_n):
        counted = [Written("n"), *(Written(one) for one in usual_n)]
        rows.append(GridRow(tuple(counted), "counts"))
    told = [caption(columns), _seeds_told(usual_seeds, sheet.ours), _not_run(sheet)]
    numbers = any(cell.value is not None for of_column in cells for cell in of_column)
    return Grid(
        title="Measured here",
        head=("method", *(head(column, columns) for column in columns)),
        rows=tuple(rows),
        notes=tuple(one for one in told if one),
        footnotes=notes.told(),
        text=1 if numbers else 1 + len(columns),
    )


def _marks(
    cell: Cell, column: Column, usual_n: str, usual_seeds: str, notes: Notes
) -> tuple[str, ...]:
    """Return the footnote of one of our cells: why it has no value, or how it differs."""
    if column.average and cell.status == "missing":
        return ()
    told = [cell.reason] if cell.reason else []
    if cell.value is not None:
        count, named = _count(cell), seeds(cell)
        told += [f"n = {count}"] if count and count != usual_n else []
        told += [_seeds(named)] if named and named != usual_seeds else []
    return (notes.mark("; ".join(told)),) if told else ()


def _seeds(named: str) -> str:
    return f"seed{'s' if ',' in named else ''} {named}"


def _count(cell: Cell) -> str:
    known = sorted({count for count in cell.counts if count is not None})
    if cell.value is None or not known:
        return ""
    return f"{known[0]:,}" + (f"–{known[-1]:,}" if len(known) > 1 else "")


def _seeds_told(named: str, blocks: Sequence[Block]) -> str:
    if not named:
        return ""
    spread = any(cell.sd is not None for b in blocks for line in b.lines for cell in line.cells)
    told = "Mean ± standard deviation over seeds. " if spread else ""
    return f"{told}{_seeds(named).capitalize()}, unless a footnote says otherwise."


def _not_run(sheet: Sheet) -> str:
    if not sheet.not_run:
        return ""
    told = [one_line(f"{name} ({why})" if why else name, 120) for name, why in sheet.not_run]
    return f"Not run here: {'; '.join(told)}."
