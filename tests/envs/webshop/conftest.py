"""WebShop's own data, built once for all workers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.envs.storage import locked
from comap.envs.webshop import build_catalog
from comap.envs.webshop.catalog import Catalog

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "webshop"


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of this run share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def source(name: str) -> Path:
    """Return one of WebShop's files in the shared folder."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"no WebShop data at {path}")
    return path


def recorded(name: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a recording in the shared folder."""
    with source(f"dev/{name}").open(encoding="utf-8", newline="\n") as lines:
        yield from map(json.loads, lines)


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a catalogue of WebShop's 1,000 products."""
    base = shared_folder(tmp_path_factory)
    folder = base / "webshop-catalog"
    with locked(base / "webshop-catalog.lock", wait=300):
        if not folder.exists():
            build_catalog(
                source("items_shuffle_1000.json"),
                folder,
                source("items_ins_v2_1000.json"),
                source("items_human_ins.json"),
                source("dev/prices.json"),
                source("price_caps.json"),
                source("title_nouns.json"),
                nouns="lexical",
            )
    return folder


@pytest.fixture(scope="session")
def catalog(official: Path) -> Catalog:
    """The catalogue of WebShop's 1,000 products."""
    return Catalog.open(official)
