"""`comap view`: the trajectory viewer for runs, or any files of trajectories."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..agents.run import TRAJECTORIES
from ..agents.run_summary import Tally, check_count
from ..errors import DataCorrupt, DataNotFound, OptionError
from ..trajectory import Trajectory
from .report import Episode, Pack, write_report
from .run_display import Played, failures, runs_table, summary_table

__all__ = ["MOST", "show", "view_run"]

MOST = 5_000
"""So many episodes of a run are shown, if nobody says how many."""

PAGE, TOGETHER = "view.html", "view-together.html"


def view_run(
    run: str | Path | Sequence[str | Path], out: str | Path | None = None, most: int = MOST
) -> Path:
    """Write the page that shows the episodes of a run, or of several, and return its path.

    Args:
        run: The folder of a run, or a file of trajectories; or several of these.
        out: The page; None for ``view.html`` beside the trajectories, or for several runs
            ``view-together.html`` beside the first one's.
        most: Show so many episodes of each run at most, the first ones.

    Raises:
        DataNotFound: There is no such run or file.
        DataCorrupt: The file does not hold trajectories.
        OptionError: `most` is not at least 1, no run or the same run twice is given, or the page would
            replace trajectories.
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> view_run("no/such/run")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a run or a file of trajectories at no/such/run, found \
nothing; 'comap run' makes one
    """
    if most < 1:
        raise OptionError(f"--max must be at least 1, not {most}")
    runs = [Path(run)] if isinstance(run, str | Path) else [Path(one) for one in run]
    files = [_trajectories_of(one) for one in runs]
    _check_different(runs, files)
    page = _page_of(files) if out is None else Path(out)
    for file in files:
        if page.exists() and page.samefile(file):
            raise OptionError(
                f"the page would replace the trajectories at {file}; give another --out"
            )
    pack, names = Pack(), _names_of(runs)
    played = [_packed(pack, file, name, most) for file, name in zip(files, names, strict=True)]
    if not len(pack):
        raise DataNotFound(f"expected trajectories in {files[0]}, found none; has the run begun?")
    together = len(runs) > 1
    tables = [runs_table("Results", played)] if together else []
    tables += [summary_table(one.name if together else "Results", one.summary) for one in played]
    write_report(
        page,
        title="comap runs" if together else f"comap run: {names[0] or runs[0].name}",
        summary=_told(played, most),
        tables=tables,
        plots=[],
        episodes=pack,
        folded=True,
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


def _packed(pack: Pack, file: Path, name: str, most: int) -> Played:
    """Add a file's episodes to the page's, and return what they come to."""
    tally, environments, agents, number = Tally(), set[str](), set[str](), 0
    for number, trajectory in enumerate(_read(file), 1):
        tally.add(trajectory)
        if number <= most:
            pack.add(Episode(trajectory.goal or trajectory.task, trajectory, None, name))
            environments.add(trajectory.env_id)
            agents.add(trajectory.agent)
    check_count(file, number)
    return Played(name, tally.summary(), environments, agents, number)


def _told(played: Sequence[Played], most: int) -> dict[str, str]:
    """Return what a page says at its top."""
    count = sum(one.episodes for one in played)
    cut = any(one.episodes > most for one in played)
    each = " of each run" if len(played) > 1 else ""
    told = {
        "environment": ", ".join(sorted(set().union(*(one.environments for one in played)))),
        "agent": ", ".join(sorted(set().union(*(one.agents for one in played)))),
        "episodes": f"{count:,}" + (f", the first {most:,}{each} shown" if cut else ""),
    }
    if len(played) > 1:
        told = {"runs": str(len(played))} | told
    else:
        told["success"] = f"{100 * played[0].summary['success']['value']:.1f} %"
    failed = "; ".join(
        f"{one.name}: {failures(one.summary)}" if one.name else failures(one.summary)
        for one in played
        if failures(one.summary)
    )
    return told | ({"failed": failed} if failed else {})


def _page_of(files: Sequence[Path]) -> Path:
    """Return where the page goes by itself."""
    first = files[0]
    if len(files) > 1:
        return first.with_name(TOGETHER)
    return first.with_name(PAGE if first.name == TRAJECTORIES else f"{first.stem}.html")


def _check_different(runs: Sequence[Path], files: Sequence[Path]) -> None:
    """Raise an error where there is no run, or one is given twice."""
    if not runs:
        raise OptionError("expected a run to show, found none; name its folder")
    seen: set[Path] = set()
    for run, file in zip(runs, files, strict=True):
        if file.resolve() in seen:
            raise OptionError(f"expected different runs, found {run} twice; name it once")
        seen.add(file.resolve())


def _names_of(runs: Sequence[Path]) -> list[str]:
    """Return a short name for each run: as much of its path's end as tells it from the others."""
    if len(runs) == 1:
        return [""]
    parts = [one.resolve().parts for one in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(some[-length:]) for some in parts]
        if len(set(names)) == len(names):
            break
    return names


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
                yield Trajectory.from_line(line)
            except ValueError as error:
                raise DataCorrupt(f"{file}, line {number}: {error}") from error
