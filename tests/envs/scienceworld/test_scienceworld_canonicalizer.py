"""The canonicalizer of ScienceWorld reads every answer, and gives actions one form."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from comap.envs import state_text
from comap.envs.scienceworld.belief import Belief, narrate
from comap.envs.scienceworld.canonicalizer import ScienceWorldCanonicalizer
from comap.envs.scienceworld.sentences import read_observation, read_thing
from comap.facts import State, diff
from comap.trainers.evaluation import is_predictable
from comap.trajectory import Turn
from comap.worldmodel import Query

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))

VIEWS = json.loads(Path(__file__).with_name("views.json").read_text("utf-8"))
KITCHEN, LAB, GARDEN, MENU = (VIEWS[name] for name in ("kitchen", "lab", "garden", "menu"))

canon = ScienceWorldCanonicalizer()


def after(view: str, *turns: tuple[str, str]) -> State:
    """Return the belief after a look around and some more turns."""
    state = canon.initial("", view)
    for action, observation in turns:
        state = canon.update(state, action, observation)
    return state


def test_a_room_is_read_whole():
    state = canon.initial("Your task is to boil water.", KITCHEN)
    assert state.parsed
    assert sorted(state.to_text().splitlines()) == CASES["facts_of_the_kitchen"]


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


ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text("utf-8"))
# What the stove, the tap and time do beside what a case is about.
BY_ITSELF = {"-phase(water, solid)", "+in(water #2, jug)", "+phase(water #2, liquid)"}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_change_what_they_state(name):
    view_name, action, observation, expected = ANSWERS[name]
    view = VIEWS[view_name]
    before = canon.initial("", view)
    state = canon.update(before, action, observation)
    assert state.parsed
    delta = diff(before, state)
    changes = {"+" + line for line in State(delta.added).to_text().splitlines()}
    changes |= {"-" + line for line in State(delta.removed).to_text().splitlines()}
    growing = {
        change
        for change in changes
        if view == GARDEN and change[1:].startswith(("in(", "stage(", "phase(", "slid("))
    }
    expected_changes = {part[0] + part[1:].strip() for part in _split(expected)}
    assert expected_changes <= changes, changes
    assert changes - expected_changes - BY_ITSELF <= (growing if view == GARDEN else set()), changes


def _split(text: str) -> list[str]:
    parts: list[str] = []
    for word in text.split(" "):
        if word[:1] in ("+", "-"):
            parts.append(word)
        elif word:
            parts[-1] += f" {word}"
    return parts


@pytest.mark.parametrize(("text", "expected"), CASES["actions_have_one_form"])
def test_actions_have_one_form(text, expected):
    assert canon.action(text) == expected
    assert canon.action(expected) == expected


WAIT = ("wait1", "You decide to wait for 1 iterations.")


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


def test_a_pending_choice_is_told_and_then_made():
    request = "move cup containing red paint to battery"
    asking_state = after(LAB, (request, MENU))
    pending = {fact[1]: fact[2] for fact in asking_state.facts if fact[0] == "pending"}
    assert sorted(pending) == ["0", "1", "request"]
    assert pending["1"] == "move wood cup (in workshop) to battery (in workshop)"
    resolved = canon.update(asking_state, "1", "You move the wood cup to the battery.")
    assert not any(fact[0] == "pending" for fact in resolved.facts)
    assert ("in", "wood cup", "battery") in resolved.facts, "the request says which cup it was"
    swallowed = canon.update(
        asking_state, "look around", "Unknown action.  Type 'help' for a list."
    )
    assert swallowed.parsed
    assert not any(fact[0] == "pending" for fact in swallowed.facts)


def test_time_takes_what_may_have_changed():
    facts = after(GARDEN, WAIT).facts
    assert ("in", "pea plant", "flower pot 4") in facts
    assert ("stage", "giant tortoise", "egg") in facts
    uncertain_names = ("bee", "bee #2", "purple flower", "round green pea seed", "water")
    assert not [fact for fact in facts if set(fact) & set(uncertain_names)]
    facts_after_looking = after(
        GARDEN, ("inventory", "In your inventory, you see:\n\tnothing\n")
    ).facts
    assert ("in", "bee #2", "outside") in facts_after_looking, "looking takes no time"


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
    examined = canon.update(measured, "examine steam in bowl", "a substance called steam")
    assert ("phase", "water", "gas") in examined.facts


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


@pytest.mark.parametrize("text", [*CASES["text_that_fits_no_rule"], "a " * 3000 + "(containing"])
def test_text_that_fits_no_rule_is_not_parsed(text):
    before = canon.initial("", KITCHEN)
    state = canon.update(before, "wait", text)
    assert not state.parsed
    assert state.facts == before.facts
    assert canon.update(state, "task", "Task description:\nx").parsed


def hostile(seed: int) -> list[tuple[str, str]]:
    """Return turns of shuffled, cut and joined pieces of real sentences."""
    rng = random.Random(seed)
    texts = [KITCHEN, LAB, GARDEN, MENU, *(observation for _, observation in CASES["turns"])]
    actions = [action for action, _ in CASES["turns"]] + ["0", "", "move a to a", "look around"]
    turns = []
    for _ in range(40):
        first, second = rng.choice(texts), rng.choice(texts)
        cut = first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :]
        text = rng.choice(
            (first, cut, first.replace("a ", "a a "), cut.replace(". ", ", "), cut * 3)
        )
        turns.append((rng.choice(actions), text))
    return turns


def test_any_text_may_come_and_hash_seeds_do_not_matter():
    """The digest is the same in any process."""
    digest = hashlib.sha256()
    for seed in range(12):
        state = State(frozenset({("in", "a", "b"), ("in", "b", "a"), ("in", "a", "c"), ("odd",)}))
        for action, observation in hostile(seed):
            state = canon.update(state, action, observation)
            digest.update(state.to_text().encode())
    assert digest.hexdigest() == "1d8db419846131006a92668d811c0c6b48d3f2d8a4a960715a6a2eab42519ea5"


def test_deep_and_long_texts_are_read_or_refused():
    deep = "a box (containing " * 500 + "a pen" + ")" * 500
    assert read_thing(deep) is None
    wide = "a box (containing " + ", ".join(["a pen"] * 3000) + ")"
    thing = read_thing(wide)
    assert thing is not None and thing.contents is not None and len(thing.contents) == 3000
    assert read_observation("x is on y " * 3000) is None
    crowded_lab = LAB.replace("\ta battery\n", "\ta pen\n" * 3000)
    state = after(crowded_lab, WAIT, ("look around", crowded_lab))
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


HERE = {("room", "agent", "kitchen"), ("seen", "kitchen")}
POT = HERE | {("in", "metal pot", "stove"), ("in", "stove", "kitchen"), ("inactive", "stove")}
HELD = HERE | {("holding", "metal pot"), ("in", "ice", "metal pot"), ("seen", "metal pot")}
UNCLEAR = POT | {("pending", "0", "pick up metal pot"), ("pending", "1", "pick up stove")}
KNOWN = {
    "here": HERE,
    "here with chair": HERE | {("in", "chair", "kitchen")},
    "pot": POT,
    "pot unseen": POT - {("seen", "kitchen")},
    "held": HELD,
    "sink": HELD | {("in", "sink", "kitchen"), ("active", "sink")},
    "unclear": UNCLEAR | {("pending", "request", "pick up thing")},
}


@pytest.mark.parametrize(
    ("belief_name", "action", "text", "expected"), CASES["what_neither_belief_nor_action_tells"]
)
def test_what_neither_belief_nor_action_tells(belief_name, action, text, expected):
    query = Query("comap/ScienceWorld-v0", "goal", (), State(frozenset(KNOWN[belief_name])), action)
    assert is_predictable(query, text, canon) is expected
