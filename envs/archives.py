"""`unpack`: zip and tar archives from the network, unpacked without trusting them.

Nothing but plain files and folders comes out, all of them below the target folder: names that lead
elsewhere, links and devices are refused, and so is an archive of more files or bytes than allowed.
Modes, owners and times in the archive are ignored.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from ..errors import CoMapError, DataCorrupt
from .datasets import Limits
from .storage import Listener, Progress, on_disk, silent

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["safe_parts", "unpack"]

_CHUNK = 1 << 20
_DRIVE = re.compile(r"[A-Za-z]:")
_ENCRYPTED = 1
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)


def unpack(archive: Path, into: Path, limits: Limits, progress: Listener = silent) -> None:
    """Unpack a .zip, .tar, .tar.gz or .tar.xz, told apart by content, into a new folder.

    Args:
        archive: The archive.
        into: The folder to make. After an error it may hold a part, which the caller removes.
        limits: How many entries and bytes may come out.
        progress: Told of each file.

    Raises:
        DataCorrupt: The archive is broken, or holds what it should not.
        DownloadError: The disk does not let us.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with zipfile.ZipFile(Path(folder, "a.zip"), "w") as file:
        ...         file.writestr("../evil", "")
        ...     unpack(Path(folder, "a.zip"), Path(folder, "new"), Limits(10, 10, 10))
        Traceback (most recent call last):
        ...
        comap.errors.DataCorrupt: expected names of files inside the folder in the archive a.zip, \
found '../evil'; get the archive from its official address
    """
    with on_disk(archive), _broken_is_corrupt(archive), archive.open("rb") as file:
        writer = _Writer(archive, into, limits, progress)
        magic = file.read(6)
        file.seek(0)
        if magic[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            _unpack_zip(file, writer)
        elif magic[:2] == b"\x1f\x8b":
            with gzip.open(file) as stream:
                _unpack_tar(stream, writer)
        elif magic == b"\xfd7zXZ\x00":
            with lzma.open(file) as stream:
                _unpack_tar(stream, writer)
        else:
            _unpack_tar(file, writer)
        if not writer.files:
            raise writer.refuse("at least one file", "none")


def safe_parts(name: str) -> tuple[str, ...] | None:
    r"""Return the parts of a name in an archive, or None if it may lead out of the folder.

    Example:
        >>> safe_parts("./a//b.txt")
        ('a', 'b.txt')
        >>> [safe_parts(name) for name in ("/etc/passwd", "a/../../b", "C:x", "a\\b")]
        [None, None, None, None]
    """
    if name.startswith("/") or "\\" in name or "\0" in name:
        return None
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return None if any(part == ".." or _DRIVE.match(part) for part in parts) else parts


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Writer:
    """Writes an archive's entries below one folder, and refuses what breaks the rules."""

    def __init__(self, archive: Path, into: Path, limits: Limits, progress: Listener):
        self.archive = archive
        self.into = into
        self.limits = limits
        self.progress = progress
        self.entries = 0
        self.bytes = 0
        self.files: set[tuple[str, ...]] = set()
        self.folders: set[tuple[str, ...]] = {()}
        with on_disk(into):
            into.mkdir(parents=True)

    def refuse(self, expected: str, found: str) -> DataCorrupt:
        """Return the error for an archive that has `found` where it should have `expected`."""
        return DataCorrupt(
            f"expected {expected} in the archive {self.archive.name}, found {found}; "
            "get the archive from its official address"
        )

    def admit(self, name: str) -> tuple[str, ...]:
        """Count one more entry and return the parts of its name."""
        self.entries += 1
        if self.entries > self.limits.entries:
            raise self.refuse(f"at most {self.limits.entries} entries", "more")
        parts = safe_parts(name)
        if parts is None:
            raise self.refuse("names of files inside the folder", repr(name))
        return parts

    def folder(self, parts: tuple[str, ...]) -> Path:
        """Make a folder, with those that it is in."""
        if parts not in self.folders:
            for end in range(1, len(parts) + 1):
                if parts[:end] in self.files:
                    raise self.refuse("each name once", repr("/".join(parts[:end])) + " twice")
                self.folders.add(parts[:end])
            with on_disk(self.into):
                self.into.joinpath(*parts).mkdir(parents=True, exist_ok=True)
        return self.into.joinpath(*parts)

    def file(self, parts: tuple[str, ...], source: _Readable, total: int | None = None) -> None:
        """Write a new file from `source`."""
        if parts in self.files or parts in self.folders:
            raise self.refuse("each name once", repr("/".join(parts)) + " twice")
        path = self.folder(parts[:-1]) / parts[-1]
        self.files.add(parts)
        with on_disk(path):
            target = path.open("xb")
        with target:
            while chunk := source.read(_CHUNK):
                self.bytes += len(chunk)
                self.check_size(self.bytes)
                with on_disk(path):
                    target.write(chunk)
            with on_disk(path):
                target.flush()
        self.progress(Progress("unpacking", len(self.files), total))

    def check_size(self, size: int) -> None:
        """Refuse the archive if it unpacks to `size` bytes and that is too much."""
        if size > self.limits.unpacked_bytes:
            raise self.refuse(f"at most {self.limits.unpacked_bytes} bytes", "more")


def _unpack_zip(file: IO[bytes], writer: _Writer) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        writer.check_size(sum(entry.file_size for entry in entries))
        # The raw name: zipfile cuts the other one at a NUL, and turns separators into slashes.
        parts = [writer.admit(entry.orig_filename) for entry in entries]
        for entry in entries:
            _check_zip_entry(entry, writer)
        total = sum(not entry.is_dir() for entry in entries)
        for entry, where in zip(entries, parts, strict=True):
            if entry.is_dir():
                writer.folder(where)
            else:
                with archive.open(entry) as source:
                    writer.file(where, source, total)


def _check_zip_entry(entry: zipfile.ZipInfo, writer: _Writer) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        found = "a link" if kind == stat.S_IFLNK else "a special file"
        raise writer.refuse("files and folders only", f"{found}: {entry.orig_filename!r}")
    if entry.flag_bits & _ENCRYPTED:
        raise writer.refuse("readable files", f"an encrypted one: {entry.orig_filename!r}")


def _unpack_tar(stream: _Readable, writer: _Writer) -> None:
    # Headers count too: 512 bytes an entry, some more for long names, and tar's own padding.
    ceiling = writer.limits.unpacked_bytes + 4096 * (writer.limits.entries + 8)
    bounded = io.BufferedReader(_Bounded(stream, ceiling, writer))
    with tarfile.open(fileobj=bounded, mode="r|") as archive:
        for member in archive:
            parts = writer.admit(member.name)
            if member.isdir():
                writer.folder(parts)
                continue
            if not member.isreg() or member.issparse():
                raise writer.refuse("files and folders only", f"{_kind(member)}: {member.name!r}")
            writer.check_size(writer.bytes + member.size)
            source = archive.extractfile(member)
            assert source is not None  # it is a regular file
            writer.file(parts, source)


def _kind(member: tarfile.TarInfo) -> str:
    return "a link" if member.issym() or member.islnk() else "a special file"


class _Bounded(io.RawIOBase):
    """A stream that ends with an error where it should have ended."""

    def __init__(self, stream: _Readable, ceiling: int, writer: _Writer):
        self._stream = stream
        self._left = ceiling
        self._writer = writer

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        chunk = self._stream.read(len(view))
        self._left -= len(chunk)
        if self._left < 0:
            raise self._writer.refuse(f"at most {self._writer.limits.unpacked_bytes} bytes", "more")
        view[: len(chunk)] = chunk
        return len(chunk)


@contextmanager
def _broken_is_corrupt(archive: Path) -> Iterator[None]:
    """Turn what the standard library raises on a broken archive into `DataCorrupt`."""
    try:
        yield
    except CoMapError:
        raise
    except _BROKEN as error:
        raise DataCorrupt(
            f"expected a whole zip or tar archive in {archive.name}, found one that cannot be "
            f"read ({type(error).__name__}: {error}); get the archive from its official address"
        ) from error
