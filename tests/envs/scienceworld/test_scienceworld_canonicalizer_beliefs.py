"""ScienceWorld's beliefs: names of things, what time does, hostile text, and beliefs in words."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from comap.envs import state_text
from comap.envs.scienceworld.belief import Belief, base_name
from comap.envs.scienceworld.canonicalizer import ScienceWorldCanonicalizer
from comap.envs.scienceworld.sentences import read_observation
from comap.envs.scienceworld.sentences_things import read_thing
from comap.envs.scienceworld.wording import narrate
from comap.facts import State
from comap.trajectory import Turn

VIEWS = json.loads(Path(__file__).with_name("views.json").read_text("utf-8"))
KITCHEN, LAB, GARDEN, MENU = (VIEWS[name] for name in ("kitchen", "lab", "garden", "menu"))

WAIT = ("wait1", "You decide to wait for 1 iterations.")

canon = ScienceWorldCanonicalizer()


def after(view: str, *turns: tuple[str, str]) -> State:
    """Return the belief after a look around and some more turns."""
    state = canon.initial("", view)
    for action, observation in turns:
        state = canon.update(state, action, observation)
    return state


def test_what_was_seen_of_other_rooms_is_kept():
    state = after(KITCHEN, ("go to outside", "You move to the outside."), ("look around", GARDEN))
    assert {("door", "hallway", "kitchen", "closed"), ("in", "bowl", "counter")} <= state.facts
    assert ("door", "greenhouse", "outside", "open") in state.facts
    looked = canon.update(state, "look at kitchen", KITCHEN.replace("\tthe agent\n", ""))
    assert ("room", "agent", "outside") in looked.facts, "a room can be looked at from another"


def test_things_of_one_name_are_told_apart_by_what_the_action_says():
    moved = ("move cup containing blue paint to battery", "You move the wood cup to the battery.")
    facts = after(LAB, moved).facts
    assert ("in", "wood cup #2", "battery") in facts
    assert {("in", "wood cup", "workshop"), ("in", "blue paint", "wood cup #2")} <= facts
    unclear = after(LAB, ("move cup to battery", "You move the wood cup to the battery.")).facts
    cups = {fact for fact in unclear if "cup" in fact[1]}
    assert cups == {("in", "wood cup", "battery")}, (
        "which one is not known, so none is believed to be"
    )


def test_what_is_moved_into_what_it_holds_is_nowhere():
    facts = after(KITCHEN, ("move counter to bowl", "You move the counter to the bowl.")).facts
    assert ("in", "bowl", "counter") in after(KITCHEN).facts
    assert not [fact for fact in facts if {"bowl", "counter", "drawer"} & set(fact)]
    assert ("in", "metal pot", "kitchen") in facts


def test_what_burns_has_a_door_still():
    burning = KITCHEN.replace(
        "cupboard. The cupboard", "cupboard (on fire). The cupboard (on fire)"
    )
    state = after(burning)
    assert burning != KITCHEN and state.parsed
    assert {("burning", "cupboard"), ("closed", "cupboard")} <= state.facts


def test_any_room_may_be_called_one():
    state = after(LAB, ("activate component in room", "The switch is now activated."))
    assert ("active", "switch") in state.facts


def test_what_may_be_of_another_state_is_not_believed():
    state = after(LAB, ("activate thing in cup", "The switch is now activated."))
    assert not {("active", "switch"), ("inactive", "switch")} & state.facts
    assert ("inactive", "blue light bulb") in state.facts


def test_a_pending_choice_is_told_and_then_made():
    request = "move cup containing red paint to battery"
    asked = after(LAB, (request, MENU))
    pending = {fact[1]: fact[2] for fact in asked.facts if fact[0] == "pending"}
    assert sorted(pending) == ["0", "1", "request"]
    assert pending["1"] == "move wood cup (in workshop) to battery (in workshop)"
    done = canon.update(asked, "1", "You move the wood cup to the battery.")
    assert not any(fact[0] == "pending" for fact in done.facts)
    assert ("in", "wood cup", "battery") in done.facts, "the request says which cup it was"
    swallowed = canon.update(asked, "look around", "Unknown action.  Type 'help' for a list.")
    assert swallowed.parsed
    assert not any(fact[0] == "pending" for fact in swallowed.facts)


def test_time_takes_what_may_have_changed():
    kept = after(GARDEN, WAIT).facts
    assert ("in", "pea plant", "flower pot 4") in kept
    assert ("stage", "giant tortoise", "egg") in kept
    gone = ("bee", "bee #2", "purple flower", "round green pea seed", "water")
    assert not [fact for fact in kept if set(fact) & set(gone)]
    still = after(GARDEN, ("inventory", "In your inventory, you see:\n\tnothing\n")).facts
    assert ("in", "bee #2", "outside") in still, "looking takes no time"


def test_what_is_not_understood_takes_no_time():
    before = canon.initial("", GARDEN)
    assert canon.update(before, "dance", "No known action matches that input.") is before
    assert canon.update(before, "look", GARDEN) == before
    later = canon.update(before, "dance here", "It's not clear how to dance.").facts
    assert ("in", "bee", "outside") not in later, "most refusals do"
    beside = canon.update(before, "look at kitchen", KITCHEN.replace("\tthe agent\n", "")).facts
    assert ("in", "bee", "outside") not in beside, "only looking around takes none"
    assert ("in", "bowl", "counter") in beside


def test_heat_and_cold_make_phases_uncertain():
    boiled = after(
        KITCHEN,
        ("pour metal pot into bowl", "You pour the contents of the metal pot into the bowl."),
        (
            "look in bowl",
            "Inside the bowl is: \n\ta red apple\n\tan orange\n\ta substance called water",
        ),
    )
    assert ("phase", "water", "liquid") in boiled.facts
    warm = canon.update(boiled, *WAIT)
    assert ("phase", "water", "liquid") in warm.facts, "nothing near it is hot or cold"
    on_stove = canon.update(warm, "move bowl to stove", "You move the bowl to the stove.")
    later = canon.update(on_stove, *WAIT)
    assert ("in", "water", "bowl") in later.facts
    assert not any(fact[0] == "phase" for fact in later.facts if fact[1] == "water")
    measured = canon.update(
        later,
        "use thermometer on water in bowl",
        "the thermometer measures a temperature of 97 degrees celsius",
    )
    assert ("temp", "water", "hot") in measured.facts
    assert ("temp", "water", "hot") not in canon.update(measured, *WAIT).facts
    seen = canon.update(measured, "examine steam in bowl", "a substance called steam")
    assert ("phase", "water", "gas") in seen.facts


def test_circuits_may_switch_on():
    state = after(
        LAB,
        (
            "connect battery anode to blue light bulb cathode",
            "anode on battery is now connected to cathode on blue light bulb",
        ),
        WAIT,
    )
    assert ("inactive", "blue light bulb") not in state.facts
    assert ("inactive", "switch") in state.facts
    loose = canon.update(
        state, "put down battery", "(disconnecting battery)You move the battery to the workshop."
    )
    assert not any(fact[0] == "connected" for fact in loose.facts)


def test_a_thing_that_only_changed_its_place_keeps_its_name():
    view = LAB.replace("\ta wood cup (containing nothing)\n", "").replace(
        "\ta battery\n", "\ta box (containing a wood cup (containing nothing))\n"
    )
    state = after(LAB, ("look around", view))
    assert ("in", "wood cup #3", "box") in state.facts
    assert ("in", "blue paint", "wood cup #2") in state.facts


@pytest.mark.parametrize(
    "text",
    [
        "The dragon sleeps. It snores.",
        "The dragon sleeps.",
        "apple juice",
        "This room is called the kitchen. In it, you see: \n\tso (much\n",
        "In your inventory, you see:\n\t((\n",
        "\x00",
        "",
        "a " * 3000 + "(containing",
    ],
)
def test_text_that_fits_no_rule_is_not_parsed(text):
    before = canon.initial("", KITCHEN)
    state = canon.update(before, "wait", text)
    assert not state.parsed
    assert state.facts == before.facts
    assert canon.update(state, "task", "Task description:\nx").parsed


TURNS = (
    ("pick up metal pot", "You move the metal pot to the inventory."),
    ("move cup to stove", "You move the wood cup to the stove."),
    ("pour cup in fridge into bowl", "You pour the contents of the wood cup into the bowl."),
    (
        "dunk cup into cup",
        "You dunk the wood cup in the wood cup, moving the liquids (water) to the wood cup.",
    ),
    ("mix bowl", "Red and blue paint mix to produce violet paint."),
    ("connect a to b", "anode on battery is now connected to terminal 1 on red wire"),
    ("put down battery", "(disconnecting battery)You move the battery to the workshop."),
    ("look in bowl", "Inside the bowl is: \n\ta red apple\n\tan orange\n"),
    (
        "inventory",
        "In your inventory, you see:\n\ta table. On the table is: \n\ta pen\n\n\ta cup\n",
    ),
    ("wait", "You decide to wait for 10 iterations."),
    ("open door", "The door is now open."),
    ("eat orange", "The orange was delicious."),
)


def hostile(seed: int) -> list[tuple[str, str]]:
    """Return turns of shuffled, cut and joined pieces of real sentences."""
    rng = random.Random(seed)
    texts = [KITCHEN, LAB, GARDEN, MENU, *(observation for _, observation in TURNS)]
    actions = [action for action, _ in TURNS] + ["0", "", "move a to a", "look around"]
    turns = []
    for _ in range(40):
        first, second = rng.choice(texts), rng.choice(texts)
        cut = first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :]
        made = rng.choice(
            (first, cut, first.replace("a ", "a a "), cut.replace(". ", ", "), cut * 3)
        )
        turns.append((rng.choice(actions), made))
    return turns


def digest_of_hostile_play() -> str:
    """Return a hash of all beliefs of some hostile episodes."""
    told = hashlib.sha256()
    for seed in range(12):
        state = State(frozenset({("in", "a", "b"), ("in", "b", "a"), ("in", "a", "c"), ("odd",)}))
        for action, observation in hostile(seed):
            state = canon.update(state, action, observation)
            told.update(state.to_text().encode())
    return told.hexdigest()


def test_any_text_may_come_and_hash_seeds_do_not_matter():
    here = digest_of_hostile_play()
    script = f"import runpy, sys; print(runpy.run_path({__file__!r})['digest_of_hostile_play']())"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    for seed in ("1", "77"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        told = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split() == [here]


def test_deep_and_long_texts_are_read_or_refused():
    deep = "a box (containing " * 500 + "a pen" + ")" * 500
    assert read_thing(deep) is None
    wide = "a box (containing " + ", ".join(["a pen"] * 3000) + ")"
    thing = read_thing(wide)
    assert thing is not None and thing.contents is not None and len(thing.contents) == 3000
    assert read_observation("x is on y " * 3000) is None
    many = LAB.replace("\ta battery\n", "\ta pen\n" * 3000)
    state = after(many, WAIT, ("look around", many))
    assert ("in", "pen #3000", "workshop") in state.facts
    facts = {("in", f"box {n}", f"box {n + 1}") for n in range(3000)}
    belief = Belief(facts)
    assert len(belief.below("box 3000")) == 3000
    assert belief.facts() == facts


def test_beliefs_in_words():
    state = after(KITCHEN, ("focus on orange", "You focus on the orange."))
    text = narrate(
        "Boil water.", [Turn(None, KITCHEN), Turn("focus on orange", "You focus.")], state
    )
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    assert lines["room"] == "kitchen; door to hallway (closed); door to outside (open)"
    assert lines["held"] == "not looked"
    assert "counter [bowl [orange, red apple], drawer]" in lines["here"]
    assert "jug" in lines["here"].partition("sink (on) [")[2].partition("]")[0]
    assert lines["focus"] == "orange"
    assert lines["last"] == "focus on orange -> You focus."
    away = canon.update(state, "go to outside", "You move to the outside.")
    assert "kitchen: " in narrate("g", (), away)
    assert "\nkitchen: " not in narrate("g", (), away, "wait")
    assert "\nkitchen: " in narrate("g", (), away, "go to kitchen")
    assert state_text("comap/ScienceWorld-v0", "g", (), State())


def test_names_of_many():
    belief = Belief()
    assert [belief.new("cup", "table") for _ in range(3)] == ["cup", "cup #2", "cup #3"]
    assert base_name("cup #3") == "cup"
    belief.forget("cup #2")
    assert belief.new("cup", "shelf") == "cup #2"
