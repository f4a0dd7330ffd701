"""Generated games: the same everywhere, solvable, varied, and what TextWorld plays too."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from comap.envs.alfworld.difficulty import Difficulty, presets
from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.game import Game
from comap.envs.alfworld.generate import (
    SPLITS,
    generate,
    panel,
    parse_task,
    write_game,
)
from comap.envs.alfworld.goal import FAMILIES, Goal
from comap.envs.alfworld.problem import read_game, read_problem
from comap.envs.alfworld.rooms import layout, load_table
from comap.envs.draws import Draws
from comap.errors import MissingExtra, OptionError, TaskNotFound

ROOMS = ("kitchen", "livingroom", "bedroom", "bathroom")
OWN = "r9-12.o6-9.f245.h"
DIGEST = """
import hashlib
from comap.envs.alfworld.generate import SPLITS, generate
digest = hashlib.sha256()
for difficulty in ("normal", "hard", "easy", "r9-12.o6-9.f245.h"):
    for split in SPLITS:
        for index in (5, 0, 11, 400):
            game = generate(split, index, seed=3, difficulty=difficulty)
            digest.update(repr(game).encode())
print(digest.hexdigest())
"""


@cache
def made(split, index):
    """A game that several tests look at."""
    return generate(split, index)


def has_upstream():
    return all(importlib.util.find_spec(name) for name in ("textworld", "alfworld"))


def receptacles(game):
    """What a player can tell of a room: the kinds that stand together."""
    at = {}
    table = Game(game.problem)
    for name in table.receptacles:
        at.setdefault(table.location[name], []).append(table.kind[name])
    return tuple(sorted(tuple(sorted(kinds)) for kinds in at.values()))


def layout_facts(game):
    return {fact for fact in game.problem.facts if fact[0] == "receptacleatlocation"}


def count(game, predicate):
    return sum(fact[0] == predicate for fact in game.problem.facts)


def test_same_game_in_any_process():
    digests = set()
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_golden_game():
    """Guards against other Python versions and against changes that nobody meant."""
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


def test_order_of_calls_makes_no_difference():
    alone = generate("valid_unseen", 9, seed=5)
    generate("train", 1, difficulty="hard")
    assert generate("valid_unseen", 9, seed=5) == alone


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("difficulty", [*presets(), OWN])
def test_walkthroughs_win(split, difficulty):
    families = Difficulty.of(difficulty).families
    for index in range(30):
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
    games = [made(split, index) for index in range(500)]
    families = Counter(game.problem.goal.family for game in games)
    assert set(families) == set(FAMILIES)
    assert max(families.values()) - min(families.values()) <= 1
    assert len({frozenset(game.problem.facts) | {game.problem.task} for game in games}) == 500
    assert len({NativeEngine(Game(game.problem)).start() for game in games}) > 400
    assert len({game.folder for game in games}) == 500
    assert len({game.target for game in games}) > 100
    assert [game.task for game in games] == list(panel(split, size=500).ids)


def test_scenes_are_disjoint_and_rooms_as_documented():
    games = {split: [made(split, i) for i in range(300)] for split in SPLITS}
    scenes = {split: {game.scene for game in games[split]} for split in SPLITS}
    assert not scenes["train"] & scenes["valid_seen"]
    assert not scenes["valid_unseen"] & (scenes["train"] | scenes["valid_seen"])
    by_scene = {}
    for split in SPLITS:
        for game in games[split]:
            assert by_scene.setdefault(game.scene, layout_facts(game)) == layout_facts(game)
    twins = [scene for scene in scenes["valid_seen"] if scene - 1000 in by_scene]
    assert len(twins) > 30
    assert all(by_scene[scene] == by_scene[scene - 1000] for scene in twins)
    rooms = {split: {receptacles(game) for game in games[split]} for split in SPLITS}
    assert not rooms["valid_unseen"] & (rooms["train"] | rooms["valid_seen"])


@pytest.mark.parametrize("difficulty", list(presets()))
def test_no_two_rooms_are_alike(difficulty):
    size = Difficulty.of(difficulty).receptacles
    last = max(last for _, last in load_table("generator")["layouts"].values())
    for room in ROOMS:
        signatures = {layout(room, number, size).signature for number in range(1, last + 1)}
        assert len(signatures) == last


def test_seeds_share_rooms_but_not_games():
    one = [generate("train", index, seed=1) for index in range(150)]
    two = [generate("train", index, seed=2) for index in range(150)]
    assert not {game.pddl for game in one} & {game.pddl for game in two}
    rooms = {game.scene: layout_facts(game) for game in one}
    shared = [game for game in two if game.scene in rooms]
    assert shared
    assert all(rooms[game.scene] == layout_facts(game) for game in shared)


def test_difficulty_has_an_effect():
    means = {}
    for name, level in presets().items():
        games = [generate("train", index, difficulty=name) for index in range(60)]
        for game in games:
            low, high = level.receptacles
            assert low <= count(game, "receptacletype") <= high
            low, high = level.objects
            assert low <= count(game, "pickupable") <= high
        means[name] = [
            sum(count(game, "receptacletype") for game in games) / 60,
            sum(count(game, "pickupable") for game in games) / 60,
            sum(len(game.problem.walkthrough) for game in games) / 60,
        ]
    assert means["easy"][0] < means["normal"][0] < means["hard"][0]
    assert means["easy"][1] < means["normal"][1] < means["hard"][1]
    assert means["easy"][2] < means["normal"][2] < means["hard"][2]


def test_hard_games_hide_what_they_ask_for():
    hidden = shown = 0
    for index in range(120):
        problem = generate("train", index, difficulty="hard").problem
        game = Game(problem)
        for thing, place in game.pairs["inreceptacle"]:
            if thing in game.wanted:
                hidden += place in game.openable
                shown += place not in game.openable
    assert hidden > 5 * shown


def test_games_have_the_official_quirks():
    games = [made("train", index) for index in range(300)]
    tables = [Game(game.problem) for game in games]
    shared = sum(any(len(here) > 1 for here in table.here.values()) for table in tables)
    assert 0.4 < shared / 300 < 0.95
    several = [Counter(o for o, _ in table.pairs["inreceptacle"]) for table in tables]
    assert 0.1 < sum(max(counts.values()) > 1 for counts in several) / 300 < 0.7
    assert any(table.inside for table in tables)
    assert any("iscool" in table.unary for table in tables)
    assert all(table.start not in table.here for table in tables)
    knives = sum(bool(table.knives) for table in tables)
    assert knives > 100
    for table in tables:
        assert all(
            table.kind[lamp] in ("desklamptype", "floorlamptype") for lamp in table.toggleable
        )
        kinds = {table.kind[name] for name in table.receptacles}
        state = table.goal.state
        needed = {"clean": "sinkbasintype", "hot": "microwavetype", "cool": "fridgetype"}
        assert state is None or needed[state] in kinds


def test_sizes_are_close_to_the_official_ones():
    """Medians of the official training kitchens: 33 receptacles, 44 things to pick up."""
    kitchens = [game for game in (made("train", i) for i in range(400)) if game.scene % 1000 < 200]
    middle = len(kitchens) // 2
    assert 28 <= sorted(count(game, "receptacletype") for game in kitchens)[middle] <= 38
    assert 39 <= sorted(count(game, "pickupable") for game in kitchens)[middle] <= 49


def test_statistics_are_consistent():
    table = load_table("statistics")
    assert table["games"] == 3553 == sum(room["games"] for room in table["rooms"].values())
    assert set(table["rooms"]) == set(ROOMS)
    assert set(table["openable"]) == {"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"}
    assert {"Knife", "ButterKnife"} <= set(table["properties"]["pickupable"])
    for room in table["rooms"].values():
        assert room["scenes"] == 27
        assert sum(goal[3] for goal in room["goals"]) == room["games"]
        assert {goal[0] for goal in room["goals"]} <= set(FAMILIES)
        for numbers in room["receptacles"].values():
            assert sum(numbers.values()) == room["scenes"]
        for kind, places in room["places"].items():
            assert set(places) <= {"", *room["receptacles"]}
            assert kind in room["objects"]
        for family, thing, place, _ in room["goals"]:
            assert family == FAMILIES[1] or thing in table["can_contain"][place]


def test_furnishing_respects_impossible_capacity():
    """A room too small for its things still gets those that the goal needs."""
    game = generate("train", 0, difficulty="r6-6.o200-200.f6")
    assert count(game, "pickupable") == 200
    assert count(game, "receptacletype") == 6


@pytest.mark.parametrize("code", ["r6-6.o3-3.f123456", "r6-8.o5-6.f6.h", "r100-100.o3-9.f3", OWN])
def test_own_difficulties(code):
    level = Difficulty.of(code)
    assert level.name == code
    for index in range(len(level.families)):
        game = generate("valid_unseen", index, difficulty=level)
        assert parse_task(game.task) == ("valid_unseen", code, 0, index)
        assert game == generate("valid_unseen", index, difficulty=code)


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


@pytest.mark.parametrize(
    "call",
    [
        {"split": "test"},
        {"split": "train", "index": -1},
        {"split": "train", "seed": -1},
        {"split": "train", "index": 10**12},
        {"split": "train", "difficulty": "impossible"},
        {"split": "train", "difficulty": "r1-2.o3-4.f1"},
    ],
)
def test_options_that_cannot_be(call):
    with pytest.raises(OptionError):
        generate(**{"index": 0, **call})
    with pytest.raises(TypeError):
        generate("train", 0, seed="0")


@pytest.mark.parametrize("split", SPLITS)
def test_panels(split):
    tasks = panel(split)
    assert len(tasks) == {"train": 3553, "valid_seen": 140, "valid_unseen": 134}[split]
    assert tasks.splits == SPLITS
    numbers = [parse_task(task)[3] for task in tasks]
    assert numbers == list(range(len(tasks)))
    assert panel(split, seed=1).sha256 != tasks.sha256
    for size in (0, -1, 10**7):
        with pytest.raises(OptionError, match="size"):
            panel(split, size=size)


@pytest.mark.parametrize(
    "task",
    [
        "",
        "generated/",
        "generated/train/normal/0-17",
        "generated/train/normal/00-000017",
        "generated/train/normal/0-0000017",
        "generated/train/normal/-1-000017",
        "generated/train/normal/0-000017\n",
        "generated/train/normal/٣-000017",
        "generated/test/normal/0-000017",
        "generated/train/../normal/0-000017",
        "generated/train/extreme/0-000017",
        "generated/train/r6-54.o11-63.f123456/0-000017",
        "generated/train/r9-8.o5-9.f1/0-000017",
        "generated/train/r8-9.o5-9.f11/0-000017",
        f"generated/train/normal/{'9' * 5000}-000000",
        f"generated/train/{'r' * 10**6}/0-000000",
        "valid_seen/pick_and_place_simple-Book-None-Desk-301/trial_T1",
        "generated/train/normal/0-000017; rm -rf /",
        "\0\ud800",
        None,
        7,
    ],
)
def test_hostile_task_ids(task):
    with pytest.raises(TaskNotFound) as caught:
        parse_task(task)
    assert len(str(caught.value)) < 600


def test_writing_needs_upstream(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="alfworld"):
        write_game(generate("train", 0), tmp_path)
    assert not list(tmp_path.iterdir())


def test_written_games_are_read_back(tmp_path):
    if not has_upstream():
        pytest.skip("alfworld is not installed, and it owns the domain and the grammar")
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


PARITY = [("train", 0, "normal"), ("valid_unseen", 2, "normal"), ("valid_seen", 4, "normal")]
PARITY += [("train", 0, "easy")] + [("valid_unseen", 0, "hard")]
PARITY += [("valid_seen", i, OWN) for i in range(1)]


def side_steps(engine, command, draws):
    """Yield commands beside the walkthrough, none of which keeps `command` from being next."""
    table = engine.game
    if command.startswith("go to ") and draws.chance(0.4):
        aim = table.location[command.removeprefix("go to ")]
        others = [r for r in table.receptacles if table.location[r] not in (aim, engine.location)]
        yield f"go to {draws.pick(others)}"
    for word in ("examine", "look", "inventory", "close", "take"):
        fitting = [words for words in engine.admissible() if words.startswith(word)]
        if not fitting or not draws.chance(0.25):
            continue
        chosen = draws.pick(fitting)
        yield chosen
        if word == "close":
            yield chosen.replace("close", "open")
        if word == "take":
            back = chosen.replace("take", "move").replace(" from ", " to ")
            if back not in engine.admissible():
                back = next(w for w in engine.admissible() if w.startswith("move"))
            yield back


def assert_same(native, upstream, command):
    answers = []
    for engine in (native, upstream):
        answer = engine.start() if command is None else engine.act(command)
        answers.append(
            (
                answer,
                list(engine.admissible()),
                engine.facts_text(),
                engine.negative_facts_text(),
                engine.won(),
            )
        )
    for ours, theirs in zip(*answers, strict=True):
        assert ours == theirs, command


@pytest.mark.parametrize(("split", "index", "difficulty"), PARITY)
def test_textworld_plays_it_alike(tmp_path, split, index, difficulty):
    if not has_upstream():
        pytest.skip("textworld and alfworld are not installed; run: pip install 'comap[alfworld]'")
    from comap.envs.alfworld.textworld_engine import TextWorldEngine

    game = generate(split, index, seed=11, difficulty=difficulty)
    path = write_game(game, tmp_path)
    native = NativeEngine(Game(read_game(path)))
    draws = Draws("side steps", game.task)
    upstream = TextWorldEngine(path, native.game)
    try:
        assert_same(native, upstream, None)
        for command in game.problem.walkthrough:
            for side_step in side_steps(native, command, draws):
                assert_same(native, upstream, side_step)
            assert_same(native, upstream, command)
        assert_same(native, upstream, "dance")
        assert native.won()
    finally:
        upstream.close()
