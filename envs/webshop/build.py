"""Building a catalogue: WebShop's JSON files, of any size, become arrays that are mapped into memory."""

from __future__ import annotations

import hashlib
import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...errors import DataCorrupt, DataNotFound, OptionError
from ...jsonl import digests_of
from ..storage import Listener, Progress, on_disk, replacing, silent, write_json
from .analyzer import analyze
from .products import (
    NO_CAP,
    NounRule,
    Product,
    draw_cap,
    draw_price,
    legacy_order,
    noun_rule,
    price_clause,
    read_product,
    search_text,
)
from .search import IndexWriter, Texts, TextWriter, save_array

File = str | os.PathLike[str]


@dataclass(frozen=True)
class Given:
    """Prices, price caps and nouns of titles that files fix; the others are drawn or worked out."""

    prices: Mapping[str, float] = field(default_factory=dict)
    caps: Mapping[str, float] = field(default_factory=dict)
    human_caps: Mapping[int, float] = field(default_factory=dict)
    nouns: Mapping[str, list[str]] | None = None


def read_given(
    prices: File | None = None, price_caps: File | None = None, title_nouns: File | None = None
) -> Given:
    """Return what the files fix; see `build_catalog` for their forms."""
    fixed = _object(prices)
    caps = _object(price_caps)

    human: dict[int, float] = {}
    for entry in caps.get("human", ()):
        if not isinstance(entry, dict) or type(entry.get("goal_index")) is not int:
            raise _corrupt(price_caps, "objects with 'goal_index' and 'price_upper'", entry)
        human |= _numbers(price_caps, {entry["goal_index"]: entry.get("price_upper")})

    nouns = None if title_nouns is None else _object(title_nouns)
    for texts in (nouns or {}).values():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise _corrupt(title_nouns, "lists of texts by ASIN", texts)

    return Given(
        prices=_numbers(prices, fixed.get("prices", fixed)),
        caps=_numbers(price_caps, caps.get("synthetic", {})),
        human_caps=human,
        nouns=nouns,
    )


def _object(path: File | None) -> dict[str, Any]:
    return {} if path is None else dict(items(Path(path)))


def _numbers(path: File | None, content: Any) -> dict[Any, float]:
    """Return a file's amounts in dollars, checked."""
    if not isinstance(content, dict):
        raise _corrupt(path, "numbers by ASIN", content)
    for value in content.values():
        # Exact types: True is an int as well.
        if type(value) not in (int, float) or not math.isfinite(value):
            raise _corrupt(path, "a number of dollars", value)
    return {key: float(value) for key, value in content.items()}


def _corrupt(path: File | None, expected: str, found: Any) -> DataCorrupt:
    return DataCorrupt(f"expected {expected} in {path}, found {found!r:.80}; mend the file")


_PATTERNS: Mapping[str, str] = {
    "products": "items_shuffle*.json",
    "instructions": "items_ins_v2*.json",
    "human_instructions": "items_human_ins*.json",
    "prices": "prices.json",
    "price_caps": "price_caps.json",
    "title_nouns": "title_nouns.json",
}


def find_sources(folder: Path, given: Mapping[str, Path | None] | None = None) -> dict[str, Path]:
    """Return WebShop's files, by `build_catalog`'s names for them."""
    sources = {name: path for name, path in (given or {}).items() if path is not None}
    for name, pattern in _PATTERNS.items():
        if name in sources:
            continue

        paths = sorted(folder.glob(pattern))
        if len(paths) > 1:
            listed = ", ".join(path.name for path in paths)
            option = name.replace("_", "-")
            raise OptionError(
                f"expected one file {pattern} in {folder}, found {listed}; "
                f"choose one: --{option} FILE"
            )
        if paths:
            sources[name] = paths[0]

    if "products" not in sources:
        raise DataNotFound(
            f"expected WebShop's products in {folder} ({_PATTERNS['products']}), found none; "
            "see WebShop's setup.sh for where to get them"
        )
    return sources


_CHUNK = 1 << 20  # characters that are read at once
_LARGEST = 1 << 28  # characters of one value
_AHEAD = 3  # of "1.5" or "1e-5", the beginning is a number, too
_BLANKS = " \t\n\r"


def elements(path: Path, progress: Listener = silent) -> Iterator[Any]:
    """Yield the elements of the JSON array in a file; memory holds one of them and a little more."""
    return _read(path, "[", _Reader.value, "]", progress)


def items(path: Path, progress: Listener = silent) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each entry of the JSON object in a file."""
    return _read(path, "{", _Reader.entry, "}", progress)


def _read(
    path: Path, first: str, take: Callable[[_Reader], Any], last: str, progress: Listener
) -> Iterator[Any]:
    """Yield what `take` reads, again and again, between an opening and a closing bracket."""
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataNotFound(
            f"expected a JSON file at {path}, found nothing; give the path of WebShop's file"
        ) from error

    with file:
        reader = _Reader(path, file, progress)
        reader.expect(first)
        if reader.peek() != last:
            yield take(reader)
            while reader.peek() == ",":
                reader.expect(",")
                yield take(reader)
        reader.expect(last)
        reader.expect("")


class _Reader:
    """A window over the file that moves on as values are taken from it."""

    def __init__(self, path: Path, file: IO[str], progress: Listener):
        self._path = path
        self._file = file
        self._progress = progress
        self._size = path.stat().st_size

        self._text = ""  # the window
        self._at = 0  # the next character in it
        self._before = 0  # the characters before it
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """Return the next character that is not blank; empty at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANKS:
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def expect(self, sign: str) -> None:
        """Take the next character, which must be `sign`; empty at the end of the file."""
        next_sign = self.peek()
        if next_sign != sign:
            end = "the end of the file"
            raise self._corrupt(repr(sign) if sign else end, repr(next_sign) if next_sign else end)
        self._at += len(sign)

    def entry(self) -> tuple[str, Any]:
        """Take a key, the colon and a value."""
        if self.peek() != '"':
            raise self._corrupt("a key in quotes", repr(self.peek()))
        key = self.value()
        self.expect(":")
        return key, self.value()

    def value(self) -> Any:
        """Take the next value; a number counts as whole once enough follows it."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > _LARGEST or not self._more():
                    raise self._corrupt("a JSON value", error.msg) from error
                continue
            except RecursionError as error:
                raise self._corrupt("a JSON value", "lists within lists without end") from error

            length = end - self._at
            if end + _AHEAD <= len(self._text) or not self._more():
                self._at += length
                return value

    def _more(self) -> bool:
        """Read on; return whether there was anything."""
        try:
            read = self._file.read(max(_CHUNK, len(self._text) - self._at))
        except UnicodeDecodeError as error:
            raise self._corrupt("UTF-8", str(error)) from error

        self._before += self._at
        self._text = self._text[self._at :] + read
        self._at = 0
        characters_read = self._before + len(self._text)
        self._progress(Progress(f"reading {self._path.name}", characters_read, self._size))
        return bool(read)

    def _corrupt(self, expected: str, found: str) -> DataCorrupt:
        return DataCorrupt(
            f"expected {expected} at character {self._before + self._at} of {self._path}, found "
            f"{found}; get the file again"
        )


LONGEST_ASIN = 10
"""Products with a longer one are left out, as in WebShop."""


class Asins:
    """Collects ASINs, in few bytes each."""

    def __init__(self) -> None:
        self._full: list[npt.NDArray[np.bytes_]] = []
        self._last: list[bytes] = []
        self._count = 0

    def add(self, asin: str) -> int:
        """Take in an ASIN and return its number."""
        # Full parts become arrays, of ten bytes for an ASIN; an object and its place in a list take fifty.
        self._last.append(asin.encode("utf-8", "surrogatepass"))
        if len(self._last) == 1 << 16:
            self._full.append(np.array(self._last))
            self._last = []
        self._count += 1
        return self._count - 1

    def sorted(self) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.uint32]]:
        """Return the ASINs, and the numbers that put them in order."""
        last = np.array(self._last, None if self._last else "S1")
        asins = np.concatenate([*self._full, last])
        return asins, np.argsort(asins, kind="stable").astype(np.uint32)


class Notes:
    """The entries of a JSON object by ASIN, kept on disk; none for no file."""

    def __init__(self, folder: Path, name: str, source: File | None, progress: Listener):
        self._folder = folder
        self._name = name
        asins = Asins()
        writer = TextWriter(folder, name)
        for asin, entry in items(Path(source), progress) if source else ():
            if len(asin) <= LONGEST_ASIN:
                writer.add(json.dumps(entry))
                asins.add(asin)
        writer.close()

        self._keys, self._order = asins.sorted()
        self._texts = Texts(folder, name)

    def of(self, asin: str) -> Any:
        """Return the last entry for an ASIN, or None."""
        encoded = asin.encode("utf-8", "surrogatepass")
        # A longer one would be cut to the array's width, and might meet another.
        if len(encoded) > self._keys.itemsize:
            return None

        key = np.array([encoded], self._keys.dtype)
        after_last = int(np.searchsorted(self._keys, key, side="right", sorter=self._order)[0])
        position = after_last - 1
        if position < 0 or self._keys[self._order[position]] != encoded:
            return None
        return json.loads(self._texts[int(self._order[position])])

    def close(self) -> None:
        """Remove the files."""
        for suffix in ("bin", "npy"):
            (self._folder / f"{self._name}.{suffix}").unlink()


FORMAT = 1
MANIFEST = "manifest.json"
"""The file that makes a folder a catalogue; it is written last."""

_BATCH = 500


def build_catalog(
    products: File,
    out: File,
    instructions: File | None = None,
    human_instructions: File | None = None,
    prices: File | None = None,
    price_caps: File | None = None,
    title_nouns: File | None = None,
    seed: int = 0,
    *,
    nouns: str = "auto",
    progress: Listener = silent,
) -> Path:
    """Make a catalogue of WebShop's files, in a new folder or in place of an older catalogue.

    Files are read piece by piece. Memory holds the search vocabulary, the ASINs and a part of the
    index (about 300 MB for a million products), and of the last four files all.

    Args:
        products: ``items_shuffle*.json``.
        out: The folder to make.
        instructions: ``items_ins_v2*.json``, from which attributes and synthetic goals come.
        human_instructions: ``items_human_ins.json``, for human goals.
        prices: Purchase prices by ASIN; those that it lacks are drawn where a tag shows a range.
        price_caps: Price caps: ``{"synthetic": {asin: cap}, "human": [{"goal_index": place in
            WebShop's shuffle, "price_upper": cap}, ...]}``; those that it lacks are drawn.
        title_nouns: Nouns of titles by ASIN; those that it lacks come from the noun rule.
        seed: Of what is drawn. Each draw depends on it and on the ASIN alone.
        nouns: The noun rule: ``"spacy"``, ``"lexical"`` or ``"auto"``; see `noun_rule`.
        progress: Told of what is read, in characters.

    Returns:
        The folder.

    Raises:
        DataNotFound, DataCorrupt: A file is missing, or not what WebShop's would be.
        OptionError: `out` is there and is no catalogue, or `nouns` is unknown.
        MissingExtra: The noun rule needs spaCy.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source = Path(folder, "products.json")
        ...     size = source.write_text('[{"asin": "B01", "name": "Green Tea"}]')
        ...     out = build_catalog(source, Path(folder, "shop"), nouns="lexical")
        ...     sorted(path.name for path in out.iterdir())[:3]
        ['asins.npy', 'attributes.json', 'cards.bin']
    """
    target = Path(out).absolute()
    is_occupied = target.exists() and not (target / MANIFEST).is_file()
    if is_occupied and (not target.is_dir() or any(target.iterdir())):
        raise OptionError(
            f"expected a new folder or a catalogue at {target}, found other files; "
            "name a folder that does not exist yet"
        )

    fixed_values = read_given(prices, price_caps, title_nouns)
    rule_name, rule = noun_rule(nouns, fixed_values.nouns)
    with on_disk(target), replacing(target) as folder:
        notes = Notes(folder, "notes", instructions, progress)
        human = Notes(folder, "human_notes", human_instructions, progress)
        writer = _Writer(folder, seed, fixed_values)
        for product, its_prices in _products(_records(Path(products), progress), notes, rule):
            writer.add(product, its_prices, human.of(product.asin))
        notes.close()
        human.close()

        progress(Progress("sorting", 0))
        figures = writer.finish() | {"seed": seed, "nouns": rule_name}
        sums = digests_of(folder, [path.name for path in folder.iterdir()])
        write_json(folder / MANIFEST, figures | {"digests": sums})
    return target


class _Writer:
    """Writes the products, one after the other, and what belongs to all of them at the end."""

    def __init__(self, folder: Path, seed: int, fixed_values: Given):
        self._folder = folder
        self._seed = seed
        self._given = fixed_values
        self._index = IndexWriter(folder)
        self._records = TextWriter(folder, "products")
        self._cards = TextWriter(folder, "cards")
        self._sha256 = hashlib.sha256(f"format {FORMAT}\n".encode())
        self._asins = Asins()
        self._prices = array("d")

        # Texts of which many are equal: the number of each, and those of the products.
        self._labels: dict[str, tuple[dict[str, int], array[int]]] = {
            name: ({}, array("I")) for name in ("categories", "queries")
        }

        self._goals = 0
        self._goal_rows = array("I")
        self._goal_starts = array("q")
        self._attributes: Counter[str] = Counter()
        self._human: list[tuple[int, dict[str, Any]]] = []

    def add(self, unpriced: Product, prices: Sequence[float], human: Any) -> None:
        """Add a product: its record, its terms, its synthetic goals and people's."""
        product = self._priced(unpriced, prices)
        asin = product.asin
        line = product.to_json()

        # Hashed with price and cap: the catalogue's digest stands for all that rewards depend on.
        self._sha256.update(line.encode() + b"\n")
        self._records.add(line)

        # What result lists show, by itself: a page of ten products need not read ten records.
        self._cards.add(f"{asin}\n{product.price_tag}\n{product.title}")
        self._index.add(analyze(search_text(product)))
        self._prices.append(product.price)

        # A label's number is its place in the list of different labels, in the order in which they came.
        for name, label in (("categories", product.category), ("queries", product.query)):
            numbers, product_labels = self._labels[name]
            product_labels.append(numbers.setdefault(label, len(numbers)))

        row = self._asins.add(asin)
        self._add_synthetic_goals(row, product)
        self._add_human_goals(row, asin, human)

    def _priced(self, unpriced: Product, prices: Sequence[float]) -> Product:
        """Return a product with its price and its cap, which files fix or which are drawn."""
        asin = unpriced.asin
        price = self._given.prices.get(asin)
        if price is None:
            price = draw_price(prices, self._seed, asin)

        cap = self._given.caps.get(asin)
        if cap is None:
            cap = NO_CAP if unpriced.instruction is None else draw_cap(price, self._seed, asin)
        return replace(unpriced, price=price, cap=cap)

    def _add_synthetic_goals(self, row: int, product: Product) -> None:
        """Count one synthetic goal for each choice of all options."""
        if product.instruction is None or not product.wanted:
            return

        # One group without values leaves no choice, as in upstream's product of all values.
        choices = math.prod(len(values) for _, values in product.options)
        if not choices:
            return

        # Where the product's goals begin is all that is stored: `synthetic_goal` makes each when asked.
        self._goal_rows.append(row)
        self._goal_starts.append(self._goals)
        self._goals += choices
        for attribute in product.wanted:
            self._attributes[attribute] += choices

    def _add_human_goals(self, row: int, asin: str, human: Any) -> None:
        """Take in people's instructions for a product: one, a list of them, or None."""
        entries = [] if human is None else [human]
        if isinstance(human, list):
            entries = human
        for entry in entries:
            if not _is_human(entry):
                raise DataCorrupt(
                    f"expected human instructions for product {asin}, with attributes and a list of "
                    f"options, found {entry!r:.120}; get items_human_ins.json again"
                )
            if entry["instruction_attributes"]:
                self._human.append((row, entry))

    def finish(self) -> dict[str, Any]:
        """Write what belongs to all products, and return the catalogue's figures."""
        self._records.close()
        self._cards.close()

        asins, order = self._asins.sorted()

        # The places of products in the order of ASINs, by which Lucene's ties are broken.
        ranks = np.empty(len(order), np.uint32)
        ranks[order] = np.arange(len(order), dtype=np.uint32)
        human_goals = self._write_human_goals()

        arrays: dict[str, Any] = {"asins": asins, "order": order, "ranks": ranks}
        for name, (numbers, product_labels) in self._labels.items():
            arrays[name] = np.array(product_labels, np.uint32)
            write_json(self._folder / f"{name}.json", list(numbers))
        arrays["goal_rows"] = np.array(self._goal_rows, np.uint32)
        arrays["goal_starts"] = np.array([*self._goal_starts, self._goals], np.int64)
        arrays["human_rows"] = np.array([row for row, _ in self._human], np.uint32)
        for name, content in arrays.items():
            save_array(self._folder, name, content)
        write_json(self._folder / "attributes.json", dict(self._attributes))

        figures = {
            "format": FORMAT,
            "sha256": self._sha256.hexdigest(),
            "products": len(order),
            "synthetic": self._goals,
            "human": human_goals,
        }
        return figures | self._index.finish()

    def _write_human_goals(self) -> int:
        """Write the goals of people's instructions, and return how many there are."""
        # Files fix caps by the place in WebShop's shuffle.
        order = legacy_order(len(self._human))
        place_of_goal = {index: place for place, index in enumerate(order)}

        writer = TextWriter(self._folder, "human")
        for index, (row, entry) in enumerate(self._human):
            instruction = entry["instruction"]
            cap = self._given.human_caps.get(place_of_goal[index])
            if cap is None:
                cap = draw_cap(self._prices[row], self._seed, instruction)

            # As upstream joins them.
            text = instruction.strip(".") + price_clause(cap)
            attributes = entry["instruction_attributes"]
            line = json.dumps([row, text, attributes, entry["instruction_options"], cap])
            writer.add(line)
            self._sha256.update(line.encode() + b"\n")
        writer.close()
        return len(self._human)


def _is_human(entry: Any) -> bool:
    """Return whether an entry is one of people's instructions, with the lists that it must have."""
    if not isinstance(entry, dict) or not isinstance(entry.get("instruction"), str):
        return False
    for name in ("instruction_attributes", "instruction_options"):
        texts = entry.get(name)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return False
    return True


def _products(
    records: Iterator[dict[str, Any]], notes: Notes, rule: NounRule
) -> Iterator[tuple[Product, list[float]]]:
    """Yield each product with its nouns, and the one or two prices that it may have."""
    # In batches, since a tagger takes many titles at once.
    while batch := list(islice(records, _BATCH)):
        read = [read_product(record, notes.of(record["asin"]) or {}) for record in batch]
        nouns = rule([(product.asin, product.title) for product, _ in read])
        for (product, prices), its_nouns in zip(read, nouns, strict=True):
            yield replace(product, nouns=its_nouns), prices


def _records(path: Path, progress: Listener) -> Iterator[dict[str, Any]]:
    """Yield the records of products that WebShop keeps: each ASIN once."""
    asins_so_far: set[str] = set()
    for number, record in enumerate(elements(path, progress)):
        asin = record.get("asin") if isinstance(record, dict) else None
        if not isinstance(asin, str):
            raise DataCorrupt(
                f"expected a product with an 'asin' as element {number} of {path}, found "
                f"{record!r:.80}; is this WebShop's items_shuffle.json?"
            )

        # WebShop leaves these out as well; of a product that comes twice the first counts.
        if asin in ("", "nan") or len(asin) > LONGEST_ASIN or asin in asins_so_far:
            continue
        asins_so_far.add(asin)
        yield record
