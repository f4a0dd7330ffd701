"""The object tree as facts, and beliefs compared with it: by hand, and in the simulator."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import gymnasium as gym
import pytest

from comap.benchmarks.scienceworld_beliefs import follow_belief, random_actions
from comap.benchmarks.scienceworld_beliefs import run as run_beliefs
from comap.envs.scienceworld.canonicalizer import ScienceWorldCanonicalizer
from comap.envs.scienceworld.gold import gold_path
from comap.envs.scienceworld.tasks import task_table
from comap.envs.scienceworld.tree import nodes, tree_facts
from comap.envs.scienceworld.truth import Changes, Truth, changes
from comap.errors import OptionError, TaskNotFound
from comap.facts import State

CHECKED = 5
RANDOM = 14


def thing(number: int, name: str, *contents: dict[str, Any], **said: Any) -> dict[str, Any]:
    """Return a thing as the simulator's tree has it."""
    inside = {f"{one['name']}-{one['uuid']}": one for one in contents}
    return {"uuid": str(number), "name": name, "contents": inside, **said}


def material(celsius: float, state: str, **more: bool) -> dict[str, Any]:
    burning = {"isCombusting": False, "hasCombusted": False} | more
    return {"temperatureC": celsius, "stateOfMatter": state, **burning}


def container(is_open: bool, closable: bool) -> dict[str, bool]:
    return {"isOpen": is_open, "isClosable": closable}


def terminal(number: int, name: str, *others: int) -> dict[str, Any]:
    wired = {"connectedTo": [str(other) for other in others]}
    return thing(number, name, propElectricalConnection=wired)


def device(on: bool) -> dict[str, bool]:
    return {"isActivable": True, "isActivated": on}


def world(*held: dict[str, Any], on: bool = False, pot: str = "ice") -> dict[str, Any]:
    """Return a tree of a kitchen with a pot, cups and a lamp."""
    states = {"ice": (-5, "solid"), "water": (20, "liquid")}
    red = thing(63, "red paint", propMaterial=material(10, "liquid"))
    blue = thing(66, "blue paint", propMaterial=material(10, "liquid"))
    kitchen = thing(
        10,
        "kitchen",
        terminal(11, "terminal 1"),
        thing(20, "agent", thing(21, "inventory", *held)),
        thing(30, "metal pot", thing(33, pot, propMaterial=material(*states[pot]))),
        thing(40, "oven", propContainer=container(False, True), propDevice=device(on)),
        thing(62, "wood cup", red),
        thing(65, "wood cup", blue),
        thing(50, "red light bulb", terminal(51, "anode", 71), propDevice=device(on)),
        thing(70, "red wire", terminal(71, "terminal 1", 51), terminal(72, "terminal 2")),
        thing(80, "air"),
        thing(90, "bee 1", propLife={"isDead": False, "lifeformType": "bee"}),
    )
    return thing(5, "universe", terminal(6, "terminal 1"), kitchen)


def test_a_tree_in_facts():
    facts = tree_facts(world(thing(100, "orange"), on=True))
    assert ("room", "agent", "kitchen") in facts
    assert ("holding", "orange@95") in facts
    assert ("in", "metal pot@25", "kitchen") in facts
    assert ("in", "water@28", "metal pot@25") in facts, "ice is water"
    assert {("phase", "water@28", "solid"), ("temp", "water@28", "freezing")} <= facts
    assert {("closed", "oven@35"), ("active", "oven@35")} <= facts
    assert ("connected", "red light bulb@45.anode", "red wire@65.terminal 1") in facts
    assert not any("terminal" in fact[1] for fact in facts if fact[0] == "in")
    melted = tree_facts(world(thing(100, "orange"), on=True, pot="water"))
    assert facts - melted == {("phase", "water@28", "solid"), ("temp", "water@28", "freezing")}


def test_fire_and_death():
    burning = thing(7, "bowl", propMaterial=material(300, "solid", isCombusting=True))
    ashes = thing(8, "ash", propMaterial=material(30, "solid", hasCombusted=True))
    dead = thing(9, "turtle", propLife={"isDead": True, "lifeformType": "turtle"})
    facts = tree_facts(thing(5, "universe", thing(6, "kitchen", burning, ashes, dead)))
    told = {("burning", "bowl@2"), ("burnt", "ash@3"), ("stage", "turtle@4", "dead")}
    assert told <= facts
    assert ("temp", "bowl@2", "extreme") in facts


def test_beliefs_are_compared_with_the_tree():
    believed = {
        ("room", "agent", "kitchen"),
        ("in", "metal pot", "kitchen"),
        ("in", "water", "metal pot"),
        ("phase", "water", "solid"),
        ("in", "wood cup", "kitchen"),
        ("in", "blue paint", "wood cup"),
        ("in", "wood cup #2", "kitchen"),
        ("closed", "oven"),
        ("in", "oven", "kitchen"),
        ("in", "bee", "kitchen"),
        ("stage", "bee", "adult"),
        ("in", "red light bulb", "kitchen"),
        ("in", "red wire", "kitchen"),
        ("connected", "red light bulb.anode", "red wire.terminal 1"),
        ("door", "hallway", "kitchen", "open"),
        ("seen", "kitchen"),
    }
    truth = Truth(world(), State(frozenset(believed)))
    assert truth.false() == []
    assert truth.names["wood cup"] == "wood cup@60", "the cup with the blue paint"
    assert truth.names["wood cup #2"] == "wood cup@57"
    assert truth.is_true(("stage", "bee", "adult")) is None
    assert truth.is_true(("door", "hallway", "kitchen", "open")) is None
    wrong = [
        ("holding", "metal pot"),
        ("in", "spoon", "kitchen"),
        ("in", "bee", "metal pot"),
        ("phase", "water", "liquid"),
        ("temp", "water", "hot"),
        ("open", "oven"),
        ("active", "oven"),
        ("room", "agent", "hallway"),
        ("connected", "red light bulb.anode", "red wire.terminal 2"),
        ("connected", "spoon.anode", "red wire.terminal 2"),
    ]
    for fact in wrong:
        assert truth.is_true(fact) is False, fact
    false = Truth(world(), State(frozenset({*believed, ("in", "wood cup #3", "kitchen")}))).false()
    assert len(false) == 1 and false[0][1].startswith("wood cup")


def test_changes_that_are_told_are_counted():
    pot = {("room", "agent", "kitchen"), ("in", "metal pot", "kitchen"), ("in", "oven", "kitchen")}
    first = Truth(world(), State(frozenset(pot | {("inactive", "oven")})))
    told = Truth(world(on=True), State(frozenset(pot | {("active", "oven")})), first.names)
    # The oven went on and is not off, and so is the lamp, of which nothing is believed.
    assert changes(first, told) == Changes(things=4, things_told=2)
    assert changes(first, Truth(world(on=True), first.state, first.names)).things_told == 0
    bee = world()
    inside = bee["contents"]["kitchen-10"]["contents"]
    inside["metal pot-30"]["contents"]["bee 1-90"] = inside.pop("bee 1-90")
    assert changes(first, Truth(bee, first.state, first.names)) == Changes(life=2)


def test_a_closed_thing_hides_what_is_in_it():
    tree = world()
    oven = tree["contents"]["kitchen-10"]["contents"]["oven-40"]
    oven["contents"]["pie-99"] = thing(99, "pie", propMaterial=material(10, "solid"))
    truth = Truth(tree, State())
    assert "pie@94" not in truth.sight()
    assert {"oven@35", "water@28", "bee@85"} <= truth.sight()
    oven["propContainer"]["isOpen"] = True
    assert "pie@94" in Truth(tree, State()).sight()


# In the simulator.


@pytest.fixture(scope="module")
def plans(eto) -> dict[str, tuple[str, tuple[str, ...]]]:
    """A task and recorded gold path for most names of tasks."""
    told = json.loads((eto / "gold_paths_sample.json").read_text("utf-8"))
    return {one["task"]: (f"{one['task']}/{one['variation']}", tuple(one["gold"])) for one in told}


def test_beliefs_are_true_along_gold_paths(shared_env: gym.Env[str, str], plans):
    env: Any = shared_env.unwrapped
    counts: Counter[str] = Counter()
    for name in list(task_table())[::2]:
        task, path = plans.get(name, (f"{name}/0", None))
        if path is None:
            env.reset(options={"task": task})
            path = gold_path(env.engine)
        assert path, name
        last = min(len(path), 16)  # the long ones repeat themselves
        follow_belief(env, task, iter(path[:last]), counts, skipped=max(0, last - CHECKED))
    print(dict(counts))
    assert [key for key in counts if key.startswith("false: ")] == []
    assert counts["unparsed texts"] == 0
    assert counts["beliefs"] > 1500
    assert counts["told"] > 0.65 * counts["changes"] > 20


@pytest.mark.parametrize("part", range(2))
def test_beliefs_are_true_in_random_play(shared_env: gym.Env[str, str], part: int):
    env: Any = shared_env.unwrapped
    counts: Counter[str] = Counter()
    for task in random.Random(part).sample(env.tasks.ids, 3):
        follow_belief(env, task, random_actions(env, task, RANDOM), counts)
    print(dict(counts))
    assert [key for key in counts if key.startswith("false: ")] == []
    assert counts["unparsed texts"] == 0
    assert counts["beliefs"] > 100
    assert counts["told"] > 0


class Forgetful(ScienceWorldCanonicalizer):
    """A canonicalizer that overlooks that things were moved."""

    def update(self, state: State, action: str, observation: str) -> State:
        return (
            state
            if observation.startswith("You move the")
            else super().update(state, action, observation)
        )


def test_the_comparison_finds_false_beliefs(shared_env: gym.Env[str, str], plans, monkeypatch):
    env: Any = shared_env.unwrapped
    task, path = plans["boil"]
    monkeypatch.setattr(env, "canonicalizer", Forgetful())
    looking = [part for action in path[:9] for part in ("look around", action, "task")]
    counts: Counter[str] = Counter()
    follow_belief(env, task, iter([*looking, *looking[:1] * 2]), counts, skipped=6)
    assert counts["changes"] > 2
    monkeypatch.undo()
    honest: Counter[str] = Counter()
    follow_belief(env, task, iter([*looking, *looking[:1] * 2]), honest, skipped=6)
    assert counts["false beliefs"] > honest["false beliefs"] == 0
    assert counts["told"] < honest["told"]


def test_identifiers_do_not_depend_on_what_was_played_before(shared_env: gym.Env[str, str]):
    env: Any = shared_env.unwrapped
    told = []
    for other in ("find-plant/1", "boil/0"):
        env.reset(options={"task": other})
        env.reset(options={"task": "power-component/0"})
        told.append(tree_facts(env.engine.tree()))
    assert told[0] == told[1]
    names = [node.key for node in nodes(env.engine.tree())]
    assert len(names) == len(set(names))


def test_options_of_the_comparison_are_checked():
    with pytest.raises(OptionError, match="at least 1"):
        run_beliefs(steps=0)
    with pytest.raises(TaskNotFound, match="boil"):
        run_beliefs(tasks=["boill"])
