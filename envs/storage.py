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
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..checksums import seal, unseal, wrong_file
from ..errors import CoMapError, DownloadError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "QUICK",
    "Listener",
    "Progress",
    "append_lines",
    "changed_file",
    "comap_home",
    "data_path",
    "locked",
    "on_disk",
    "read_json",
    "replacing",
    "silent",
    "write_json",
]

QUICK = 64 * 2**20
"""So many bytes are read and compared with their checksums whenever a folder is opened."""

_REMEDIES = {
    errno.ENOSPC: "free some space, or set COMAP_HOME to a folder on a larger disk",
    errno.EDQUOT: "free some of your quota, or set COMAP_HOME to a folder on another disk",
    errno.EROFS: "set COMAP_HOME to a folder that can be written to",
}
_REMEDY = "set COMAP_HOME to a folder that you may write to"


class Progress(NamedTuple):
    """How far a long operation is.

    Attributes:
        stage: "waiting", "downloading", "retrying", "unpacking" or "checking".
        done: Bytes downloaded, or files unpacked or checked.
        total: How many there will be, where that is known.
        note: What to tell the user; why a download is tried again, say.

    Example:
        >>> Progress("downloading", 5, 10).done
        5
    """

    stage: str
    done: int
    total: int | None = None
    note: str = ""


Listener = Callable[[Progress], None]
"""What is told of every `Progress`."""


def silent(progress: Progress) -> None:
    """Do nothing: the `Listener` for those who want no progress.

    Example:
        >>> silent(Progress("unpacking", 1))
    """


def comap_home() -> Path:
    """Return the folder that holds all data: the environment variable COMAP_HOME, or its default.

    Example:
        >>> comap_home().is_absolute()
        True
    """
    return Path(os.environ.get("COMAP_HOME") or "~/.cache/comap").expanduser().absolute()


def data_path(name: str) -> Path:
    """Return where the data set `name` is, or would be once it is downloaded.

    Example:
        >>> data_path("alfworld") == comap_home() / "alfworld"
        True
    """
    return comap_home() / name


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Turn errors of the file system into `DownloadError`, with what to do about them.

    Example:
        >>> with on_disk(Path("data")):
        ...     raise OSError(28, "disk full")
        Traceback (most recent call last):
        ...
        comap.errors.DownloadError: expected to read and write data, found: disk full; \
free some space, or set COMAP_HOME to a folder on a larger disk, and run the command again
    """
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
    """Write `content` to `path` so that a reader finds the old file or the new one, whole.

    An object gets a checksum (`comap.checksums`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(Path(folder, "a.json"), [1])
        ...     read_json(Path(folder, "a.json"))
        [1]
    """
    draft = path.with_name(path.name + ".new")
    text = json.dumps(content, indent=1, sort_keys=True)
    with on_disk(path):
        draft.write_text(
            (seal(text) if isinstance(content, dict) else text) + "\n", encoding="utf-8"
        )
        draft.replace(path)


def read_json(path: Path) -> Any:
    """Return what `write_json` wrote to `path`, or None if nothing readable is there.

    Example:
        >>> read_json(Path("no such file")) is None
        True
    """
    try:
        return unseal(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def changed_file(folder: Path, sums: object, *, most: float = QUICK) -> str:
    """Return in words which file of a folder was changed; nothing where none was, or all are too large.

    Args:
        folder: The folder.
        sums: What `comap.checksums.sums_of` returned of its files; it may be anything.
        most: So many bytes are read; where the files have more, they are taken as they are.

    Example:
        >>> changed_file(Path("nowhere"), {"a.bin": {"size": 1, "sha256": ""}})
        'expected a.bin of 1 bytes, found none'
    """
    entries = sums.values() if isinstance(sums, Mapping) else ()
    sizes = [told.get("size") for told in entries if isinstance(told, Mapping)]
    if sum(size for size in sizes if isinstance(size, int)) > most:
        return ""
    return wrong_file(folder, sums, fresh=most > QUICK)


def append_lines(path: Path, lines: bytes) -> None:
    r"""Append whole lines to a file, of which the caller holds the lock; it is made if need be.

    What a killed writer left unfinished at the end becomes a line of its own.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     size = Path(folder, "log").write_bytes(b"one\ntw")
        ...     append_lines(Path(folder, "log"), b"three\n")
        ...     Path(folder, "log").read_bytes()
        b'one\ntw\nthree\n'
    """
    with path.open("a+b") as file:
        torn = False
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        file.write(b"\n" + lines if torn else lines)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Give a new folder beside `target`, which takes its place once the block has ended.

    Whoever opens `target` meets the old folder, or the new one, or for a moment none. Where the new one
    cannot take the place, the old one is put back.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     with replacing(Path(home, "data")) as folder:
        ...         size = (folder / "a.txt").write_text("new")
        ...     [str(path.relative_to(home)) for path in sorted(Path(home).rglob("*"))]
        ['data', 'data/a.txt']
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    made, old = draft / "new", draft / "old"
    try:
        made.mkdir()
        yield made
        if target.exists():
            target.rename(old)
        made.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)  # an error here leaves the draft, and in it the old folder
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def locked(path: Path, *, wait: float, progress: Listener = silent) -> Iterator[None]:
    """Hold the lock file `path`; the system lets go of it even if this process is killed.

    Args:
        path: The lock file, which stays: removing it could let in two at once.
        wait: Seconds to wait for another process at most.
        progress: Told once if there is another to wait for.

    Raises:
        DownloadError: Another process held it all the time.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked(Path(folder, "lock"), wait=1):
        ...     print("mine")
        mine
    """
    with on_disk(path):
        file = path.open("a+b")
    with file:
        end = time.monotonic() + wait
        told = False
        while not _try_lock(file, path):
            if time.monotonic() >= end:
                raise DownloadError(
                    f"expected to be alone, found another process holding {path} for {wait:.0f} s; "
                    "wait for it or stop it, and run the command again"
                )
            if not told:
                progress(Progress("waiting", 0, note="another process is at work on this data set"))
                told = True
            time.sleep(0.05)
        yield


def _try_lock(file: IO[bytes], path: Path) -> bool:
    try:
        if sys.platform == "win32":
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
