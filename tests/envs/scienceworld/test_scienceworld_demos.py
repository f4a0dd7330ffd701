"""`comap data build scienceworld-demos`: what is kept, what is read, and builds that were killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.cli import main
from comap.envs.scienceworld import demos
from comap.envs.scienceworld.demos import build_demonstrations
from comap.envs.storage import Progress
from comap.errors import DataCorrupt, DownloadError, EngineError, OptionError, TaskNotFound
from comap.trainers.setup import demonstrations, read_demonstrations

NAMES = ["find-plant", "lifespan-shortest-lived"]


class Stub:
    """Stands for the processes: plays every task at once, until they break after some."""

    def __init__(self, *failing: str, breaks_after: int | None = None):
        self.failing, self.asked, self.breaks_after = failing, list[str](), breaks_after

    def __call__(self, tasks: Any, workers: int, options: Any) -> Any:
        for number, task in enumerate(tasks):
            if number == self.breaks_after:
                raise EngineError("expected a process, found none")
            self.asked.append(task)
            steps = [{"command": None, "observation": "a"}, {"command": "b", "observation": "c"}]
            yield task, {"failed": "too hard"} if task in self.failing else {"steps": steps}


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    stub = Stub()
    monkeypatch.setattr(demos, "played", stub)
    return stub


def test_tasks_are_chosen_evenly_and_read_again(tmp_path: Path, stub: Stub):
    told: list[Progress] = []
    stub.failing = ("boil/4",)
    out = tmp_path / "new" / "demos.jsonl"
    built = build_demonstrations(out, tasks=["boil"], variations=3, progress=told.append)
    assert stub.asked == ["boil/0", "boil/4", "boil/9"]
    assert built.kept == ("boil/0", "boil/9") and built.failed == {"boil/4": "too hard"}
    assert list(read_demonstrations(out)) == [("boil/0", ("b",)), ("boil/9", ("b",))]
    assert [(one.done, one.total) for one in told] == [(1, 3), (2, 3), (3, 3)]
    assert "too hard" in told[1].note
    assert [path.name for path in out.parent.iterdir()] == ["demos.jsonl"]
    line = json.loads(out.read_text().splitlines()[0])
    assert line["settings"]["simplification"] == "easy"


def test_an_interrupted_build_goes_on_with_the_same_settings(tmp_path: Path, stub: Stub):
    out, part = tmp_path / "demos.jsonl", tmp_path / "demos.jsonl.unfinished"
    stub.breaks_after = 2
    with pytest.raises(EngineError):
        build_demonstrations(out, tasks=NAMES, variations=2)
    assert not out.exists()
    with pytest.raises(DataCorrupt, match="simplification was 'easy', is ''"):
        build_demonstrations(out, tasks=NAMES, options={"simplification": ""})
    part.write_bytes(part.read_bytes() + b'{"task": "lifespan-shor')  # killed in mid-line
    stub.breaks_after = None
    built = build_demonstrations(out, tasks=NAMES, variations=2)
    assert len(stub.asked) == len(built.kept) == 4
    whole = build_demonstrations(tmp_path / "whole.jsonl", tasks=NAMES, variations=2)
    assert whole.path.read_bytes() == out.read_bytes()
    part.write_text("what is this?\n")
    with pytest.raises(DataCorrupt, match="line 1"):
        build_demonstrations(out, tasks=["boil"])


@pytest.mark.usefixtures("stub")
def test_wrong_wishes_are_refused(tmp_path: Path):
    out = tmp_path / "demos.jsonl"
    with pytest.raises(OptionError, match="variations"):
        build_demonstrations(out, variations=0)
    with pytest.raises(OptionError, match="workers"):
        build_demonstrations(out, workers=-1)
    with pytest.raises(TaskNotFound, match="did you mean 'boil'"):
        build_demonstrations(out, tasks=["boill"])
    with pytest.raises(OptionError, match="split"):
        build_demonstrations(out, options={"split": "tests"})
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(DownloadError):
        build_demonstrations(file / "demos.jsonl", tasks=["boil"])
    assert list(tmp_path.iterdir()) == [file]


def run(*words: str) -> int:
    return main(["data", "build", "scienceworld-demos", *words])


def test_the_command(tmp_path: Path, stub: Stub, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "demos.jsonl"
    assert run("--out", str(out), "--tasks", *NAMES, "--variations", "2", "--split", "dev") == 0
    told = capsys.readouterr()
    assert told.out == f"{out}: 4 demonstrations, 0 tasks without one\n"
    assert "playing: 100 %" in told.err
    assert run("--out", str(out), "--tasks", "boill") == 2
    assert "did you mean 'boil'" in capsys.readouterr().err
    assert stub.asked[0].startswith("find-plant/")


@pytest.mark.usefixtures("simulator")
def test_demonstrations_win_when_they_are_played_again(
    tmp_path: Path, shared_env: gym.Env[str, str]
):
    out = tmp_path / "demos.jsonl"
    built = build_demonstrations(out, tasks=NAMES[1:], variations=1)
    lines = {line["game"]: line["steps"] for line in map(json.loads, out.open())}
    plans = list(read_demonstrations(out))
    assert len(plans) == 1 and not built.failed
    for shown, (task, _) in zip(demonstrations(shared_env, plans), plans, strict=True):
        assert shown.success and shown.error is None
        told = [shown.observation, *(step.observation for step in shown.steps)]
        assert told == [step["observation"] for step in lines[f"{task}/gold"]]


@pytest.mark.usefixtures("simulator")
def test_a_process_that_ends_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demos, "_work", _end_at_once)
    with pytest.raises(EngineError, match="run the command again"):
        list(demos.played(["boil/0"], 1, {}))


def _end_at_once(line: Any, options: Any) -> None:
    os._exit(3)
