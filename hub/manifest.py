"""What a repository says of itself, and the way of all that is pushed and loaded."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..envs.storage import replacing
from ..errors import DataCorrupt, OptionError
from .names import allowed, check_content
from .places import MANIFEST, Kind, Listing, Place, place_of

__all__ = ["MOST_BYTES", "Loaded", "Pushed", "checked_licence", "fetched", "push_folder"]

FORMAT = "comap hub 1"
MOST_BYTES = 64 * 2**30
"""The most that is loaded, unless one says otherwise."""

_MOST_FILES, _MOST_MANIFEST = 10_000, 8 * 2**20
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,59}")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was pushed.

    Attributes:
        place: Where to.
        revision: The commit; of a folder, what stands for one.
        files: How many files there are now.
        size: Their bytes.
        skipped: Files of the source that may not be in a repository, and stayed behind.
    """

    place: str
    revision: str
    files: int
    size: int
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was loaded.

    Attributes:
        path: The folder that holds it.
        place: Where it came from.
        revision: The commit that it is of.
        size: Bytes that were loaded.
    """

    path: Path
    place: str
    revision: str
    size: int


def checked_licence(licence: str) -> str:
    """Return the name of a licence, if it can be one.

    Raises:
        OptionError: It cannot.

    Example:
        >>> checked_licence("cc-by-4.0")
        'cc-by-4.0'
    """
    if not isinstance(licence, str) or not _LICENCE.fullmatch(licence):
        raise OptionError(
            "expected a licence as the Hub writes it (apache-2.0, cc-by-4.0, mit, other), found "
            f"{licence!r:.80}"
        )
    return licence


def push_folder(
    target: str | Path,
    kind: Kind,
    what: str,
    fill: Callable[[Path], tuple[str, ...]],
    *,
    private: bool = False,
) -> Pushed:
    """Let a function fill a folder, add the manifest, and push it.

    Args:
        target: See `place_of`.
        kind: What it is on the Hub.
        what: What it is to us: ``"trajectories"`` or ``"model"``.
        fill: Fills the folder that it is given, and returns what it left out.
        private: See `place_of`.
    """
    place = place_of(target, kind, private=private)
    with tempfile.TemporaryDirectory(prefix="comap-hub-") as home:
        folder = Path(home, "pushed")
        folder.mkdir()
        skipped = fill(folder)
        files = _described(folder)
        told = {"format": FORMAT, "kind": what, "files": files}
        (folder / MANIFEST).write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", "ascii")
        revision = place.put(folder, f"{what.capitalize()} pushed by comap")
    size = sum(int(one["size"]) for one in files.values())
    return Pushed(str(place), revision, len(files) + 1, size, skipped)


@contextmanager
def fetched(
    source: str | Path,
    kind: Kind,
    what: str,
    out: str | Path,
    revision: str | None,
    most_bytes: int,
) -> Iterator[tuple[Path, Path, Place, Listing]]:
    """Give a repository's files, checked, and a new folder that takes the place of `out` at the end.

    Args:
        source: See `place_of`.
        kind: What it is on the Hub.
        what: What it should be to us.
        out: The folder that is to be; there may be none, or an empty one.
        revision: A commit, branch or tag; None for the newest.
        most_bytes: The most to load.

    Yields:
        The folder of the files, the new folder, the place, and what was there.

    Raises:
        OptionError: `out` holds something.
        DataCorrupt: The repository is not what it should be.
    """
    target = Path(out)
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise OptionError(f"expected no folder yet, or an empty one, at {target}, found something")
    place = place_of(source, kind)
    listing = place.listing(revision)
    with replacing(target.absolute()) as draft:
        files = draft / ".files"
        files.mkdir()
        for name, told in _manifest(place, listing, what, files / MANIFEST, most_bytes).items():
            path = files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            place.fetch(name, listing, path)
            _check(path, name, told)
        yield files, draft, place, listing


def _described(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and hash of each file of a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            found[name] = {"size": path.stat().st_size, "sha256": _hash(path)}
    return found


def _manifest(
    place: Place, listing: Listing, what: str, path: Path, most_bytes: int
) -> dict[str, dict[str, Any]]:
    """Return the files that a repository names, if it may name them and has them."""
    if MANIFEST not in listing.sizes:
        raise DataCorrupt(
            f"expected {what} pushed by comap at {place}, found no {MANIFEST} there; a plain model of "
            "the Hub is given as --model, without loading it first"
        )
    if (listing.sizes[MANIFEST] or 0) > _MOST_MANIFEST:
        raise _strange(place, f"a {MANIFEST} of {listing.sizes[MANIFEST]} bytes")
    place.fetch(MANIFEST, listing, path)
    try:
        told = json.loads(path.read_bytes()[: _MOST_MANIFEST + 1])
        found, files = (told["format"], told["kind"]), told["files"]
        sizes = {name: (one["size"], one["sha256"]) for name, one in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _strange(place, f"a {MANIFEST} that cannot be read") from error
    if found != (FORMAT, what):
        raise _strange(place, f"{found!r:.120}", f"{what} ({FORMAT})")
    if len(sizes) > _MOST_FILES:
        raise _strange(place, f"{len(sizes):,} files")
    _check_names(place, listing, sizes, most_bytes)
    return dict(files)


def _check_names(
    place: Place, listing: Listing, files: Mapping[str, tuple[Any, Any]], most_bytes: int
) -> None:
    """Refuse names and sizes that cannot be, before anything is loaded."""
    if len({str(name).lower() for name in files}) < len(files):
        raise _strange(place, "two that differ only in case", "plain names, all different")
    total = 0
    for name, (size, digest) in files.items():
        if not allowed(name) or name == MANIFEST:
            raise _strange(place, f"a file named {name!r:.120}", "plain names")
        if type(size) is not int or size < 0 or not re.fullmatch("[0-9a-f]{64}", str(digest)):
            raise _strange(place, f"no size and hash of {name!r:.120}")
        if name not in listing.sizes or listing.sizes[name] not in (size, None):
            there = listing.sizes.get(name, "none")
            raise _strange(place, f"{there} bytes", f"{size} bytes in {name}")
        total += size
    if total > most_bytes:
        raise OptionError(
            f"expected at most {most_bytes:,} bytes at {place}, found {total:,}; allow more, if you "
            "trust it (--most-bytes)"
        )


def _check(path: Path, name: str, told: Mapping[str, Any]) -> None:
    """Refuse a file that is not what the manifest or its name says."""
    if path.is_symlink() or path.stat().st_size != told["size"] or _hash(path) != told["sha256"]:
        raise DataCorrupt(
            f"expected {name} as it was pushed, found something else; load it again, or push it again"
        )
    check_content(path, name)


def _strange(place: Place, found: str, expected: str = "what comap pushes") -> DataCorrupt:
    return DataCorrupt(f"expected {expected} at {place}, found {found}; nothing was loaded")


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
