"""WebShop's own catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.envs.webshop import Catalog


@pytest.fixture(scope="session")
def official(webshop_data: Path) -> Path:
    """The folder of a catalogue of WebShop's 1,000 products."""
    return webshop_data


@pytest.fixture(scope="session")
def catalog(official: Path) -> Catalog:
    """The catalogue of WebShop's 1,000 products."""
    return Catalog.open(official)
