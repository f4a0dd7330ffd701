"""A real model: nothing depends on how many episodes are live, on their order, or on the process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from comap.agents.corpus import tiny_folder
from comap.cli import main
from comap.envs.alfworld import ALFWorldEnv

pytest.importorskip("torch")

TASKS = ALFWorldEnv(split="valid_unseen", source="generated").tasks.ids[:4]
SHUFFLED = [TASKS[i] for i in (2, 0, 3, 1)]
SHORT = ["--prompts", "brief", "--draft-tokens", "8", "--max-length", "512"]
COMAP = [
    *("--agent", "comap", "--decoding", "masked", "--p-source", "verbalizer", "--tau-p", "0"),
    *("--tau-q", "0", "--reflect-tokens", "8", "--world-model-prompts", "brief", *SHORT),
    *("--world-model-option", "max_new_tokens=8"),
]
KINDS = {
    "react": ["--agent", "react", "--temperature", "0", *SHORT],
    "comap": [*COMAP, "--temperature", "0", "--keep", "tokens"],
    "comap, sampling": [*COMAP, "--temperature", "1"],
}
PROGRAM = """
import json, sys
from comap.cli import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0
"""


def command(kind: str, model: Path, out: Path, live: int, tasks: Any = TASKS) -> list[str]:
    words = ["run", *KINDS[kind], "--model", str(model), "--live", str(live), "--out", str(out)]
    if kind.startswith("comap"):
        words += ["--world-model", str(model)]
    words += ["--env-option", "source=generated", "--env-option", "max_episode_steps=3"]
    return [*words, "--tasks", *tasks]


def play(commands: list[list[str]]) -> None:
    """Run commands in another process, which hashes texts in another way."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") != "2" else "1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind one episode after the other, all at once, and at once in another order."""
    folder = tmp_path_factory.mktemp("played")
    model = tiny_folder(folder / "model", parameters=200_000, episodes=1)
    for kind in KINDS:
        assert main(command(kind, model, folder / kind / "1", 1)) == 0
    many = [command(kind, model, folder / kind / "32", 32) for kind in KINDS]
    kind = "comap, sampling"
    play([*many, command(kind, model, folder / kind / "shuffled", 3, SHUFFLED)])
    return folder


def text(folder: Path) -> bytes:
    return (folder / "trajectories.jsonl").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_one_by_one_is_as_all_at_once(played: Path, kind: str) -> None:
    assert text(played / kind / "1") == text(played / kind / "32")
    found = [json.loads(line) for line in text(played / kind / "1").splitlines()]
    assert [t["task"] for t in found] == list(TASKS) and not any(t["error"] for t in found)
    assert len({str(step["calls"]) for t in found for step in t["steps"]}) > 6


def test_the_order_of_tasks_does_not_matter(played: Path) -> None:
    kind = "comap, sampling"
    lines = text(played / kind / "shuffled").splitlines()
    assert [json.loads(line)["task"] for line in lines] == SHUFFLED
    assert sorted(lines) == sorted(text(played / kind / "1").splitlines())


def test_what_the_world_model_spends_is_counted(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = played / "comap" / "1"
    summary = json.loads((folder / "summary.json").read_text())
    found = [json.loads(line) for line in text(folder).splitlines()]
    calls = [call for t in found for step in t["steps"] for call in step["calls"]]
    imagined = [call for call in calls if call["kind"] == "imagine"]
    steps = sum(len(t["steps"]) for t in found)
    spent, own = summary["world_model"], summary["language_model"]
    assert spent["all"]["calls"] == len(imagined) == steps
    assert spent["per_step"]["calls"] == 1.0 and own["all"]["calls"] == len(calls) - steps
    for name in ("prompt_tokens", "completion_tokens"):
        assert spent["all"][name] == sum(call[name] for call in imagined) > 0
    assert all(call["token_ids"] and call["messages"] for call in imagined)
    shutil.copy(folder / "run.json", tmp_path)
    (tmp_path / "trajectories.jsonl").write_bytes(b"".join(text(folder).splitlines(True)[:3]))
    assert main(command("comap", played / "model", tmp_path, 2)) == 0
    assert "3 of 4 tasks had ended before" in capsys.readouterr().out
    resumed = json.loads((tmp_path / "summary.json").read_text())
    assert text(tmp_path) == text(folder)
    assert resumed["world_model"] == spent and resumed["language_model"] == own
