"""Generated games: the same everywhere, solvable, varied, and what TextWorld plays too."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.game import Game, read_game, read_problem
from comap.envs.alfworld.generate import (
    SPLITS,
    generate,
    panel,
    parse_task,
    write_game,
)
from comap.envs.alfworld.goal import FAMILIES, Goal
from comap.envs.alfworld.rooms import Difficulty, presets
from comap.envs.generated import Draws
from comap.errors import OptionError, TaskNotFound

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
OWN = "r9-12.o6-9.f245.h"


@cache
def generated_game(split, index):
    """A game that several tests look at."""
    return generate(split, index)


def receptacles(game):
    """What a player can tell of a room: the kinds that stand together."""
    kinds_by_location = {}
    table = Game(game.problem)
    for name in table.receptacles:
        kinds_by_location.setdefault(table.location[name], []).append(table.kind[name])
    return tuple(sorted(tuple(sorted(kinds)) for kinds in kinds_by_location.values()))


def layout_facts(game):
    return {fact for fact in game.problem.facts if fact[0] == "receptacleatlocation"}


def test_golden_game():
    """The same in any process, for any hash seed and Python version."""
    texts = [generate("train", index).pddl for index in range(6)]
    texts += [
        generate("valid_unseen", 2, seed=7, difficulty=name).pddl for name in (*presets(), OWN)
    ]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    assert digest == "9d5a2752e409edcb7399374968acffc04329a4581f7d26b626ec1ce06cb00ff2"


def test_draws_are_those_of_any_python():
    draws = Draws("golden")
    assert [draws.integer(0, 99) for _ in range(5)] == [81, 48, 26, 8, 37]
    assert "".join(draws.shuffled("abcdef")) == "bdceaf"
    assert draws.weighted({"a": 0, "b": 1, "c": 0}) == "b"
    with pytest.raises(ValueError, match="positive weight"):
        draws.weighted({"a": 0})


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("difficulty", [*presets(), OWN])
def test_walkthroughs_win(split, difficulty):
    families = Difficulty.of(difficulty).families
    for index in range(12):
        game = generate(split, index, seed=1, difficulty=difficulty)
        problem = game.problem
        assert problem.goal.family == families[index % len(families)]
        assert read_problem(game.pddl) == (problem.facts, problem.goal)
        assert Goal.from_sentence(problem.task) == problem.goal
        engine = NativeEngine(Game(problem))
        assert not engine.won()
        for number, command in enumerate(problem.walkthrough):
            assert command in engine.admissible()
            assert engine.act(command)[1]
            assert engine.won() == (number == len(problem.walkthrough) - 1)


@pytest.mark.parametrize("split", SPLITS)
def test_all_families_and_no_duplicates(split):
    games = [generated_game(split, index) for index in range(120)]
    families = Counter(game.problem.goal.family for game in games)
    assert set(families) == set(FAMILIES)
    assert max(families.values()) - min(families.values()) <= 1
    assert len({frozenset(game.problem.facts) | {game.problem.task} for game in games}) == 120
    assert len({NativeEngine(Game(game.problem)).start() for game in games}) > 100
    assert len({game.folder for game in games}) == 120
    assert len({game.target for game in games}) > 50
    assert [game.task for game in games] == list(panel(split, size=120).ids)


def test_scenes_are_disjoint_and_rooms_as_documented():
    games = {split: [generated_game(split, i) for i in range(120)] for split in SPLITS}
    scenes = {split: {game.scene for game in games[split]} for split in SPLITS}
    assert not scenes["train"] & scenes["valid_seen"]
    assert not scenes["valid_unseen"] & (scenes["train"] | scenes["valid_seen"])
    by_scene = {}
    for split in SPLITS:
        for game in games[split]:
            assert by_scene.setdefault(game.scene, layout_facts(game)) == layout_facts(game)
    twins = [scene for scene in scenes["valid_seen"] if scene - 1000 in by_scene]
    assert len(twins) > 8
    assert all(by_scene[scene] == by_scene[scene - 1000] for scene in twins)
    rooms = {split: {receptacles(game) for game in games[split]} for split in SPLITS}
    assert not rooms["valid_unseen"] & (rooms["train"] | rooms["valid_seen"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"receptacles": (5, 9), "objects": (5, 9)},
        {"receptacles": (9, 8), "objects": (5, 9)},
        {"receptacles": (9, 10), "objects": (5, 900)},
        {"receptacles": (9, 10), "objects": (5, 9), "families": ()},
        {"receptacles": (9, 10), "objects": (5, 9), "families": ("cook",)},
        {"receptacles": (9, 10), "objects": (5, 9), "families": FAMILIES[:1] * 2},
    ],
)
def test_difficulties_that_cannot_be(arguments):
    with pytest.raises(OptionError):
        Difficulty(**arguments)


LONG = (f"generated/train/normal/{'9' * 5000}-000000", f"generated/train/{'r' * 10**6}/0-000000")


@pytest.mark.parametrize(
    "task", [*CASES["hostile_task_ids"], *LONG], ids=lambda task: ascii(task)[:40]
)
def test_hostile_task_ids(task):
    with pytest.raises(TaskNotFound) as caught:
        parse_task(task)
    assert len(str(caught.value)) < 600


def test_written_games_are_read_back(tmp_path):
    pytest.importorskip("alfworld", reason="it owns the domain and the grammar")
    for index in range(6):
        game = generate("valid_seen", index)
        path = write_game(game, tmp_path)
        assert path == tmp_path / "json_2.1.1" / game.folder / "game.tw-pddl"
        assert path.parent.parent.name.split("-")[1:3] == [game.target.thing, "None"]
        assert "UNKNOWN GOAL" not in path.read_text(encoding="utf-8")
        assert json.loads(path.read_text(encoding="utf-8"))["solvable"] is True
        read = read_game(path)
        for name in ("facts", "goal", "task", "walkthrough"):
            assert getattr(read, name) == getattr(game.problem, name)
