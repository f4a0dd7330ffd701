"""Which transitions follow from the belief, and frozen sets of transitions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from comap.errors import DataCorrupt, DataNotFound, OptionError
from comap.facts import State
from comap.trainers.frozen_sets import (
    fingerprint,
    freeze,
    frozen_set,
    in_order,
    load_transitions,
    save_transitions,
)
from comap.trainers.predictability import is_predictable
from comap.trajectory import Trajectory, Turn
from comap.worldmodel import Query, Transition, transitions_of

ENV = "comap/ALFWorld-v0"
CANON = ALFWorldCanonicalizer()
HERE = ("at", "agent", "desk 1")
SHELF = (("seen", "shelf 1"), ("in", "pen 1", "shelf 1"), ("in", "cd 2", "shelf 1"))
ON_SHELF = "You arrive at shelf 1. On the shelf 1, you see a cd 2, and a pen 1."
CASES = [
    # First sight of contents.
    ((), "go to shelf 1", ON_SHELF, False),
    ((), "go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see nothing.", False),
    (
        (),
        "go to safe 1",
        "You arrive at safe 1. The safe 1 is open. In it, you see nothing.",
        False,
    ),
    (
        (("at", "agent", "safe 1"), ("closed", "safe 1")),
        "open safe 1",
        "You open the safe 1. The safe 1 is open. In it, you see a pen 1.",
        False,
    ),
    (
        (("at", "agent", "safe 1"), ("closed", "safe 1")),
        "open safe 1",
        "You open the safe 1. The safe 1 is open. In it, you see nothing.",
        False,
    ),
    # Contents known before.
    (SHELF, "go to shelf 1", ON_SHELF, True),
    (SHELF, "examine shelf 1", "On the shelf 1, you see a cd 2, and a pen 1.", True),
    (
        (("closed", "safe 1"), ("seen", "safe 1"), ("in", "pen 1", "safe 1")),
        "open safe 1",
        "You open the safe 1. The safe 1 is open. In it, you see a pen 1.",
        True,
    ),
    # Contents that are not as they were believed to be.
    (SHELF, "go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a pen 1.", False),
    (SHELF[:2], "go to shelf 1", ON_SHELF, False),
    # A door alone shows nothing.
    ((), "go to safe 1", "You arrive at safe 1. The safe 1 is closed.", True),
    ((("open", "safe 1"),), "close safe 1", "You close the safe 1.", True),
    # What the agent does.
    (SHELF, "take pen 1 from shelf 1", "You pick up the pen 1 from the shelf 1.", True),
    ((("holding", "pen 1"),), "move pen 1 to safe 1", "You move the pen 1 to the safe 1.", True),
    ((), "put pen 1 in/on safe 1", "You put the pen 1 in/on the safe 1.", True),
    (
        (("holding", "mug 1"),),
        "clean mug 1 with sinkbasin 1",
        "You clean the mug 1 using the sinkbasin 1.",
        True,
    ),
    ((("in", "lamp 1", "desk 1"),), "use lamp 1", "You turn on the lamp 1.", True),
    ((), "open safe 1", "Nothing happens.", True),
    ((("holding", "pen 1"),), "inventory", "You are carrying: a pen 1.", True),
    # What only reading tells.
    ((), "inventory", "You are carrying: a pen 1.", False),
    ((("holding", "mug 1"),), "examine mug 1", "This is a hot mug 1.", False),
    ((("hot", "mug 1"),), "examine mug 1", "This is a hot mug 1.", True),
    ((), "look", "You are facing the desk 1. Next to it, you see a cd 3.", False),
    (
        (("in", "cd 3", "desk 1"),),
        "look",
        "You are facing the desk 1. Next to it, you see a cd 3.",
        True,
    ),
    # Not known.
    ((), "look", "A dragon asks you a riddle.", None),
]


@pytest.mark.parametrize(("facts", "action", "text", "expected"), CASES)
def test_what_follows_from_the_belief(
    facts: tuple[tuple[str, ...], ...], action: str, text: str, expected: bool | None
) -> None:
    query = Query(ENV, "goal", (), State(frozenset({HERE, *facts})), action)
    assert is_predictable(query, text, CANON) is expected


def test_names_are_whole_words() -> None:
    query = Query(ENV, "goal", (), State(frozenset({HERE})), "take pen 12 from desk 1")
    assert is_predictable(query, "You pick up the pen 12 from the desk 1.", CANON) is True
    assert is_predictable(query, "You pick up the pen 1 from the desk 1.", CANON) is False


class OtherFacts:
    """Knows facts, but not which of them could be foreseen."""

    version = "zoo-1"
    initial, update, action = CANON.initial, CANON.update, CANON.action


def test_other_environments_are_not_known() -> None:
    query = Query("zoo", "goal", (), State(), "go to shelf 1")
    assert is_predictable(query, ON_SHELF, OtherFacts()) is None


@given(
    st.frozensets(
        st.lists(st.sampled_from(["in", "at", "near", "holding", "", "pen 1"]), min_size=1).map(
            tuple
        ),
        max_size=6,
    ),
    st.text(max_size=20),
    st.sampled_from([ON_SHELF, "", "Nothing happens.", "You are carrying: a pen 1.", "x\0"]),
)
def test_no_belief_breaks_it(facts: frozenset[tuple[str, ...]], action: str, text: str) -> None:
    query = Query(ENV, "goal", (), State(facts), action)
    assert is_predictable(query, text, CANON) in (True, False, None)


# -- frozen sets ---------------------------------------------------------------------------------


def played(seeds: range, expert: bool) -> Iterator[Trajectory]:
    env = gymnasium.make(ENV, source="generated", max_episode_steps=6)
    tasks = env.unwrapped.tasks.ids  # type: ignore[attr-defined]
    for seed in seeds:
        agent = ExpertAgent() if expert else RandomAgent()
        yield run_episode(env, agent, task=tasks[seed], seed=seed)


@pytest.fixture(scope="module")
def episodes() -> tuple[list[Trajectory], list[Trajectory]]:
    return list(played(range(4), True)), list(played(range(4, 8), False))


def test_half_is_the_expert_and_half_the_policy(
    episodes: tuple[list[Trajectory], list[Trajectory]],
) -> None:
    expert, policy = episodes
    for n in (0, 1, 7, 10):
        frozen = frozen_set(expert, policy, n=n, seed=3)
        known = [step for one in expert for step in transitions_of(one)]
        assert len(frozen) == n
        assert sum(step in known for step in frozen) == n - n // 2
    assert len(frozen_set(expert, [], n=10)) == 5, "the other gives no more"


def test_a_set_does_not_depend_on_the_order_of_episodes(
    episodes: tuple[list[Trajectory], list[Trajectory]],
) -> None:
    expert, _ = episodes
    chosen = freeze(expert, 9, seed=1)
    assert chosen == freeze(reversed(expert), 9, seed=1) == freeze(iter(expert), 9, seed=1)
    assert chosen != freeze(expert, 9, seed=2)
    assert len({fingerprint(freeze(expert, 9, seed=s)) for s in (1, 1, 2)}) == 2
    whole = [step for one in in_order(expert) for step in transitions_of(one)]
    assert freeze(expert, 10_000, seed=1) == whole


def test_imagined_steps_are_not_drawn(
    episodes: tuple[list[Trajectory], list[Trajectory]],
) -> None:
    one = episodes[0][0]
    dreamt = replace(one, steps=tuple(replace(step, imagined=True) for step in one.steps))
    assert freeze([dreamt], 5, seed=0) == []


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 0"):
        freeze([], -1, seed=0)


TEXTS = st.text(max_size=8) | st.just("\ud800 \u2028 <|im_end|>\r\n")
FACTS = st.frozensets(st.lists(TEXTS, min_size=1, max_size=3).map(tuple), max_size=3)
QUERIES = st.builds(
    Query,
    TEXTS,
    TEXTS,
    st.lists(st.builds(Turn, st.none() | TEXTS, TEXTS), max_size=2).map(tuple),
    st.builds(State, FACTS, st.booleans()),
    TEXTS,
    st.none() | st.lists(TEXTS, max_size=2).map(tuple),
)


@given(st.lists(st.builds(Transition, QUERIES, TEXTS), max_size=3))
def test_files_give_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, transitions: list[Transition]
) -> None:
    path = tmp_path_factory.getbasetemp() / "sets" / "set.jsonl"
    save_transitions(path, transitions)
    assert load_transitions(path) == transitions
    assert not path.with_name("set.jsonl.part").exists()


def saved(path: Path) -> list[str]:
    query = Query(ENV, "goal", (Turn(None, "Hi."),), State(frozenset({HERE})), "look")
    save_transitions(path, [Transition(query, "A."), Transition(query, "B.")])
    return path.read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "JSONDecodeError"),
        (lambda lines: ["[]"], "TypeError"),
        (lambda lines: ['{"format": "other"}', *lines[1:]], "the format"),
        (lambda lines: lines[:-1], "1 that are cut or changed"),
        (lambda lines: [lines[0], *lines[:0:-1]], "cut or changed"),
        (lambda lines: [*lines[:2], lines[2].replace("B.", "C.")], "cut or changed"),
        (lambda lines: [*lines[:2], lines[2][:30]], "after 1 of them: JSONDecodeError"),
        (lambda lines: [*lines[:2], lines[2].replace('"look"', "7")], "expected text, found int"),
        (lambda lines: [*lines[:2], '{"env_id": "x"}'], "KeyError"),
        (lambda lines: [*lines[:2], lines[2].replace("at(agent", "at(agent(")], "FactSyntaxError"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "set.jsonl"
    lines = saved(path)
    assert callable(change)
    path.write_text("\n".join(change(lines)) + "\n", "utf-8")
    with pytest.raises(DataCorrupt) as caught:
        load_transitions(path)
    assert message in str(caught.value) and "write the file again" in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="save_transitions"):
        load_transitions(tmp_path / "none.jsonl")


def test_a_set_is_the_same_in_every_process(tmp_path: Path) -> None:
    saved(tmp_path / "set.jsonl")
    code = (
        "import sys; from pathlib import Path; from comap.trainers.frozen_sets import *;"
        "print(fingerprint(load_transitions(Path(sys.argv[1]))))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "set.jsonl")],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    head = json.loads((tmp_path / "set.jsonl").read_text("utf-8").splitlines()[0])
    assert found == {head["fingerprint"]}
