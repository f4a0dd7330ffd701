"""The upstream engine, and that the native one answers the same."""

from __future__ import annotations

import os
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.engines import ENGINES, Engine, make_engine
from comap.envs.alfworld.game import Game
from comap.envs.alfworld.problem import Problem, read_game, read_problem
from comap.envs.alfworld.textworld_engine import TextWorldEngine
from comap.errors import DataNotFound, EngineError, OptionError, SnapshotError

ARCHIVE = Path(__file__).parents[3].parent / "shared" / "data" / "alfworld" / "games.tar.xz"
GAMES = {
    "two": "pick_two_obj_and_place-SprayBottle-None-GarbageCan-416/trial_T20190909_001522_308289",
    "look": "look_at_obj_in_light-Book-None-DeskLamp-324/trial_T20190907_014417_271891",
    "clean": "pick_clean_then_place_in_recep-Egg-None-DiningTable-24/trial_T20190907_185422_664403",
}


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of three official games."""
    pytest.importorskip("textworld", reason="the upstream engine (textworld) is not installed")
    if not ARCHIVE.is_file():
        pytest.skip(f"the archive of official games is not at {ARCHIVE}")
    folder = tmp_path_factory.mktemp("games")
    wanted = {f"json_2.1.1/train/{game}/game.tw-pddl": name for name, game in GAMES.items()}
    found = {}
    with tarfile.open(ARCHIVE, "r:xz") as archive:
        for member in archive:
            if member.name in wanted:
                archive.extract(member, folder, filter="data")
                found[wanted[member.name]] = folder / member.name
            if len(found) == len(wanted):
                break
    return found


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


def test_invalid_command_changes_nothing(games: dict[str, Path]) -> None:
    engine = upstream(games["two"])
    engine.start()
    before = seen(engine)
    assert engine.act("take the moon") == ("Nothing happens.", False)
    assert seen(engine) == before
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


def test_two_games_at_once_do_not_mix(games: dict[str, Path]) -> None:
    pairs = [(upstream(path), NativeEngine(Game(read_game(path)))) for path in games.values()]
    for engine, native in pairs:
        assert engine.start() == native.start()
    for turn in range(3):
        for engine, native in pairs:
            command = native.game.problem.walkthrough[turn]
            assert engine.act(command) == native.act(command)
            assert seen(engine) == seen(native)
    for engine, _ in pairs:
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


def test_environments_are_used_again(games: dict[str, Path]) -> None:
    first = upstream(games["two"])
    environment = first._env
    first.close()
    first.close()
    second = upstream(games["look"])
    again = second._env is environment
    second.close()
    assert again
    with pytest.raises(EngineError, match="closed"):
        second.act("look")


def test_the_process_does_not_notice(
    games: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv, environment = ["program", "--option"], dict(os.environ)
    monkeypatch.setattr(sys, "argv", argv)
    stdout = sys.stdout
    engine = upstream(games["two"])
    engine.start()
    engine.close()
    assert sys.argv is argv and sys.argv == ["program", "--option"]
    assert sys.stdout is stdout
    assert dict(os.environ) == environment
    assert "alfworld" not in sys.modules


def test_a_missing_file(games: dict[str, Path], tmp_path: Path) -> None:
    game = Game(read_game(games["two"]))
    with pytest.raises(DataNotFound, match="found no file"):
        make_engine("textworld", game, tmp_path / "none")


def test_the_older_dialect_is_refused(games: dict[str, Path]) -> None:
    with pytest.raises(OptionError, match="'move' only"):
        make_engine("textworld", Game(read_game(games["two"]), "put"), games["two"])


@pytest.fixture
def any_game() -> Game:
    """A game that is only in memory."""
    text = """(:init (receptacleType desk_bar_1 DeskType) (objectType pen_bar_1 PenType)
        (receptacleAtLocation desk_bar_1 loc1) (atLocation agent1 loc0)
        (canContain DeskType PenType)) (:goal (and (exists (?r - receptacle)
        (exists (?o - object) (and (inReceptacle ?o ?r)
        (objectType ?o PenType) (receptacleType ?r DeskType))))))"""
    facts, goal = read_problem(text)
    return Game(Problem(facts, goal, goal.sentence(), (), "help", "0"))


def test_engines_are_chosen_by_name(any_game: Game) -> None:
    assert make_engine("native", any_game).name == "native"
    assert "native" in ENGINES
    with pytest.raises(OptionError, match="did you mean 'textworld'"):
        make_engine("textwrld", any_game)


def test_games_in_memory_need_the_native_engine(any_game: Game) -> None:
    with pytest.raises(OptionError, match="write_game"):
        make_engine("textworld", any_game)
