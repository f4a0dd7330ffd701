"""The data sets that comap downloads: the catalogue, `get` and `verify`.

pooch downloads, the standard library unpacks; what is checked here is the content, split by split, since
only that says whether an environment will play the benchmark's own tasks.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import (
    DataCorrupt,
    DataNotFound,
    DownloadError,
    OptionError,
    check_choice,
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


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may not exceed, so that a wrong or hostile one cannot fill the disk."""

    download_bytes: int
    entries: int
    unpacked_bytes: int


@dataclass(frozen=True, slots=True)
class Split:
    """What one split of a data set holds: `fingerprint` of its items as SHA-256, where known."""

    name: str
    items: int
    sha256: str | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set of the catalogue: a zip archive, and in its folder `root` a folder for each split.

    Of `other_releases`, which have the same tasks, only the address is known, not the content.
    """

    name: str
    title: str
    url: str
    limits: Limits
    sha256: str | None = None
    size: str = ""
    license: str = ""
    homepage: str = ""
    root: str = "."
    other_roots: tuple[str, ...] = ()  # what other releases may call that folder
    release: str = ""
    other_releases: Mapping[str, str] = field(default_factory=dict)
    items: str = "*"  # glob pattern of the items in a split's folder
    skip: tuple[str, ...] = ()  # items whose id contains one of these do not count
    marker: str = ""  # nor do those whose content does not contain this
    splits: tuple[Split, ...] = ()

    def folder(self, directory: Path) -> Path:
        """Return the folder of the splits in a directory, under the name that it has there."""
        roots = [directory / name for name in (self.root, *self.other_roots)]
        return next((root for root in roots if root.is_dir()), roots[0])

    def of_release(self, release: str | None) -> DataSet:
        """Return this data set as a release has it; None for the one whose content is known."""
        if release in (None, self.release):
            return self
        check_choice("release", release, [self.release, *self.other_releases])
        splits = tuple(replace(split, sha256=None) for split in self.splits)
        url = self.other_releases[str(release)]
        return replace(self, url=url, sha256=None, splits=splits, release=str(release))


@functools.cache
def catalogue() -> dict[str, DataSet]:
    data_sets = {}
    for name, entry in packaged(__package__, "datasets").items():
        splits = tuple(Split(split, **rest) for split, rest in entry["splits"].items())
        parts = {
            "limits": Limits(**entry["limits"]),
            "skip": tuple(entry["skip"]),
            "other_roots": tuple(entry["other_roots"]),
            "splits": splits,
        }
        data_sets[name] = DataSet(name=name, **entry | parts)
    return data_sets


def find(data_set: str | DataSet) -> DataSet:
    if isinstance(data_set, DataSet):
        return data_set
    data_sets = catalogue()
    if data_set not in data_sets:
        raise OptionError(
            f"expected the name of a data set to download, found {data_set!r}; "
            f"{suggest(data_set, data_sets)} "
            "(all: comap data list; webshop, searchqa: comap data build)"
        )
    return data_sets[data_set]


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
    check_url("the archive's address", data_set.url, "https://host/file")
    server, _, file_name = data_set.url.rpartition("/")
    if mirror is not None:
        check_url("mirror", mirror, "https://host/folder")
        server = mirror.rstrip("/")
    if not timeout > 0:
        raise OptionError(f"expected a timeout above 0, found {timeout}; give it in seconds")

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
            _download(data_set, url, archive, timeout, progress)
            origin = {"url": url, "sha256": _digest(data_set, url, archive)}

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
    if data_set.splits and data_set.folder(target).is_dir() and verify(data_set).ok:
        return True
    raise DataCorrupt(
        f"expected the data set {data_set.name!r} or nothing in {target}, found other files, which "
        f"comap did not put there; move them away, or replace them by: "
        f"comap data get {data_set.name} --force"
    )


# -- downloading and unpacking -------------------------------------------------------------------


class _ProgressBar:
    """A progress bar, as pooch writes to one; a download that grows too large is ended here."""

    def __init__(self, url: str, most: int, progress: Listener):
        self._url = url
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
        self._progress(Progress("downloading", bytes_read, self._total or None))

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def _download(
    data_set: DataSet, url: str, archive: Path, timeout: float, progress: Listener
) -> None:
    """Download the archive; pooch tries several times if need be."""
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
    bar = _ProgressBar(url, data_set.limits.download_bytes, progress)
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


def _digest(data_set: DataSet, url: str, archive: Path) -> str:
    """Return the archive's SHA-256; refuse another one than the catalogue's, where that has one."""
    digest = sha256_of(archive)
    if data_set.sha256 not in (None, digest):
        raise DataCorrupt(
            f"expected SHA-256 {data_set.sha256} of {url}, found {digest}; the file was removed: "
            f"run comap data get {data_set.name} again, or name another server with --mirror"
        )
    return digest


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
        if not data_set.folder(directory).is_dir():
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
        folder = data_set.folder(directory) / split.name
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
