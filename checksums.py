"""Checksums, so that a file of comap's tells that it was changed.

A JSON object that comap writes, on a line of its own or as a whole file, ends with the member
``"crc32"``: eight hexadecimal digits, the CRC-32 (zlib's) of the bytes before that member's comma. So
reading needs no second writing: `unseal` looks at the last bytes, and takes the member out. What has
none is read as it stands, such as older files and those made by hand. Where another program wrote the
object anew, with other spaces, the values are compared as `json.dumps` writes them; where that does not
fit either (keys in another order, numbers in another form), the object counts as changed.

Files that are no JSON are named with size and SHA-256 in a file that is: `sums_of`, `wrong_file`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import DataCorrupt

__all__ = ["SEAL", "seal", "sha256_of", "sums_of", "unseal", "wrong_file"]

SEAL = "crc32"
"""The name of the member that holds the checksum: of an object the last."""

_TAIL = 64  # bytes, of which the member with all spaces around it takes half
_MEMBER = re.compile(rb',?\s*"crc32":\s*"([0-9a-f]{8})"\s*\}\s*\Z')
_SPACES = re.compile(r"\s*")
_INDENTS = (None, 1, 2)  # that comap writes JSON with
_NAME = b'"crc32": "'
_FLIPPED = 6  # what is so few bits away from the name is that name, damaged
_BLOCK = 1 << 20
_SETTLED = 2.0  # seconds: a file changed since then may be changed again without its time telling
_seen: dict[tuple[str, int, int], str] = {}


def seal(text: str) -> str:
    r"""Return the text of a JSON object with its checksum as the last member.

    Args:
        text: The object, as `json.dumps` writes it, with or without an indent.

    Raises:
        ValueError: It is no object.

    Example:
        >>> seal('{"a": 1}')
        '{"a": 1, "crc32": "7aa88204"}'
        >>> print(seal(json.dumps({"a": 1}, indent=2)))
        {
          "a": 1,
          "crc32": "476d1ee6"
        }
    """
    whole = text.rstrip()
    if not (whole.startswith("{") and whole.endswith("}")):
        raise ValueError(f"expected the text of a JSON object, found {text!r:.80}")
    body = whole[:-1].rstrip()
    spaces = whole[len(body) : -1]  # a line break, where there is an indent
    inner = (_SPACES.match(body, 1) or [""])[0] if spaces else " "
    member = f'"{SEAL}": "{_sum(body.encode())}"{spaces}}}'
    return body + member if body == "{" else f"{body},{inner}{member}"


def unseal(text: str | bytes, loads: Callable[[Any], Any] = json.loads) -> Any:
    """Return what a JSON text says, without its checksum, which is right or was never there.

    Args:
        text: The text: a line or a whole file.
        loads: What reads it.

    Raises:
        DataCorrupt: It is not as it was sealed.
        ValueError: It is no JSON.

    Example:
        >>> unseal('{"a": 1, "crc32": "7aa88204"}'), unseal('{"a": 2}')
        ({'a': 1}, {'a': 2})
        >>> unseal('{"a": 3, "crc32": "7aa88204"}')
        Traceback (most recent call last):
        comap.errors.DataCorrupt: expected what was written with the checksum 7aa88204, found content \
of 94a6e328: it was changed since; restore it, or if it was changed on purpose, remove its "crc32"
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    tail = raw[-_TAIL:]
    member = _MEMBER.search(tail)
    told = found = ""
    if member is not None:
        told = member[1].decode("ascii")
        found = _sum(memoryview(raw)[: len(raw) - len(tail) + member.start()])
    try:
        data = loads(text)
    except ValueError as error:
        if told != found:
            raise _changed(told, found) from error
        raise
    if isinstance(data, dict) and data:
        if SEAL in data:
            value = data.pop(SEAL)
            if (told, found) != (value, value) and value not in _rewritten(data):
                raise _changed(value, found or _rewritten(data)[0])
        elif _is_nearly(tail):
            raise DataCorrupt(
                f'expected "{SEAL}" as the last name, found {next(reversed(data))!r:.40}: it was '
                "changed since it was written; restore it"
            )
    return data


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read.

    Example:
        >>> size = Path("empty").write_bytes(b"")
        >>> sha256_of(Path("empty"))[:16]
        'e3b0c44298fc1c14'
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def sums_of(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files, as JSON data for `wrong_file`.

    Args:
        folder: Where they are.
        names: Their names, relative to it, with ``/`` where they lie deeper.

    Example:
        >>> size = Path("empty").write_bytes(b"")
        >>> sums_of(Path(), ["empty"])["empty"]["size"]
        0
    """
    return {
        name: {"size": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
        for name in sorted(names)
    }


def wrong_file(folder: Path, sums: object, *, fresh: bool = True) -> str:
    """Return in words which file is not as `sums_of` found it; nothing where all are.

    Args:
        folder: Where they are.
        sums: What `sums_of` returned, from a file that may hold anything.
        fresh: Read each file; else what this process read of it before counts while its size and its
            time are the same.

    Example:
        >>> size = Path("a.bin").write_bytes(b"0123")
        >>> sums = sums_of(Path(), ["a.bin"])
        >>> size = Path("a.bin").write_bytes(b"0124")
        >>> wrong_file(Path(), sums)
        'expected a.bin with the SHA-256 1be2e452b46d..., found 91b1e240ed10...'
    """
    if not isinstance(sums, Mapping):
        return f"expected sizes and SHA-256 of files, found {sums!r:.80}"
    for name, told in sums.items():
        place = PurePosixPath(str(name))
        if place.is_absolute() or ".." in place.parts or not isinstance(told, Mapping):
            return f"expected size and SHA-256 of a file in the folder, found {name!r:.80}"
        path = folder / place
        size = path.stat().st_size if path.is_file() else None
        if size != told.get("size"):
            there = "none" if size is None else f"{size:,} bytes"
            return f"expected {name} of {told.get('size')} bytes, found {there}"
        found = sha256_of(path) if fresh else _sha256_seen(path)
        if found != told.get("sha256"):
            wanted = str(told.get("sha256"))
            return f"expected {name} with the SHA-256 {wanted:.12}..., found {found:.12}..."
    return ""


def _sha256_seen(path: Path) -> str:
    """Return the SHA-256 of a file; that of before where it is the same by size and time."""
    state = path.stat()
    key = str(path.absolute()), state.st_size, state.st_mtime_ns
    if key not in _seen:
        found = sha256_of(path)
        if abs(time.time() - state.st_mtime) < _SETTLED:
            return found
        _seen[key] = found
    return _seen[key]


def _sum(content: bytes | memoryview) -> str:
    return f"{zlib.crc32(content):08x}"


def _rewritten(data: Mapping[str, Any]) -> list[str]:
    """Return the checksums that values would have had, had comap written them in this order."""
    return [_sum(json.dumps(data, indent=n)[:-1].rstrip().encode()) for n in _INDENTS]


def _changed(told: object, found: str) -> DataCorrupt:
    return DataCorrupt(
        f"expected what was written with the checksum {told!s:.60}, found content of {found}: it was "
        f'changed since; restore it, or if it was changed on purpose, remove its "{SEAL}"'
    )


def _is_nearly(tail: bytes) -> bool:
    """Return whether a text ends with a checksum's member but for a few bits of its name."""
    end = tail.rstrip()
    for start in (-20, -21):  # the latter with a line break before the last bracket
        pairs = zip(end[start:], _NAME, strict=False)
        if len(end) >= -start and sum((a ^ b).bit_count() for a, b in pairs) <= _FLIPPED:
            return True
    return False
