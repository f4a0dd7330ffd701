"""`get`: download a data set, check it, unpack it, and put it where the environments look.

A data set is there whole or not at all, whenever the process is killed: the archive is unpacked
into a folder beside the final one, which is renamed after its manifest, the last file, is written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataCorrupt
from .archives import unpack
from .connections import check_url
from .datasets import DataSet, catalogue, find
from .storage import (
    Listener,
    Progress,
    comap_home,
    data_path,
    locked,
    on_disk,
    read_json,
    silent,
    write_json,
)
from .transfer import Patience, discard, fetch
from .verification import MANIFEST, Report, compare, survey, verify

__all__ = [
    "Patience",
    "Progress",
    "Report",
    "address",
    "catalogue",
    "comap_home",
    "data_path",
    "find",
    "get",
    "is_installed",
    "verify",
]


@dataclass(frozen=True, slots=True)
class _Places:
    """The files that `get` uses; all on one disk, so that renaming is all or nothing."""

    target: Path
    lock: Path
    part: Path
    fresh: Path
    old: Path

    @classmethod
    def of(cls, name: str) -> _Places:
        target = data_path(name)
        lock, part, fresh, old = (
            target.with_name(f".{name}.{role}") for role in ("lock", "part", "fresh", "old")
        )
        return cls(target, lock, part, fresh, old)


def get(
    data_set: str | DataSet,
    *,
    mirror: str | None = None,
    force: bool = False,
    allow_changed: bool = False,
    patience: Patience | None = None,
    progress: Listener = silent,
) -> Path:
    """Download a data set unless it is there already, and return its folder.

    Args:
        data_set: Its name, or a `DataSet`.
        mirror: Address of a folder to take the archive from instead of its official address.
        force: Download it even if it is there, and replace what is there.
        allow_changed: Take it even if its splits are not as the catalogue says.
        patience: When to give up.
        progress: Told of what is going on.

    Returns:
        `data_path` of the data set.

    Raises:
        DownloadError: The network, the server or the disk does not let us.
        DataCorrupt: What came is not the data set, or something else lies in its place.
        OptionError: There is no such data set, or the mirror is no http or https address.

    Example:
        >>> get("alfworld", mirror="https://mirror.example.org/files")  # doctest: +SKIP
        PosixPath('/home/me/.cache/comap/alfworld')
    """
    wanted = find(data_set)
    url = address(wanted, mirror)
    patience = patience or Patience()
    places = _Places.of(wanted.name)
    with on_disk(places.target.parent):
        places.target.parent.mkdir(parents=True, exist_ok=True)
    with locked(places.lock, wait=patience.lock, progress=progress):
        _clean(places)
        if not force and _already_there(wanted, places.target):
            return places.target
        fetch(
            url,
            places.part,
            max_bytes=wanted.limits.download_bytes,
            patience=patience,
            progress=progress,
        )
        try:
            digest = _check_archive(wanted, url, places.part)
            _install(wanted, places, {"url": url, "sha256": digest}, allow_changed, progress)
        except DataCorrupt:
            discard(places.part)
            raise
        finally:
            _remove(places.fresh)
        discard(places.part)
    return places.target


def address(data_set: DataSet, mirror: str | None = None) -> str:
    """Return the address of the data set's archive, on a mirror if one is given.

    Raises:
        OptionError: It is no http or https address.

    Example:
        >>> address(find("alfworld"), "http://127.0.0.1:8000/files/")
        'http://127.0.0.1:8000/files/json_2.1.2_tw-pddl.zip'
    """
    if mirror is None:
        return check_url(data_set.url)
    return check_url(f"{check_url(mirror).rstrip('/')}/{data_set.file_name}")


def is_installed(data_set: str | DataSet) -> bool:
    """Return whether `get` has put the data set in its place.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict("os.environ", COMAP_HOME="no/such/folder"):
        ...     is_installed("alfworld")
        False
    """
    manifest = read_json(data_path(find(data_set).name) / MANIFEST)
    return isinstance(manifest, dict)


def _already_there(data_set: DataSet, target: Path) -> bool:
    """Return whether the data set is in its place; anything else there is an error."""
    if is_installed(data_set):
        return True
    with on_disk(target):
        if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
            return False
    if data_set.splits and (target / data_set.root).is_dir() and verify(data_set).ok:
        return True
    raise DataCorrupt(
        f"expected the data set {data_set.name!r} or nothing in {target}, found other files, which "
        f"comap did not put there; move them away, or replace them by: "
        f"comap data get {data_set.name} --force"
    )


def _check_archive(data_set: DataSet, url: str, part: Path) -> str:
    """Return the SHA-256 of the archive, which is the right one where that is known."""
    digest = hashlib.sha256()
    with on_disk(part), part.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    found = digest.hexdigest()
    if data_set.sha256 not in (None, found):
        raise DataCorrupt(
            f"expected SHA-256 {data_set.sha256} of {url}, found {found}; the file was removed: "
            f"run comap data get {data_set.name} again, or name another server with --mirror"
        )
    return found


def _install(
    data_set: DataSet,
    places: _Places,
    origin: dict[str, str],
    allow_changed: bool,
    progress: Listener,
) -> None:
    """Unpack the archive, check what came out, and put it in its place."""
    unpack(places.part, places.fresh, data_set.limits, progress)
    with on_disk(places.fresh):
        found = survey(data_set, places.fresh, progress)
    report = compare(data_set, places.fresh, found)
    if not (report.ok or allow_changed):
        wrong = "; ".join(str(split) for split in report.splits if not split.ok)
        raise DataCorrupt(
            f"expected the data set {data_set.name!r} from {origin['url']}, found other content "
            f"({wrong}); name another server with --mirror, or take it so with --allow-changed"
        )
    items = {name: value for split in found.values() for name, value in split.items()}
    write_json(places.fresh / MANIFEST, {"name": data_set.name, "archive": origin, "items": items})
    with on_disk(places.target):
        if os.path.lexists(places.target):
            places.target.replace(places.old)
        places.fresh.replace(places.target)
    _remove(places.old)


def _clean(places: _Places) -> None:
    """Remove what a killed process left; the data set that it was about to replace comes back."""
    _remove(places.fresh)
    if os.path.lexists(places.old) and not os.path.lexists(places.target):
        with on_disk(places.old):
            places.old.replace(places.target)
    _remove(places.old)


def _remove(path: Path) -> None:
    with on_disk(path):
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
