"""The official data of the benchmarks: what exists, its license, where it is from, and how to get it.

``data/datasets.json`` is the only place that says it: `comap data`, the page *Official data*, summaries
and cards all read it here. What could not be read in a public text is said to be unknown.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import OptionError, check_choice, suggest
from .generated import is_generated
from .storage import data_path, packaged

UNKNOWN = "unknown"
"""The license of what has none that the Hub has a name for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may not exceed, so that a wrong or hostile one cannot fill the disk."""

    download_bytes: int
    entries: int
    unpacked_bytes: int


@dataclass(frozen=True, slots=True)
class Split:
    """What one split of a data set holds: `fingerprint` of its items as SHA-256, where known."""

    name: str
    items: int
    sha256: str | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is downloaded as it is; of what is None, nothing was published."""

    path: str
    url: str
    size: int | None = None  # in bytes
    sha256: str | None = None
    records: int | None = None


_FILE_LIMITS = Limits(download_bytes=2**26, entries=0, unpacked_bytes=0)


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set of a benchmark.

    It is a zip archive at `url` with a folder for each split, or some `files`, or neither: then `steps`
    say how to get it. Of `other_releases`, which have the same tasks, only the address is known.
    """

    name: str
    title: str
    url: str = ""
    limits: Limits = _FILE_LIMITS
    sha256: str | None = None
    size: str = ""
    license: str = ""  # in words
    license_id: str = UNKNOWN  # as the Hub writes it
    license_source: str = ""  # where the words are from
    homepage: str = ""
    benchmark: str = ""  # the environment that plays it
    tasks: str = ""  # pattern of the ids of the tasks that are from it
    fallback: str = ""  # what comap plays where it is not there
    optional: bool = False  # the environment has official tasks also without it
    folder: str = ""  # below COMAP_HOME; its name where nothing is said
    variable: str = ""  # environment variable that may name its folder
    files: tuple[DataFile, ...] = ()
    steps: tuple[str, ...] = ()
    package: str = ""  # of Python, which has it
    version: str = ""  # of that package
    builds: str = ""  # what comap data build makes of it
    present: str = ""  # pattern of files that show that it is there
    loads: Mapping[str, Any] = field(
        default_factory=dict
    )  # the environment's options for its tasks
    reads: str = ""  # of Web: the benchmark whose tasks a file holds
    root: str = "."
    other_roots: tuple[str, ...] = ()  # what other releases may call that folder
    release: str = ""
    other_releases: Mapping[str, str] = field(default_factory=dict)
    items: str = "*"  # glob pattern of the items in a split's folder
    skip: tuple[str, ...] = ()  # items whose id contains one of these do not count
    marker: str = ""  # nor do those whose content does not contain this
    splits: tuple[Split, ...] = ()

    @property
    def place(self) -> Path:
        """The folder where it is, or would be: below COMAP_HOME, or else the one a variable names."""
        folder = data_path(self.folder or self.name)
        variable_folder = os.environ.get(self.variable, "") if self.variable else ""
        if variable_folder and not folder.exists():
            return Path(variable_folder).expanduser()
        return folder

    @property
    def remedy(self) -> str:
        """What gets it: a command, or the steps in one line."""
        if self.url or self.files:
            return f"comap data get {self.name}"
        return "; ".join(self.steps)

    def split_folder(self, directory: Path) -> Path:
        """Return the folder of the splits in a directory, under the name that it has there."""
        roots = [directory / name for name in (self.root, *self.other_roots)]
        return next((root for root in roots if root.is_dir()), roots[0])

    def of_release(self, release: str | None) -> DataSet:
        """Return this data set as a release has it; None for the one whose content is known."""
        if release in (None, self.release):
            return self
        if not self.other_releases:
            raise OptionError(f"{self.name} has one release; leave --release out")
        check_choice("release", release, [self.release, *self.other_releases])
        splits = tuple(replace(split, sha256=None) for split in self.splits)
        url = self.other_releases[str(release)]
        return replace(self, url=url, sha256=None, splits=splits, release=str(release))


@functools.cache
def catalogue() -> dict[str, DataSet]:
    """Return all data sets by their names."""
    data_sets = {}
    for name, entry in packaged(__package__, "datasets").items():
        parts = dict(entry)
        for lists in ("skip", "other_roots", "steps"):
            parts[lists] = tuple(entry.get(lists, ()))
        parts["files"] = tuple(DataFile(**file) for file in entry.get("files", ()))
        splits = entry.get("splits", {})
        parts["splits"] = tuple(Split(split, **rest) for split, rest in splits.items())
        if "limits" in entry:
            parts["limits"] = Limits(**entry["limits"])
        data_sets[name] = DataSet(name=name, **parts)
    return data_sets


def find(data_set: str | DataSet) -> DataSet:
    """Return a data set by its name."""
    if isinstance(data_set, DataSet):
        return data_set
    data_sets = catalogue()
    if data_set not in data_sets:
        raise OptionError(
            f"expected the name of a data set, found {data_set!r:.80}; "
            f"{suggest(data_set, data_sets)} (all: comap data list)"
        )
    return data_sets[data_set]


def data_sets_of(name: str | None) -> list[DataSet]:
    """Return the data sets of a benchmark (``web``, ``comap/Web-v0``), the one of that name, or all.

    Example:
        >>> [data_set.name for data_set in data_sets_of("stabletoolbench")]
        ['stabletoolbench', 'stabletoolbench-cache']
    """
    if name is None:
        return list(catalogue().values())
    all_sets = catalogue().values()
    of_benchmark = [data for data in all_sets if _short(data.benchmark) == _short(name)]
    return of_benchmark or [find(name)]


def _short(env_id: str) -> str:
    """Return a benchmark's name in lower case, without namespace and version."""
    return env_id.rpartition("/")[2].partition("-v")[0].lower()


def data_set_of(env_id: str, task: str) -> DataSet | None:
    """Return the official data set that a task is from.

    None for generated tasks, and for those of a user's own files.

    Example:
        >>> data_set_of("comap/StableToolBench-v0", "G1_instruction/588").license
        'Apache-2.0'
        >>> data_set_of("comap/ALFWorld-v0", "generated/valid_seen/normal/0-3") is None
        True
    """
    if is_generated(task):
        return None
    for data_set in catalogue().values():
        fits = data_set.tasks and re.fullmatch(data_set.tasks, task)
        if fits and data_set.benchmark == env_id:
            return data_set
    return None


def data_played(tasks: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return whose data tasks are, as plain data: number of tasks, license and its source.

    Args:
        tasks: Pairs of an environment's id and a task's id.

    Example:
        >>> tasks = [("comap/ALFWorld-v0", "valid_seen/a/b"), ("comap/ALFWorld-v0", "generated/x/y/0")]
        >>> for part in data_played(tasks):
        ...     print(part["data"], part["tasks"], part["license"])
        alfworld 1 MIT
        generated 1 none: comap made them
    """
    counts: Counter[str] = Counter()
    for env_id, task in tasks:
        data_set = data_set_of(env_id, task)
        if data_set is not None:
            counts[data_set.name] += 1
        else:
            counts["generated" if is_generated(task) else "own"] += 1

    played = []
    for name, number in sorted(counts.items()):
        part: dict[str, Any] = {"data": name, "tasks": number}
        if name == "generated":
            part |= {"license": "none: comap made them", "license_id": None}
        elif name == "own":
            part |= {"license": "not known to comap", "license_id": None}
        else:
            data_set = find(name)
            part |= {"title": data_set.title, "license": data_set.license}
            part |= {"license_id": data_set.license_id, "from": data_set.license_source}
        played.append(part)
    return played


def licenses_in_words(played: Iterable[Mapping[str, Any]]) -> str:
    """Return the licenses of the official data among what `data_played` returned; empty without any.

    Example:
        >>> licenses_in_words(data_played([("comap/ALFWorld-v0", "valid_seen/a/b")]))
        'alfworld: MIT'
    """
    official = [part for part in played if part.get("license_id") is not None]
    return "; ".join(f"{part['data']}: {part['license']}" for part in official)
