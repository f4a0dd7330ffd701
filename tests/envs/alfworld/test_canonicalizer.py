"""ALFWorld's canonicalizer: golden sentences of both dialects, any text at all, and back again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.envs.alfworld.describe import narrate
from comap.envs.alfworld.goal import BANNER, DIALECTS, HELP
from comap.facts import State
from comap.trajectory import Turn

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))

CANON = ALFWorldCanonicalizer()


def facts(text):
    """Return the state of a compact notation: ``"at agent|bed 1; seen|bed 1"``."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    return State(frozenset(tuple(word.strip() for word in part.split("|")) for part in parts))


def read(before, action, observation):
    """Read one observation, with a canonicalizer that has seen nothing else."""
    return ALFWorldCanonicalizer().update(facts(before), action, observation)


INTRO = (
    f"{BANNER}\n\nYou are in the middle of a room. Looking quickly around you, you see "
    "{}.\n\nYour task is to: put a mug in desk."
)

# Belief before, action, observation, belief after.
GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text("utf-8"))


@pytest.mark.parametrize(("before", "action", "observation", "after"), GOLDEN)
def test_golden(before, action, observation, after):
    observation = observation.replace("HELP", HELP)
    assert read(before, action, observation) == facts(after)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("nothing", ()),
        ("a bed 1", ("bed 1",)),
        ("a bed 1, and a desk 1", ("bed 1", "desk 1")),
        ("a bed 2, a bed 1, and a tv stand 1", ("bed 2", "bed 1", "tv stand 1")),
    ],
)
def test_the_first_observation(listed, names):
    for text in (INTRO.format(listed), INTRO.format(listed).replace("\n\n", "\n").upper()):
        state = CANON.initial("put a mug in desk.", text)
        assert state == State(frozenset(("exists", name) for name in names))


@pytest.mark.parametrize("text", CASES["unparsed_text_keeps_the_facts"])
def test_unparsed_text_keeps_the_facts(text):
    before = facts("at|agent|bed 1; holding|mug 1")
    after = CANON.update(before, "go to desk 1", text)
    assert after == State(before.facts, parsed=False)
    # What is read next is a belief again, whether or not it changes anything.
    assert CANON.update(after, "x", "Nothing happens.") == before
    assert CANON.update(after, "x", "You are carrying: a mug 1.") == before
    assert CANON.update(after, "x", "You are not carrying anything.").parsed
    assert CANON.initial("", text) == State(frozenset(), parsed=False)


@pytest.mark.parametrize("canonical", CASES["canonical_actions"])
def test_canonical_actions(canonical):
    assert {CANON.action(text) for text in CASES["canonical_actions"][canonical]} == {canonical}
    assert CANON.action(canonical) == canonical


VOCABULARY = """
you arrive at go to the on in it, see a an and , . apple 1 desk loc 4 is open closed pick up from
move put in/on clean using turn off sliced with are carrying: not anything facing next this normal
hot cold sliced there's nothing special about looking quickly around nothing happens available
commands:
"""
WORDS = st.sampled_from([*VOCABULARY.split(), "\ud800", "\x00", "\n", "½", "İ", "''", ""])
ANY_TEXT = st.one_of(
    st.text(st.characters(), max_size=300),
    st.text(max_size=60).map(lambda text: (text * 500)[:20_000]),
    st.lists(WORDS, max_size=30).map(" ".join),
    st.lists(WORDS, min_size=1, max_size=8).map(lambda words: (" ".join(words) * 3_000)[:20_000]),
    st.lists(st.sampled_from([case[2] for case in GOLDEN]), max_size=4).map(" ".join),
)
NAMES = st.one_of(st.sampled_from(["agent", "desk 1", "egg 1", "", "a, b", "x. y"]), st.text())
PREDICATES = st.sampled_from(
    ["at", "in", "near", "holding", "open", "closed", "seen", "exists", "hot", "lit", "sliced", "?"]
)
ANY_STATE = st.builds(
    State,
    st.frozensets(st.tuples(PREDICATES) | st.tuples(PREDICATES, NAMES))
    | st.frozensets(st.tuples(PREDICATES, NAMES, NAMES), max_size=8)
    | st.frozensets(st.tuples(PREDICATES, NAMES, NAMES, NAMES), max_size=2),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT, ANY_TEXT, ANY_STATE)
def test_any_text_is_read(text, action, state):
    after = CANON.update(state, action, text)
    assert isinstance(after, State)
    if not after.parsed:
        assert after.facts == state.facts
    assert after == ALFWorldCanonicalizer("put").update(state, action, text)
    # The same text again tells nothing new, unless it reports a deed.
    assert isinstance(CANON.initial(text, text), State)
    assert isinstance(CANON.action(text), str)


@settings(max_examples=150, deadline=None)
@given(ANY_STATE, ANY_TEXT, ANY_STATE)
def test_any_change_is_described(before, action, after):
    for dialect in DIALECTS:
        canon = ALFWorldCanonicalizer(dialect)
        text = canon.describe(before, action, after)
        assert isinstance(text, str)
        assert text
        assert isinstance(canon.update(before, action, text), State)


HOSTILE = {
    "a": "a " * 50_000,
    "arrive": "You arrive at " + "x " * 20_000,
    "pick": "You pick up the " + "x from the " * 9_000 + "!",
    "on": "On the " + "a, you see " * 9_000,
    "list": "On the desk 1, you see " + ", ".join(f"a mug {n}" for n in range(20_000)) + ".",
    "facing": "You are facing the " + "desk 1, " * 15_000 + "and desk 2.",
    "this": "This is a " + "hot and clean " * 8_000,
    "intro": "Looking quickly around you, you see " * 4_000,
    "sentences": "You arrive at desk 1. " * 8_000,
    "in it": "In it, you see nothing. " * 8_000,
    "blanks": " " * 100_000,
    "put action": "put " + "x in " * 20_000,
    "take action": "take " + "x " * 50_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name):
    text = HOSTILE[name]
    canon = ALFWorldCanonicalizer()
    for function in (
        lambda: canon.update(State(), "go to desk 1", text),
        lambda: canon.update(State(), text, "You arrive at desk 1."),
        lambda: canon.initial(text, text),
        lambda: canon.action(text),
    ):
        start = time.process_time()
        function()
        assert time.process_time() - start < 1


def state(*facts: str) -> State:
    return State.from_text("\n".join(facts))


KITCHEN = state(
    *(f"exists({name} {n})" for name in ("cabinet", "fridge") for n in (1, 2, 10)),
    "seen(fridge 1)",
    "at(agent, fridge 1)",
    "open(fridge 1)",
    "closed(cabinet 2)",
    "in(mug 1, fridge 1)",
    "in(mug 3, fridge 1)",
    "in(egg 2, fridge 1)",
    "clean(mug 3)",
    "holding(egg 1)",
    "hot(egg 1)",
)


def test_an_agent_is_told_what_the_goal_is_about() -> None:
    failed = Turn("go to fridge 10", "Nothing happens.")
    history = (Turn(None, "Welcome."), failed, Turn("open fridge 1", "You open the fridge 1."))
    assert narrate("put a clean mug in cabinet.", history, KITCHEN).splitlines() == [
        "goal: put a clean mug in cabinet.",
        "held: egg 1 (hot)",
        "here: fridge 1 (open)",
        "known: fridge 1 (open) has mug 3 (clean), mug 1",
        "closed: cabinet 2",
        "new: cabinet 1 10 fridge 2",
        "last: go to fridge 10 (nothing happened); open fridge 1",
    ]
