"""The commands on search QA: building, serving, playing, training, the demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from comap.cli import main
from comap.envs.searchqa import RemoteRetriever, open_index
from comap.trajectory import read_trajectories

ENV = "comap/SearchQA-v0"
WORDS = ["--env", ENV, "--env-option", "source=generated"]


@pytest.mark.parametrize("kind", ["fts5", "tantivy"])
def test_an_index_is_built_and_played_on(kind: str, book: Path, tmp_path: Path, capsys) -> None:
    if kind == "tantivy":
        pytest.importorskip("tantivy")
    out = tmp_path / "deep" / "index"
    assert main(["data", "build", "searchqa", str(book), "--out", str(out), "--kind", kind]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(out) and "reading: 100 %" in captured.err
    assert open_index(out).search(["emma"])[0][0].id == "c"
    questions = tmp_path / "q.jsonl"
    rows = [{"id": str(n), "question": "who?", "golden_answers": ["Ada"]} for n in range(40)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["run", "--env", ENV, "--data-dir", str(out), "--env-option", f"questions={questions}"]
    words += ["--agent", "expert", "--episodes", "2", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    episodes = list(read_trajectories(tmp_path / "run" / "trajectories.jsonl"))
    assert [(episode.split, episode.success) for episode in episodes] == [("test", True)] * 2


def _heeds_interrupts() -> None:
    """Undo what a shell does to programs that it starts in the background: SIGINT is ignored there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_server_runs_until_it_is_stopped(index: Path) -> None:
    command = [sys.executable, "-m", "comap", "serve", "search", "--data-dir", str(index)]
    server = subprocess.Popen(
        [*command, "--port", "0", "--no-token"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=_heeds_interrupts,
    )
    try:
        assert server.stdout is not None
        serving, url, *_ = server.stdout.readline().split()
        assert serving == "serving" and url.startswith("http://127.0.0.1:")
        assert RemoteRetriever(url).search(["emma"])[0][0].id == "c"
        server.send_signal(signal.SIGINT)
        _, output = server.communicate(timeout=20)
    finally:
        server.kill()
    assert server.returncode == 0 and output == "stopped\n"
