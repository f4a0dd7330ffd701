"""Links from a report to the records and trajectories of jobs, which work when the folder moves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from ...agents.run import TRAJECTORIES
from .rows import ResultRow

__all__ = ["Links"]

_RECORD = "job.json"
_VIEW = "view.html"


@dataclass(frozen=True, slots=True)
class Links:
    """Where a report finds what it is made of: below the results' folder, and by relative paths.

    Attributes:
        results: The results' folder.
        page: The folder that the report is in.

    Example:
        >>> row = ResultRow(experiment="e", method="m", metric="m", job="../../etc")
        >>> Links(Path("runs"), Path("runs")).of(row)
        ()
    """

    results: Path
    page: Path

    def of(self, row: ResultRow) -> tuple[tuple[str, str], ...]:
        """Return the names and addresses of what there is to see of a row's job.

        A name that leads out of the results' folder, or to nothing, is no link.
        """
        found = []
        if row.job is not None:
            folder = f"jobs/{row.job}"
            record = self._inside(f"{folder}/{_RECORD}") or self._inside(folder)
            if record is not None:
                found.append(("record", record))
        if row.trajectories is not None and (file := self._inside(row.trajectories)) is not None:
            found.append(("trajectories", file))
            page = self._inside(_page_of(row.trajectories))
            found += [("viewer", page)] if page is not None else []
        return tuple((name, self._address(path)) for name, path in found)

    def _inside(self, name: str) -> Path | None:
        """Return what a relative path names, if it is below the results' folder."""
        parts = PurePosixPath(name).parts
        if not parts or "\\" in name or "\0" in name or name.startswith("/") or ".." in parts:
            return None
        path = self.results.joinpath(*parts)
        try:
            inside = path.resolve().is_relative_to(self.results.resolve()) and path.exists()
        except OSError:  # a name that no file can have
            return None
        return path if inside else None

    def _address(self, path: Path) -> str:
        relative = os.path.relpath(path, self.page)
        end = "/" if path.is_dir() else ""
        address = quote(Path(relative).as_posix().encode("utf-8", "surrogateescape")) + end
        return address if address.startswith(".") else f"./{address}"


def _page_of(trajectories: str) -> str:
    """Return where ``comap view`` writes the page of trajectories."""
    file = PurePosixPath(trajectories)
    name = _VIEW if file.name == TRAJECTORIES else f"{file.stem}.html"
    return str(file.with_name(name)) if file.name else ""
