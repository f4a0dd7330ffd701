"""`fetch`: one file over HTTP, through cut connections, to a part file that a later run continues.

Beside the part file lies a small record of what it is a part of: the address and the server's mark
for that version of the file (its ETag, or else its time). A part is continued only if the server
confirms the mark; otherwise the file has changed, or cannot be told from a changed one, and the
download starts again.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import IO

from ..errors import DataCorrupt, DownloadError, OptionError
from .connections import PassingError, check_url, describe, opened
from .storage import Listener, Progress, on_disk, read_json, silent, write_json

__all__ = ["Patience", "discard", "fetch"]

_CHUNK = 1 << 18
_MEBIBYTE = 1 << 20
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a download puts up with a bad connection.

    Example:
        >>> Patience(attempts=2).attempts
        2
    """

    attempts: int = 5
    """Failures in a row, with less than a mebibyte gained in each, after which to give up."""

    pause: float = 0.5
    """Seconds to wait after the first failure; doubled after each further one."""

    timeout: float = 30.0
    """Seconds without a byte after which a connection counts as cut."""

    lock: float = 3600.0
    """Seconds to wait for another process that downloads the same."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise OptionError(f"expected at least 1 attempt, found {self.attempts}; give more")
        if not self.timeout > 0:
            raise OptionError(
                f"expected a timeout above 0, found {self.timeout}; give it in seconds"
            )


@dataclass(frozen=True, slots=True)
class _Record:
    """What a part file is a part of."""

    url: str
    mark: str | None = None
    total: int | None = None


def discard(part: Path) -> None:
    """Remove a part file and its record, if they are there.

    Example:
        >>> discard(Path("no-such-file.part"))
    """
    with on_disk(part):
        part.unlink(missing_ok=True)
        _record_path(part).unlink(missing_ok=True)


def fetch(
    url: str,
    part: Path,
    *,
    max_bytes: int,
    patience: Patience | None = None,
    progress: Listener = silent,
) -> None:
    """Download `url` into the file `part`, continuing what an earlier call left there.

    Args:
        url: An http or https address.
        part: The file; whole after this returns, and to be continued after an error.
        max_bytes: How large the file may be.
        patience: When to give up.
        progress: Told of the bytes that have come.

    Raises:
        DownloadError: The server or the network failed too often, or the disk did.
        DataCorrupt: The file is larger than it may be.
        OptionError: The address is not an http or https address.

    Example:
        >>> fetch("https://host/a.zip", Path("a.part"), max_bytes=10)  # doctest: +SKIP
    """
    check_url(url)
    patience = patience or Patience()
    failures, best = 0, 0
    while True:
        try:
            return _attempt(url, part, max_bytes, patience.timeout, progress)
        except DataCorrupt:
            discard(part)
            raise
        except PassingError as fault:
            if fault.restart:
                discard(part)
            size = _size(part)
            failures = 1 if size >= best + _MEBIBYTE else failures + 1
            best = max(best, size)
            if failures >= patience.attempts:
                raise DownloadError(
                    f"expected the file at {url}, found after {failures} failures in a row: "
                    f"{fault}; run the command again to continue from {size} bytes, or name "
                    "another server with --mirror"
                ) from fault
            pause = max(fault.pause, patience.pause * 2 ** (failures - 1))
            progress(Progress("retrying", size, note=str(fault)))
            time.sleep(min(pause, _LONGEST_PAUSE))


def _attempt(url: str, part: Path, max_bytes: int, timeout: float, progress: Listener) -> None:
    """Ask the server once, for the file or for its rest, and write what it sends."""
    record, offset = _resumable(url, part)
    if offset and offset == record.total:
        return
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if offset and record.mark:
        request.add_header("Range", f"bytes={offset}-")
        request.add_header("If-Range", record.mark)
    with opened(request, timeout) as response:
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            _check_partial(response, record, offset)
        else:
            record, offset = _start(response, url, part), 0
        _check_size(record.total or 0, max_bytes, url)
        with on_disk(part):
            file = part.open("ab")
        with file:
            for size in _receive(response, file, offset):
                _check_size(size, max_bytes, url)
                progress(Progress("downloading", size, record.total))
    size = _size(part)
    if record.total is not None and size < record.total:
        raise PassingError(f"the connection was cut after {size} of {record.total} bytes")
    if record.total is not None and size > record.total:
        raise PassingError(
            f"the server sent more than the {record.total} bytes it announced", restart=True
        )
    write_json(_record_path(part), asdict(replace(record, total=size)))


def _resumable(url: str, part: Path) -> tuple[_Record, int]:
    """Return the part's record and size; size 0 if it cannot be continued."""
    try:
        record = _Record(**read_json(_record_path(part)))
    except TypeError:
        return _Record(url), 0
    size = _size(part)
    whole = record.total == size
    if record.url != url or not (record.mark or whole):
        return _Record(url), 0
    return record, size


def _start(response: http.client.HTTPResponse, url: str, part: Path) -> _Record:
    """Empty the part file and record what is to come; in this order, in case of a kill between."""
    tag = response.headers.get("ETag", "")
    # If-Range does not take weak tags: they do not promise the same bytes.
    mark = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    length = response.headers.get("Content-Length", "")
    record = _Record(url, mark, int(length) if length.isdecimal() else None)
    discard(part)
    with on_disk(part):
        part.touch()
    write_json(_record_path(part), asdict(record))
    return record


def _check_partial(response: http.client.HTTPResponse, record: _Record, offset: int) -> None:
    """Start again unless the server sends exactly the rest of the file that we have a part of."""
    found = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", found)
    total = record.total
    good = (
        match is not None
        and offset > 0
        and int(match[1]) == offset
        and (match[3] == "*" or total is None or int(match[3]) == total)
        and _same_version(response, record)
    )
    if not good:
        raise PassingError(
            f"the server sent another range ({found!r}) than from byte {offset}", restart=True
        )


def _same_version(response: http.client.HTTPResponse, record: _Record) -> bool:
    tag = response.headers.get("ETag", "")
    return not (tag.startswith('"') and (record.mark or "").startswith('"')) or tag == record.mark


def _receive(response: http.client.HTTPResponse, file: IO[bytes], size: int) -> Iterator[int]:
    """Write the response's body to the end of `file`, which has `size` bytes; yield its sizes."""
    yield size
    while True:
        try:
            chunk = response.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise PassingError(
                f"the connection was cut after {size} bytes ({describe(error)})"
            ) from error
        if not chunk:
            return
        with on_disk(Path(file.name)):
            file.write(chunk)
            file.flush()
        size += len(chunk)
        yield size


def _check_size(size: int, max_bytes: int, url: str) -> None:
    if size > max_bytes:
        raise DataCorrupt(
            f"expected at most {max_bytes} bytes at {url}, found {size}; "
            "check the address, or name another server with --mirror"
        )


def _size(path: Path) -> int:
    with on_disk(path):
        return path.stat().st_size if path.exists() else 0


def _record_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")
