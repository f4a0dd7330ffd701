"""ALFWorld's canonicalizer: golden sentences of both dialects, any text at all, and back again."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.expert import plan
from comap.envs.alfworld.game import Game
from comap.envs.alfworld.generate import SPLITS, generate
from comap.envs.alfworld.wording import BANNER, DIALECTS, HELP
from comap.envs.canon import Canonicalizer, Describer
from comap.facts import State

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

GOLDEN = [
    # what is shown on arrival, of a surface, a closed and an open receptacle
    (
        "",
        "go to desk 1",
        "You arrive at desk 1. On the desk 1, you see a mug 2, and a pen 1.",
        "at|agent|desk 1; seen|desk 1; in|mug 2|desk 1; in|pen 1|desk 1",
    ),
    (
        "at|agent|bed 1; in|pen 1|desk 1",
        "go to desk 1",
        "You arrive at desk 1. On the desk 1, you see nothing.",
        "at|agent|desk 1; seen|desk 1",
    ),
    (
        "at|agent|bed 1",
        "go to safe 1",
        "You arrive at safe 1. The safe 1 is closed.",
        "at|agent|safe 1; closed|safe 1",
    ),
    (
        "",
        "go to safe 1",
        "You arrive at safe 1. The safe 1 is open. In it, you see a cd 3, a cd 2, and a pen 1.",
        "at|agent|safe 1; open|safe 1; seen|safe 1; in|cd 3|safe 1; in|cd 2|safe 1; "
        "in|pen 1|safe 1",
    ),
    # the older dialect: an arrival at a location
    (
        "at|agent|bed 1; near|cd 1|bed 1",
        "go to desk 1",
        "You arrive at loc 12. On the desk 1, you see a mug 2.",
        "at|agent|desk 1; near|cd 1|bed 1; seen|desk 1; in|mug 2|desk 1",
    ),
    (
        "at|agent|bed 1",
        "go to safe 1",
        "You arrive at loc 3. The safe 1 is closed.",
        "at|agent|safe 1; closed|safe 1",
    ),
    # texts as in ReAct's prompts: no arrival
    (
        "at|agent|bed 1",
        "go to desk 1",
        "On the desk 1, you see a mug 2.",
        "at|agent|desk 1; seen|desk 1; in|mug 2|desk 1",
    ),
    (
        "at|agent|bed 1",
        "go to safe 1",
        "The safe 1 is closed.",
        "at|agent|safe 1; closed|safe 1",
    ),
    (
        "at|agent|bed 1",
        " Go to safe 1",
        "The safe 1 is open. In it, you see nothing.",
        "at|agent|safe 1; open|safe 1; seen|safe 1",
    ),
    # opening and closing
    (
        "at|agent|safe 1; closed|safe 1",
        "open safe 1",
        "You open the safe 1. The safe 1 is open. In it, you see a pen 1.",
        "at|agent|safe 1; open|safe 1; seen|safe 1; in|pen 1|safe 1",
    ),
    (
        "at|agent|safe 1; open|safe 1; seen|safe 1; in|pen 1|safe 1",
        "close safe 1",
        "You close the safe 1.",
        "at|agent|safe 1; closed|safe 1; seen|safe 1; in|pen 1|safe 1",
    ),
    # examining a receptacle does not say that one has come from elsewhere
    (
        "at|agent|bed 1",
        "examine desk 1",
        "On the desk 1, you see nothing.",
        "at|agent|bed 1; at|agent|desk 1; seen|desk 1",
    ),
    # taking and putting down
    (
        "at|agent|desk 1; in|pen 1|desk 1; in|pen 1|bed 1; near|pen 1|desk 1",
        "take pen 1 from desk 1",
        "You pick up the pen 1 from the desk 1.",
        "at|agent|desk 1; holding|pen 1; in|pen 1|bed 1",
    ),
    (
        "at|agent|desk 1; holding|pen 1",
        "move pen 1 to desk 1",
        "You move the pen 1 to the desk 1.",
        "at|agent|desk 1; in|pen 1|desk 1",
    ),
    (
        "at|agent|desk 1; holding|pen 1",
        "put pen 1 in/on desk 1",
        "You put the pen 1 in/on the desk 1.",
        "at|agent|desk 1; in|pen 1|desk 1",
    ),
    (
        "at|agent|desk 1; holding|pen 1",
        "put pen 1 on desk 1",
        "You put the pen 1 on the desk 1.",
        "at|agent|desk 1; in|pen 1|desk 1",
    ),
    # treating
    (
        "holding|mug 1; at|agent|sinkbasin 1; cool|mug 1",
        "clean mug 1 with sinkbasin 1",
        "You clean the mug 1 using the sinkbasin 1.",
        "holding|mug 1; at|agent|sinkbasin 1; cool|mug 1; clean|mug 1",
    ),
    (
        "holding|mug 1; at|agent|microwave 1; cool|mug 1",
        "heat mug 1 with microwave 1",
        "You heat the mug 1 using the microwave 1.",
        "holding|mug 1; at|agent|microwave 1; hot|mug 1",
    ),
    (
        "holding|mug 1; at|agent|fridge 1; hot|mug 1; closed|fridge 1",
        "cool mug 1 with fridge 1",
        "You cool the mug 1 using the fridge 1.",
        "holding|mug 1; at|agent|fridge 1; cool|mug 1; closed|fridge 1",
    ),
    (
        "holding|knife 1; at|agent|desk 1; in|egg 1|desk 1",
        "slice egg 1 with knife 1",
        "You sliced the egg 1 with the knife 1.",
        "holding|knife 1; at|agent|desk 1; in|egg 1|desk 1; sliced|egg 1",
    ),
    (
        "at|agent|desk 1",
        "use desklamp 1",
        "You turn on the desklamp 1.",
        "at|agent|desk 1; lit|desklamp 1; near|desklamp 1|desk 1",
    ),
    ("lit|desklamp 1", "use desklamp 1", "You turn off the desklamp 1.", ""),
    # examining what is held
    ("hot|egg 1", "examine egg 1", "There's nothing special about egg 1.", ""),
    ("hot|egg 1", "examine egg 1", "There's nothing special about the egg 1.", ""),
    ("", "examine egg 1", "This is a cold egg 1.", "cool|egg 1"),
    ("cool|egg 1", "examine egg 1", "This is a hot egg 1.", "hot|egg 1"),
    ("", "examine egg 1", "This is a clean egg 1.", "clean|egg 1"),
    ("", "examine egg 1", "This is a hot and clean egg 1.", "hot|egg 1; clean|egg 1"),
    ("", "examine egg 1", "This is a cool and clean egg 1.", "cool|egg 1; clean|egg 1"),
    ("clean|egg 1", "examine egg 1", "This is a sliced egg 1.", "sliced|egg 1"),
    ("", "examine egg 1", "This is a hot sliced egg 1.", "hot|egg 1; sliced|egg 1"),
    (
        "",
        "examine egg 1",
        "This is a cool and clean sliced egg 1.",
        "cool|egg 1; clean|egg 1; sliced|egg 1",
    ),
    (
        "holding|bowl 1",
        "examine bowl 1",
        "This is a normal bowl 1. In it, you see a egg 2.",
        "holding|bowl 1; in|egg 2|bowl 1",
    ),
    ("in|egg 2|bowl 1", "examine bowl 1", "This is a normal bowl 1. In it, you see nothing.", ""),
    (
        "exists|bed 1",
        "look",
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "exists|bed 1",
    ),
    (
        "at|agent|bed 1",
        "look",
        "You are facing the bed 1, desk 2, and desk 1. Next to it, you see a cd 1, and a cd 1.",
        "at|agent|bed 1; at|agent|desk 2; at|agent|desk 1; near|cd 1|bed 1; near|cd 1|desk 2; "
        "near|cd 1|desk 1",
    ),
    (
        "at|agent|bed 1; at|agent|desk 1",
        "look",
        "You are facing the desk 1. Next to it, you see nothing.",
        "at|agent|desk 1",
    ),
    ("", "inventory", "You are carrying: a mug 1.", "holding|mug 1"),
    ("holding|mug 1", "inventory", "You are not carrying anything.", ""),
    ("holding|mug 1", "sing", "Nothing happens.", "holding|mug 1"),
    ("holding|mug 1", "go to x", "Nothing happens. There is no x.", "holding|mug 1"),
    ("holding|mug 1", "help", HELP, "holding|mug 1"),
    (
        "",
        "go to desk 1",
        "  you ARRIVE at  Desk 1.\n On the desk 1,  you see a Mug 2.\n",
        "at|agent|desk 1; seen|desk 1; in|mug 2|desk 1",
    ),
]


@pytest.mark.parametrize(("before", "action", "observation", "after"), GOLDEN)
def test_golden(before, action, observation, after):
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "The dragon sleeps.",
        "You arrive at desk 1. The dragon sleeps.",
        "You arrive at desk 1. On the desk 1, you see.",
        "On the desk 1, you see dragons.",
        "On the desk 1, you see a mug 1 and a pen 1.",
        "In it, you see a pen 1.",
        "You are facing the , and .",
        "This is a mug 1.",
        "Rubbish. Nothing happens.",
        "\ud800",
        "\x00\x1b[31m",
    ],
)
def test_unparsed_text_keeps_the_facts(text):
    before = facts("at|agent|bed 1; holding|mug 1")
    after = CANON.update(before, "go to desk 1", text)
    assert after == State(before.facts, parsed=False)
    # What is read next is a belief again, whether or not it changes anything.
    assert CANON.update(after, "x", "Nothing happens.") == before
    assert CANON.update(after, "x", "You are carrying: a mug 1.") == before
    assert CANON.update(after, "x", "You are not carrying anything.").parsed
    assert CANON.initial("", text) == State(frozenset(), parsed=False)


@pytest.mark.parametrize(
    ("texts", "canonical"),
    [
        (("go to bed 1", "Go to the bed 1.", " walk  to bed 1", "move to bed 1"), "go to bed 1"),
        (
            ("take cd 1 from bed 1", "pick up the cd 1 from the bed 1", "grab cd 1 off bed 1"),
            "take cd 1 from bed 1",
        ),
        (
            (
                "put cd 1 in/on bed 1",
                "move cd 1 to bed 1",
                "put the cd 1 on the bed 1.",
                "place a cd 1 into bed 1",
                "PUT CD 1 IN BED 1",
            ),
            "put cd 1 in/on bed 1",
        ),
        (("use desklamp 1", "turn on the desklamp 1", "toggle desklamp 1"), "use desklamp 1"),
        (
            ("heat egg 1 with microwave 1", "heat the egg 1 using the microwave 1"),
            "heat egg 1 with microwave 1",
        ),
        (("clean egg 1 with sinkbasin 1",), "clean egg 1 with sinkbasin 1"),
        (("cool egg 1 with fridge 1", "cool an egg 1 in fridge 1"), "cool egg 1 with fridge 1"),
        (("slice egg 1 with knife 1",), "slice egg 1 with knife 1"),
        (("open safe 1", "Open the safe 1."), "open safe 1"),
        (("close safe 1",), "close safe 1"),
        (("examine egg 1",), "examine egg 1"),
        (("look", "LOOK", " look. "), "look"),
        (("inventory",), "inventory"),
        (("", "   ", "."), ""),
        (("dance wildly",), "dance wildly"),
    ],
)
def test_canonical_actions(texts, canonical):
    assert {CANON.action(text) for text in texts} == {canonical}
    assert CANON.action(canonical) == canonical


def test_canonical_actions_keep_commands_apart():
    """The admissible commands of a game stay as many as they are, and stable."""
    for engine in games(6):
        for _ in range(20):
            commands = engine.admissible()
            canonical = [CANON.action(command) for command in commands]
            assert len(set(canonical)) == len(commands)
            assert [CANON.action(text) for text in canonical] == canonical
            engine.act(random.Random(len(commands)).choice(commands))


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


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=300, deadline=None)
@given(ANY_STATE, ANY_TEXT, ANY_STATE)
def test_any_change_is_described(before, action, after):
    for dialect in DIALECTS:
        canon = ALFWorldCanonicalizer(dialect)
        text = canon.describe(before, action, after)
        assert isinstance(text, str)
        assert text
        assert isinstance(canon.update(before, action, text), State)


def test_protocols():
    assert isinstance(CANON, Canonicalizer)
    assert isinstance(CANON, Describer)
    assert CANON.version == "alfworld-1"


HOSTILE = {
    "a": "a " * 50_000,
    "arrive": "You arrive at " + "x " * 20_000,
    "arrive, no end": "You arrive at " + "x" * 100_000 + "!",
    "pick": "You pick up the " + "x from the " * 9_000 + "!",
    "put": "You put the " + "x in the " * 12_000 + "!",
    "move": "You move the " + "x to the " * 12_000 + "!",
    "clean": "You clean the " + "x using the " * 9_000 + "!",
    "sliced": "You sliced the " + "x with the " * 9_000 + "!",
    "on": "On the " + "a, you see " * 9_000,
    "list": "On the desk 1, you see " + ", ".join(f"a mug {n}" for n in range(20_000)) + ".",
    "bad list": "On the desk 1, you see " + "a mug, " * 20_000 + "!",
    "ands": "On the desk 1, you see " + ", and a" * 20_000,
    "facing": "You are facing the " + "desk 1, " * 15_000 + "and desk 2.",
    "this": "This is a " + "hot and clean " * 8_000,
    "intro": "Looking quickly around you, you see " * 4_000,
    "intro, list": "Looking quickly around you, you see " + "a bed 1, " * 12_000 + "!",
    "sentences": "You arrive at desk 1. " * 8_000,
    "in it": "In it, you see nothing. " * 8_000,
    "dots": ". " * 50_000,
    "blanks": " " * 100_000,
    "lines": "\n" * 100_000,
    "digits": "1" * 100_000,
    "nothing": "Nothing happens. " * 8_000,
    "put action": "put " + "x in " * 20_000,
    "take action": "take " + "x " * 50_000,
    "articles": "the a an " * 12_000,
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


def games(count, dialect="move"):
    for split in SPLITS:
        for number in range(count):
            problem = generate(split, number, seed=31).problem
            yield NativeEngine(Game(problem, dialect))


def transitions(engine, canon):
    """Yield belief, command, belief after it and the real text of a random walk and a plan."""
    draws = random.Random(engine.game.problem.task)
    state = canon.initial("", engine.start())
    for number in range(60):
        if number < 45:
            verbs = sorted({command.split()[0] for command in engine.admissible()})
            verb = draws.choice(verbs)
            command = draws.choice([c for c in engine.admissible() if c.split()[0] == verb])
        else:
            commands = plan(engine)
            if not commands:
                return
            command = commands[0]
        text, _ = engine.act(command)
        after = canon.update(state, command, text)
        yield state, command, after, text
        state = after


def check_round_trip(engine, dialect):
    canon, other = ALFWorldCanonicalizer(dialect), ALFWorldCanonicalizer(dialect)
    count = 0
    for before, command, after, text in transitions(engine, canon):
        said = canon.describe(before, command, after)
        assert other.update(before, command, said).facts == after.facts, (command, text, said)
        count += 1
    return count


@pytest.mark.parametrize("dialect", DIALECTS)
def test_described_changes_are_read_back_in_generated_games(dialect):
    assert sum(check_round_trip(engine, dialect) for engine in games(25, dialect)) > 3_000


@pytest.mark.parametrize("dialect", DIALECTS)
def test_described_changes_are_read_back_in_official_games(official, dialect):
    count = sum(
        check_round_trip(official.engine(path, dialect), dialect) for path in official.files[5::25]
    )
    print(f"{dialect}: {count} changes read back")
    assert count > 6_000


def test_beliefs_do_not_depend_on_what_was_read_before():
    """A canonicalizer may be asked about any states in any order, as world models do."""
    for engine in games(4):
        canon = ALFWorldCanonicalizer()
        steps = list(transitions(engine, canon))
        fresh = [
            ALFWorldCanonicalizer().update(before, command, text)
            for before, command, _, text in steps
        ]
        assert fresh == [after for _, _, after, _ in steps]
        order = list(range(len(steps))) * 2
        random.Random(0).shuffle(order)
        for index in order:
            before, command, after, text = steps[index]
            assert canon.update(before, command, text) == after
