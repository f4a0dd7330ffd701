"""`Catalog`: a catalogue on disk, read where it lies."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ...errors import CoMapError, DataCorrupt, DataNotFound, TaskNotFound
from ..storage import QUICK, changed_file
from .build import FORMAT, MANIFEST
from .products import Goal, Product, synthetic_goal
from .search import SearchIndex, Texts, load_array

KINDS = ("synthetic", "human")
Answer = TypeVar("Answer")
Card = tuple[str, str, str]
"""What a page of results shows of a product: ASIN, title, price tag."""

# Weak, so that a catalogue goes when nobody uses it. With the manifest's time, so that one that was
# built anew is another.
_OPEN: WeakValueDictionary[tuple[str, int], Catalog] = WeakValueDictionary()


def _checked(read: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return a method of `Catalog` that raises `DataCorrupt` where files are broken."""

    @wraps(read)
    def reading(self: Catalog, *arguments: Any, **options: Any) -> Answer:
        try:
            return read(self, *arguments, **options)
        except (ValueError, LookupError, TypeError, ArithmeticError, MemoryError) as error:
            # Some of comap's own errors are ValueErrors or LookupErrors as well.
            if isinstance(error, CoMapError):
                raise
            problem = f"expected whole files, found {type(error).__name__}: {error}"
            raise _corrupt(self.folder, problem) from error

    return reading


class Catalog:
    """Products, search and goals of one catalogue.

    But for a small search index nothing is read before it is asked for, and what is read is mapped
    into memory, so that all processes of a machine share it. Make one with `open`.

    Attributes:
        folder: Where it lies.
        manifest: Its figures, the seed, the noun rule, and the SHA-256 of its contents.
        index: Its search, which remembers no answers.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.manifest = manifest
        self._products = Texts(folder, "products")
        self._cards = Texts(folder, "cards")
        self._asins = load_array(folder, "asins")
        self._order = load_array(folder, "order")
        self._goal_rows = load_array(folder, "goal_rows")
        self._goal_starts = load_array(folder, "goal_starts")
        self._human = Texts(folder, "human")
        self.index = SearchIndex(folder, manifest["documents"], load_array(folder, "ranks"))
        self._labels: dict[str, tuple[dict[str, int], npt.NDArray[Any]]] = {}

        # The caches hold no reference to the catalogue: it goes when nobody uses it any more.
        products = self._products
        cards = self._cards
        index = self.index
        self._product = lru_cache(512)(lambda row: Product.from_json(products[row]))
        self._card = lru_cache(4096)(lambda row: cards[row].split("\n", 2))
        self._rows_found = lru_cache(1024)(lambda query, k: index.search(query, k))

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Catalog:
        """Open a catalogue that `build_catalog` made; once in a process.

        The files of a small one (64 MiB) are compared with their SHA-256; those of a large one are as
        they are (`comap data verify webshop` compares all).

        Args:
            directory: Its folder.

        Raises:
            DataNotFound: There is no catalogue.
            DataCorrupt: It is of another format, or broken.

        Example:
            >>> from comap.envs.webshop.generate import embedded_catalog
            >>> len(embedded_catalog().search("red shoes", k=3))
            3
        """
        folder = Path(directory).absolute()
        try:
            path = folder / MANIFEST
            key = (str(folder), path.stat().st_mtime_ns)
            already_open = _OPEN.get(key)
            if already_open is not None:
                return already_open
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataNotFound(
                f"expected a WebShop catalogue in {folder}, found no {MANIFEST}; "
                "run: comap data build webshop SOURCE"
            ) from error
        except (ValueError, RecursionError) as error:
            raise _corrupt(folder, f"expected JSON in {MANIFEST}, found: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            number = manifest.get("format") if isinstance(manifest, dict) else None
            raise _corrupt(folder, f"expected format {FORMAT}, found {number!r}")

        check_files(folder, manifest, most=QUICK)
        try:
            catalog = _OPEN[key] = cls(folder, manifest)
        except KeyError as error:
            raise _corrupt(folder, f"expected {error} in {MANIFEST}") from error
        except CoMapError:
            raise
        except (ValueError, IndexError, TypeError, ArithmeticError, MemoryError) as error:
            raise _corrupt(folder, f"expected whole files, found {error}") from error
        return catalog

    def __len__(self) -> int:
        return len(self._products)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the same files.
        return Catalog.open, (str(self.folder),)

    def search(self, query: str, k: int = 50) -> list[str]:
        """Return the ASINs of the best `k` products, best first, as Lucene would."""
        return [self.asin(row) for row in self.search_rows(query, k)]

    @_checked
    def search_rows(self, query: str, k: int = 50) -> list[int]:
        """Return the rows of the best `k` products, best first."""
        return list(self._rows_found(query, k))  # a copy: callers may change what they get

    @_checked
    def rows_with(self, label: str, value: str) -> list[int]:
        """Return the rows of all products whose label (``"queries"``, ``"categories"``) is this text."""
        if label not in self._labels:
            names = json.loads((self.folder / f"{label}.json").read_text(encoding="utf-8"))
            numbers = {name: number for number, name in enumerate(names)}
            self._labels[label] = (numbers, load_array(self.folder, label))

        numbers, labelled = self._labels[label]
        # No label has the number -1.
        rows: list[int] = np.flatnonzero(labelled == numbers.get(value, -1)).tolist()
        return rows

    @_checked
    def product(self, row: int) -> Product:
        """Return a product."""
        return self._product(row)

    @_checked
    def card(self, row: int) -> Card:
        """Return what results show of a product."""
        # The title is last in the file, since it alone may have line ends in it.
        asin, tag, title = self._card(row)
        return asin, title, tag

    def asin(self, row: int) -> str:
        """Return a product's ASIN."""
        return self.card(row)[0]

    @_checked
    def row(self, asin: str) -> int | None:
        """Return a product's row, or None where there is none."""
        encoded = asin.encode("utf-8", "surrogatepass")

        # A longer one would be cut to the array's width, and might meet another.
        if not len(self._asins) or len(encoded) > self._asins.itemsize:
            return None

        key = np.array([encoded], self._asins.dtype)
        position = int(np.searchsorted(self._asins, key, sorter=self._order)[0])
        if position == len(self._asins) or self._asins[self._order[position]] != encoded:
            return None
        return int(self._order[position])

    @_checked
    def goal(self, kind: str, index: int) -> Goal:
        """Return a goal by its index in the order of the catalogue."""
        if kind not in KINDS or not 0 <= index < self.goals(kind):
            raise TaskNotFound(
                f"expected a goal 'synthetic/0' to 'synthetic/{self.goals('synthetic') - 1}' or "
                f"'human/0' to 'human/{self.goals('human') - 1}', found '{kind}/{index}'"
            )

        if kind == "human":
            row, text, attributes, values, cap = json.loads(self._human[index])
            options = tuple(("", value) for value in values)
            return Goal(kind, index, self.asin(row), text, tuple(attributes), options, cap)

        # The last product whose first goal is not behind this one.
        position = int(np.searchsorted(self._goal_starts, index, side="right")) - 1
        product = self.product(int(self._goal_rows[position]))
        number = index - int(self._goal_starts[position])

        # WebShop's weight: the mean of 1 / (goals that ask for the attribute).
        shares = [1 / self._attribute_counts[attribute] for attribute in product.wanted]
        return synthetic_goal(product, index, number, sum(shares) / len(shares))

    def goals(self, kind: str) -> int:
        """Return how many goals of a kind there are."""
        if kind != "synthetic":
            return len(self._human)
        number = int(self._goal_starts[-1])
        if number < 0:
            raise _corrupt(self.folder, f"expected a number of goals, found {number}")
        return number

    @_checked
    def goal_products(self, kind: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the rows of the products with goals, each one's first goal, and all goals' number."""
        if kind == "synthetic":
            return self._goal_rows, self._goal_starts
        rows = load_array(self.folder, "human_rows")
        # Each of people's goals counts by itself, whatever its product.
        return rows, np.arange(len(rows) + 1)

    @cached_property
    def _attribute_counts(self) -> dict[str, int]:
        """How many goals ask for each attribute."""
        counts: dict[str, int] = json.loads((self.folder / "attributes.json").read_text("utf-8"))
        return counts


def check_files(folder: Path, manifest: Mapping[str, Any], *, most: float = math.inf) -> None:
    """Compare a catalogue's files with their SHA-256, where it has some."""
    if wrong := changed_file(folder, manifest.get("digests", {}), most=most):
        raise _corrupt(folder, wrong)


def _corrupt(folder: Path, problem: str) -> DataCorrupt:
    return DataCorrupt(
        f"{folder}: {problem}; build the catalogue again: comap data build webshop SOURCE"
    )
