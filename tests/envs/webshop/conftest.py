"""WebShop's own catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.envs.webshop import Catalog


@pytest.fixture(scope="session")
def catalog(webshop_data: Path) -> Catalog:
    """The catalogue of WebShop's 1,000 products."""
    return Catalog.open(webshop_data)
