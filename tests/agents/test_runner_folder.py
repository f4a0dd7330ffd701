"""Run folders: killed, stopped, gone on with, and the same in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Decision, ExpertAgent, RandomAgent, View
from comap.agents.records import Records
from comap.agents.run import Run, run_to
from comap.errors import DataCorrupt, OptionError
from comap.trajectory import Trajectory, read_trajectories
from comap.worldmodel import ImaginedEnv, RetrievalWorldModel


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=4, **options
    )


TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:10]  # type: ignore[attr-defined]


def plan(agent: Any = None, **options: Any) -> Run:
    return Run(**{"make_env": real, "agent": agent or RandomAgent(1), "tasks": TASKS, **options})


def text(folder: Path) -> bytes:
    return (folder / "trajectories.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    run_to(folder, plan(), live=1)
    return folder


class Fragile:
    """Looks around; breaks in some tasks, as long as a file says so."""

    name = "fragile"

    def __init__(self, trouble: Path):
        self._trouble = trouble

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield []
        if view.task in self._trouble.read_text().split() and view.step == 1:
            raise RuntimeError("it broke\x1b[31m\nTraceback: no\u202e")
        return Decision("look")


class Retrier:
    """Solves a task in its second trial."""

    name = "retrier"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield []
        return Decision(view.expert_action() if view.trial == 2 else None)

    def review(self, trajectory: Trajectory, memory: Any) -> Generator[Any, Any, bool]:
        yield []
        return trajectory.trial < 2


def test_a_run_is_recorded(whole: Path) -> None:
    found = list(read_trajectories(whole / "trajectories.jsonl"))
    assert [t.task for t in found] == list(TASKS)
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["n"] == 10 and summary["steps"]["all"] == sum(len(t.steps) for t in found)
    assert summary["success"]["value"] == sum(t.success for t in found) / 10
    assert summary["success"]["low"] < summary["success"]["high"] and summary["errors"] == {}
    assert summary["seconds"]["all"] >= 0 and "trials" not in summary
    said = json.loads((whole / "run.json").read_text())
    assert said["agent"]["name"] == "random" and said["environment"]["split"] == "valid_seen"
    assert str(Path.home()) not in (whole / "run.json").read_text()
    assert all("seconds" not in line for line in text(whole).decode().splitlines())


def test_the_file_does_not_depend_on_how_many_were_live(whole: Path, tmp_path: Path) -> None:
    for live in (3, 32):
        run_to(tmp_path / str(live), plan(), live=live)
        assert text(tmp_path / str(live)) == text(whole)


@pytest.mark.parametrize("cut", [0, 1, 700, -1, -40])
def test_half_written_lines_are_cut_off(whole: Path, tmp_path: Path, cut: int) -> None:
    run_to(tmp_path, plan(), live=2)
    lines = text(tmp_path).splitlines(keepends=True)
    kept = b"".join(lines[:4]) + lines[4][:cut]
    (tmp_path / "trajectories.jsonl").write_bytes(kept)
    played: list[str] = []
    before: list[int] = []
    run_to(
        tmp_path,
        plan(),
        on_start=before.append,
        on_done=lambda trials: played.append(trials[0].task),
    )
    assert before == [4] and sorted(played) == sorted(TASKS[4:])
    assert text(tmp_path) == text(whole)


def test_a_finished_run_plays_nothing(whole: Path) -> None:
    played: list[Any] = []
    before = text(whole)
    run_to(whole, plan(), on_done=played.append)
    assert played == [] and text(whole) == before
    assert len(json.loads((whole / "run.json").read_text())["sessions"]) == 2


def test_failed_tasks_are_kept_or_played_again(tmp_path: Path) -> None:
    trouble = tmp_path / "trouble"
    trouble.write_text(f"{TASKS[2]} {TASKS[5]}")
    folder, agent = tmp_path / "run", Fragile(trouble)
    summary = run_to(folder, plan(agent), live=4)
    assert summary["errors"] == {"RuntimeError": 2}
    assert summary["first_errors"]["RuntimeError"].startswith("it broke\x1b")
    trouble.write_text("")
    kept = text(folder)
    assert run_to(folder, plan(agent))["errors"] == {"RuntimeError": 2} and text(folder) == kept
    played: list[str] = []
    summary = run_to(
        folder,
        plan(agent),
        retry_failed=True,
        on_done=lambda trials: played.append(trials[0].task),
    )
    assert played == [TASKS[2], TASKS[5]] and summary["errors"] == {}
    run_to(tmp_path / "clean", plan(agent))
    assert text(folder) == text(tmp_path / "clean")


def test_trials_stay_together(tmp_path: Path) -> None:
    env = {
        "make_env": lambda: gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
    }
    summary = run_to(tmp_path / "a", plan(Retrier(), **env), live=3)
    assert summary["n"] == 10 and summary["trials"]["all"] == 20
    assert summary["trials"]["first"]["value"] == 0.0 and summary["success"]["value"] == 1.0
    found = list(read_trajectories(tmp_path / "a" / "trajectories.jsonl"))
    assert [(t.task, t.trial) for t in found] == [(task, n) for task in TASKS for n in (1, 2)]
    folder = tmp_path / "b"
    run_to(folder, plan(Retrier(), **env), live=1)
    lines = text(folder).splitlines(keepends=True)
    (folder / "trajectories.jsonl").write_bytes(b"".join(lines[:7]))  # task 4 lacks its second
    (folder / "summary.json").unlink()
    run_to(folder, plan(Retrier(), **env), live=5)
    assert text(folder) == text(tmp_path / "a")


CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("tasks.number: 10 there, 9 now", {"tasks": TASKS[:9]}),
    ("seed: None there, 3 now", {"seed": 3}),
    ("keep: 'replies' there, 'tokens' now", {"keep": "tokens"}),
    ("agent.name: 'random' there, 'expert' now", {"agent": ExpertAgent()}),
    ("world_model: None there, 'null' now", {"world_model": "null"}),
    ("config.note: nothing there, 'new' now", {"config": {"note": "new"}}),
    ("environment.dialect: 'move' there, 'put' now", {"make_env": lambda: real(dialect="put")}),
    ("imagined", {"make_env": lambda: ImaginedEnv(real(), "null")}),
]


@pytest.mark.parametrize(("told", "options"), CHANGED, ids=[told for told, _ in CHANGED])
def test_another_run_is_refused(whole: Path, told: str, options: dict[str, Any]) -> None:
    before = text(whole), (whole / "run.json").read_bytes()
    with pytest.raises(OptionError) as error:
        run_to(whole, plan(**options))
    assert told in str(error.value) and "another folder" in str(error.value)
    assert before == (text(whole), (whole / "run.json").read_bytes())


def test_what_a_world_model_is_goes_on_record_without_its_folder(tmp_path: Path) -> None:
    from comap.agents.worlds import fit_retrieval

    model = fit_retrieval(tmp_path / "model.jsonl", real, TASKS[:1])
    described = plan(world_model=model).describe()
    assert described["world_model"]["path"] == "model.jsonl"
    assert isinstance(fit_retrieval(tmp_path / "model.jsonl", real, ()), RetrievalWorldModel)
    with pytest.raises(OptionError, match="at least 1 task"):
        fit_retrieval(tmp_path / "none.jsonl", real, ())


def test_rubbish_is_told(whole: Path, tmp_path: Path) -> None:
    run_to(tmp_path, plan())
    lines = text(tmp_path).splitlines(keepends=True)
    (tmp_path / "trajectories.jsonl").write_bytes(lines[0] + b"rubbish\n" + lines[2])
    with pytest.raises(DataCorrupt, match="line 2"):
        run_to(tmp_path, plan())
    for rubbish in ("", "[]", "{}", '{"format": "another", "sessions": []}'):
        (tmp_path / "run.json").write_text(rubbish)
        with pytest.raises(DataCorrupt, match="expected a run of comap"):
            run_to(tmp_path, plan())
    with pytest.raises(OptionError, match="listed twice"):
        plan(tasks=("a", "a"))
    with pytest.raises(OptionError, match="not the text"):
        plan(tasks="abc")


def test_a_mistake_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="live"):
        run_to(tmp_path, plan(), live=0)
    assert not (tmp_path / "run.json").exists()


def test_a_last_line_of_zeros_is_cut_off(tmp_path: Path, whole: Path) -> None:
    first = text(whole).splitlines(keepends=True)[0]
    path = tmp_path / "trajectories.jsonl"
    for rest in (b"\0" * 50, b"\0" * 50 + b"\n", b'{"task": 3', b"{}\n"):
        path.write_bytes(first + rest)
        assert Records(path).tasks == {TASKS[0]} and path.read_bytes() == first


PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
import test_runner_folder as here
from comap.agents.run import run_to
class Slow:
    name = "random"
    def decide(self, view):
        time.sleep(0.02)
        yield []
        return (yield from here.RandomAgent(1).decide(view))
def done(trials):
    print(trials[0].task, flush=True)
run_to(sys.argv[1], here.plan(Slow()), live=3, on_start=lambda n: print("start", flush=True),
       on_done=done)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    program = PROGRAM.format(here=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_been(tmp_path: Path, whole: Path) -> None:
    process = start(tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "start\n"
    with pytest.raises(OptionError, match="another process"):
        run_to(tmp_path, plan())
    ended = [process.stdout.readline().strip() for _ in range(4)]
    process.send_signal(signal.SIGKILL)
    ended += [line.strip() for line in process.stdout.read().splitlines()]
    process.wait()
    assert 4 <= len(ended) < 10 and not (tmp_path / "summary.json").exists()
    played: list[str] = []
    run_to(tmp_path, plan(), on_done=lambda trials: played.append(trials[0].task))
    assert not set(ended) & set(played), "what had ended was not played again"
    assert len(played) >= 10 - len(ended) - 3
    assert text(tmp_path) == text(whole)
    sessions = json.loads((tmp_path / "run.json").read_text())["sessions"]
    assert [session["live"] for session in sessions] == [3, 32]
