"""What a benchmark shows in the terminal while it runs and when it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import MissingExtra
from .marks import one_line, visible
from .tables import Table, format_cells, numeric_columns

__all__ = ["Advance", "print_table", "progress"]


class Advance(Protocol):
    """What `progress` hands out: call it after each piece of work.

    Example:
        >>> def play(advance: Advance) -> None:
        ...     advance()
    """

    def __call__(self, count: int = 1) -> None:
        """Say that `count` more pieces are done."""


def print_table(table: Table) -> None:
    """Print a table on standard output, with numbers aligned to the right.

    Raises:
        MissingExtra: rich is not installed.

    Example:
        >>> table = Table("", ("agent", "steps"), (("react", 12), ("tts", 9)))
        >>> print_table(table)  # doctest: +NORMALIZE_WHITESPACE
         agent   steps
        ───────────────
         react      12
         tts         9
    """
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text
    except ImportError as error:
        raise MissingExtra.of("viz", "printing a table") from error
    grid = Grid(
        title=Text(one_line(table.title)) if table.title else None,
        caption=Text(visible(table.note)) if table.note else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )
    for name, numeric in zip(table.columns, numeric_columns(table), strict=True):
        grid.add_column(Text(visible(name)), justify="right" if numeric else "left")
    for cells in format_cells(table):
        grid.add_row(*(Text(visible(cell)) for cell in cells))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:  # a file or a pipe: nothing is wrapped there
        needed = console.measure(grid, options=console.options.update(max_width=10_000))
        console.width = max(80, needed.maximum)
    console.print(grid)


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """Show how far a piece of work is; where standard output is no terminal, one line at its end.

    Args:
        description: What is being done.
        total: How many pieces of work there are.

    Yields:
        A function to call after each piece of work.

    Raises:
        MissingExtra: rich is not installed.

    Example:
        >>> with progress("Playing", total=2) as advance:  # doctest: +ELLIPSIS
        ...     advance()
        ...     advance()
        Playing: 2 of 2 in ... s
    """
    try:
        from rich import progress as bars
        from rich.console import Console
    except ImportError as error:
        raise MissingExtra.of("viz", "a progress bar") from error
    label = one_line(description, limit=40)
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        with _plain_progress(label, total) as advance:
            yield advance
        return
    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console) as live:
        task = live.add_task(label, total=total)
        yield lambda count=1: live.advance(task, count)


@contextmanager
def _plain_progress(label: str, total: int) -> Iterator[Advance]:
    done, start = 0, time.monotonic()

    def advance(count: int = 1) -> None:
        nonlocal done
        done += count

    try:
        yield advance
    finally:
        print(f"{label}: {done} of {total} in {time.monotonic() - start:.1f} s", flush=True)
