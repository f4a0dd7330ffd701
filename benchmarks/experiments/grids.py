"""Tables and figures as plain grids of written cells, which Markdown, LaTeX and terminals lay out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..marks import one_line
from .aggregate import Cell
from .cited import CitedRow
from .definition import Column
from .panels import Curve, Panel, Point
from .quoted import Quotes
from .sheets import Block, Sheet
from .wording import Notes, caption, head, interval, printed, seeds, usual, value

__all__ = [
    "Grid",
    "GridRow",
    "Written",
    "cited_grid",
    "cited_list",
    "every_value",
    "figure_grids",
    "our_grid",
    "sheet_grids",
]


@dataclass(frozen=True, slots=True)
class Written:
    """A cell.

    Attributes:
        text: What stands in it.
        best: Whether it is the best of its column and block.
        marks: The letters of its footnotes.
    """

    text: str
    best: bool = False
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GridRow:
    """A row.

    Attributes:
        cells: Its cells, one for each column; a block's title has one alone.
        kind: ``line``, ``block`` for the title of a block, or ``counts`` for the line of n.
        rule: Whether it begins another group than the row above.
    """

    cells: tuple[Written, ...]
    kind: str = "line"
    rule: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A table, written.

    Attributes:
        title: What it shows.
        head: What stands above each column.
        rows: Its rows.
        notes: Sentences below it.
        footnotes: Letters and texts.
        cited: Whether its values are the paper's.
        text: How many columns from the left hold text; the others hold numbers.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[GridRow, ...]
    notes: tuple[str, ...] = ()
    footnotes: tuple[tuple[str, str], ...] = ()
    cited: bool = False
    text: int = 1


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


def figure_grids(panels: Sequence[Panel], quotes: Quotes) -> list[Grid]:
    """Return the grids of a figure: one a panel, and what the paper says in numbers.

    Example:
        >>> figure_grids([], Quotes(table=None))
        []
    """
    grids = [_bars(panel) if panel.kind == "bar" else _line(panel) for panel in panels]
    rows = [one.row for one in quotes.placed] + list(quotes.others)
    return grids + ([cited_list(quotes, rows)] if rows else [])


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


# -- tables ----------------------------------------------------------------------------------------


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


# -- figures ---------------------------------------------------------------------------------------


def _line(panel: Panel) -> Grid:
    column, notes = panel.column, Notes()
    better = column.better is not None
    titles = ["first", *(["best"] if better else []), "last"]
    rows = []
    for curve in panel.curves:
        marks = tuple(notes.mark(one.cell.reason) for one in curve.lost if one.cell.reason)
        name = Written(one_line(curve.name, 60), marks=marks)
        points = _ends(curve, column)
        shown = [Written(_at(point, column)) for point in points] or [Written("–")] * len(titles)
        told = usual(point.cell.measured for point in curve.points)
        count = Written(f"{len(curve.points):,}")
        rows.append(GridRow((name, *shown, count, Written(told or "–"))))
    unit = f" ({column.unit})" if column.unit and column.unit != "share" else ""
    return Grid(
        title=one_line(column.label) + unit,
        head=(
            "curve",
            *(f"{one} ({one_line(panel.axis or 'x', 40)})" for one in titles),
            "points",
            "each of",
        ),
        rows=tuple(rows),
        footnotes=notes.told(),
    )


def _ends(curve: Curve, column: Column) -> list[Point]:
    """Return the first, the best and the last point of a curve."""
    if not curve.points:
        return []
    points = [curve.points[0], curve.points[-1]]
    if column.better is not None:
        sign = 1 if column.better == "more" else -1
        points.insert(1, max(curve.points, key=lambda point: sign * (point.cell.value or 0.0)))
    return points


def _at(point: Point, column: Column) -> str:
    return f"{value(point.cell, column.unit)} ({point.x:g})"


def _bars(panel: Panel) -> Grid:
    column, notes = panel.column, Notes()
    told = usual(point.cell.measured for curve in panel.curves for point in curve.points)
    rows = []
    for place, label in enumerate(panel.labels):
        cells = [Written(one_line(label, 60))]
        for curve in panel.curves:
            known = (*curve.points, *curve.lost)
            found = next((one.cell for one in known if one.x == place), None)
            if found is None:
                cells.append(Written("–"))
                continue
            reasons = [found.reason] if found.reason else []
            if found.value is not None and found.measured not in ("", told):
                reasons.append(found.measured)
            marks = (notes.mark("; ".join(reasons)),) if reasons else ()
            cells.append(Written(value(found, column.unit), marks=marks))
        rows.append(GridRow(tuple(cells)))
    unit = f" ({column.unit})" if column.unit and column.unit != "share" else ""
    said = [f"Each value: {told}, unless a footnote says otherwise." if told else ""]
    return Grid(
        title=one_line(column.label) + unit,
        head=("", *(one_line(curve.name, 60) for curve in panel.curves)),
        rows=tuple(rows),
        notes=tuple(one for one in said if one),
        footnotes=notes.told(),
    )
