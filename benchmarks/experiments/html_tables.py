"""A table for the page: our column group, the cited one beside it, and every value with its sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..marks import one_line
from .aggregate import Cell
from .cited import CitedRow
from .cited_grids import cited_grid, cited_list
from .definition import Column
from .grid import Grid, GridRow, Written
from .grids import our_grid
from .links import Links
from .quoted import Quotes
from .sheets import Block, Line, Sheet, pairs
from .wording import interval, number, value

__all__ = ["HtmlBlock", "HtmlCell", "HtmlTable", "HtmlValue", "Source", "html_table", "list_table"]


@dataclass(frozen=True, slots=True)
class HtmlCell:
    """A cell of the page.

    Attributes:
        mean: Its value, or what stands there instead.
        spread: Its deviation over seeds; "" where there is none.
        status: That of the cell; ``none`` where there is no such line in its column group.
        best: Whether it is the best of its column and block.
        marks: The letters of its footnotes.
        target: The id of the line below that tells all of it; "" where there is none.
    """

    mean: str = ""
    spread: str = ""
    status: str = "none"
    best: bool = False
    marks: tuple[str, ...] = ()
    target: str = ""


@dataclass(frozen=True, slots=True)
class HtmlBlock:
    """Lines of one of our backbones, with a cited one beside it.

    Attributes:
        ours: Our backbone; None where this block is cited only.
        cited: The cited backbone; None where it is ours only.
        lines: Methods with our cells and the cited ones.
    """

    ours: str | None
    cited: str | None
    lines: tuple[tuple[str, tuple[HtmlCell, ...], tuple[HtmlCell, ...]], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """One seed's part of a value.

    Attributes:
        seed: The seed, in words; "" where there is none.
        value: Its value, or why there is none.
        links: Names and addresses of what there is to see.
    """

    seed: str
    value: str
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class HtmlValue:
    """All that is known of a cell.

    Attributes:
        id: The line's id.
        method: The method, and the backbone.
        column: The column.
        value: The cell's text.
        interval: Its interval.
        measured: Its n and seeds.
        sources: Its parts, seed after seed.
    """

    id: str
    method: str
    column: str
    value: str
    interval: str
    measured: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of the page.

    Attributes:
        ours: Our grid: heads, notes and footnotes; None where nothing was measured.
        cited: The cited one.
        blocks: Its blocks.
        counts: The line of n, of ours.
        texts: Which of our columns hold text.
        values: All that is known of each of our cells.
    """

    ours: Grid | None
    cited: Grid | None
    blocks: tuple[HtmlBlock, ...]
    counts: tuple[str, ...]
    texts: tuple[bool, ...]
    values: tuple[HtmlValue, ...]

    @property
    def spread(self) -> bool:
        """Whether one of our cells has a deviation over seeds."""
        return any(
            cell.spread for block in self.blocks for _, own, _ in block.lines for cell in own
        )


def html_table(sheet: Sheet, name: str, links: Links) -> HtmlTable:
    """Return a table for the page.

    Args:
        sheet: The table.
        name: What ids begin with.
        links: Where records and trajectories are.

    Example:
        >>> from pathlib import Path
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> from comap.benchmarks.experiments.sheets import sheet
        >>> here = Links(Path("runs"), Path("runs"))
        >>> html_table(sheet(experiment("comap-t2"), []), "comap-t2", here).blocks
        ()
    """
    ours = our_grid(sheet) if sheet.ours else None
    cited = cited_grid(sheet) if sheet.cited else None
    written_ours = _by_line(ours, sheet.ours)
    written_cited = _by_line(cited, sheet.cited)
    values: list[HtmlValue] = []
    blocks = []
    for block, other in pairs(sheet):
        lines = []
        for method in _methods(block, other, sheet):
            own = _own_cells(sheet, block, method, written_ours, name, links, values)
            quoted = _cited_cells(other, method, written_cited, len(cited.head) - 1 if cited else 0)
            lines.append((one_line(method, 60), own, quoted))
        blocks.append(
            HtmlBlock(
                None if block is None else block.backbone or "",
                None if other is None else other.backbone or "",
                tuple(lines),
            )
        )
    counted = [row for row in ours.rows if row.kind == "counts"] if ours else []
    counts = tuple(one.text for one in counted[0].cells[1:]) if counted else ()
    return HtmlTable(ours, cited, tuple(blocks), counts, _texts(sheet), tuple(values))


def list_table(quotes: Quotes, rows: Sequence[CitedRow], name: str) -> Iterator[Grid]:
    """Yield the grid of cited values without a place, if there are any.

    Example:
        >>> list(list_table(Quotes(table=None), [], "x"))
        []
    """
    if rows:
        yield cited_list(quotes, rows)


_Key = tuple[int, str]


def _by_line(grid: Grid | None, blocks: Sequence[Block]) -> dict[_Key, GridRow]:
    """Return the written lines of a grid, by block and method."""
    if grid is None:
        return {}
    lines = iter([row for row in grid.rows if row.kind == "line"])
    return {(id(block), line.method): next(lines) for block in blocks for line in block.lines}


def _methods(block: Block | None, other: Block | None, sheet: Sheet) -> list[str]:
    """Return the methods of two blocks in the order of the definition; ours alone keep theirs."""
    names = dict.fromkeys(
        line.method for one in (block, other) if one is not None for line in one.lines
    )
    order = {one.name: place for place, one in enumerate(sheet.experiment.methods)}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def _texts(sheet: Sheet) -> tuple[bool, ...]:
    """Return which of our columns hold text and no number."""
    columns = range(len(sheet.experiment.columns))
    lines = [line for block in sheet.ours for line in block.lines]
    found = [{line.cells[place].status for line in lines} for place in columns]
    return tuple("text" in of_column and "value" not in of_column for of_column in found)


def _line(block: Block | None, method: str) -> Line | None:
    lines = () if block is None else block.lines
    return next((line for line in lines if line.method == method), None)


def _own_cells(
    sheet: Sheet,
    block: Block | None,
    method: str,
    written: dict[_Key, GridRow],
    name: str,
    links: Links,
    values: list[HtmlValue],
) -> tuple[HtmlCell, ...]:
    """Return our cells of a method; what is known of each is added to `values`."""
    columns, line = sheet.experiment.columns, _line(block, method)
    if block is None or line is None:
        return tuple(HtmlCell() for _ in columns) if sheet.ours else ()
    shown = written[id(block), method].cells[1:]
    cells = []
    for column, cell, one in zip(columns, line.cells, shown, strict=True):
        target = ""
        if cell.rows or cell.value is not None:
            target = f"{name}-v{len(values)}"
            who = method if block.backbone is None else f"{method}, {block.backbone}"
            values.append(_value(target, who, column, cell, links))
        cells.append(_cell(cell, column, one, target))
    return tuple(cells)


def _cited_cells(
    block: Block | None, method: str, written: dict[_Key, GridRow], width: int
) -> tuple[HtmlCell, ...]:
    if block is None or _line(block, method) is None:
        return tuple(HtmlCell() for _ in range(width))
    shown = written[id(block), method].cells[1:]
    return tuple(
        HtmlCell(
            one.text.partition(" ± ")[0],
            one.text.partition(" ± ")[2],
            "missing" if one.text == "–" else "value",
            one.best,
            one.marks,
        )
        for one in shown
    )


def _cell(cell: Cell, column: Column, written: Written, target: str) -> HtmlCell:
    spread = "" if cell.sd is None else number(cell.sd, column.unit)
    mean = written.text if cell.value is None else number(cell.value, column.unit)
    return HtmlCell(mean, spread, cell.status, written.best, written.marks, target)


def _value(target: str, who: str, column: Column, cell: Cell, links: Links) -> HtmlValue:
    sources = []
    for row in cell.rows:
        if row.value is not None:
            told = number(row.value, row.unit)
        else:
            told = one_line(row.text or f"no value: {row.error or 'nothing was said'}", 400)
        seed = "" if row.seed is None else f"seed {row.seed}"
        where = row.split if column.split is None and row.split else ""
        name = ", ".join(part for part in (seed, where) if part)
        sources.append(Source(name, told, links.of(row)))
    return HtmlValue(
        target,
        one_line(who),
        one_line(column.label),
        value(cell, column.unit),
        interval(cell, column.unit),
        cell.measured,
        tuple(sources),
    )
