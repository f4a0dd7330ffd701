"""JSON on disk: lines that are appended, files that are replaced whole, calls that are recorded.

A JSON lines file grows by whole lines. A process that is killed while it writes leaves at most a torn
last line, without its line break: readers drop it, and the next writer cuts it off. A file that is
replaced is written beside the old one first, so that a reader finds the old content or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from .errors import DataCorrupt, DataNotFound, OptionError

try:
    import fcntl
except ImportError:  # Windows: a line is still written in one piece, but nothing holds others off
    fcntl = None  # type: ignore[assignment]

_BLOCK = 1 << 16
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)


class Line(NamedTuple):
    """A line of a file: its number from 1, its first byte, the byte after it, and what it holds."""

    number: int
    start: int
    end: int
    value: Any


def is_shallow(value: object, depth: int = 64) -> bool:
    """Return whether JSON data are nested no deeper than programs that go into them can bear."""
    if not isinstance(value, Mapping | list | tuple):
        return True
    members = value.values() if isinstance(value, Mapping) else value
    return depth > 0 and all(is_shallow(member, depth - 1) for member in members)


def plain(value: Any) -> Any:
    """Return JSON data as they are; raise ValueError where they are nested too deeply."""
    if not is_shallow(value):
        raise ValueError("nested too deeply")
    return value


def append(path: Path, records: Iterable[object], *, sync: bool = False) -> list[tuple[int, int]]:
    """Append records, one line each, and return the bytes that each line takes (start, end).

    All lines are written or, where the disk is full, none. Other processes may append to the same file
    meanwhile. Without `sync` records survive a kill, but not a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked_file(path) as file:
        return _append_to(file, records, sync)


def read(
    path: Path,
    parse: Callable[[Any], Any] = plain,
    *,
    expected: str = "JSON",
    remedy: str = "remove that line",
) -> Iterator[Any]:
    """Yield ``parse(record)`` of each line of a file, without a torn last one.

    A line that `parse` raises at is broken: the message names it, what was `expected` and the `remedy`.
    """
    return (line.value for line in scan(path, parse, expected=expected, remedy=remedy))


def scan(
    path: Path,
    parse: Callable[[Any], Any] = plain,
    *,
    expected: str = "JSON",
    remedy: str = "remove that line",
    after: tuple[int, int] = (0, 0),
) -> Iterator[Line]:
    """Yield the lines of a file as `read` does, with their positions, `after` a number and an offset."""
    lines_before, start = after
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataNotFound(
            f"expected {expected} in {path}, found: {error.strerror}; name another file"
        ) from error

    with file:
        file.seek(start)
        for number, line in enumerate(file, lines_before + 1):
            end = start + len(line)
            try:
                if line.strip():
                    yield Line(number, start, end, parse(json.loads(line)))
            except _UNREADABLE as error:
                if not line.endswith(b"\n"):
                    return  # torn

                # A first line that is broken is mostly of a file that is something else.
                if number == 1:
                    remedy = f"give another file, or {remedy}"
                is_text = not isinstance(error, UnicodeDecodeError)
                reason = f"{type(error).__name__}: {error}" if is_text else "binary data"
                raise DataCorrupt(
                    f"expected {expected} in line {number} of {path}, found something else "
                    f"({reason}); {remedy}"
                ) from error
            start = end


def refuse_link(path: Path) -> None:
    """Raise where a file to be written is a link: a folder that was unpacked may have one to anywhere."""
    if path.is_symlink():
        raise DataCorrupt(
            f"expected a file at {path}, found a link; remove it, or name the file itself"
        )


def draft_of(path: Path) -> Path:
    """Return where to write what is to replace a file; nothing is there, and so no link."""
    draft = path.with_name(path.name + ".part")
    draft.unlink(missing_ok=True)
    return draft


@contextmanager
def replacing_file(path: Path, *, sync: bool = False) -> Iterator[IO[bytes]]:
    """Open a file to write that replaces `path` once the block has ended well."""
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise OptionError(
            f"expected to write a file at {path}, found a folder or a device; name another file"
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path)
    try:
        with draft.open("xb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk names no file, and the draft is nobody's
            error.filename = str(path) if error.filename in (None, str(draft)) else error.filename
        raise


def write(path: Path, records: Iterable[object]) -> None:
    """Replace a file by one with these records, one line each."""
    with replacing_file(path) as file:
        for record in records:
            file.write(_encoded(record))


def write_json(
    path: Path, value: object, *, indent: int | None = 2, sort_keys: bool = False
) -> None:
    """Replace a file by one that holds a JSON value."""
    with replacing_file(path) as file:
        file.write(json.dumps(value, indent=indent, sort_keys=sort_keys).encode() + b"\n")


def read_json(path: Path) -> Any:
    """Return the JSON value that a file holds."""
    try:
        return plain(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(f"expected JSON in {path}, found something else ({error})") from error


class RecordedCalls:
    """Answers by key, recorded in a JSON lines file: of a model, a search engine, a tool.

    A line is a record with the members ``key`` and ``value``, and others for a reader's eyes. The first
    answer to a key counts, also where several processes record to one file at once. A record without
    a key, the first of the file, is its header: it says whose answers these are.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any] | None = None,
        parse: Callable[[Mapping[str, Any]], Any] | None = None,
        *,
        expected: str = "a recorded answer",
    ):
        self.path = path
        self.header: dict[str, Any] = {}  # as the file has it
        self._own_header = header  # for a new file
        self._parse = parse
        self._expected = expected
        self._values: dict[str, Any] = {}
        self._read_to = (0, 0)  # lines and bytes that were read
        self._lock = threading.Lock()
        if header is not None:
            self.add([])
        else:
            self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path, self._own_header, self._parse, self._expected)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def get(self, key: str) -> Any:
        """Return the answer to a key; None where there is none."""
        return self._values.get(key)

    def refresh(self) -> None:
        """Read what other processes recorded since the last time."""
        with self._lock:
            self._catch_up()

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Record answers; a key that has one already keeps it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, _locked_file(self.path) as file:
            self._catch_up()
            lines: list[Mapping[str, Any]] = []

            is_empty = not self.header and not self._values
            if is_empty and self._own_header is not None:
                lines.append(self._own_header)

            new_records = {record["key"]: record for record in records if record["key"] not in self}
            lines += new_records.values()

            if lines:
                _append_to(file, lines)
                self._catch_up()

    def _catch_up(self) -> None:
        """Read what the file has beyond the last line that was read."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._read_to[1]:  # somebody removed the file: it begins anew
            self.header = {}
            self._values = {}
            self._read_to = (0, 0)
        if not size:
            return

        for line in scan(self.path, self._store, expected=self._expected, after=self._read_to):
            self._read_to = (line.number, line.end)

    def _store(self, record: Any) -> None:
        """Store a record of the file: the header first, then answers, of which the first counts."""
        if "key" not in record:
            if self.header or self._values:
                raise KeyError("key")
            self.header = dict(record)
            return
        value = record["value"] if self._parse is None else self._parse(record)
        self._values.setdefault(str(record["key"]), value)


def _reopened(path: Path, header: Any, parse: Any, expected: str) -> RecordedCalls:
    return RecordedCalls(path, header, parse, expected=expected)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files in a folder, as JSON data for `wrong_file`."""
    return {
        name: {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
        for name in sorted(names)
    }


def wrong_file(folder: Path, digests: object) -> str:
    """Return a message on the first file that is not as `digests_of` saw it; empty where all are."""
    if not isinstance(digests, Mapping):
        return f"expected sizes and SHA-256 of files, found {digests!r:.80}"

    for name, digest in digests.items():
        # The digests come from outside, too: they must not lead out of the folder.
        inside = PurePosixPath(str(name))
        if inside.is_absolute() or ".." in inside.parts or not isinstance(digest, Mapping):
            return f"expected size and SHA-256 of a file in the folder, found {name!r:.80}"

        path = folder / inside
        expected_size = digest.get("size")
        if not path.is_file():
            return f"expected {name} of {expected_size} bytes, found none"
        size = path.stat().st_size
        if size != expected_size:
            return f"expected {name} of {expected_size} bytes, found {size:,} bytes"

        sha256 = sha256_of(path)
        if sha256 != digest.get("sha256"):
            expected_sha256 = str(digest.get("sha256"))
            return (
                f"expected {name} with the SHA-256 {expected_sha256:.12}..., found {sha256:.12}..."
            )

    return ""


def _encoded(record: object) -> bytes:
    return json.dumps(record, ensure_ascii=True).encode("ascii") + b"\n"


@contextmanager
def _locked_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to append to, locked against other processes where the file system has locks."""
    refuse_link(path)
    with path.open("a+b", buffering=0) as file:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _append_to(
    file: IO[bytes], records: Iterable[object], sync: bool = False
) -> list[tuple[int, int]]:
    """Append records to an open file, all or none; return the bytes that each takes (start, end)."""
    lines = [_encoded(record) for record in records]
    start = _mend_last_line(file)

    try:
        rest = memoryview(b"".join(lines))
        while rest:  # the file has no buffer: a write may take a part only
            rest = rest[file.write(rest) :]
        if sync:
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(start)
        raise

    positions = []
    end = start
    for line in lines:
        positions.append((end, end + len(line)))
        end += len(line)
    return positions


def _mend_last_line(file: IO[bytes]) -> int:
    """Cut a torn last line off, or end it if it is whole; return the file's size then."""
    size = file.seek(0, os.SEEK_END)

    # Read backward, block by block, until the last line is whole in `tail`.
    start = size
    tail = b""
    while start and b"\n" not in tail:
        step = min(start, _BLOCK)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    last_line = tail[tail.rfind(b"\n") + 1 :]
    if not last_line:
        return size

    try:
        json.loads(last_line)
    except ValueError as error:
        if not last_line.startswith(b"{"):  # nothing of ours: it may be anybody's notes
            raise DataCorrupt(
                f"expected JSON lines in {file.name}, found {last_line[:40]!r}; name another file"
            ) from error
        return file.truncate(size - len(last_line))
    return size + file.write(b"\n")
