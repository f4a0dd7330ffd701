"""The data sets that comap can download: what they are, where they are, and what is in them."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ..errors import OptionError, suggest

__all__ = ["DataSet", "Limits", "Split", "catalogue", "find"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may not exceed, so that a wrong or hostile one cannot fill the disk.

    Example:
        >>> Limits(download_bytes=10, entries=2, unpacked_bytes=100).entries
        2
    """

    download_bytes: int
    """Size of the archive."""

    entries: int
    """Number of files and folders in it."""

    unpacked_bytes: int
    """Size of all its files together."""


@dataclass(frozen=True, slots=True)
class Split:
    """What one split of a data set holds.

    Example:
        >>> find("alfworld").splits[1]
        Split(name='valid_train', items=200, sha256=None, optional=True)
    """

    name: str
    """Name of the split, and of its folder."""

    items: int
    """How many items (games, say) it has."""

    sha256: str | None
    """`verification.fingerprint` of the items, where it is known."""

    optional: bool = False
    """Whether the data set is whole without this split."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set of the catalogue.

    Example:
        >>> find("alfworld").root
        'json_2.1.1'
    """

    name: str
    """Name of the data set, and of its folder in `COMAP_HOME`."""

    title: str
    """What it is, for people."""

    url: str
    """Address of the archive."""

    limits: Limits
    """What the archive may not exceed."""

    sha256: str | None = None
    """SHA-256 of the archive, where it is known."""

    size: str = ""
    """How large it is, for people."""

    licence: str = ""
    """Under what licence its owners publish it."""

    homepage: str = ""
    """Where to read about it."""

    root: str = "."
    """The folder in the archive that holds one folder for each split."""

    items: str = "*"
    """Glob pattern of the items in a split's folder. An item's id is the split and its folder."""

    skip: tuple[str, ...] = ()
    """Items whose id contains one of these do not count."""

    marker: str = ""
    """Items whose content does not contain this do not count."""

    splits: tuple[Split, ...] = ()
    """The splits, if the data set has them; its content is verified split by split."""

    @property
    def file_name(self) -> str:
        """Name of the archive's file: the last part of its address."""
        return self.url.rsplit("/", 1)[-1]


@functools.cache
def catalogue() -> dict[str, DataSet]:
    """Return the data sets by name.

    Example:
        >>> "alfworld" in catalogue()
        True
    """
    text = resources.files(__package__).joinpath("data/datasets.json").read_text(encoding="utf-8")
    return {name: _data_set(name, entry) for name, entry in json.loads(text).items()}


def find(data_set: str | DataSet) -> DataSet:
    """Return the data set of this name; a `DataSet` stands for itself.

    Raises:
        OptionError: The catalogue has no such name.

    Example:
        >>> find("alfword")
        Traceback (most recent call last):
        ...
        comap.errors.OptionError: expected the name of a data set, found 'alfword'; did you mean \
'alfworld'? (all: comap data list)
    """
    if isinstance(data_set, DataSet):
        return data_set
    known = catalogue()
    if data_set not in known:
        raise OptionError(
            f"expected the name of a data set, found {data_set!r}; "
            f"{suggest(data_set, known)} (all: comap data list)"
        )
    return known[data_set]


def _data_set(name: str, entry: dict[str, Any]) -> DataSet:
    fields = dict(entry)
    return DataSet(
        name=name,
        limits=Limits(**fields.pop("limits")),
        skip=tuple(fields.pop("skip")),
        splits=tuple(Split(split, **rest) for split, rest in fields.pop("splits").items()),
        **fields,
    )
