"""The tasks: official files, or generated games where there are none."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...errors import DataCorrupt, DataNotFound, OptionError, check_choice, check_number
from ..generated import warn_of_generated
from ..panel import Panel
from ..storage import comap_home, named_folder, packaged
from .engine import NativeEngine
from .expert import plan
from .game import REMEDY, Game, read_game
from .generate import generate, panel, parse_task
from .goal import Dialect
from .rooms import Difficulty

SPLITS = ("train", "valid_train", "valid_seen", "valid_unseen")
_GENERATED_SPLITS = ("train", "valid_seen", "valid_unseen")
_FOLDER = "json_2.1.1"
_FOLDERS = (_FOLDER, "json_2.1.2", "json_2.1.3")
"""What releases call the folder; that of 2.1.2 has the first name, too."""
_FILE = "game.tw-pddl"


def open_source(
    split: str,
    data_dir: str | os.PathLike[str] | None,
    source: str,
    difficulty: str,
    generator_seed: int,
) -> OfficialGames | GeneratedGames:
    """Return the official games where they are, else generated ones."""
    check_choice("source", source, ("auto", "official", "generated"))
    if source == "generated" and data_dir is not None:
        raise OptionError("source='generated' reads no data, found data_dir as well; leave one out")

    if source != "generated":
        check_choice("ALFWorld's split", split, SPLITS)
        root = _find(data_dir)
        if root is not None:
            return OfficialGames(root, split)
        if source == "official":
            raise DataNotFound(
                f"expected ALFWorld's games in {comap_home() / 'alfworld'} or in the folder that "
                "ALFWORLD_DATA names, found neither; run: comap data get alfworld"
            )
        warn_of_generated("comap/ALFWorld-v0", "run: comap data get alfworld")

    check_choice("the split of generated games", split, _GENERATED_SPLITS)
    if not isinstance(difficulty, str):
        raise OptionError(f"difficulty must be a name (text), not {difficulty!r}; try 'normal'")
    check_number("generator_seed", generator_seed, 0, 10**18 - 1)
    return GeneratedGames(split, Difficulty.of(difficulty).name, generator_seed)


def _find(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder that holds the splits, or None where there are no official games."""
    if data_dir is not None:
        folder = named_folder(data_dir)
        # The folder that ALFWORLD_DATA would name, or the one in it.
        for root in (*(folder / name for name in _FOLDERS), folder):
            if any((root / split).is_dir() for split in SPLITS):
                return root
        raise DataNotFound(
            f"expected ALFWorld's games in {folder / _FOLDER} (folders {', '.join(SPLITS)}), found "
            "none; give the folder that holds json_2.1.1, or run: comap data get alfworld"
        )

    candidates = [comap_home() / "alfworld"]
    if os.environ.get("ALFWORLD_DATA"):
        candidates.append(named_folder(os.environ["ALFWORLD_DATA"], "ALFWORLD_DATA"))
    for candidate in candidates:
        for name in _FOLDERS:
            if (candidate / name).is_dir():
                return candidate / name
    return None


@dataclass(frozen=True)
class OfficialGames:
    """Games in the official layout: ``<root>/<split>/<task>/<trial>/game.tw-pddl``."""

    root: Path
    split: str

    def panel(self) -> Panel:
        """Return the games that are in the folder."""
        return _official_panel(self.root, self.split)

    def game(self, task: str, dialect: Dialect) -> tuple[Game, Path | None]:
        """Return a game and its file."""
        if task not in _members(self.root, self.split):
            raise self.panel().missing(task)

        # A file that has changed meanwhile is another game; one that is gone, reading reports.
        path = self.root.joinpath(*task.split("/"), _FILE)
        try:
            status = path.stat()
            version = (status.st_mtime_ns, status.st_size)
        except OSError:
            version = (0, 0)
        return _official_game(path, dialect, version), path

    def fingerprint(self) -> dict[str, str]:
        """Return whether these are all games of the official split, and a hash of their bytes."""
        games = self.panel()
        official = packaged(__package__, "panels").get(self.split)
        is_complete = official is not None and official["sha256"] == games.sha256
        return {
            "games": f"official {len(games)}" if is_complete else f"unknown {len(games)}",
            "data": _content_hash(self.root, self.split),
        }


@dataclass(frozen=True)
class GeneratedGames:
    """Games made on the spot from a seed; nothing is read or downloaded."""

    split: str
    difficulty: str
    seed: int

    def panel(self) -> Panel:
        """Return the default tasks of the split; any other number can be asked for by its id."""
        return _panel(self.split, self.seed, self.difficulty)

    def game(self, task: str, dialect: Dialect) -> tuple[Game, Path | None]:
        """Return a game, which has no file."""
        return _generated_game(task, dialect), None

    def fingerprint(self) -> dict[str, str]:
        """Return which games are made."""
        return {"games": f"generated {self.difficulty}, seed {self.seed}", "data": "generated"}


@lru_cache(maxsize=16)
def _official_panel(root: Path, split: str) -> Panel:
    """Return the games in a split's folder, without those that upstream leaves out."""
    folder = root / split
    splits = [name for name in SPLITS if (root / name).is_dir()]
    if not folder.is_dir():
        present = f"only {', '.join(splits)}" if splits else "no split at all"
        raise DataNotFound(
            f"expected ALFWorld's split {split!r} in {folder}, found {present}; "
            "run: comap data verify alfworld"
        )

    # alfworld plays no games with movable receptacles or sliced things.
    ids = []
    for path in folder.glob(f"*/*/{_FILE}"):
        task_folder = path.parent.parent.name
        if "movable" not in task_folder and "Sliced" not in task_folder:
            ids.append(f"{split}/{task_folder}/{path.parent.name}")
    if not ids:
        raise DataNotFound(
            f"expected games at {folder}/<task>/<trial>/{_FILE}, found none; "
            "run: comap data get alfworld"
        )
    return Panel.of(ids, split, splits)


@lru_cache(maxsize=16)
def _members(root: Path, split: str) -> frozenset[str]:
    return frozenset(_official_panel(root, split).ids)


@lru_cache(maxsize=32)  # a few hundred kB each; every environment also keeps its own game
def _official_game(path: Path, dialect: Dialect, version: tuple[int, int]) -> Game:
    """Read a game; `version` is there for the cache alone."""
    try:
        game = Game(read_game(path), dialect)
    except DataCorrupt as error:
        if str(path) in str(error):
            raise
        raise DataCorrupt(f"{path}: {error}; {REMEDY}") from None

    # "solvable" in the file is only a word: the facts decide.
    if plan(NativeEngine(game)) is None:
        raise DataCorrupt(
            f"expected a solvable game in {path}, found one that no commands can win; {REMEDY}"
        )
    return game


@lru_cache(maxsize=16)
def _content_hash(root: Path, split: str) -> str:
    """Return a SHA-256 over the ids and bytes of all games of a split."""
    digest = hashlib.sha256()
    for task in _official_panel(root, split).ids:
        path = root.joinpath(*task.split("/"), _FILE)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise DataNotFound(
                f"expected to read the game {path}, found: {error.strerror}; "
                "run: comap data verify alfworld"
            ) from error

        # Digests in place of contents: so no end of one file can pass for the beginning of the next.
        digest.update(f"{task}\0{hashlib.sha256(raw).hexdigest()}\n".encode())
    return digest.hexdigest()


_panel = lru_cache(maxsize=16)(panel)


@lru_cache(maxsize=64)
def _generated_game(task: str, dialect: Dialect) -> Game:
    split, difficulty, seed, index = parse_task(task)
    return Game(generate(split, index, seed=seed, difficulty=difficulty).problem, dialect)
