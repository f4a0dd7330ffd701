"""The native engine answers as TextWorld does: recorded, demonstrated, and beside it."""

from __future__ import annotations

import threading

import pytest

from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.engines import make_engine
from comap.envs.alfworld.game import Game, read_game
from comap.envs.alfworld.generate import generate, write_game
from comap.envs.alfworld.goal import Goal
from comap.envs.data import verify
from comap.envs.generated import Draws
from comap.errors import OptionError, SnapshotError

PARTS = 6
OFFICIAL = {
    "two": "pick_two_obj_and_place-SprayBottle-None-GarbageCan-416/trial_T20190909_001522_308289",
    "look": "look_at_obj_in_light-Book-None-DeskLamp-324/trial_T20190907_014417_271891",
}
GENERATED = {"easy": ("train", 0, "easy"), "own": ("valid_seen", 0, "r9-12.o6-9.f245.h")}


def state_of(engine):
    """Everything that an engine tells about the moment it is in, by the names of the recordings."""
    return {
        "admissible_commands": list(engine.admissible()),
        "facts": engine.facts(),
        "won": engine.won(),
    }


def read_fact(text):
    """A fact as TextWorld prints it: its predicate, and each argument with its type."""
    name, _, rest = text.rstrip(")").partition("(")
    return name, *(part.rpartition(":")[0].strip() for part in rest.split(", "))


def test_recorded_states(official, shared):
    games = states = 0
    for trace in shared.rows("traces_dev.jsonl.xz"):
        engine = official.engine(official.folder / trace["game"])
        games += 1
        for record in trace["steps"]:
            command = record["command"]
            observation = engine.start() if command is None else engine.act(command)[0]
            state = {"observation": observation, "done": engine.won(), **state_of(engine)}
            right = {**record, "facts": frozenset(map(read_fact, record["facts"]))}
            assert state == {name: right[name] for name in state}, (trace["game"], command)
            states += 1
    assert (games, states) == (82, 2658)


def test_walkthroughs_and_demonstrations(official, shared):
    """Each walkthrough is valid and wins; each demonstration reads the same."""
    demos = {line["game"]: line["steps"] for line in shared.rows("demos.jsonl.xz")}
    for path in official.files[::PARTS]:
        engine = official.engine(path)
        problem = engine.game.problem
        assert path.parent.parent.name.startswith(problem.goal.family), path
        assert Goal.from_sentence(problem.task) == problem.goal, "what is read is what is checked"
        assert not engine.won(), path
        for command in problem.walkthrough:
            assert command in engine.admissible(), (path, command)
            assert engine.act(command)[1], (path, command)
        assert engine.won(), path
        for step in demos.get(path.relative_to(official.folder).as_posix(), ()):
            command = step["command"]
            observation = engine.start() if command is None else engine.act(command)[0]
            assert observation == step["observation"], (path, command)


def test_these_games_are_those_of_the_catalogue(official):
    report = verify("alfworld", official.folder)
    assert report.ok and sum("content matches" in split.text for split in report.splits) == 3


# Beside TextWorld.


@pytest.fixture
def upstream(request, tmp_path):
    """A function that opens a game by its name with TextWorld."""
    pytest.importorskip("textworld", reason="the upstream engine (textworld) is not installed")
    pytest.importorskip("alfworld", reason="alfworld owns the domain and the grammar")
    opened = []

    def open_game(name):
        if name in GENERATED:
            split, index, difficulty = GENERATED[name]
            path = write_game(generate(split, index, seed=11, difficulty=difficulty), tmp_path)
        else:
            root = request.getfixturevalue("official").root
            path = root / "train" / OFFICIAL[name] / "game.tw-pddl"
        opened.append(make_engine("textworld", Game(read_game(path)), path))
        return opened[-1]

    yield open_game
    for engine in opened:
        engine.close()


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
        side_command = draws.pick(fitting)
        yield side_command
        if word == "close":
            yield side_command.replace("close", "open")
        if word == "take":
            back = side_command.replace("take", "move").replace(" from ", " to ")
            if back not in engine.admissible():
                back = next(w for w in engine.admissible() if w.startswith("move"))
            yield back


@pytest.mark.parametrize("name", [*OFFICIAL, *GENERATED])
def test_textworld_plays_it_alike(upstream, name):
    theirs = upstream(name)
    ours = NativeEngine(theirs.game)
    draws = Draws("side steps", ours.game.problem.task)

    def alike(command):
        assert ours.act(command) == theirs.act(command), command
        assert state_of(ours) == state_of(theirs), command
        assert ours.conditions() == theirs.conditions() and ours.facts() == theirs.facts(), command

    assert ours.start() == theirs.start()
    for command in ("look", "xyzzy", "", " inventory ", "help"):
        alike(command)
    for command in ours.game.problem.walkthrough:
        for side_step in side_steps(ours, command, draws):
            alike(side_step)
        alike(command)
    alike("dance")
    assert ours.won()


def test_snapshots_go_back_and_to_another_engine_of_the_game(upstream):
    engine = upstream("two")
    walkthrough = engine.game.problem.walkthrough
    for command in ("nonsense", *walkthrough[:2]):
        engine.act(command)
    before, saved = state_of(engine), engine.save()
    engine.act(walkthrough[2])
    assert state_of(engine) != before
    engine.load(saved)
    second_engine = upstream("two")
    second_engine.load(saved)
    assert state_of(engine) == state_of(second_engine) == before and second_engine.save() == saved
    native = NativeEngine(engine.game).save()
    for foreign, phrase in (
        (saved | {"game": "0"}, "SHA-256"),
        ({}, "SHA-256"),
        (native, "another engine"),
        (saved | {"answers": "0"}, "found others"),
    ):
        with pytest.raises(SnapshotError, match=phrase):
            engine.load(foreign)


def test_two_threads_do_not_mix(upstream):
    failures = []

    def play(name):
        theirs = upstream(name)
        ours = NativeEngine(theirs.game)
        if ours.start() != theirs.start():
            failures.append("start")
        for command in ours.game.problem.walkthrough[:3]:
            if ours.act(command) != theirs.act(command) or state_of(ours) != state_of(theirs):
                failures.append(command)

    threads = [threading.Thread(target=play, args=(name,)) for name in OFFICIAL]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_engines_are_chosen_by_name(upstream, tmp_path):
    problem = upstream("easy").game.problem
    assert make_engine("native", Game(problem)).name == "native"
    with pytest.raises(OptionError, match="did you mean 'textworld'"):
        make_engine("textwrld", Game(problem))
    with pytest.raises(OptionError, match="'move' only"):
        make_engine("textworld", Game(problem, "put"), tmp_path)
