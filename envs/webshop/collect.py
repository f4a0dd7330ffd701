"""What `build_catalog` collects on its way through the products."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import DataCorrupt
from ..storage import Listener, Progress, write_json
from .goals import combinations, draw_cap, legacy_order, price_clause
from .json_stream import Told, items
from .products import Product
from .texts import Texts, TextWriter, save_array

__all__ = ["LONGEST_ASIN", "Asins", "File", "GoalList", "Labels", "Notes", "reading"]

LONGEST_ASIN = 10
"""Products with a longer one are left out, as in WebShop."""

File = str | os.PathLike[str]
"""A file's path."""

_Item = TypeVar("_Item")


def reading(
    path: Path, read: Callable[[Path, Told], Iterator[_Item]], progress: Listener
) -> Iterator[_Item]:
    """Yield what `read` yields of a file, and tell the progress."""
    total = path.stat().st_size if path.is_file() else None
    yield from read(path, lambda done: progress(Progress(f"reading {path.name}", done, total)))


class Asins:
    """Collects ASINs, in few bytes each."""

    def __init__(self) -> None:
        self._full: list[npt.NDArray[np.bytes_]] = []
        self._last: list[bytes] = []
        self._count = 0

    def add(self, asin: str) -> int:
        """Add an ASIN and return its number."""
        self._last.append(asin.encode("utf-8", "surrogatepass"))
        if len(self._last) == 1 << 16:
            self._full.append(np.array(self._last))
            self._last = []
        self._count += 1
        return self._count - 1

    def sorted(self) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.uint32]]:
        """Return the ASINs, and their numbers in the order of the ASINs."""
        last = np.array(self._last, None if self._last else "S1")
        asins = np.concatenate([*self._full, last])
        return asins, np.argsort(asins, kind="stable").astype(np.uint32)


class Labels:
    """Collects texts of which many are equal."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._of: list[int] = []

    def add(self, label: str) -> None:
        """Add the next product's text."""
        self._of.append(self._numbers.setdefault(label, len(self._numbers)))

    def write(self, folder: Path, name: str) -> None:
        """Write the texts, and of each product the number of its text."""
        save_array(folder, name, np.array(self._of, np.uint32))
        write_json(folder / f"{name}.json", list(self._numbers))


class Notes:
    """The entries of a JSON object by ASIN, kept on disk; none for no file."""

    def __init__(self, folder: Path, name: str, source: File | None, progress: Listener):
        self._folder, self._name = folder, name
        asins = Asins()
        with TextWriter(folder, name) as writer:
            for asin, entry in reading(Path(source), items, progress) if source else ():
                if len(asin) <= LONGEST_ASIN:
                    writer.add(json.dumps(entry))
                    asins.add(asin)
        self._keys, self._order = asins.sorted()
        self._texts = Texts(folder, name)

    def of(self, asin: str) -> Any:
        """Return the last entry for an ASIN, or None."""
        sought = asin.encode("utf-8", "surrogatepass")
        if len(sought) > self._keys.itemsize:
            return None
        key = np.array([sought], self._keys.dtype)
        at = int(np.searchsorted(self._keys, key, side="right", sorter=self._order)[0]) - 1
        if at < 0 or self._keys[self._order[at]] != sought:
            return None
        return json.loads(self._texts[int(self._order[at])])

    def close(self) -> None:
        """Remove what was kept."""
        for suffix in ("bin", "npy"):
            (self._folder / f"{self._name}.{suffix}").unlink()


class GoalList:
    """Collects which products give goals, and the human goals.

    Attributes:
        count: Number of synthetic goals.
    """

    def __init__(self) -> None:
        self.count = 0
        self._rows: list[int] = []
        self._starts: list[int] = []
        self._attributes: Counter[str] = Counter()
        self._human: list[tuple[int, dict[str, Any]]] = []

    def add(self, row: int, product: Product, told: Any) -> None:
        """Add a product's goals: one for each choice of its options, and those that people told."""
        number = combinations(product)
        if number:
            self._rows.append(row)
            self._starts.append(self.count)
            self.count += number
            for attribute in product.wanted:
                self._attributes[attribute] += number
        for entry in told if isinstance(told, list) else [] if told is None else [told]:
            if not _is_told(entry):
                raise DataCorrupt(
                    f"expected human instructions for product {product.asin}, with attributes and "
                    f"a list of options, found {entry!r:.120}; get items_human_ins.json again"
                )
            if entry["instruction_attributes"]:
                self._human.append((row, entry))

    def write(
        self, folder: Path, prices: Sequence[float], caps: Mapping[int, float], seed: int
    ) -> list[str]:
        """Write all goals; return the human ones as lines of JSON.

        Args:
            folder: Where to.
            prices: What each product costs.
            caps: Price caps of human goals, by place in WebShop's shuffle.
            seed: Of the other caps.
        """
        save_array(folder, "goal_rows", np.array(self._rows, np.uint32))
        save_array(folder, "goal_starts", np.array([*self._starts, self.count], np.int64))
        write_json(folder / "attributes.json", dict(self._attributes))
        place = {index: at for at, index in enumerate(legacy_order(len(self._human)))}
        lines = []
        for index, (row, entry) in enumerate(self._human):
            at, said = place[index], entry["instruction"]
            cap = caps[at] if at in caps else draw_cap(prices[row], seed, said)
            text = said.strip(".") + price_clause(cap)
            wanted, options = entry["instruction_attributes"], entry["instruction_options"]
            lines.append(json.dumps([row, text, wanted, options, cap]))
        with TextWriter(folder, "human") as writer:
            for line in lines:
                writer.add(line)
        save_array(folder, "human_rows", np.array([row for row, _ in self._human], np.uint32))
        return lines


def _is_told(entry: Any) -> bool:
    """Return whether this is a human instruction."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("instruction"), str)
        and all(
            isinstance(entry.get(key), list) and all(isinstance(part, str) for part in entry[key])
            for key in ("instruction_attributes", "instruction_options")
        )
    )
