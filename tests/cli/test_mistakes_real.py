"""Mistakes with models as people have them: each message says what is expected, what is there, what to do.

The folders are copies of a small model, broken in one way each. COMAP_SMOLLM2 names a folder of a real one
(SmolLM2-135M-Instruct, see tests/interop/test_smollm2.py); without it a tiny one stands for it.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from comap.cli import main
from comap.errors import CoMapError

HERE = Path(__file__).parent
MISTAKES = json.loads((HERE / "mistakes_real.json").read_text("utf-8"))
"""Commands and programs, the exit status, parts of the message, and a reader's score from 0 to 2."""
SMALL = "--episodes 2 --env-option source=generated --env-option max_episode_steps=2"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a model and broken copies of it, and the port of servers that answer wrongly."""
    pytest.importorskip("peft")
    place = tmp_path_factory.mktemp("models")
    if folder := os.environ.get("COMAP_SMOLLM2"):
        model = Path(folder)
    else:
        from comap.lm.tiny import build_tiny

        model = place / "tiny"
        build_tiny(model, ["go to shelf 1", "take apple 1 from shelf 1"], parameters=200_000)
    from kits.broken_models import broken_models, wrong_servers

    broken_models(model, place)
    with wrong_servers() as port:
        yield place, port


COMMANDS = [row for row in MISTAKES if "command" in row]
PROGRAMS = [row for row in MISTAKES if "python" in row]


@pytest.mark.parametrize("row", PROGRAMS, ids=[row["python"] for row in PROGRAMS])
def test_a_mistake_in_a_program_is_explained(row, world, monkeypatch):
    monkeypatch.chdir(world[0])
    with pytest.raises(CoMapError) as caught:
        exec(row["python"], {})
    assert [part for part in row["message"] if part not in str(caught.value)] == []


@pytest.mark.parametrize("row", COMMANDS, ids=[row["command"] for row in COMMANDS])
def test_a_mistake_with_a_model_is_explained(row, world, tmp_path, capsys, monkeypatch):
    place, port = world
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command = row["command"].replace("PORT", str(port))
    small = SMALL if command.startswith("run") else "--env-option source=generated"
    assert main(shlex.split(f"{command} {small} --out {tmp_path / 'out'}")) == row["exit"]
    output = capsys.readouterr()
    message_text = " ".join((output.err if row["exit"] == 2 else output.out).split())
    assert "Traceback" not in output.err
    missing = [
        part for part in row["message"] if part.replace("PORT", str(port)) not in message_text
    ]
    assert not missing, message_text[-600:]


def test_messages_help():
    assert len(MISTAKES) >= 40
    assert sum(row["score"] for row in MISTAKES) / len(MISTAKES) >= 1.85
