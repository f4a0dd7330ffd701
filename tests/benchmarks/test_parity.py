from __future__ import annotations

import json
import lzma
import tarfile

import pytest

from comap.benchmarks import parity
from comap.cli import main
from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.game import Game, read_game
from comap.envs.alfworld.generate import generate
from comap.errors import DataCorrupt, DataNotFound, OptionError

NAME = "json_2.1.1/train/task/trial/game.tw-pddl"


@pytest.fixture
def reference(tmp_path):
    """Reference data of one generated game, recorded from the native engine itself."""
    made = generate("train", 0)
    content = {
        "pddl_domain": "(define (domain alfred))",
        "grammar": f"Your task is to: {made.problem.task}",
        "pddl_problem": made.pddl,
        "solvable": True,
        "walkthrough": made.problem.walkthrough,
    }
    game = tmp_path / "game.tw-pddl"
    game.write_text(json.dumps(content))
    folder = tmp_path / "reference"
    folder.mkdir()
    with tarfile.open(folder / "games.tar.xz", "w:xz") as archive:
        archive.add(game, NAME)
    engine = NativeEngine(Game(read_game(game)))
    steps = []
    for command in (None, "look", *engine.game.problem.walkthrough):
        observation = engine.start() if command is None else engine.act(command)[0]
        steps.append(
            {
                "command": command,
                "observation": observation,
                "admissible_commands": list(engine.admissible()),
                "facts": engine.facts_text(),
                "not_facts": engine.negative_facts_text(),
                "won": engine.won(),
            }
        )
    record(folder / "traces_dev.jsonl.xz", {"game": NAME, "steps": steps})
    record(folder / "demos.jsonl.xz", {"game": NAME, "steps": steps})
    return folder


def record(path, *rows):
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))


def test_all_match(reference, tmp_path, capsys):
    out = tmp_path / "parity.json"
    words = ["bench", "parity", "alfworld", "--reference", str(reference), "--out", str(out)]
    assert main(words) == 0
    result = json.loads(out.read_text())
    assert result["all_match"] and result["first_mismatches"] == []
    assert result["traces_dev"]["matching"] == result["traces_dev"]["states"] > 2
    assert result["walkthroughs"] == {"train": {"games": 1, "valid": 1, "won": 1}}
    assert str(tmp_path) not in out.read_text()
    assert "states match" in capsys.readouterr().out


def test_a_difference_is_counted_and_shown(reference):
    path = reference / "traces_dev.jsonl.xz"
    row = json.loads(lzma.decompress(path.read_bytes()))
    row["steps"][1]["observation"] = "You see a dragon."
    row["steps"][2]["won"] = not row["steps"][2]["won"]
    record(path, row)
    result = parity.run("alfworld", reference=reference)
    counts = result["traces_dev"]
    assert not result["all_match"]
    assert counts["matching"] == counts["states"] - 2
    assert counts["matching_by_field"]["observation"] == counts["states"] - 1
    assert counts["matching_by_field"]["facts"] == counts["states"]
    assert [row["fields"] for row in result["first_mismatches"]] == [["observation"], ["won"]]


def test_nothing_recorded_is_no_match(reference):
    record(reference / "demos.jsonl.xz")
    with pytest.raises(DataCorrupt, match="found none"):
        parity.run("alfworld", reference=reference)


def test_what_is_missing_or_broken_is_said(reference):
    (reference / "traces_dev.jsonl.xz").write_bytes(b"no xz")
    with pytest.raises(DataCorrupt, match="traces_dev"):
        parity.run("alfworld", reference=reference)
    (reference / "traces_dev.jsonl.xz").unlink()
    with pytest.raises(DataNotFound, match="traces_"):
        parity.run("alfworld", reference=reference)
    with pytest.raises(OptionError):
        parity.run("webshop", reference=reference)
