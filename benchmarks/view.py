"""`comap view`: the trajectory viewer for a run or any file of trajectories."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path

from ..agents.run import TRAJECTORIES
from ..agents.run_summary import Tally
from ..errors import DataCorrupt, DataNotFound, OptionError
from ..trajectory import Trajectory
from .report import Episode, write_report
from .run_display import failures, summary_table

__all__ = ["show", "view_run"]

PAGE = "view.html"


def view_run(run: str | Path, out: str | Path | None = None, most: int = 200) -> Path:
    """Write the page that shows a run's episodes, and return its path.

    Args:
        run: The folder of a run, or a file of trajectories.
        out: The page; None for ``view.html`` beside the trajectories.
        most: Show so many episodes at most, the first ones.

    Raises:
        DataNotFound: There is no such run or file.
        DataCorrupt: The file does not hold trajectories.
        OptionError: `most` is not at least 1, or the page would replace the trajectories.
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> view_run("no/such/run")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a run or a file of trajectories at no/such/run, found \
nothing; 'comap run' makes one
    """
    if most < 1:
        raise OptionError(f"--max must be at least 1, not {most}")
    file = _trajectories_of(Path(run))
    page = file.with_name(PAGE if file.name == TRAJECTORIES else f"{file.stem}.html")
    page = page if out is None else Path(out)
    if page.exists() and page.samefile(file):
        raise OptionError(f"the page would replace the trajectories at {file}; give another --out")
    tally, shown, number = Tally(), list[Trajectory](), 0
    for number, trajectory in enumerate(_read(file), 1):
        tally.add(trajectory)
        if number <= most:
            shown.append(trajectory)
    if not shown:
        raise DataNotFound(f"expected trajectories in {file}, found none; has the run begun?")
    summary = tally.summary()
    told = {
        "environment": ", ".join(sorted({t.env_id for t in shown})),
        "agent": ", ".join(sorted({t.agent for t in shown})),
        "episodes": f"{number:,}" + (f", the first {most} shown" if number > most else ""),
    }
    if failures(summary):
        told["failed"] = failures(summary)
    write_report(
        page,
        title=f"comap run: {Path(run).name}",
        summary=told,
        tables=[summary_table("Results", summary)],
        plots=[],
        episodes=[Episode(_title(trajectory), trajectory, None) for trajectory in shown],
    )
    return page


def show(page: Path) -> bool:
    """Open a page in the web browser, if there is a display; return whether it was opened.

    Example:
        >>> show(Path("report.html"))  # doctest: +SKIP
        True
    """
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in screens):
        return False
    return webbrowser.open(page.resolve().as_uri())


def _trajectories_of(run: Path) -> Path:
    """Return the file of trajectories that is meant."""
    if run.is_dir():
        file = run / TRAJECTORIES
        if not file.is_file():
            raise DataNotFound(
                f"expected {TRAJECTORIES} in the folder {run}, found none; 'comap run' makes one"
            )
        return file
    if not run.is_file():
        raise DataNotFound(
            f"expected a run or a file of trajectories at {run}, found nothing; 'comap run' makes one"
        )
    return run


def _read(file: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file that may be growing: a half line at its end is left out."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Trajectory.from_json(json.loads(line))
            except ValueError as error:
                raise DataCorrupt(f"{file}, line {number}: {error}") from error


def _title(trajectory: Trajectory) -> str:
    """Return an episode's name in the list: how it ended, and what it was about."""
    ended = "failed" if trajectory.error else "solved" if trajectory.success else "not solved"
    trial = f", trial {trajectory.trial}" if trajectory.trial > 1 else ""
    return f"{ended}{trial}: {trajectory.goal or trajectory.task}"
