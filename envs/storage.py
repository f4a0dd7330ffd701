"""Where data lie on this machine: `COMAP_HOME`, whole files and folders, locks, errors of the disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, NamedTuple

from .. import jsonl
from ..errors import CoMapError, DataCorrupt, DownloadError, OptionError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


QUICK = 64 * 2**20
"""Folders of up to so many bytes are compared with their SHA-256 whenever they are opened."""

_REMEDIES = {
    errno.ENOSPC: "free some space, or set COMAP_HOME to a folder on a larger disk",
    errno.EDQUOT: "free some of your quota, or set COMAP_HOME to a folder on another disk",
    errno.EROFS: "set COMAP_HOME to a folder that can be written to",
}
_REMEDY = "set COMAP_HOME to a folder that you may write to"


class Progress(NamedTuple):
    """How far a long operation is."""

    stage: str
    done: int
    total: int | None = None
    note: str = ""


Listener = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Do nothing: the `Listener` for those who want no progress."""


def comap_home() -> Path:
    """Return the folder that holds all data: the environment variable COMAP_HOME, or its default."""
    # An empty variable counts as one that is not set.
    return Path(os.environ.get("COMAP_HOME") or "~/.cache/comap").expanduser().absolute()


def data_path(name: str) -> Path:
    """Return where the data set `name` is, or would be once it is downloaded."""
    return comap_home() / name


def named_folder(name: str | os.PathLike[str], option: str = "data_dir") -> Path:
    """Return the folder that an option names, there or not; raise `OptionError` where it names none."""
    try:
        if str(name):
            folder = Path(name).expanduser()
            folder.exists()  # raises for a name that is too long, or no name at all
            return folder
        why = "empty"
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
    raise OptionError(f"{option} must name a folder, not {name!r:.80} ({why}); or leave it out")


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn errors of the file system into `DownloadError`, with what to do about them."""
    try:
        yield
    except CoMapError:
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, _REMEDY)
        raise DownloadError(
            f"expected to read and write {error.filename or path}, found: "
            f"{error.strerror or error}; {remedy}, and run the command again"
        ) from error


def write_json(path: Path, content: object) -> None:
    """Write `content` to `path` so that a reader finds the old file or the new one, whole."""
    with on_disk(path):
        jsonl.write_json(path, content, indent=1, sort_keys=True)


def read_json(path: Path) -> Any:
    """Return what `write_json` wrote to `path`, or None if nothing readable is there."""
    try:
        return jsonl.read_json(path)
    except (OSError, DataCorrupt):
        return None


@lru_cache(maxsize=32)
def packaged(package: str, name: str) -> Any:
    """Return the content of ``data/<name>.json`` in a package; all callers share it."""
    return json.loads((files(package) / "data" / f"{name}.json").read_text("utf-8"))


def changed_file(folder: Path, sums: object, *, most: float = QUICK) -> str:
    """Return in words which file of a folder was changed; nothing where none was, or all are too large."""
    entries = sums.values() if isinstance(sums, Mapping) else ()
    sizes = [entry.get("size") for entry in entries if isinstance(entry, Mapping)]
    if sum(size for size in sizes if isinstance(size, int)) > most:
        return ""
    return jsonl.wrong_file(folder, sums)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target`, which takes its place once the block has ended."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    draft_folder = draft / "new"
    previous = draft / "old"
    try:
        draft_folder.mkdir()
        yield draft_folder

        # Within one file system both renames are whole: there is never half a folder at `target`.
        if target.exists():
            target.rename(previous)
        draft_folder.rename(target)
    finally:
        if previous.exists() and not target.exists():
            previous.rename(target)  # an error here leaves the draft, and in it the old folder
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def locked(path: Path, *, wait: float, progress: Listener = silent) -> Iterator[None]:
    """Hold the lock file `path`; the system releases it even if this process is killed."""
    jsonl.refuse_link(path)
    with on_disk(path):
        # To append: that makes the file where it is missing, and never empties another's.
        file = path.open("a+b")

    with file:
        end = time.monotonic() + wait
        announced = False
        while not _try_lock(file, path):
            if time.monotonic() >= end:
                raise DownloadError(
                    f"expected to be alone, found another process holding {path} for {wait:.0f} s; "
                    "wait for it or stop it, and run the command again"
                )

            if not announced:
                progress(Progress("waiting", 0, note="another process is at work on this data set"))
                announced = True
            time.sleep(0.05)
        yield


def _try_lock(file: IO[bytes], path: Path) -> bool:
    """Return whether the lock was free and is held now."""
    try:
        if sys.platform == "win32":
            # Windows locks a range of bytes: the first one stands for the file.
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise DownloadError(
            f"expected a file system with locks, found at {path}: {error.strerror}; "
            "set COMAP_HOME to a folder on a local disk, and run the command again"
        ) from error
    return True
