"""Catalogues whose files were changed, and too large to be compared: told as such, and by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from comap.envs.webshop import Catalog, build_catalog
from comap.envs.webshop.generate import INSTRUCTIONS_FILE, PRODUCTS_FILE, generate_catalog
from comap.errors import DataCorrupt, TaskNotFound


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("comap.envs.webshop.catalog.QUICK", 0)
    generate_catalog(tmp_path / "source", products=40)
    source = tmp_path / "source"
    return build_catalog(
        source / PRODUCTS_FILE, tmp_path / "shop", source / INSTRUCTIONS_FILE, nouns="lexical"
    )


def test_products_that_are_zeros(shop: Path) -> None:
    size = (shop / "products.bin").stat().st_size
    (shop / "products.bin").write_bytes(bytes(size))
    with pytest.raises(DataCorrupt, match=f"{shop}: expected whole files"):
        Catalog.open(shop).product(3)


def test_rows_beyond_the_end(shop: Path) -> None:
    rows = np.load(shop / "rows.npy")
    np.save(shop / "rows.npy", np.full_like(rows, 10_000))
    with pytest.raises(DataCorrupt, match="build the catalogue again"):
        Catalog.open(shop).search("red shoes")


def test_counts_that_are_no_json(shop: Path) -> None:
    (shop / "attributes.json").write_text("")
    catalog = Catalog.open(shop)
    with pytest.raises(DataCorrupt, match="expected whole files"):
        catalog.goal("synthetic", 0)
    with pytest.raises(TaskNotFound):
        catalog.goal("synthetic", 10**9)
