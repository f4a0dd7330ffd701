"""Reports of experiments as text: Markdown for a code host, and tables for a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from ...errors import MissingExtra
from ..marks import one_line, visible
from .figure_grids import figure_grids
from .grid import Grid, GridRow, Written
from .grids import every_value, sheet_grids
from .results import Results, Shown

__all__ = ["markdown", "print_grid", "print_shown"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#&$@]|:(?=\S)|(?<=www)\.)")
_STARTS = re.compile(r"^([-+=>]|\d+[.)])")
_EVERY = ("method", "column", "mean ± sd", "95 % interval", "n", "seeds")


def markdown(results: Results, pictures: Mapping[tuple[str, int], str] | None = None) -> str:
    """Return the report of all experiments in Markdown.

    Args:
        results: What was measured.
        pictures: Files that show a figure's panels, relative to the report, by experiment and place.

    Example:
        >>> from comap.benchmarks.experiments.results import Results
        >>> print(markdown(Results(shown=())).splitlines()[0])
        # Experiments
    """
    parts = [
        "# Experiments",
        *(f"- {escape(name)}: {escape(told)}" for name, told in results.about),
    ]
    parts += [escape(line) for line in results.notes]
    if results.shown:
        links = [f"- [{escape(_title(one))}](#{_anchor(_title(one))})" for one in results.shown]
        parts.append("\n".join(links))
    for one in results.shown:
        parts += _section(one, pictures or {})
    parts += [escape(line) for line in results.left_out]
    return "\n\n".join(_tight(parts)) + "\n"


def escape(text: str) -> str:
    r"""Return text so that Markdown and HTML show it as it is, on one line.

    Example:
        >>> escape("a|b <script> **x** @me")
        'a\\|b \\<script\\> \\*\\*x\\*\\* \\@me'
    """
    line = _SPECIAL.sub(r"\\\1", one_line(text, 2000))
    return _STARTS.sub(r"\\\1", line) if not line[:1].isdigit() else line


def print_shown(one: Shown) -> None:
    """Print an experiment's tables on standard output.

    Raises:
        MissingExtra: rich is not installed.
    """
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError as error:
        raise MissingExtra.of("viz", "printing a table") from error
    Console(file=sys.stdout, highlight=False).print(Text(visible(_title(one)), style="bold"))
    for grid in _grids(one):
        print()
        print_grid(grid)


def print_grid(grid: Grid) -> None:
    """Print a table on standard output.

    Raises:
        MissingExtra: rich is not installed.

    Example:
        >>> row = GridRow((Written("SFT"), Written("50.0 ± 1.0", best=True, marks=("a",))))
        >>> print_grid(Grid("", ("method", "ALFWorld"), (row,), footnotes=(("a", "n = 8"),)))
        ... # doctest: +NORMALIZE_WHITESPACE
         method         ALFWorld
        ─────────────────────────
         SFT      50.0 ± 1.0 [a]
        [a] n = 8
    """
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingExtra.of("viz", "printing a table") from error
    title = Text(visible(grid.title), style="bold") if grid.title else None
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for place, name in enumerate(grid.head):
        numeric = place >= grid.text
        table.add_column(Text(visible(name)), justify="right" if numeric else "left")
    for row in grid.rows:
        if row.kind == "block":
            table.add_section()
            table.add_row(Text(visible(row.cells[0].text), style="bold italic"))
            continue
        if row.kind == "counts" or row.rule:
            table.add_section()
        dim = "dim" if row.kind == "counts" else ""
        table.add_row(
            *(
                Text(visible(one.text), style="bold" if one.best else dim)
                + Text("".join(f" [{mark}]" for mark in one.marks), style="dim")
                for one in row.cells
            )
        )
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:  # a file or a pipe: nothing is wrapped there
        needed = console.measure(table, options=console.options.update(max_width=10_000))
        console.width = max(80, needed.maximum)
    console.print(table)
    for line in (*grid.notes, *(f"[{letter}] {text}" for letter, text in grid.footnotes)):
        console.print(Text(visible(line)), soft_wrap=True)


def _section(one: Shown, pictures: Mapping[tuple[str, int], str]) -> list[str]:
    parts = [f"## {escape(_title(one))}", escape(one.experiment.about)]
    for place, panel in enumerate(one.panels):
        picture = pictures.get((one.experiment.id, place))
        if picture is not None:
            parts.append(f"![{escape(panel.column.label)}]({picture})")
    for grid in _grids(one):
        parts += _grid(grid)
    if one.sheet is not None:
        lines = list(every_value(one.sheet.ours, one.experiment.columns))
        if lines:
            parts += [
                "<details><summary>Every value with its interval, n and seeds</summary>",
                _table(_EVERY, [[escape(cell) for cell in line] for line in lines], 2),
                "</details>",
            ]
    parts += [f"- {escape(text)}" for text in one.experiment.footnotes.values()]
    return parts


def _grids(one: Shown) -> list[Grid]:
    if one.sheet is not None:
        return sheet_grids(one.sheet)
    return figure_grids(one.panels, one.quotes)


def _title(one: Shown) -> str:
    told = one.experiment
    return f"{told.paper}, {told.published}: {told.title}"


def _anchor(title: str) -> str:
    """Return the id that code hosts give to a heading."""
    kept = re.sub(r"[^\w\- ]", "", one_line(title, 2000).lower())
    return kept.replace(" ", "-")


def _grid(grid: Grid) -> list[str]:
    rows = []
    for row in grid.rows:
        if row.kind == "block":
            name = f"**{escape(row.cells[0].text)}**"
            rows.append([name, *[""] * (len(grid.head) - 1)])
        else:
            rows.append([_cell(one, row) for one in row.cells])
    title = f"**{escape(grid.title)}**"
    parts = [title, _table([escape(one) for one in grid.head], rows, grid.text)]
    notes = [escape(one) for one in grid.notes]
    notes += [f"<sup>{letter}</sup> {escape(text)}" for letter, text in grid.footnotes]
    if notes:
        parts.append("  \n".join(f"<sub>{one}</sub>" for one in notes))
    return parts


def _cell(one: Written, row: GridRow) -> str:
    text = escape(one.text)
    if one.best and text:
        text = f"**{text}**"
    if row.kind == "counts" and text:
        text = f"*{text}*"
    return text + (f" <sup>{' '.join(one.marks)}</sup>" if one.marks else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """Return a table in Markdown, its columns as wide as they need to be."""
    rules = [":--" if place < text else "--:" for place in range(len(head))]
    lines = [head, rules, *rows]
    return "\n".join(f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines)


def _tight(parts: Sequence[str]) -> list[str]:
    """Return parts without empty ones, the items of a list together."""
    found: list[str] = []
    for part in parts:
        if part.startswith("- ") and found and found[-1].startswith("- ") and "](" not in part:
            found[-1] += "\n" + part
        elif part:
            found.append(part)
    return found
