"""The retrieval model: texts of any kind, ties, files that are not whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import DataCorrupt
from comap.facts import State
from comap.worldmodel import Query, RetrievalWorldModel, Transition
from comap.worldmodel.templates import Situation, kind

SAFE = State(frozenset({("at", "agent", "safe 1"), ("closed", "safe 1"), ("seen", "safe 1")}))
HOSTILE = [
    "{0}",
    "{1} {99} {x} {} {{0}} {{{0}}}",
    "[in <0>]",
    "[[in <0>]] [] [x] ]",
    "{0} is in [in <0>], see [in <0>]",
    r"\1 \g<0> %s $0 .*(+?[a-z]{2,}",
    "\x00\x1b[31m\u2028\u202e\r\n\t",
    "lone \ud83d surrogate",
    "{" * 3000 + "[" * 3000,
    "{" + "9" * 5000 + "}",
    "",
]
TEXTS = st.text(st.sampled_from("{}[]<>0129 in.,:\\an\n\ud800é"), max_size=40)


def ask(model: RetrievalWorldModel, action: str, state: State = SAFE) -> str:
    return model.predict([Query("id", "goal", (), state, action)])[0].observation


def learnt(*pairs: tuple[str, str], state: State = SAFE) -> RetrievalWorldModel:
    model = RetrievalWorldModel()
    model.fit(Transition(Query("id", "goal", (), state, action), text) for action, text in pairs)
    return model


@given(TEXTS)
def test_any_text_without_names_comes_back(text: str) -> None:
    situation = Situation.of("open safe 1", State(frozenset({("closed", "safe 1")})))
    template = situation.abstract(text)
    assert situation.has_names_for(template)
    assert situation.fill(template) == text


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_nothing_makes_it_fail(action: str, name: str, place: str, text: str) -> None:
    facts = {("at", "agent", place.lower()), ("in", name.lower(), place.lower()), ("lit",), (name,)}
    state = State(frozenset(facts))
    model = learnt((action, text), (name, place), state=state)
    for question in (action, name, text, ""):
        assert isinstance(ask(model, question, state), str)
        assert isinstance(ask(model, question, State()), str)


def test_names_that_look_like_templates_are_names() -> None:
    odd = State(frozenset({("in", "{1} [in <0>]", "a.b(c 1"), ("at", "agent", "a.b(c 1")}))
    model = learnt(("take mug 1", "You pick up the mug 1 from the safe 1."), state=SAFE)
    model.fit(
        [
            Transition(
                Query("id", "goal", (), odd, "take {1} [in <0>] from a.b(c 1"),
                "You pick up the {1} [in <0>] from the a.b(c 1.",
            )
        ]
    )
    answer = ask(model, "take {1} [in <0>] from a.b(c 1", odd)
    assert answer == "You pick up the {1} [in <0>] from the a.b(c 1."
    usual = State(frozenset({("in", "mug 7", "desk 3"), ("at", "agent", "desk 3")}))
    answer = ask(model, "take mug 7 from desk 3", usual)
    assert answer == "You pick up the mug 7 from the desk 3."


def test_numbers_of_any_length() -> None:
    long = "mug " + "9" * 5000
    state = State(
        frozenset({("in", f"mug {n}", "desk 1") for n in (2, 10)} | {("in", long, "desk 1")})
    )
    model = learnt(
        ("examine desk 1", f"On the desk 1, you see a {long}, a mug 10, and a mug 2."), state=state
    )
    other_state = State(frozenset({("in", f"cup {n}", "desk 4") for n in (3, 20, 100)}))
    assert ask(model, "examine desk 4", other_state) == (
        "On the desk 4, you see a cup 100, a cup 20, and a cup 3."
    )
    assert ask(model, "examine desk 1", state).count("9") == 5000
    assert kind("mug 12") == "mug" and kind("12") == "12" and kind("mug_3") == "mug"


def test_ties_do_not_depend_on_the_order_of_learning() -> None:
    pairs = [("push safe 1", "A."), ("pull safe 1", "B."), ("poke safe 1", "C.")]
    pairs += [("open safe 1", text) for text in ("One.", "Two.", "Three.")]
    actions = ("open safe 1", "puxx safe 1", "p safe 1", "nothing like it")
    answers = {
        tuple(ask(learnt(*order), action) for action in actions)
        for order in list(permutations(pairs))[::37]
    }
    assert len(answers) == 1


def saved_and_asked(path: str) -> str:
    """Learn a few things, save them, and return what is said of others."""

    def state(n: int, *things: str) -> State:
        facts = {("at", "agent", f"desk {n}"), ("seen", f"box {n}"), ("holding", f"pen {n}")}
        return State(frozenset(facts | {("in", thing, f"desk {n}") for thing in things}))

    model = RetrievalWorldModel()
    for action, before, text in (
        ("look at desk 1 and box 1", state(1), "You see nothing. On the box 1, you see nothing."),
        ("look at desk 2 and box 2", state(2, "mug 1"), "On the desk 2, you see a mug 1."),
        ("use pen 3", state(3), "You use the pen 3 on the desk 3: nothing"),
    ):
        model.fit([Transition(Query("id", "goal", (), before, action), text)])
    model.save(path)
    actions = ("look at desk 6 and box 6", "use pen 6", "dance", "")
    return repr([ask(model, action, state(6, *"ab")) for action in actions])


def test_every_process_learns_and_says_the_same(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_retrieval;"
        "print(test_retrieval.saved_and_asked(sys.argv[2]))"
    )
    own_file, other_file = tmp_path / "here", tmp_path / "there"
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(other_file)]
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    other_output = subprocess.check_output(command, env=environment, text=True)
    assert other_output.strip() == saved_and_asked(str(own_file))
    assert own_file.read_bytes() == other_file.read_bytes()


def test_files_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    model = learnt(("open safe 1", "Yes."), ("close safe 1", "No."), ("look", "A safe."))
    path = tmp_path / "model"
    model.save(path)
    lines = path.read_text("utf-8").splitlines()
    wrong = [
        lines[:-1],
        [*lines, lines[-1]],
        [lines[0], *(line.replace(", 1]", ", 0]") for line in lines[1:])],
        [json.dumps({"format": "x", "name": "y", "size": 0})],
        [*lines[:-1], lines[-1][:-2]],
        [
            json.dumps({"format": json.loads(lines[0])["format"], "name": "a", "size": 0}),
            '["a","","",[]]',
        ],
    ]
    for content in wrong:
        path.write_text("\n".join(content) + "\n", "utf-8")
        with pytest.raises(DataCorrupt, match="expected a saved retrieval world model"):
            RetrievalWorldModel(path)
    path.write_text("\n".join(lines), "utf-8")
    assert len(RetrievalWorldModel(path)) == 3


def test_names_keep_the_case_that_texts_write_them_in() -> None:
    """Facts are in lower case; an own environment's texts begin sentences with what they name."""
    state = State(frozenset({("at", "you", "old attic"), ("door", "old attic", "east hall")}))

    def query(action: str, state: State = state) -> Query:
        return Query("own/House-v0", "Find it.", (), state, action)

    model = RetrievalWorldModel()
    model.fit(
        [
            Transition(query("walk to old attic"), "You are in the Old Attic."),
            Transition(query("shout old attic"), "OLD ATTIC! Old attic? old attic."),
        ]
    )
    cellar = State(frozenset({("at", "you", "cellar 2"), ("door", "cellar 2", "east hall")}))
    queries = [
        query("walk to old attic"),
        query("shout old attic"),
        query("shout cellar 2", cellar),
    ]
    assert [prediction.observation for prediction in model.predict(queries)] == [
        "You are in the Old Attic.",
        "OLD ATTIC! Old attic? old attic.",
        "CELLAR 2! Cellar 2? cellar 2.",
    ]
