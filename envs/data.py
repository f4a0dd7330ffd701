"""The data sets that comap downloads: the catalogue, `get` and `verify`."""

from __future__ import annotations

import functools
import gzip
import hashlib
import itertools
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from ..errors import (
    CoMapError,
    DataCorrupt,
    DataNotFound,
    DownloadError,
    OptionError,
    check_url,
    suggest,
)
from ..jsonl import sha256_of
from .storage import (
    Listener,
    Progress,
    data_path,
    locked,
    on_disk,
    packaged,
    read_json,
    replacing,
    silent,
    write_json,
)

_PIECE = 1 << 18
_OFFICIAL = "get the archive from its official address"


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may not exceed, so that a wrong or hostile one cannot fill the disk."""

    download_bytes: int
    entries: int
    unpacked_bytes: int


# What the standard library raises on broken archives.
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
    RuntimeError,
)


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _Entry(NamedTuple):
    name: str
    kind: str  # "a file", "a folder", or in words what else it is
    size: int
    open: Callable[[], _Readable | None]


def unpack(archive: Path, into: Path, limits: Limits, progress: Listener = silent) -> None:
    """Unpack a .zip, .tar, .tar.gz or .tar.xz, recognized by content, into a new or empty folder."""
    written, files = 0, 0
    seen: dict[tuple[str, ...], str] = {(): "a folder"}
    with on_disk(archive), archive.open("rb") as file, _broken_is_corrupt(archive):
        for number, entry in enumerate(_entries(file, archive.name, limits)):
            parts = safe_parts(entry.name)
            if number == limits.entries:
                raise _refusal(archive.name, f"at most {number} entries", "more")
            if parts is None:
                raise _refusal(archive.name, "names of files inside the folder", repr(entry.name))
            if entry.kind not in ("a file", "a folder"):
                found = f"{entry.kind}: {entry.name!r}"
                raise _refusal(archive.name, "files and folders only", found)
            for end in range(len(parts) + 1):
                kind = entry.kind if end == len(parts) else "a folder"
                if seen.setdefault(parts[:end], "new") not in ("new", kind) or (
                    kind == "a file" and seen[parts[:end]] != "new"
                ):
                    twice = f"{'/'.join(parts[:end])!r} twice"
                    raise _refusal(archive.name, "each name once", twice)
                seen[parts[:end]] = kind
            path = into.joinpath(*parts)
            folder = path if entry.kind == "a folder" else path.parent
            with on_disk(folder):
                folder.mkdir(parents=True, exist_ok=True)
            if entry.kind == "a folder":
                continue
            if written + entry.size > limits.unpacked_bytes:
                raise _refusal(archive.name, f"at most {limits.unpacked_bytes} bytes", "more")
            written += _write(entry, path, limits.unpacked_bytes - written, archive.name)
            files += 1
            progress(Progress("unpacking", files))
        if not files:
            raise _refusal(archive.name, "at least one file", "none")
        progress(Progress("unpacking", files, files))


def safe_parts(name: str) -> tuple[str, ...] | None:
    r"""Return the parts of a name in an archive, or None if it may lead out of the folder."""
    if name.startswith("/") or "\\" in name or "\0" in name:
        return None
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    return None if any(part == ".." or re.match("[A-Za-z]:", part) for part in parts) else parts


def _write(entry: _Entry, path: Path, most: int, archive: str) -> int:
    """Write one file and return its size; sizes that archives announce may be lies."""
    source, size = entry.open(), 0
    assert source is not None  # tarfile's type says more than a regular file needs
    with on_disk(path):
        target = path.open("xb")
    with target:
        while chunk := source.read(_PIECE):
            size += len(chunk)
            if size > most:
                raise _refusal(archive, f"at most {most} more bytes", "more")
            with on_disk(path):
                target.write(chunk)
                target.flush()
    return size


def _entries(file: IO[bytes], archive: str, limits: Limits) -> Iterator[_Entry]:
    magic = file.read(6)
    file.seek(0)
    if magic[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        yield from _zip_entries(file)
    else:
        stream: Any = file
        if magic[:2] == b"\x1f\x8b":
            stream = gzip.GzipFile(fileobj=file)
        elif magic == b"\xfd7zXZ\x00":
            stream = lzma.LZMAFile(file)  # noqa: SIM115 (closed with the file)
        # Headers count too: 512 bytes an entry, some more for long names, and tar's own padding.
        ceiling = limits.unpacked_bytes + 4096 * (limits.entries + 8)
        refusal = _refusal(archive, f"at most {limits.unpacked_bytes} bytes", "more")
        yield from _tar_entries(_Bounded(stream, ceiling, refusal))


def _zip_entries(file: IO[bytes]) -> Iterator[_Entry]:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            mode = stat.S_IFMT(entry.external_attr >> 16)
            kind = "a folder" if entry.is_dir() else "a file"
            if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                kind = "a link" if mode == stat.S_IFLNK else "a special file"
            elif entry.flag_bits & 1:
                kind = "an encrypted one"
            # The raw name: zipfile cuts the other one at a NUL, and turns separators into slashes.
            yield _Entry(entry.orig_filename, kind, entry.file_size, partial(archive.open, entry))


def _tar_entries(stream: Any) -> Iterator[_Entry]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            kind = "a folder" if member.isdir() else "a file"
            if member.issym() or member.islnk():
                kind = "a link"
            elif not (member.isdir() or member.isreg()) or member.issparse():
                kind = "a special file"
            yield _Entry(member.name, kind, member.size, partial(archive.extractfile, member))


class _Bounded:
    """A stream that ends with an error where it should have ended."""

    def __init__(self, stream: _Readable, most: int, refusal: DataCorrupt):
        self._stream, self._left, self._refusal = stream, most, refusal

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise self._refusal
        return chunk


@contextmanager
def _broken_is_corrupt(archive: Path) -> Iterator[None]:
    try:
        yield
    except CoMapError:
        raise
    except _BROKEN as error:
        raise DataCorrupt(
            f"expected a whole zip or tar archive in {archive.name}, found one that cannot be "
            f"read ({type(error).__name__}: {error}); {_OFFICIAL}"
        ) from error


def _refusal(archive: str, expected: str, found: str) -> DataCorrupt:
    return DataCorrupt(f"expected {expected} in the archive {archive}, found {found}; {_OFFICIAL}")


MANIFEST = ".comap-manifest.json"
"""Name of the file with the SHA-256 of every item; it is written last, so where it is, all is."""

_ATTEMPTS = 5  # failures in a row, with less than a mebibyte gained in each
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds; doubled after each further failure
_LOCK = 3600.0  # seconds to wait for another process that downloads the same
_CHUNK = 1 << 14  # of which up to one is lost where a connection is cut
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_REMEDY = "check the address, or name another server with --mirror"


@dataclass(frozen=True, slots=True)
class Split:
    """What one split of a data set holds: `fingerprint` of its items as SHA-256, where known."""

    name: str
    items: int
    sha256: str | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set of the catalogue: an archive, and in its folder `root` a folder for each split."""

    name: str
    title: str
    url: str
    limits: Limits
    sha256: str | None = None
    size: str = ""
    license: str = ""
    homepage: str = ""
    root: str = "."
    items: str = "*"  # glob pattern of the items in a split's folder
    skip: tuple[str, ...] = ()  # items whose id contains one of these do not count
    marker: str = ""  # nor do those whose content does not contain this
    splits: tuple[Split, ...] = ()


@functools.cache
def catalogue() -> dict[str, DataSet]:
    found = {}
    for name, entry in packaged(__package__, "datasets").items():
        splits = tuple(Split(split, **rest) for split, rest in entry["splits"].items())
        parts = {
            "limits": Limits(**entry["limits"]),
            "skip": tuple(entry["skip"]),
            "splits": splits,
        }
        found[name] = DataSet(name=name, **entry | parts)
    return found


def find(data_set: str | DataSet) -> DataSet:
    if isinstance(data_set, DataSet):
        return data_set
    known = catalogue()
    if data_set not in known:
        raise OptionError(
            f"expected the name of a data set to download, found {data_set!r}; "
            f"{suggest(data_set, known)} (all: comap data list; webshop, searchqa: comap data build)"
        )
    return known[data_set]


def is_installed(data_set: str | DataSet) -> bool:
    """Return whether `get` has put the data set in its place."""
    return isinstance(read_json(data_path(find(data_set).name) / MANIFEST), dict)


def get(
    data_set: str | DataSet,
    *,
    mirror: str | None = None,
    force: bool = False,
    allow_changed: bool = False,
    timeout: float = 30.0,
    progress: Listener = silent,
) -> Path:
    """Download a data set unless it is there already, and return its folder.

    `mirror` is the address of a folder that has the archive; `timeout` are the seconds without a byte
    after which a connection counts as cut; `allow_changed` accepts other content than the catalogue's.
    """
    wanted = find(data_set)
    url = wanted.url
    check_url("the archive's address", url, "https://host/file")
    if mirror is not None:
        check_url("mirror", mirror, "https://host/folder")
        url = f"{mirror.rstrip('/')}/{url.rsplit('/', 1)[-1]}"
    if not timeout > 0:
        raise OptionError(f"expected a timeout above 0, found {timeout}; give it in seconds")
    target = data_path(wanted.name)
    part, archive = (target.with_name(f".{wanted.name}.{role}") for role in ("part", "archive"))
    with on_disk(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f".{wanted.name}.lock"), wait=_LOCK, progress=progress):
        _clean(target)
        if not force and _already_there(wanted, target):
            return target
        try:
            if not archive.exists():  # a killed run may have left it
                _download(url, part, wanted.limits.download_bytes, timeout, progress)
                with on_disk(archive):
                    part.replace(archive)
            _install(wanted, archive, url, target, allow_changed, progress)
        except DataCorrupt:
            part.unlink(missing_ok=True)
            archive.unlink(missing_ok=True)
            raise
        archive.unlink()
    return target


def _clean(target: Path) -> None:
    """Remove drafts of killed runs; the data set that one was about to replace comes back."""
    with on_disk(target):
        for draft in target.parent.glob(f".{target.name}-????????"):
            if (draft / "old").exists() and not os.path.lexists(target):
                (draft / "old").rename(target)
            shutil.rmtree(draft)


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


def _install(
    data_set: DataSet,
    archive: Path,
    url: str,
    target: Path,
    allow_changed: bool,
    progress: Listener,
) -> None:
    """Unpack the archive, compare its content, and move it into place."""
    with on_disk(archive):
        digest = sha256_of(archive)
    if data_set.sha256 not in (None, digest):
        raise DataCorrupt(
            f"expected SHA-256 {data_set.sha256} of {url}, found {digest}; the file was removed: "
            f"run comap data get {data_set.name} again, or name another server with --mirror"
        )
    with on_disk(target), replacing(target) as fresh:
        unpack(archive, fresh, data_set.limits, progress)
        found = _survey(data_set, fresh, progress)
        reports = [_compare(split, found[split.name], {}) for split in data_set.splits]
        wrong = [f"{name}: {text}" for name, ok, text in reports if not ok]
        if wrong and not allow_changed:
            raise DataCorrupt(
                f"expected the data set {data_set.name!r} from {url}, found other content "
                f"({'; '.join(wrong)}); name another server with "
                "--mirror, or take it so with --allow-changed"
            )
        items = {name: value for split in found.values() for name, value in split.items()}
        origin = {"url": url, "sha256": digest}
        write_json(fresh / MANIFEST, {"name": data_set.name, "archive": origin, "items": items})


class _CutOff(Exception):
    """A failure that another try may mend."""


def _download(url: str, part: Path, most: int, timeout: float, progress: Listener) -> None:
    """Download into the file `part`, continuing what an earlier attempt left there."""
    from requests import exceptions

    failures, best = 0, 0
    with on_disk(part):
        part.touch()
    while True:
        try:
            return _attempt(url, part, most, timeout, progress)
        except CoMapError:
            raise
        except (exceptions.SSLError, exceptions.InvalidSchema, ValueError) as error:
            raise DownloadError(
                f"expected {url} to lead to a server that proves who it is, found: {error}; check "
                "this machine's clock and certificates, and where the address redirects to"
            ) from error
        except (_CutOff, exceptions.RequestException) as error:
            reason, size = str(error), part.stat().st_size
            if isinstance(error, exceptions.ConnectionError) and not size:
                reason = f"no answer ({error})"
            failures = 1 if size >= best + (1 << 20) else failures + 1
            best = max(best, size)
            if failures >= _ATTEMPTS:
                raise DownloadError(
                    f"expected the file at {url}, found after {failures} failures in a row: "
                    f"{reason}; run the command again to continue from {size} bytes, or name "
                    "another server with --mirror"
                ) from error
            progress(Progress("retrying", size, note=reason))
            time.sleep(min(_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE))


def _attempt(url: str, part: Path, most: int, timeout: float, progress: Listener) -> None:
    """Ask the server once, for the file or for its rest, and write what it sends."""
    import requests

    size = part.stat().st_size
    # Without a version mark: an archive whose parts differ fails its checks, and is removed.
    rest = {"Range": f"bytes={size}-"} if size else {}
    given: dict[str, Any] = {"headers": {"Accept-Encoding": "identity", **rest}, "stream": True}
    given |= {"timeout": timeout, "hooks": {"response": _refuse_downgrade}}
    with requests.get(url, **given) as response, part.open("r+b", buffering=0) as file:
        status, headers = response.status_code, response.headers
        if status in _PASSING:
            raise _CutOff(f"HTTP {status}")
        starts = re.match(r"bytes (\d+)-", headers.get("content-range", ""))
        if status == 416 or (status == 206 and not (starts and int(starts[1]) == size)):
            file.truncate(0)
            raise _CutOff("the server has no such rest of the file; starting anew")
        if status not in (200, 206):
            raise DownloadError(
                f"expected the file at {url}, found HTTP {status} ({response.reason}); {_REMEDY}"
            )
        if status == 200 and size:
            size = file.truncate(0)
        file.seek(size)
        length = headers.get("content-length", "")
        total = size + int(length) if length.isdecimal() else None
        for chunk in itertools.chain([b""], response.iter_content(_CHUNK)):
            size += len(chunk)
            if (announced := max(size, total or 0)) > most:
                raise DataCorrupt(
                    f"expected at most {most} bytes at {url}, found {announced}; {_REMEDY}"
                )
            with on_disk(part):
                file.write(chunk)
            progress(Progress("downloading", size, total))
    if total is not None and size != total:
        raise _CutOff(f"the connection was cut after {size} of {total} bytes")


def _refuse_downgrade(response: Any, **_: Any) -> None:
    target = response.headers.get("location", "")
    if response.is_redirect and response.url.startswith("https:") and target.startswith("http:"):
        raise DownloadError(
            f"expected {response.url} to lead to an address no less safe, found a redirect to "
            f"{target}; {_REMEDY}"
        )


class SplitReport(NamedTuple):
    """What `verify` found of one split, in words."""

    split: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found; as text, a line for each split."""

    name: str
    directory: Path
    splits: tuple[SplitReport, ...]

    @property
    def ok(self) -> bool:
        return all(split.ok for split in self.splits)

    def __str__(self) -> str:
        verdict = "as expected" if self.ok else "not as expected"
        lines = [f"{self.name} in {self.directory}: {verdict}"]
        lines += [f"  {split.split}: {split.text}" for split in self.splits]
        return "\n".join(lines)


def verify(
    data_set: str | DataSet, path: str | Path | None = None, *, progress: Listener = silent
) -> Report:
    """Compare a folder with what the data set should be. Changes nothing, needs no network."""
    wanted = find(data_set)
    directory = data_path(wanted.name) if path is None else Path(path)
    with on_disk(directory):
        if not (directory / wanted.root).is_dir():
            remedy = f"run: comap data get {wanted.name}"
            if directory.name == wanted.root:
                remedy = f"give the folder that {wanted.root!r} is in: {directory.parent}"
            there = "no such folder"
            if directory.is_dir():
                names = sorted(path.name for path in directory.iterdir())
                there = f"{', '.join(map(repr, names)):.120}" or "an empty folder"
            raise DataNotFound(
                f"expected the data set {wanted.name!r} in {directory} (the folder "
                f"{wanted.root!r}), found {there}; {remedy}"
            )
        found = _survey(wanted, directory, progress)
    manifest = read_json(directory / MANIFEST)
    known = manifest.get("items") if isinstance(manifest, dict) else None
    known = known if isinstance(known, dict) else {}
    reports = tuple(_compare(split, found[split.name], known) for split in wanted.splits)
    return Report(wanted.name, directory, reports)


def fingerprint(items: Mapping[str, str]) -> str:
    """Return the SHA-256 of a split: of its lines "id SHA-256", sorted by id."""
    lines = "".join(f"{name} {items[name]}\n" for name in sorted(items))
    return hashlib.sha256(lines.encode()).hexdigest()


def _survey(data_set: DataSet, directory: Path, progress: Listener) -> dict[str, dict[str, str]]:
    """Return the items of each split that are in `directory`, each with its SHA-256."""
    found: dict[str, dict[str, str]] = {}
    total, done = sum(split.items for split in data_set.splits), 0
    for split in data_set.splits:
        items = found[split.name] = {}
        folder = directory / data_set.root / split.name
        for path in sorted(folder.glob(data_set.items)):
            name = (Path(split.name) / path.relative_to(folder).parent).as_posix()
            if any(word in name for word in data_set.skip) or not path.is_file():
                continue
            content = path.read_bytes()
            if data_set.marker.encode() in content:
                items[name] = hashlib.sha256(content).hexdigest()
                done += 1
                progress(Progress("checking", done, max(done, total)))
    progress(Progress("checking", done, done))
    return found


def _compare(split: Split, found: dict[str, str], listed: Mapping[str, str]) -> SplitReport:
    known = {name: value for name, value in listed.items() if name.split("/")[0] == split.name}
    if split.optional and not found:
        return SplitReport(split.name, True, "not there (optional)")
    names: dict[str, list[str]] = {}
    counts = {"missing": split.items - len(found), "extra": len(found) - split.items}
    if len(known) == split.items:
        names = {
            "missing": sorted(known.keys() - found.keys()),
            "extra": sorted(found.keys() - known.keys()),
            "changed": sorted(n for n in known.keys() & found.keys() if known[n] != found[n]),
        }
        counts = {word: len(some) for word, some in names.items()}
    content = "not known"
    if split.sha256 is not None:
        content = "matches" if fingerprint(found) == split.sha256 else "differs"
    wrong = [f"{count} {word}" for word, count in counts.items() if count > 0]
    text = ", ".join([f"{len(found)} of {split.items}", *wrong, f"content {content}"])
    for word, some in names.items():
        if some:
            more = f" and {len(some) - 1} more" if len(some) > 1 else ""
            text += f"\n    {word}: {some[0]}{more}"
    return SplitReport(split.name, not wrong and content != "differs", text)
