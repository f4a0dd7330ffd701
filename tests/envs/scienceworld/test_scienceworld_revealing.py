"""Which changes of a belief ScienceWorld alone could tell."""

from __future__ import annotations

import pytest

from comap.envs.scienceworld.canonicalizer import ScienceWorldCanonicalizer
from comap.facts import State
from comap.trainers.predictability import is_predictable
from comap.worldmodel import Query

CANON = ScienceWorldCanonicalizer()
HERE = {("room", "agent", "kitchen"), ("seen", "kitchen")}
POT = HERE | {("in", "metal pot", "stove"), ("in", "stove", "kitchen"), ("inactive", "stove")}
HELD = HERE | {("holding", "metal pot"), ("in", "ice", "metal pot"), ("seen", "metal pot")}
SINK = HELD | {("in", "sink", "kitchen"), ("active", "sink")}
UNCLEAR = POT | {("pending", "0", "pick up metal pot"), ("pending", "1", "pick up stove")}
UNCLEAR |= {("pending", "request", "pick up thing")}
ROOM = "This room is called the kitchen. In it, you see: \n\tthe agent\n\ta chair\n"


@pytest.mark.parametrize(
    ("facts", "action", "text", "expected"),
    [
        # What is asked for and done.
        (POT, "pick up metal pot", "You move the metal pot to the inventory.", True),
        (POT, "activate stove", "The stove is now activated.", True),
        (POT, "go to hallway", "You move to the hallway.", True),
        (POT, "open door to hallway", "The door is now open.", True),
        (POT, "focus on metal pot", "You focus on the metal pot.", True),
        (HELD, "pour metal pot into stove", "No known action matches that input.", True),
        (UNCLEAR, "0", "You move the metal pot to the inventory.", True),
        (SINK, "move metal pot to sink", "You move the metal pot to the sink.", True),
        # What is found.
        (POT - {("seen", "kitchen")}, "look around", ROOM, False),
        (HERE | {("in", "chair", "kitchen")}, "look around", ROOM, True),
        (HERE, "look around", ROOM, False),
        (HERE, "inventory", "In your inventory, you see:\n\tan orange\n", False),
        (HERE, "pick up orange", "You move the orange to the inventory.", False),
        # What is measured, and what the simulator asks back.
        (
            HELD,
            "use thermometer on metal pot",
            "the thermometer measures a temperature of 13 degrees celsius",
            False,
        ),
        (
            POT,
            "pick up thing",
            "Ambiguous request: Please enter the number for the action you intended (or blank to "
            "cancel):\n0:\tpick up metal pot\n1:\tpick up stove",
            False,
        ),
        # Something else happens than was asked for.
        (POT, "sing", "The stove is now activated.", False),
        # Not known.
        (POT, "look around", "A dragon asks you a riddle.", None),
    ],
)
def test_what_neither_belief_nor_action_tells(facts, action, text, expected):
    query = Query("comap/ScienceWorld-v0", "goal", (), State(frozenset(facts)), action)
    assert is_predictable(query, text, CANON) is expected


def test_what_time_takes_follows():
    before = State(frozenset(HELD | {("temp", "metal pot", "hot")}))
    after = CANON.update(before, "wait1", "You decide to wait for 1 iterations.")
    assert ("temp", "metal pot", "hot") not in after.facts
    assert CANON.reveals("", (), before, "wait1", after) is False
