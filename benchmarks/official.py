"""Checking the official data on this machine: what is there, whether it is as published, and loads."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import gymnasium

from ..envs.data import file_problem, is_installed, verify
from ..envs.datasets import DataSet
from ..envs.storage import Listener, on_disk, silent
from ..errors import CoMapError, DataNotFound

State = Literal["right", "wrong", "missing"]


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one data set: its state, a line for each part, and a task that loads."""

    data_set: DataSet
    folder: Path
    state: State
    lines: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all is right, or nothing of a data set is there that no official task needs."""
        is_unneeded = self.data_set.optional and self.state == "missing" and not self.lines
        return self.state == "right" or is_unneeded

    def __str__(self) -> str:
        verdicts = {"right": "as expected", "wrong": "not as expected", "missing": "not here"}
        verdict = verdicts[self.state]
        place = f" in {self.folder}" if self.folder != Path() else ""
        if self.state == "missing" and self.lines:
            verdict = "not all here"
        if self.state == "missing" and self.data_set.optional:
            verdict += " (optional)"
        lines = [f"{self.data_set.name}{place}: {verdict}"]
        lines += [f"  {line}" for line in self.lines]
        if self.state != "right":
            # A folder of the user's is never what `comap data get` writes to.
            is_named = self.folder not in (Path(), self.data_set.place)
            heading = f"to get it into {self.data_set.place}" if is_named else "to get it"
            is_replaced = self.state == "wrong" and not is_named
            lines.append(f"  {heading}:")
            lines += [f"    {step}" for step in steps_of(self.data_set, anew=is_replaced)]
        return "\n".join(lines)


def is_here(data_set: DataSet) -> bool:
    """Return whether something of a data set is on this machine; `check` says whether it is right."""
    if data_set.package:
        return find_spec(data_set.package) is not None
    if data_set.files:
        return all((data_set.place / file.path).is_file() for file in data_set.files)
    if data_set.builds:
        return any(data_set.place.glob("*.json"))
    if data_set.present:
        return any(data_set.place.glob(data_set.present))
    return is_installed(data_set) or data_set.split_folder(data_set.place).is_dir()


def steps_of(data_set: DataSet, *, anew: bool = False) -> tuple[str, ...]:
    """Return the commands that get a data set, or replace what is there of it."""
    if data_set.url or data_set.files:
        command = data_set.remedy
        if anew:
            command += " --force"
        return (command,)
    return data_set.steps


def check(data_set: DataSet, folder: Path | None = None, *, progress: Listener = silent) -> Checked:
    """Compare what is there with what was published, and load a task of it. Needs no network.

    Args:
        data_set: Which one.
        folder: Where it is; None for its place on this machine.
        progress: Told how far it is.
    """
    is_named = folder is not None
    place = folder or data_set.place
    if data_set.package:
        place = Path()
    try:
        state, lines = _content(data_set, place, progress)
    except DataNotFound as error:
        if is_named:
            raise
        return Checked(data_set, place, "missing", (str(error),) if place.exists() else ())
    except CoMapError as error:
        return Checked(data_set, place, "wrong", (str(error),))

    if state == "right":
        try:
            lines += list(_loaded(data_set, place if is_named else None))
        except (CoMapError, gymnasium.error.Error) as error:
            return Checked(data_set, place, "wrong", (*lines, f"a task does not load: {error}"))
    return Checked(data_set, place, state, tuple(lines))


def _content(data_set: DataSet, place: Path, progress: Listener) -> tuple[State, list[str]]:
    """Return the state of a data set's content, and a line for each of its parts."""
    if data_set.package:
        return _package(data_set)
    if data_set.builds:
        return "right", [_built(data_set.builds, place)]
    if data_set.files:
        return _files(data_set, place)
    if data_set.present:
        with on_disk(place):
            number = sum(path.is_file() for path in place.glob(data_set.present))
        if not number:
            return "missing", []
        return "right", [f"{number:,} × {data_set.present}; no checksum was published"]
    report = verify(data_set, place, progress=progress)
    lines = [f"{split.split}: {split.text}" for split in report.splits]
    return "right" if report.ok else "wrong", lines


def _package(data_set: DataSet) -> tuple[State, list[str]]:
    """Return whether the package that has the data is installed, in the version that comap knows."""
    try:
        version = importlib.metadata.version(data_set.package)
    except importlib.metadata.PackageNotFoundError:
        return "missing", []
    if data_set.version and version != data_set.version:
        return "wrong", [f"package {data_set.package} {version}, not {data_set.version}"]
    return "right", [f"package {data_set.package} {version}"]


def _built(kind: str, folder: Path) -> str:
    """Check a catalog or an index by the manifest that was written with it; return what was found."""
    manifest: dict[str, Any]
    if kind == "searchqa":
        from ..envs.searchqa.index import check_index

        manifest = check_index(folder)
    else:
        from ..envs.webshop.catalog import Catalog, check_files

        manifest = dict(Catalog.open(folder).manifest)
        check_files(folder, manifest)

    # Folders that were built by early versions list no digests.
    digests = manifest.get("digests") or {}
    if not digests:
        return "made without SHA-256; build it again to get some"
    size = sum(file["size"] for file in digests.values())
    return f"{len(digests)} files, {size:,} bytes, all as they were made"


def _files(data_set: DataSet, folder: Path) -> tuple[State, list[str]]:
    """Compare each file with what was published of it."""
    lines = []
    problems = []
    for file in data_set.files:
        path = folder / file.path
        problem = "missing"
        if path.exists():
            problem = file_problem(file, path)
        if problem:
            problems.append(problem)
            lines.append(f"{file.path}: {problem}")
            continue
        comparison = "SHA-256 not known"
        if file.sha256:
            comparison = "content matches"
        number = ""
        if file.records is not None:
            number = f"{file.records:,} records, "
        lines.append(f"{file.path}: {number}{comparison}")

    if len(problems) == len(data_set.files) and {*problems} == {"missing"}:
        return "missing", []
    if problems:
        return "missing" if {*problems} == {"missing"} else "wrong", lines
    return "right", lines


def _loaded(data_set: DataSet, folder: Path | None) -> Iterator[str]:
    """Load a task as the environment does, and say which."""
    if data_set.reads:
        from ..envs.web.live import FILES, read_tasks

        path = (folder or data_set.place) / FILES[data_set.reads]
        yield f"{len(read_tasks(data_set.reads, path)):,} tasks load"
        return
    if data_set.builds == "searchqa":
        from ..envs.searchqa.index import open_index

        hits = open_index(folder or data_set.place).search(["comap"], k=1)[0]
        yield f"a search answers, with {len(hits)} passages"
        return
    if not data_set.loads:
        return

    options = dict(data_set.loads)
    if folder is not None:
        options["data_dir"] = folder
    env = gymnasium.make(data_set.benchmark, **options)
    try:
        _, info = env.reset(seed=0)
    finally:
        env.close()
    if info.get("error"):
        yield f"a task starts with a fault: {info['error']}"
    yield f"a task loads: {info['task']}"
