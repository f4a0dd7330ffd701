"""Progress of downloads and builds on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .envs.downloads import Progress
from .envs.storage import Listener

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

__all__ = ["shown_progress"]

_STEP = 5


@contextmanager
def shown_progress() -> Iterator[Listener]:
    """Show progress on the terminal: bars with `rich`, lines without it or into a file.

    Example:
        >>> with shown_progress() as progress:
        ...     progress(Progress("download", 1, 2, ""))
    """
    if not sys.stderr.isatty():
        yield _Lines()
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as Bars
    except ImportError:
        yield _Lines()
        return
    with Bars(console=Console(stderr=True)) as bars:
        yield _RichBars(bars)


class _Lines:
    """Prints a line at each twentieth of a stage; where its end is unknown, each 32 MiB."""

    def __init__(self) -> None:
        self._last: tuple[str, int] = ("", -1)

    def __call__(self, progress: Progress) -> None:
        stage, done, total, note = progress
        if note:
            print(f"{stage}: {note}", file=sys.stderr)
            return
        share = 100 * done // max(total, 1) // _STEP if total is not None else done >> 25
        if (stage, share) == self._last:
            return
        self._last = (stage, share)
        text = f"{share * _STEP} %" if total is not None else f"{done:,}"
        print(f"{stage}: {text}", file=sys.stderr)


class _RichBars:
    """One bar of `rich` for each stage."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        stage, done, total, note = progress
        if note:
            self._bars.console.print(f"{stage}: {note}", markup=False)
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)
