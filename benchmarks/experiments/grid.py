"""A table as written cells, which Markdown, LaTeX and terminals lay out."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Grid", "GridRow", "Written"]


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
