"""The official games."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.game import Game, read_game


class Official:
    """The official games on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.root = folder / "json_2.1.1"

    @functools.cached_property
    def files(self) -> list[Path]:
        return sorted(self.root.glob("*/*/*/game.tw-pddl"))

    @staticmethod
    def engine(path: Path, dialect: Any = "move") -> NativeEngine:
        return NativeEngine(Game(read_game(path), dialect))


@pytest.fixture(scope="session")
def official(alfworld_data: Path) -> Official:
    """The official games."""
    return Official(alfworld_data)


@pytest.fixture
def folder(official: Official, tmp_path: Path) -> Path:
    """A data folder of our own with ten of the official games."""
    for path in official.files[::383]:
        target = tmp_path / "data" / path.relative_to(official.folder)
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    return tmp_path / "data"


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data."""
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    return tmp_path / "home"
