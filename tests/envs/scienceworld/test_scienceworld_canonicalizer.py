"""The canonicalizer of ScienceWorld reads every answer, and gives actions one form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.envs import Canonicalizer
from comap.envs.scienceworld.canonicalizer import ScienceWorldCanonicalizer
from comap.envs.scienceworld.sentences_things import read_thing
from comap.facts import State, diff

VIEWS = json.loads(Path(__file__).with_name("views.json").read_text("utf-8"))
KITCHEN, LAB, GARDEN, MENU = (VIEWS[name] for name in ("kitchen", "lab", "garden", "menu"))

canon = ScienceWorldCanonicalizer()


def after(view: str, *turns: tuple[str, str]) -> State:
    """Return the belief after a look around and some more turns."""
    state = canon.initial("", view)
    for action, observation in turns:
        state = canon.update(state, action, observation)
    return state


def test_it_obeys_the_protocol():
    assert isinstance(canon, Canonicalizer)
    assert canon.version == "scienceworld-1"


def test_a_room_is_read_whole():
    state = canon.initial("Your task is to boil water.", KITCHEN)
    assert state.parsed
    assert (
        sorted(state.to_text().splitlines())
        == """active(sink)
active(stove)
closed(cupboard)
closed(oven)
door(hallway, kitchen, closed)
door(kitchen, outside, open)
in(bowl, counter)
in(counter, kitchen)
in(cupboard, kitchen)
in(drawer, counter)
in(fridge, kitchen)
in(jug, sink)
in(metal pot, kitchen)
in(orange juice, wood cup)
in(orange, bowl)
in(oven, kitchen)
in(red apple, bowl)
in(sink, kitchen)
in(stove, kitchen)
in(thermometer, kitchen)
in(water, metal pot)
in(wood cup, fridge)
inactive(oven)
open(fridge)
phase(water, solid)
room(agent, kitchen)
seen(bowl)
seen(counter)
seen(fridge)
seen(jug)
seen(kitchen)
seen(metal pot)
seen(sink)
seen(stove)
seen(wood cup)""".splitlines()
    )


def test_terminals_are_read():
    wire = read_thing(
        "a red wireits terminal 1 is connected to: nothing. its terminal 2 is connected to: nothing. "
    )
    assert wire is not None
    assert (wire.name, wire.links) == ("red wire", (("terminal 1", ""), ("terminal 2", "")))
    state = after(
        LAB,
        (
            "connect battery anode to red wire terminal 1",
            "anode on battery is now connected to terminal 1 on red wire",
        ),
    )
    assert ("connected", "battery.anode", "red wire.terminal 1") in state.facts
    loose = canon.update(
        state,
        "look at red wire",
        "a red wire. its terminal 1 is connected to: nothing. its terminal 2 is connected to: nothing.",
    )
    assert loose.parsed
    assert not any(fact[0] == "connected" for fact in loose.facts)


def test_a_stopwatch_ends_its_own_sentence():
    table = read_thing("a table. On the table is: a cup (containing a stopwatch, which is off. ).")
    assert table is not None and table.contents is not None
    (cup,) = table.contents
    assert cup.contents is not None and cup.contents[0].marks == (("inactive",),)


def test_living_things_are_read():
    facts = canon.initial("", GARDEN).facts
    told = {("stage", "bee", "adult"), ("stage", "bee #2", "adult"), ("stage", "turtle", "dead")}
    told |= {("stage", "giant tortoise", "egg"), ("stage", "butterfly", "caterpillar")}
    told |= {("stage", "pea plant", "reproducing"), ("in", "purple flower", "pea plant")}
    told |= {("in", "round green pea seed", "pea plant"), ("slid", "wood block", "middle")}
    told |= {("in", "wood block", "inclined plane b"), ("in", "water", "flower pot 4")}
    assert told <= facts


CASES = {
    "go": (
        KITCHEN,
        "go to outside",
        "You move to the outside.",
        "+room(agent, outside) -room(agent, kitchen)",
    ),
    "go through": (
        KITCHEN,
        "go to door to outside",
        "You move through the door to the outside.",
        "+room(agent, outside) -room(agent, kitchen)",
    ),
    "teleport": (
        KITCHEN,
        "teleport to foundry",
        "You teleport to the foundry.",
        "+room(agent, foundry) -room(agent, kitchen)",
    ),
    "open a door": (
        KITCHEN,
        "open door to hallway",
        "The door is now open.",
        "+door(hallway, kitchen, open) -door(hallway, kitchen, closed)",
    ),
    "close a thing": (
        KITCHEN,
        "close fridge",
        "The fridge is now closed.",
        "+closed(fridge) -open(fridge)",
    ),
    "pick up": (
        KITCHEN,
        "pick up metal pot",
        "You move the metal pot to the inventory.",
        "+holding(metal pot) -in(metal pot, kitchen)",
    ),
    "pick up by part of the name": (
        KITCHEN,
        "pick up apple",
        "You move the apple to the inventory.",
        "+holding(red apple) -in(red apple, bowl)",
    ),
    "put down": (
        KITCHEN,
        "put down thermometer",
        "You move the thermometer to the kitchen.",
        "",
    ),
    "move": (
        KITCHEN,
        "move metal pot to stove",
        "You move the metal pot to the stove.",
        "+in(metal pot, stove) -in(metal pot, kitchen)",
    ),
    "pour all": (
        KITCHEN,
        "pour cup in fridge into bowl",
        "You pour the contents of the wood cup into the bowl.",
        "+in(orange juice, bowl) -in(orange juice, wood cup)",
    ),
    "pour one": (
        KITCHEN,
        "pour orange juice into metal pot",
        "You pour the orange juice into the metal pot.",
        "+in(orange juice, metal pot) -in(orange juice, wood cup)",
    ),
    "dunk": (
        LAB,
        "dunk cup containing nothing into cup containing red paint",
        "You dunk the wood cup in the wood cup, moving the liquids (red paint) to the wood cup.",
        "+in(red paint, wood cup #3) -in(red paint, wood cup)",
    ),
    "mix": (
        KITCHEN,
        "mix bowl",
        "Apples, oranges, and bananas mix to produce fruit salad.",
        "+in(fruit salad, bowl) -in(red apple, bowl) -in(orange, bowl)",
    ),
    "mix what does not mix": (
        KITCHEN,
        "mix bowl",
        "Mixing the contents of the bowl does not appear to produce anything new.",
        "",
    ),
    "activate": (
        KITCHEN,
        "activate oven",
        "The oven is now activated.",
        "+active(oven) -inactive(oven)",
    ),
    "deactivate": (
        KITCHEN,
        "turn off stove",
        "The stove is now deactivated.",
        "+inactive(stove) -active(stove)",
    ),
    "broken": (
        KITCHEN,
        "activate oven",
        "The oven appears broken, and can't be activated or deactivated.",
        "",
    ),
    "connect": (
        LAB,
        "connect battery anode to red wire terminal 1",
        "anode on battery is now connected to terminal 1 on red wire",
        "+connected(battery.anode, red wire.terminal 1)",
    ),
    "focus": (KITCHEN, "focus on orange", "You focus on the orange.", "+focused(orange)"),
    "burn": (KITCHEN, "use lighter on bowl", "The bowl catches fire.", "+burning(bowl)"),
    "eat": (KITCHEN, "eat orange", "The orange was delicious.", "-in(orange, bowl)"),
    "examine": (
        KITCHEN,
        "examine bowl",
        "a bowl (containing an orange)",
        "-in(red apple, bowl)",
    ),
    "look in": (
        KITCHEN,
        "look in bowl",
        "Inside the bowl is: \n\ta red apple\n\tan orange\n\ta banana",
        "+in(banana, bowl)",
    ),
    "an empty inside": (
        KITCHEN,
        "look in bowl",
        "There is nothing in the bowl.",
        "-in(red apple, bowl) -in(orange, bowl)",
    ),
    "measure": (
        KITCHEN,
        "use thermometer on orange juice",
        "the thermometer measures a temperature of -4 degrees celsius",
        "+temp(orange juice, freezing)",
    ),
    "measure what is in something": (
        KITCHEN,
        "use thermometer in inventory on substance in metal pot",
        "the thermometer measures a temperature of 61 degrees celsius",
        "+temp(water, hot)",
    ),
    "dig": (
        GARDEN,
        "use shovel in inventory on ground",
        "You dig a hole in the ground, and place the soil nearby.",
        "+in(hole, outside) +in(soil #2, outside)",
    ),
    "flush": (KITCHEN, "flush toilet", "The toilet is now flushing.", ""),
    "read": (
        KITCHEN,
        "read recipe",
        "The recipe reads:\nTo make dough, you need to mix flour.",
        "",
    ),
    "wait": (KITCHEN, "wait", "You decide to wait for 10 iterations.", ""),
    "task": (KITCHEN, "task", "Task description:\nYour task is to boil water.", ""),
    "inventory": (
        KITCHEN,
        "inventory",
        "In your inventory, you see:\n\ta table. On the table is: \n\ta white pillow\n\n\tan orange\n",
        "+holding(table) +in(white pillow, table) +seen(table) +holding(orange #2) +seen(inventory)",
    ),
    "not understood": (KITCHEN, "dance", "No known action matches that input.", ""),
    "not clear": (KITCHEN, "go to bathtub", "It's not clear how to get there from here.", ""),
}
# What the stove, the tap and time do beside what a case is about.
BY_ITSELF = {"-phase(water, solid)", "+in(water #2, jug)", "+phase(water #2, liquid)"}


@pytest.mark.parametrize("name", CASES)
def test_answers_change_what_they_state(name):
    view, action, observation, expected = CASES[name]
    before = canon.initial("", view)
    state = canon.update(before, action, observation)
    assert state.parsed
    delta = diff(before, state)
    told = {"+" + line for line in State(delta.added).to_text().splitlines()}
    told |= {"-" + line for line in State(delta.removed).to_text().splitlines()}
    growing = {
        one
        for one in told
        if view == GARDEN and one[1:].startswith(("in(", "stage(", "phase(", "slid("))
    }
    wanted = {part[0] + part[1:].strip() for part in _split(expected)}
    assert wanted <= told, told
    assert told - wanted - BY_ITSELF <= (growing if view == GARDEN else set()), told


def _split(text: str) -> list[str]:
    parts: list[str] = []
    for word in text.split(" "):
        if word[:1] in ("+", "-"):
            parts.append(word)
        elif word:
            parts[-1] += f" {word}"
    return parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pick up the orange.", "pick up orange"),
        ("take the orange", "pick up orange"),
        ("drop orange", "put down orange"),
        ("examine the stove", "look at stove"),
        ("go kitchen", "go to kitchen"),
        ("walk to the kitchen", "go to kitchen"),
        ("move orange to kitchen", "move orange to kitchen"),
        ("put orange in bowl", "move orange to bowl"),
        ("put down orange", "put down orange"),
        ("pour cup in bowl", "pour cup into bowl"),
        ("turn on stove", "activate stove"),
        ("focus orange", "focus on orange"),
        ("focus on orange", "focus on orange"),
        ("use thermometer with orange", "use thermometer on orange"),
        ("LOOK", "look around"),
        ("3", "3"),
        ("", ""),
    ],
)
def test_actions_have_one_form(text, expected):
    assert canon.action(text) == expected
    assert canon.action(expected) == expected
