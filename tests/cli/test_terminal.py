"""Recorded text, names of files and what servers say never steer the terminal."""

from __future__ import annotations

import io
import json

import pytest

from comap.cli import main
from comap.cli.main import VisibleStream
from comap.facts import State
from comap.trajectory import Trajectory

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
RECORD = Trajectory("comap/X-v0", "t", "dev", "goal", "me", "Hello.", State()).to_json()


@pytest.mark.parametrize(
    "line",
    [
        RECORD | {ESCAPES: 1},
        RECORD | {"steps": [{ESCAPES: 1}]},
        RECORD | {"review": [{"kind": "generate", ESCAPES: 1}]},
        RECORD | {"task": [ESCAPES]},
        RECORD | {"facts": f"in({ESCAPES}"},
    ],
)
@pytest.mark.parametrize(
    "command",
    ["view FILE --no-open", "verify FILE", "hub push trajectories FILE local:DIR --license mit"],
)
def test_a_hostile_trajectory(command, line, tmp_path, capsys):
    file = tmp_path / f"{ESCAPES.replace('/', '')}.jsonl"
    file.write_text(json.dumps(line) + "\n")
    places = {"FILE": str(file), "DIR": str(tmp_path / "pushed")}
    words = [places.get(word, word).replace("DIR", places["DIR"]) for word in command.split()]
    assert main(words) in (1, 2, 3)
    output = capsys.readouterr()
    assert (
        not set(output.out + output.err) & set(ESCAPES[:1] + "\x07\x9b\u202e")
        and output.err + output.out
    )


def test_a_hostile_run(tmp_path, capsys):
    words = ["run", "--agent", "random", "--episodes", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    run = json.loads((tmp_path / "run.json").read_text())
    for changed in (
        run | {"config": run["config"] | {ESCAPES: ESCAPES}},
        run | {"format": ESCAPES},
    ):
        (tmp_path / "run.json").write_text(json.dumps(changed))
        assert main(words) in (1, 2)
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err and "[U+001B]" in output.err


def test_bars_of_libraries_still_move():
    raw = io.StringIO()
    stream = VisibleStream(raw, moves=True)
    for text in ("\rhalf \x1b[2J", "\n\x1b[A", "plain é\n"):
        stream.write(text)
    assert raw.getvalue() == "\rhalf [U+001B][2J\n\x1b[Aplain é\n"


def test_an_observation_does_not_write_over_what_is_above_it():
    moves = "\x1b[A\r"
    raw = io.StringIO()
    stream = VisibleStream(raw)
    for text in (f"{moves}false line\n", "\r", "\nplain\n"):
        stream.write(text)
    assert raw.getvalue() == "[U+001B][A[U+000D]false line\n[U+000D]\nplain\n"
