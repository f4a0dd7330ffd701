"""A corpus of five passages, and its index."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.envs.searchqa import build_index
from kits.books import write_book


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A corpus of five passages, not in the order of their ids."""
    return write_book(tmp_path)


@pytest.fixture
def index(book: Path, tmp_path: Path) -> Path:
    """An index of it."""
    return build_index(book, tmp_path / "index")
