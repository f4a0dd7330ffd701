from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import DataCorrupt
from comap.facts import State, diff
from comap.trajectory import Predicted, Step, Trajectory, read_trajectories, write_trajectories

TEXTS = st.text(st.characters(), max_size=12)
FACTS = st.lists(TEXTS, min_size=1, max_size=3).map(tuple)
STATES = st.builds(State, st.frozensets(FACTS, max_size=4), st.booleans())
FLAGS = st.booleans()
NUMBERS = st.floats(0, 1)


@st.composite
def trajectories(draw: Any) -> Trajectory:
    before = start = draw(STATES)
    steps = []
    for t in range(1, draw(st.integers(0, 4)) + 1):
        after, predicted_state = draw(STATES), draw(STATES)
        predicted = Predicted(
            draw(TEXTS),
            predicted_state,
            diff(before, predicted_state),
            "wm",
            draw(st.none() | NUMBERS),
        )
        steps.append(
            Step(
                t,
                draw(TEXTS),
                draw(TEXTS),
                draw(NUMBERS),
                draw(FLAGS),
                draw(FLAGS),
                draw(FLAGS),
                after,
                diff(before, after),
                draw(NUMBERS),
                draw(FLAGS),
                draw(FLAGS),
                draw(st.sampled_from([None, predicted])),
            )
        )
        before = after
    return Trajectory(
        draw(TEXTS),
        draw(TEXTS),
        "dev",
        draw(TEXTS),
        "agent",
        draw(TEXTS),
        start,
        tuple(steps),
        seed=draw(st.none() | st.integers(0, 9)),
        error=draw(st.none() | TEXTS),
        fingerprint={"env": "x"},
    )


@given(trajectories())
def test_json_comes_back_whole(trajectory: Trajectory) -> None:
    line = json.dumps(trajectory.to_json())
    assert "\n" not in line
    assert Trajectory.from_json(json.loads(line)) == trajectory


def short() -> Trajectory:
    closed, opened = State(frozenset({("closed", "box")})), State(frozenset({("open", "box")}))
    step = Step(
        1, "open box", "It is open. \ud83d", 1.0, True, False, False, opened, diff(closed, opened)
    )
    return Trajectory("env", "t/1", "dev", "open it", "me", "A box.", closed, (step,))


def test_file_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "runs.jsonl"
    first, second = short(), replace(short(), task="t/2", steps=())
    write_trajectories(path, [first])
    write_trajectories(path, [second], append=True)
    assert list(read_trajectories(path)) == [first, second]
    write_trajectories(path, iter([second]))
    assert list(read_trajectories(path)) == [second]


GOOD = json.dumps(short().to_json()).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff\xfe\x00bad",
        b"[1, 2]",
        b"3",
        b"null",
        b"{}",
        GOOD.replace(b'"schema": 2', b'"schema": 3'),
        GOOD.replace(b'"schema": 2', b'"schema": "2"'),
        GOOD.replace(b'"goal"', b'"gaol"'),
        GOOD.replace(b'"closed(box)"', b'"closed(box"'),
        GOOD.replace(b'"closed(box)"', b"7"),
        GOOD.replace(b'"added"', b'"addled"'),
        GOOD.replace(b'"steps": [', b'"steps": [null, '),
        GOOD.replace(b'"steps": [', b'"steps": 7, "x": ['),
        GOOD[: len(GOOD) // 2],
    ],
)
def test_a_corrupt_line_is_found(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD + b"\n")
    reading = read_trajectories(path)
    assert next(reading) == short()
    with pytest.raises(DataCorrupt, match=r"expected a trajectory in line 2 of .*runs\.jsonl"):
        next(reading)
