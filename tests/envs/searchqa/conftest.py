"""Search QA's real passages and questions, indexed once for all workers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from comap.envs.searchqa import build_index
from comap.envs.storage import locked

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "searchqa"

BOOK = (
    ("c", "Emma (novel)", "Emma is a novel by Jane Austen about youthful pride."),
    ("a", "Jane Austen", "Jane Austen was born in Steventon, in the county of Hampshire."),
    ("b", "Steventon", "Steventon is a village at the river Test."),
    ("e", "Test (river)", "The Test is a chalk stream."),
    ("d", "Oder", "The Oder is a river in Central Europe."),
)


class Shared:
    """Search QA's files in the shared folder."""

    @staticmethod
    def file(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"no search QA data at {path}")
        return path

    @classmethod
    def rows(cls, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file."""
        with cls.file(name).open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def shared() -> Shared:
    """Search QA's real passages and questions."""
    return Shared()


def write_book(folder: Path, passages: Any = BOOK) -> Path:
    path = folder / "corpus.jsonl"
    lines = [json.dumps({"id": i, "contents": f'"{t}"\n{x}'}) + "\n" for i, t, x in passages]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A corpus of five passages, not in the order of their ids."""
    return write_book(tmp_path)


@pytest.fixture
def index(book: Path, tmp_path: Path) -> Path:
    """An index of it."""
    return build_index(book, tmp_path / "index")


@pytest.fixture(scope="session")
def mini(shared: Shared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an FTS5 index of 25,595 real passages."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "searchqa-mini"
    with locked(base / "searchqa-mini.lock", wait=300):
        if not folder.exists():
            build_index(shared.file("mini_corpus.jsonl"), folder)
    return folder
