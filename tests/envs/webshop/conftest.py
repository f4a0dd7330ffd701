"""WebShop's own data, built once for all workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.envs.storage import locked
from comap.envs.webshop import Catalog, build_catalog

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "webshop"


class Shared:
    """WebShop's files and recordings in the shared folder."""

    @staticmethod
    def file(name: str) -> Path:
        path = SHARED / name
        if not path.is_file():
            pytest.skip(f"no WebShop data at {path}")
        return path

    @classmethod
    def files(cls) -> dict[str, Path]:
        """Return the files that `build_catalog` takes."""
        return {
            "products": cls.file("items_shuffle_1000.json"),
            "instructions": cls.file("items_ins_v2_1000.json"),
            "human_instructions": cls.file("items_human_ins.json"),
            "prices": cls.file("dev/prices.json"),
            "price_caps": cls.file("price_caps.json"),
            "title_nouns": cls.file("title_nouns.json"),
        }

    @classmethod
    def recorded(cls, name: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of a recording."""
        with cls.file(f"dev/{name}").open(encoding="utf-8", newline="\n") as lines:
            yield from map(json.loads, lines)


@pytest.fixture(scope="session")
def shared() -> Shared:
    """WebShop's files and recordings."""
    return Shared()


@pytest.fixture(scope="session")
def official(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a catalogue of WebShop's 1,000 products."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "webshop-catalog"
    with locked(base / "webshop-catalog.lock", wait=300):
        if not folder.exists():
            build_catalog(**shared.files(), out=folder, nouns="lexical")
    return folder


@pytest.fixture(scope="session")
def catalog(official: Path) -> Catalog:
    """The catalogue of WebShop's 1,000 products."""
    return Catalog.open(official)
