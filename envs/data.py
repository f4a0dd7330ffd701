"""Downloading a data set of the catalogue, and comparing it with what it should be.

pooch downloads, the standard library unpacks; what is checked here is the content, split by split or file
by file, since only that says whether an environment will play the benchmark's own tasks.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import (
    DataCorrupt,
    DataNotFound,
    DownloadError,
    OptionError,
    check_url,
)
from ..jsonl import sha256_of
from .datasets import DataFile, DataSet, Limits, Split, find
from .storage import (
    Listener,
    Progress,
    comap_home,
    data_path,
    locked,
    on_disk,
    read_json,
    replacing,
    silent,
    write_json,
)

MANIFEST = ".comap-manifest.json"
"""Name of the file with the SHA-256 of every item; it is written last, so where it is, all is."""

_RETRIES = 3  # of a download, some seconds apart
_CHUNK = 1 << 16  # bytes between two reports of progress
_LOCK_SECONDS = 3600.0  # to wait for another process that downloads the same
# What the standard library raises on broken archives; the last three where a file stands for a folder.
_BROKEN_ARCHIVE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    OverflowError,
    RuntimeError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)
_REMEDY = "check the address, or name another server with --mirror"


def is_installed(data_set: str | DataSet) -> bool:
    """Return whether `get` has put the data set in its place."""
    return isinstance(read_json(data_path(find(data_set).name) / MANIFEST), dict)


def get(
    data_set: str | DataSet,
    *,
    release: str | None = None,
    mirror: str | None = None,
    force: bool = False,
    allow_changed: bool = False,
    timeout: float = 30.0,
    progress: Listener = silent,
) -> Path:
    """Download a data set unless it is there already, and return its folder.

    `release` names another one than the catalogue's, such as ``json_2.1.3`` of ALFWorld. `mirror` is the
    address of a folder that has the archive; `timeout` are the seconds without a byte after which a
    connection counts as cut; `allow_changed` accepts other content than the catalogue's.
    """
    data_set = find(data_set).of_release(release)
    if mirror is not None:
        check_url("mirror", mirror, "https://host/folder")
    if not timeout > 0:
        raise OptionError(f"expected a timeout above 0, found {timeout}; give it in seconds")
    if data_set.files:
        return _get_files(data_set, mirror, force, allow_changed, timeout, progress)
    if not data_set.url and data_set.steps:
        steps = "\n  ".join(data_set.steps)
        raise OptionError(
            f"{data_set.name} is at no address that could be downloaded by one command; its steps:\n"
            f"  {steps}"
        )

    check_url("the archive's address", data_set.url, "https://host/file")
    server, _, file_name = data_set.url.rpartition("/")
    if mirror is not None:
        server = mirror.rstrip("/")

    target = data_path(data_set.name)
    with on_disk(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)

    lock = target.with_name(f".{data_set.name}.lock")
    with locked(lock, wait=_LOCK_SECONDS, progress=progress):
        _clean(target)
        if not force and _is_there(data_set, target):
            return target
        with on_disk(target), replacing(target) as draft:
            archive = draft.with_name("archive")
            url = f"{server}/{file_name}"
            _download(url, archive, data_set.limits.download_bytes, timeout, progress)
            digest = _digest(data_set.name, url, archive, data_set.sha256)
            origin = {"url": url, "sha256": digest}

            unpack(archive, draft, data_set.limits, progress)
            items = _checked_items(data_set, draft, server, allow_changed, progress)
            manifest = {"name": data_set.name, "archive": origin, "items": items}
            if data_set.release:
                manifest["release"] = data_set.release
            write_json(draft / MANIFEST, manifest)
    return target


def _clean(target: Path) -> None:
    """Remove drafts of killed runs; the data set that one was about to replace comes back."""
    with on_disk(target):
        for draft in target.parent.glob(f".{target.name}-????????"):
            if (draft / "old").exists() and not os.path.lexists(target):
                (draft / "old").rename(target)
            shutil.rmtree(draft)


def _is_there(data_set: DataSet, target: Path) -> bool:
    """Return whether the data set is in its place; anything else there is an error."""
    if is_installed(data_set):
        installed = (read_json(target / MANIFEST) or {}).get("release", data_set.release)
        if installed == data_set.release or not data_set.release:
            return True
        raise OptionError(
            f"expected {data_set.release} of {data_set.name!r} in {target}, found {installed}; replace it "
            f"by: comap data get {data_set.name} --release {data_set.release} --force"
        )
    with on_disk(target):
        if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
            return False
    if data_set.splits and data_set.split_folder(target).is_dir() and verify(data_set).ok:
        return True
    raise DataCorrupt(
        f"expected the data set {data_set.name!r} or nothing in {target}, found other files, which "
        f"comap did not put there; move them away, or replace them by: "
        f"comap data get {data_set.name} --force"
    )


# -- downloading and unpacking -------------------------------------------------------------------


class _ProgressBar:
    """A progress bar, as pooch writes to one; a download that grows too large is ended here."""

    def __init__(self, url: str, most: int, progress: Listener, stage: str):
        self._url = url
        self._stage = stage
        self._most = most
        self._progress = progress
        self._done = 0
        self._total = 0

    @property
    def total(self) -> int:
        """How many bytes the server has announced; 0 where it has not."""
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        self._done = 0  # each attempt begins with its total
        self.update(0)

    def update(self, size: int) -> None:
        self._done += size
        # A DownloadError, as pooch tries again after a ValueError, which DataCorrupt is.
        if max(self._total, self._done - _CHUNK) > self._most:
            raise DownloadError(f"expected at most {self._most} bytes at {self._url}; {_REMEDY}")
        bytes_read = min(self._done, self._total) if self._total else self._done
        self._progress(Progress(self._stage, bytes_read, self._total or None))

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def _download(
    url: str,
    archive: Path,
    most: int,
    timeout: float,
    progress: Listener,
    stage: str = "downloading",
) -> None:
    """Download a file of at most so many bytes; pooch tries several times if need be."""
    import pooch  # type: ignore[import-untyped]
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")  # progress is told otherwise
    server = pooch.create(
        path=archive.parent,
        base_url="",
        registry={archive.name: None},  # `_digest` tells what was found
        urls={archive.name: url},
        retry_if_failed=_RETRIES,
    )
    bar = _ProgressBar(url, most, progress, stage)
    downloader = pooch.HTTPDownloader(
        progressbar=bar,
        timeout=timeout,
        chunk_size=_CHUNK,
        hooks={"response": _refuse_downgrade},  # requests calls it at each redirect
    )
    try:
        server.fetch(archive.name, downloader=downloader)
    except RequestException as error:
        raise DownloadError(f"expected the file at {url}, found: {error}; {_REMEDY}") from error
    except ValueError as error:  # a redirect to what is no address
        raise DownloadError(
            f"expected the file at {url}, found: {error!r:.300}; {_REMEDY}"
        ) from error


def _digest(name: str, url: str, archive: Path, expected: str | None) -> str:
    """Return a file's SHA-256; refuse another one than the catalogue's, where that has one."""
    digest = sha256_of(archive)
    if expected not in (None, digest):
        raise DataCorrupt(
            f"expected SHA-256 {expected} of {url}, found {digest}; the file was removed: "
            f"run comap data get {name} again, or name another server with --mirror"
        )
    return digest


def _get_files(
    data_set: DataSet,
    mirror: str | None,
    force: bool,
    allow_changed: bool,
    timeout: float,
    progress: Listener,
) -> Path:
    """Download those files of a data set that are not there; return the folder that they are in.

    Each file takes its place once it is whole and right, so that a broken download goes on with the next
    file, and other files in the folder stay.
    """
    folder = data_path(data_set.folder or data_set.name)
    home = comap_home()
    with on_disk(home):
        home.mkdir(parents=True, exist_ok=True)
    with locked(home / f".{data_set.name}.lock", wait=_LOCK_SECONDS, progress=progress):
        missing = [file for file in data_set.files if force or _is_missing(data_set, file, folder)]
        for file in missing:
            check_url("the file's address", file.url, "https://host/file")
            url = file.url
            if mirror is not None:
                url = f"{mirror.rstrip('/')}/{file.url.rpartition('/')[2]}"
            target = folder / file.path
            with on_disk(target), tempfile.TemporaryDirectory(prefix=".get-", dir=home) as draft:
                download = Path(draft, "file")
                most = file.size or data_set.limits.download_bytes
                _download(url, download, most, timeout, progress, f"downloading {target.name}")
                if not allow_changed:
                    _digest(data_set.name, url, download, file.sha256)
                    _check_records(data_set, file, url, download)
                target.parent.mkdir(parents=True, exist_ok=True)
                download.replace(target)
    return folder


def _is_missing(data_set: DataSet, file: DataFile, folder: Path) -> bool:
    """Return whether a file is not there; another one in its place is an error."""
    path = folder / file.path
    if not os.path.lexists(path):
        return True
    if problem := file_problem(file, path):
        raise DataCorrupt(
            f"expected {file.path} of {data_set.name!r} or nothing in {folder}, found {problem}; move it "
            f"away, or replace all files by: comap data get {data_set.name} --force"
        )
    return False


def _check_records(data_set: DataSet, file: DataFile, url: str, download: Path) -> None:
    """Refuse a file with another number of records than was published."""
    if problem := file_problem(file, download):
        raise DataCorrupt(
            f"expected {file.path} of {data_set.name!r} at {url}, found {problem}; the file was removed: "
            "name another server with --mirror, or take it so with --allow-changed"
        )


def file_problem(file: DataFile, path: Path) -> str:
    """Return in words what is wrong with a file that is to be one of a data set; empty if nothing is."""
    with on_disk(path):
        if not path.is_file():
            return "no file"
        size = path.stat().st_size
        if file.size is not None and size != file.size:
            return f"{size:,} bytes, not {file.size:,}"
        if file.sha256 is not None and (digest := sha256_of(path)) != file.sha256:
            return f"SHA-256 {digest}, not {file.sha256}"
        if file.records is None:
            return ""
        number = _records_in(path)
    return "" if number == file.records else f"{number:,} records, not {file.records:,}"


def _records_in(path: Path) -> int:
    """Return how many records a file has: the members of its JSON list, or its lines."""
    with path.open("rb") as file:
        is_list = file.read(64).lstrip()[:1] == b"["
        file.seek(0)
        if not is_list:
            return sum(bool(line.strip()) for line in file)
        try:
            content = json.load(file)
        except (ValueError, RecursionError):
            return 0
    return len(content) if isinstance(content, list) else 0


def _refuse_downgrade(response: Any, **_: Any) -> None:
    target = response.headers.get("location", "")
    if response.is_redirect and response.url.startswith("https:") and target.startswith("http:"):
        raise DownloadError(
            f"expected {response.url} to lead to an address no less safe, found a redirect to "
            f"{target}; {_REMEDY}"
        )


def unpack(archive: Path, folder: Path, limits: Limits, progress: Listener = silent) -> None:
    """Unpack a zip archive into a new or empty folder.

    `zipfile` keeps every name within the folder, makes no links, and reads no more of an entry than
    the size that it announces, so that the sum of those is what will be written at most.

    Raises:
        DataCorrupt: It is none, is broken, or exceeds the limits.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            size = sum(entry.file_size for entry in entries)
            if len(entries) > limits.entries or size > limits.unpacked_bytes:
                raise DataCorrupt(
                    f"expected at most {limits.entries} entries and {limits.unpacked_bytes} bytes in "
                    f"the archive, found {len(entries)} and {size}; {_REMEDY}"
                )
            for number, entry in enumerate(entries, 1):
                opened.extract(entry, folder)
                progress(Progress("unpacking", number, len(entries)))
    except DataCorrupt:
        raise
    except _BROKEN_ARCHIVE as error:
        raise DataCorrupt(
            f"expected a whole zip archive, found one that cannot be read "
            f"({type(error).__name__}: {error}); {_REMEDY}"
        ) from error


def _checked_items(
    data_set: DataSet, folder: Path, server: str, allow_changed: bool, progress: Listener
) -> dict[str, str]:
    """Return the SHA-256 of every item; refuse other content than the catalogue's."""
    items_of_split = _survey(data_set, folder, progress)

    # Without a manifest: there is none before the data set is whole.
    reports = [_compare(split, items_of_split[split.name], {}) for split in data_set.splits]
    wrong = [f"{report.split}: {report.text}" for report in reports if not report.ok]
    if wrong and not allow_changed:
        raise DataCorrupt(
            f"expected the data set {data_set.name!r} from {server}, found other content "
            f"({'; '.join(wrong)}); name another server with --mirror, or take it so with "
            "--allow-changed"
        )

    items: dict[str, str] = {}
    for split_items in items_of_split.values():
        items |= split_items
    return items


# -- verifying -----------------------------------------------------------------------------------


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
    data_set = find(data_set)
    directory = data_path(data_set.name) if path is None else Path(path)
    with on_disk(directory):
        if not data_set.split_folder(directory).is_dir():
            raise DataNotFound(_not_found(data_set, directory))
        items_of_split = _survey(data_set, directory, progress)

    # A folder that was filled by other means has none: then numbers and fingerprints decide.
    manifest = read_json(directory / MANIFEST)
    if isinstance(manifest, dict) and manifest.get("release") in data_set.other_releases:
        data_set = data_set.of_release(manifest["release"])
    listed = manifest.get("items") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict):
        listed = {}
    reports = [_compare(split, items_of_split[split.name], listed) for split in data_set.splits]
    return Report(data_set.name, directory, tuple(reports))


def _not_found(data_set: DataSet, directory: Path) -> str:
    """Return what was expected in a folder, what is there, and what to do."""
    remedy = f"run: comap data get {data_set.name}"
    if directory.name in (data_set.root, *data_set.other_roots):
        remedy = f"give the folder that {directory.name!r} is in: {directory.parent}"

    content = "no such folder"
    if directory.is_dir():
        names = sorted(path.name for path in directory.iterdir())
        content = f"{', '.join(map(repr, names)):.120}" or "an empty folder"
    return (
        f"expected the data set {data_set.name!r} in {directory} (the folder {data_set.root!r}), "
        f"found {content}; {remedy}"
    )


def fingerprint(items: Mapping[str, str]) -> str:
    """Return the SHA-256 of a split: of its lines "id SHA-256", sorted by id."""
    lines = "".join(f"{name} {items[name]}\n" for name in sorted(items))
    return hashlib.sha256(lines.encode()).hexdigest()


def _survey(data_set: DataSet, directory: Path, progress: Listener) -> dict[str, dict[str, str]]:
    """Return the items of each split that are in `directory`, each with its SHA-256."""
    items_of_split: dict[str, dict[str, str]] = {}
    total = sum(split.items for split in data_set.splits)
    item_count = 0

    for split in data_set.splits:
        items = items_of_split[split.name] = {}
        folder = data_set.split_folder(directory) / split.name
        for path in sorted(folder.glob(data_set.items)):
            name = (Path(split.name) / path.relative_to(folder).parent).as_posix()
            if any(word in name for word in data_set.skip) or not path.is_file():
                continue
            content = path.read_bytes()
            if data_set.marker.encode() in content:
                items[name] = hashlib.sha256(content).hexdigest()
                item_count += 1
                # There may be more than expected, but never more than "all".
                progress(Progress("checking", item_count, max(item_count, total)))

    progress(Progress("checking", item_count, item_count))
    return items_of_split


def _compare(split: Split, items: Mapping[str, str], listed: Mapping[str, str]) -> SplitReport:
    """Return how a split's items differ from what its number, its fingerprint and a manifest say."""
    if split.optional and not items:
        return SplitReport(split.name, True, "not there (optional)")

    # Without a manifest of this split, only numbers are known.
    counts = {"missing": split.items - len(items), "extra": len(items) - split.items}
    names: dict[str, list[str]] = {}
    listed_items = {name: sha for name, sha in listed.items() if name.split("/")[0] == split.name}
    if len(listed_items) == split.items:
        in_both = listed_items.keys() & items.keys()
        names = {
            "missing": sorted(listed_items.keys() - items.keys()),
            "extra": sorted(items.keys() - listed_items.keys()),
            "changed": sorted(name for name in in_both if listed_items[name] != items[name]),
        }
        counts = {difference: len(differing) for difference, differing in names.items()}

    content = "not known"
    if split.sha256 is not None:
        content = "matches" if fingerprint(items) == split.sha256 else "differs"
    wrong = [f"{count} {difference}" for difference, count in counts.items() if count > 0]
    text = ", ".join([f"{len(items)} of {split.items}", *wrong, f"content {content}"])
    for difference, differing in names.items():
        if differing:
            rest = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            text += f"\n    {difference}: {differing[0]}{rest}"
    return SplitReport(split.name, not wrong and content != "differs", text)
