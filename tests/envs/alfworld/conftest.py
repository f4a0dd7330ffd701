"""The official games, unpacked once for all workers, and the recordings made of them."""

from __future__ import annotations

import functools
import json
import lzma
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.game import Game, read_game
from comap.envs.storage import locked

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "alfworld"


class Official:
    """The official games on disk, and what was recorded from them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.root = folder / "json_2.1.1"

    @functools.cached_property
    def files(self) -> list[Path]:
        return sorted(self.root.glob("*/*/*/game.tw-pddl"))

    @staticmethod
    def engine(path: Path, dialect: Any = "move") -> NativeEngine:
        return NativeEngine(Game(read_game(path), dialect))

    @staticmethod
    def recorded(name: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of a recording in the shared folder."""
        path = SHARED / name
        if not path.is_file():
            pytest.skip(f"no recording at {path}")
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def unpack(folder: Path) -> None:
    with tarfile.open(SHARED / "games.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of this run share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Official]:
    """The official games; the first worker unpacks them, the last one removes them (330 MB)."""
    if not (SHARED / "games.tar.xz").is_file():
        pytest.skip(f"no official games at {SHARED}")
    base = shared_folder(tmp_path_factory)
    folder, users = base / "alfworld-games", base / "alfworld-games.users"
    with locked(base / "alfworld-games.lock", wait=300):
        present = int(users.read_text()) if users.exists() else 0
        if not present:
            shutil.rmtree(folder, ignore_errors=True)
            unpack(folder)
        users.write_text(str(present + 1))
    yield Official(folder)
    with locked(base / "alfworld-games.lock", wait=300):
        present = int(users.read_text()) - 1
        users.write_text(str(present))
        if not present:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder(official: Official, tmp_path: Path) -> Path:
    """A data folder of our own with ten of the official games."""
    for path in official.files[::383]:
        target = tmp_path / "data" / path.relative_to(official.folder)
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    return tmp_path / "data"


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data."""
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    return tmp_path / "home"
