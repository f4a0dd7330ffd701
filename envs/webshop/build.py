"""Making a catalogue: WebShop's JSON files, of any size, become arrays that are mapped into memory."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...checksums import sums_of
from ...errors import DataCorrupt, OptionError
from ..storage import Listener, Progress, on_disk, replacing, silent, write_json
from .analyzer import analyze
from .collect import LONGEST_ASIN, Asins, File, GoalList, Labels, Notes, reading
from .given import Given, read_given
from .goals import NO_CAP, draw_cap, draw_price
from .json_stream import elements
from .nouns import noun_rule
from .postings import IndexWriter
from .products import Product, read_product, search_text
from .texts import TextWriter, save_array

__all__ = ["FORMAT", "MANIFEST", "build_catalog"]

FORMAT = 1
"""Number of the catalogue's format."""

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
    taken = target.exists() and not (target / MANIFEST).is_file()
    if taken and (not target.is_dir() or any(target.iterdir())):
        raise OptionError(
            f"expected a new folder or a catalogue at {target}, found other files; "
            "name a folder that does not exist yet"
        )
    given = read_given(prices, price_caps, title_nouns)
    said, rule = noun_rule(nouns, given.nouns)
    with on_disk(target), replacing(target) as folder:
        notes = Notes(folder, "notes", instructions, progress)
        human = Notes(folder, "human_notes", human_instructions, progress)
        writer = _Writer(folder, seed, given)
        records = _records(Path(products), progress)
        while batch := list(islice(records, _BATCH)):
            read = [read_product(record, notes.of(record["asin"]) or {}) for record in batch]
            found = rule([(product.asin, product.title) for product, _ in read])
            for (product, tag), tagged in zip(read, found, strict=True):
                writer.add(replace(product, nouns=tagged), tag, human.of(product.asin))
        for spool in (notes, human):
            spool.close()
        progress(Progress("sorting", 0))
        figures = writer.finish() | {"seed": seed, "nouns": said}
        sums = sums_of(folder, [path.name for path in folder.iterdir()])
        write_json(folder / MANIFEST, figures | {"digests": sums})
    return target


class _Writer:
    """Writes the products, one after the other, and what belongs to all of them at the end."""

    def __init__(self, folder: Path, seed: int, given: Given):
        self._folder, self._seed, self._given = folder, seed, given
        self._index = IndexWriter(folder)
        self._records, self._cards = TextWriter(folder, "products"), TextWriter(folder, "cards")
        self._sha256 = hashlib.sha256(f"format {FORMAT}\n".encode())
        self._asins, self._goals = Asins(), GoalList()
        self._prices = array("d")
        self._labels = {"categories": Labels(), "queries": Labels()}

    def add(self, bare: Product, prices: Sequence[float], told: Any) -> None:
        """Add a product: its record, its terms, and the goals made from it."""
        asin = bare.asin
        given, cap = self._given.prices.get(asin), self._given.caps.get(asin)
        price = draw_price(prices, self._seed, asin) if given is None else given
        if cap is None:
            cap = NO_CAP if bare.instruction is None else draw_cap(price, self._seed, asin)
        product = replace(bare, price=price, cap=cap)
        line = product.to_json()
        self._sha256.update(line.encode() + b"\n")
        self._records.add(line)
        self._cards.add(f"{asin}\n{product.price_tag}\n{product.title}")
        self._index.add(analyze(search_text(product)))
        self._prices.append(price)
        self._labels["categories"].add(product.category)
        self._labels["queries"].add(product.query)
        self._goals.add(self._asins.add(asin), product, told)

    def finish(self) -> dict[str, Any]:
        """Write the rest and return the manifest."""
        folder = self._folder
        for writer in (self._records, self._cards):
            writer.__exit__(None, None, None)
        asins, order = self._asins.sorted()
        save_array(folder, "asins", asins)
        save_array(folder, "order", order)
        ranks = np.empty(len(order), np.uint32)
        ranks[order] = np.arange(len(order), dtype=np.uint32)
        save_array(folder, "ranks", ranks)
        for name, labels in self._labels.items():
            labels.write(folder, name)
        human = self._goals.write(folder, self._prices, self._given.human_caps, self._seed)
        for line in human:
            self._sha256.update(line.encode() + b"\n")
        counts = {"products": len(order), "synthetic": self._goals.count, "human": len(human)}
        figures = self._index.finish()
        return {"format": FORMAT, "sha256": self._sha256.hexdigest()} | counts | figures


def _records(path: Path, progress: Listener) -> Iterator[dict[str, Any]]:
    """Yield the records of products that WebShop keeps: each ASIN once."""
    seen: set[str] = set()
    for number, record in enumerate(reading(path, elements, progress)):
        asin = record.get("asin") if isinstance(record, dict) else None
        if not isinstance(asin, str):
            raise DataCorrupt(
                f"expected a product with an 'asin' as element {number} of {path}, found "
                f"{record!r:.80}; is this WebShop's items_shuffle.json?"
            )
        if asin in ("", "nan") or len(asin) > LONGEST_ASIN or asin in seen:
            continue
        seen.add(asin)
        yield record
