"""The upstream engine, and that the native one answers the same."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.engines import ENGINES, Engine, TextWorldEngine, make_engine
from comap.envs.alfworld.game import Game, read_game
from comap.envs.alfworld.generate import generate
from comap.errors import OptionError, SnapshotError

GAMES = {
    "two": "pick_two_obj_and_place-SprayBottle-None-GarbageCan-416/trial_T20190909_001522_308289",
    "look": "look_at_obj_in_light-Book-None-DeskLamp-324/trial_T20190907_014417_271891",
}


@pytest.fixture
def games(official: Any) -> dict[str, Path]:
    """The files of two official games."""
    pytest.importorskip("textworld", reason="the upstream engine (textworld) is not installed")
    return {name: official.root / "train" / game / "game.tw-pddl" for name, game in GAMES.items()}


def upstream(path: Path) -> TextWorldEngine:
    engine = make_engine("textworld", Game(read_game(path)), path)
    assert isinstance(engine, TextWorldEngine)
    return engine


def seen(engine: Engine) -> dict[str, object]:
    """Everything that an engine tells about the moment it is in."""
    return {
        "admissible": engine.admissible(),
        "won": engine.won(),
        "conditions": engine.conditions(),
        "facts": engine.facts(),
        "facts_text": engine.facts_text(),
        "negative_facts_text": engine.negative_facts_text(),
    }


@pytest.mark.parametrize("name", GAMES)
def test_engines_agree(games: dict[str, Path], name: str) -> None:
    game = Game(read_game(games[name]))
    engine, native = upstream(games[name]), NativeEngine(game)
    assert engine.start() == native.start()
    assert seen(engine) == seen(native)
    walkthrough = list(game.problem.walkthrough)
    script = ["look", "xyzzy", "", " inventory ", *walkthrough[:2], "help", *walkthrough[2:]]
    for command in [*script, "look", "inventory"]:
        assert engine.act(command) == native.act(command), command
        assert seen(engine) == seen(native), command
    assert engine.won()
    engine.close()


def test_snapshot_goes_back_and_to_another_engine(games: dict[str, Path]) -> None:
    engine = upstream(games["two"])
    walkthrough = engine.game.problem.walkthrough
    for command in ("nonsense", *walkthrough[:2]):
        engine.act(command)
    there, saved = seen(engine), engine.save()
    engine.act(walkthrough[2])
    assert seen(engine) != there
    engine.load(saved)
    assert seen(engine) == there
    other = upstream(games["two"])
    other.load(saved)
    assert seen(other) == there
    assert other.save() == saved
    engine.close()
    other.close()


def test_foreign_snapshots_are_refused(games: dict[str, Path]) -> None:
    engine = upstream(games["two"])
    saved = engine.save()
    with pytest.raises(SnapshotError, match="SHA-256"):
        engine.load(saved | {"game": "0"})
    with pytest.raises(SnapshotError, match="SHA-256"):
        engine.load({})
    with pytest.raises(SnapshotError, match="another engine"):
        engine.load(NativeEngine(engine.game).save())
    with pytest.raises(SnapshotError, match="found others"):
        engine.load(saved | {"answers": "0"})
    engine.close()


def test_two_threads_do_not_mix(games: dict[str, Path]) -> None:
    failures: list[str] = []

    def play(path: Path) -> None:
        engine, native = upstream(path), NativeEngine(Game(read_game(path)))
        if engine.start() != native.start():
            failures.append("start")
        for command in native.game.problem.walkthrough[:3]:
            if engine.act(command) != native.act(command) or seen(engine) != seen(native):
                failures.append(command)
        engine.close()

    threads = [threading.Thread(target=play, args=(games[name],)) for name in ("two", "look")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_older_dialect_is_refused(games: dict[str, Path]) -> None:
    with pytest.raises(OptionError, match="'move' only"):
        make_engine("textworld", Game(read_game(games["two"]), "put"), games["two"])


@pytest.fixture
def any_game() -> Game:
    """A game that is only in memory."""
    return Game(generate("train", 0).problem)


def test_engines_are_chosen_by_name(any_game: Game) -> None:
    assert make_engine("native", any_game).name == "native"
    assert "native" in ENGINES
    with pytest.raises(OptionError, match="did you mean 'textworld'"):
        make_engine("textwrld", any_game)
