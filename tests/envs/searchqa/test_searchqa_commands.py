"""The commands on search QA: building, serving, playing, training, the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from comap.agents.corpus import tiny_folder
from comap.cli import main
from comap.envs.registered import (
    belief_expert,
    embedded_tasks,
    evaluated_splits,
    idle_answer,
    listed_actions,
)
from comap.envs.searchqa import RemoteRetriever, open_index
from comap.envs.searchqa.protocol import REFUSAL
from comap.trajectory import read_trajectories

ENV = "comap/SearchQA-v0"
WORDS = ["--env", ENV, "--env-option", "source=generated"]


def test_what_the_class_says_of_itself() -> None:
    assert evaluated_splits(ENV) == ("test",) and embedded_tasks(ENV) == {"source": "generated"}
    assert belief_expert(ENV) == {"expert": "explore"}
    assert listed_actions(ENV) == {"admissible_actions": True}
    assert idle_answer(ENV, "shown") == REFUSAL


@pytest.mark.parametrize("kind", ["fts5", "bm25s"])
def test_an_index_is_built_and_played_on(kind: str, book: Path, tmp_path: Path, capsys) -> None:
    if kind == "bm25s":
        pytest.importorskip("bm25s")
    out = tmp_path / "deep" / "index"
    assert main(["data", "build", "searchqa", str(book), "--out", str(out), "--kind", kind]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == str(out) and "reading: 100 %" in told.err
    assert open_index(out).search(["emma"])[0][0].id == "c"
    questions = tmp_path / "q.jsonl"
    rows = [{"id": str(n), "question": "who?", "golden_answers": ["Ada"]} for n in range(40)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["run", "--env", ENV, "--data-dir", str(out), "--env-option", f"questions={questions}"]
    words += ["--agent", "expert", "--episodes", "2", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    episodes = list(read_trajectories(tmp_path / "run" / "trajectories.jsonl"))
    assert [(one.split, one.success) for one in episodes] == [("test", True)] * 2


def test_mistakes_in_building_are_told_in_a_line(tmp_path: Path, capsys) -> None:
    assert (
        main(["data", "build", "searchqa", str(tmp_path / "x"), "--out", str(tmp_path / "y")]) == 1
    )
    assert main(["serve", "search", "--data-dir", str(tmp_path), "--port", "0"]) == 1
    assert main(["serve", "search", "--port", "70000"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 3


def _heeds_interrupts() -> None:
    """Undo what a shell does to programs that it starts in the background: SIGINT is ignored there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_server_runs_until_it_is_stopped(index: Path) -> None:
    command = [sys.executable, "-m", "comap", "serve", "search", "--data-dir", str(index)]
    server = subprocess.Popen(
        [*command, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=_heeds_interrupts,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:") and url.endswith("/retrieve")
        assert RemoteRetriever(url).search(["emma"])[0][0].id == "c"
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=20)
    finally:
        server.kill()
    assert server.returncode == 0 and said == "stopped\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model that knows no word of the environment."""
    pytest.importorskip("transformers")
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny", parameters=200_000, episodes=1)


@pytest.mark.parametrize("agent", ["expert", "random", "react", "paw"])
def test_agents_play(agent: str, small: Path, tmp_path: Path) -> None:
    words = ["run", *WORDS, "--agent", agent, "--episodes", "2", "--out", str(tmp_path / "run")]
    words += ["--env-option", "turns=2"] if agent != "expert" else []
    if agent not in ("expert", "random"):
        words += ["--model", str(small), "--world-model", "oracle"]
    assert main(words) == 0
    episodes = list(read_trajectories(tmp_path / "run" / "trajectories.jsonl"))
    assert len(episodes) == 2 and all(one.error is None and one.steps for one in episodes)
    if agent == "expert":
        assert all(one.success for one in episodes)


def test_paw_trains(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    words = ["--updates", "1", "--groups", "2", "--members", "2", "--evaluation-tasks", "1"]
    words += ["--warmup-tokens", "0", "--demonstrations", "2", "--model", str(small)]
    words += ["--max-episode-steps", "3", "--env", ENV, "--preset", "tiny"]
    assert main(["train", "paw", *words, "--out", str(tmp_path)]) == 0
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["wm_rows"] > 0
    assert "test" in (tmp_path / "evaluations.jsonl").read_text()


def test_comap_trains(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    words = ["--preset", "tiny", "--env", ENV, "--parameters", "200000", "--demonstrations", "3"]
    words += ["--rounds", "1", "--tasks-per-round", "2", "--warmup-epochs", "1"]
    words += ["--evaluation-tasks", "1", "--frozen-transitions", "4", "--warmup-rollouts", "2"]
    words += ["--env-option", "turns=2", "--reflection-tasks", "1", "--diagnosed", "1"]
    words += ["--draft-tokens", "6", "--reflect-tokens", "6", "--predict-tokens", "8"]
    assert main(["train", "comap", *words, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").is_file()


def test_the_demo_runs(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    words = ["--train-tasks", "4", "--test-tasks", "2", "--lengths", "1", "2"]
    assert main(["demo", "--env", ENV, *words, "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "results.json").read_text())
    scores = told["one_step"]["all"]
    assert scores["oracle"]["mean"] == 1.0 > scores["null"]["mean"]
    assert (tmp_path / "report.html").is_file()
