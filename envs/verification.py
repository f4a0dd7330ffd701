"""`verify`: whether a folder holds a data set, whole and unchanged.

The content of a split has one SHA-256, over its items' ids and their SHA-256s, so that it does not
depend on how the files were packed, in what order, or when.

Files that comap unpacked itself come with a manifest, which tells item by item what is missing,
extra or changed; for files from elsewhere only the numbers and the split's SHA-256 can tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import DataNotFound
from .datasets import DataSet, Split, find
from .storage import Listener, Progress, data_path, on_disk, read_json, silent

__all__ = ["MANIFEST", "Report", "SplitReport", "compare", "fingerprint", "survey", "verify"]

MANIFEST = ".comap-manifest.json"
"""Name of the file that says what was unpacked; it is written last, so where it is, all is."""

Items = dict[str, str]
"""SHA-256 of the content by the item's id."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What was found of one split.

    Attributes:
        split: Name of the split.
        found: Number of items in the folder.
        expected: Number of items there should be.
        missing: Items not there: by the manifest, else by the numbers.
        extra: Items there that should not be: by the manifest, else by the numbers.
        changed: Items with another content than the manifest tells; None without manifest.
        content: Whether the split's SHA-256 is the right one; "unknown" where none is known.
        optional: Whether the split may be absent.
        examples: A few ids of what is missing, extra or changed, where they are known.

    Example:
        >>> report = SplitReport("dev", found=1, expected=2, missing=1, extra=0, changed=None,
        ...                      content="differs")
        >>> print(report, report.ok)
        dev: 1 of 2, 1 missing, content differs False
    """

    split: str
    found: int
    expected: int
    missing: int
    extra: int
    changed: int | None
    content: Literal["matches", "differs", "unknown"]
    optional: bool = False
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against the split."""
        if self.optional and not self.found:
            return True
        return not (self.missing or self.extra or self.changed) and self.content != "differs"

    def __str__(self) -> str:
        if self.optional and not self.found:
            return f"{self.split}: not there (optional)"
        parts = [f"{self.found} of {self.expected}"]
        counts = {"missing": self.missing, "extra": self.extra, "changed": self.changed}
        parts += [f"{count} {word}" for word, count in counts.items() if count]
        parts.append(
            "content not known" if self.content == "unknown" else f"content {self.content}"
        )
        return f"{self.split}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found.

    Attributes:
        name: Name of the data set.
        directory: The folder that was looked at.
        splits: One report for each split.
        manifest: Whether comap unpacked the folder, and so knows each item.

    Example:
        >>> print(Report("toy", Path("data"), (), manifest=True))
        toy in data: as expected
    """

    name: str
    directory: Path
    splits: tuple[SplitReport, ...]
    manifest: bool

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against any split."""
        return all(split.ok for split in self.splits)

    def __str__(self) -> str:
        verdict = "as expected" if self.ok else "not as expected"
        lines = [f"{self.name} in {self.directory}: {verdict}"]
        for split in self.splits:
            lines.append(f"  {split}")
            lines += [f"    {example}" for example in split.examples]
        return "\n".join(lines)


def fingerprint(items: Mapping[str, str]) -> str:
    """Return the SHA-256 of a split: of its lines "id SHA-256", sorted by id.

    Example:
        >>> fingerprint({"dev/b": "2", "dev/a": "1"}) == fingerprint({"dev/a": "1", "dev/b": "2"})
        True
    """
    lines = "".join(f"{name} {items[name]}\n" for name in sorted(items))
    return hashlib.sha256(lines.encode()).hexdigest()


def verify(
    data_set: str | DataSet, path: str | Path | None = None, *, progress: Listener = silent
) -> Report:
    """Compare a folder with what the data set should be. Changes nothing, needs no network.

    Args:
        data_set: Its name, or a `DataSet`.
        path: The folder that holds the data set's root; by default where `get` puts it.
        progress: Told of the files read.

    Raises:
        DataNotFound: There is nothing to compare.

    Example:
        >>> verify("alfworld", "no/such/folder")
        Traceback (most recent call last):
        ...
        comap.errors.DataNotFound: expected the data set 'alfworld' in no/such/folder (the folder \
'json_2.1.1'), found no such folder; run: comap data get alfworld
    """
    wanted = find(data_set)
    directory = data_path(wanted.name) if path is None else Path(path)
    with on_disk(directory):
        if not (directory / wanted.root).is_dir():
            raise _not_found(wanted, directory)
        found = survey(wanted, directory, progress)
    return compare(wanted, directory, found, _recorded(wanted, directory))


def survey(data_set: DataSet, directory: Path, progress: Listener = silent) -> dict[str, Items]:
    """Return the items of each split that are in `directory`, each with its SHA-256.

    Example:
        >>> survey(find("alfworld"), Path("no/such/folder"))["valid_seen"]
        {}
    """
    found: dict[str, Items] = {}
    total = sum(split.items for split in data_set.splits)
    done = 0
    for split in data_set.splits:
        found[split.name] = {}
        for name, content in _items(data_set, split, directory):
            found[split.name][name] = hashlib.sha256(content).hexdigest()
            done += 1
            progress(Progress("checking", done, max(done, total)))
    progress(Progress("checking", done, done))
    return found


def compare(
    data_set: DataSet,
    directory: Path,
    found: Mapping[str, Items],
    known: Mapping[str, str] | None = None,
) -> Report:
    """Return what is to be said of the items `found`, given the manifest's items, if any.

    Example:
        >>> compare(find("alfworld"), Path("x"), {}).splits[1].ok
        True
    """
    reports = []
    for split in data_set.splits:
        mine = None
        if known is not None:
            mine = {
                name: value for name, value in known.items() if name.split("/")[0] == split.name
            }
        reports.append(_compare_split(split, found.get(split.name, {}), mine))
    return Report(data_set.name, directory, tuple(reports), known is not None)


def _recorded(data_set: DataSet, directory: Path) -> Items | None:
    """Return the items that the folder's manifest tells of, if it has one for this data set."""
    manifest = read_json(directory / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("name") != data_set.name:
        return None
    items = manifest.get("items")
    return items if isinstance(items, dict) else None


def _items(data_set: DataSet, split: Split, directory: Path) -> Iterator[tuple[str, bytes]]:
    folder = directory / data_set.root / split.name
    marker = data_set.marker.encode()
    for path in sorted(folder.glob(data_set.items)):
        name = (Path(split.name) / path.relative_to(folder).parent).as_posix()
        if any(word in name for word in data_set.skip) or not path.is_file():
            continue
        content = path.read_bytes()
        if marker in content:
            yield name, content


def _compare_split(split: Split, found: Items, known: Items | None) -> SplitReport:
    content: Literal["matches", "differs", "unknown"] = "unknown"
    if split.sha256 is not None:
        content = "matches" if fingerprint(found) == split.sha256 else "differs"
    if known is None or len(known) != split.items:
        missing, extra = max(0, split.items - len(found)), max(0, len(found) - split.items)
        return SplitReport(
            split.name, len(found), split.items, missing, extra, None, content, split.optional
        )
    gone = sorted(set(known) - set(found))
    new = sorted(set(found) - set(known))
    changed = sorted(name for name in set(known) & set(found) if known[name] != found[name])
    examples = [
        f"{word}: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        for word, names in (("missing", gone), ("extra", new), ("changed", changed))
        if names
    ]
    return SplitReport(
        split=split.name,
        found=len(found),
        expected=split.items,
        missing=len(gone),
        extra=len(new),
        changed=len(changed),
        content=content,
        optional=split.optional,
        examples=tuple(examples),
    )


def _not_found(data_set: DataSet, directory: Path) -> DataNotFound:
    there = "no such folder"
    if directory.is_dir():
        names = sorted(path.name for path in directory.iterdir())
        there = ", ".join(repr(name) for name in names[:4]) if names else "an empty folder"
        if len(names) > 4:
            there += f" and {len(names) - 4} more"
    remedy = f"run: comap data get {data_set.name}"
    if directory.name == data_set.root:
        remedy = f"give the folder that {data_set.root!r} is in: {directory.parent}"
    return DataNotFound(
        f"expected the data set {data_set.name!r} in {directory} (the folder {data_set.root!r}), "
        f"found {there}; {remedy}"
    )
