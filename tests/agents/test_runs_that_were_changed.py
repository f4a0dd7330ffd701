"""A run's folder tells when a file in it was changed or cut, and what is missing is played again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.agents import RandomAgent
from comap.agents.run import RUN, SUMMARY, TIMINGS, TRAJECTORIES, Run, run_to
from comap.agents.run_summary import recorded
from comap.benchmarks.view import view_run
from comap.errors import DataCorrupt
from comap.hub import push_trajectories
from comap.trajectory import Trajectory, read_trajectories, write_trajectories


def make() -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=4)


def play(folder: Path) -> dict[str, Any]:
    tasks = make().unwrapped.tasks.ids[:3]  # type: ignore[attr-defined]
    return run_to(folder, Run(make_env=make, agent=RandomAgent(), tasks=tasks))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    play(folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def change(path: Path, line: int) -> None:
    """Change a letter of a text, so that a line is as good a trajectory as before."""
    lines = path.read_text("ascii").splitlines(keepends=True)
    assert lines[line].count('"goal": "') == 1
    lines[line] = lines[line].replace('"goal": "', '"goal": "x')
    path.write_text("".join(lines), "ascii")


def users(run: Path, place: Path) -> tuple[Callable[[], object], ...]:
    """What reads a run to show it, and to push it."""
    pushed = f"local:{place}/pushed"
    return (lambda: view_run(run), lambda: push_trajectories(run, pushed, licence="mit"))


@pytest.mark.parametrize("line", [0, -1])
def test_a_changed_line_is_told_by_all_that_read_it(run: Path, tmp_path: Path, line: int) -> None:
    file = run / TRAJECTORIES
    before = file.read_bytes()
    change(file, line)
    changed = file.read_bytes()
    number = 1 if line == 0 else 3
    with pytest.raises(DataCorrupt, match=rf"line {number} of .*{TRAJECTORIES}"):
        play(run)
    for read in (lambda: list(read_trajectories(file)), *users(run, tmp_path)):
        with pytest.raises(DataCorrupt, match=rf"{TRAJECTORIES}, line {number}: .*was changed"):
            read()
    assert file.read_bytes() == changed != before, "nothing is thrown away"


def test_missing_lines_are_told_and_played_again(run: Path, tmp_path: Path) -> None:
    file = run / TRAJECTORIES
    before = file.read_bytes()
    file.write_bytes(b"".join(before.splitlines(keepends=True)[:2]))
    for read in (lambda: list(recorded(file)), *users(run, tmp_path)):
        with pytest.raises(DataCorrupt, match=f"expected 3 episodes in .*{SUMMARY}.* found 2"):
            read()
    play(run)
    assert file.read_bytes() == before and len(list(recorded(file))) == 3


def test_json_of_a_run_that_was_changed_is_told(run: Path) -> None:
    told = (run / RUN).read_text()
    (run / RUN).write_text(told.replace('"number": 3', '"number": 4'))
    with pytest.raises(DataCorrupt, match=r"run\.json.*was changed"):
        play(run)
    (run / RUN).write_text(told)
    (run / SUMMARY).write_text((run / SUMMARY).read_text().replace('"n": 3', '"n": 4', 1))
    with pytest.raises(DataCorrupt, match=r"summary\.json.*was changed"):
        list(recorded(run / TRAJECTORIES))
    lines = (run / TIMINGS).read_text().splitlines()
    assert all("crc32" in json.loads(line) for line in lines)


def test_lines_by_other_hands_are_read(run: Path, tmp_path: Path) -> None:
    """As `json.loads` reads them, as older versions wrote them, and both in one file."""
    episodes = list(read_trajectories(run / TRAJECTORIES))
    lines = (run / TRAJECTORIES).read_text("ascii").splitlines()
    assert [Trajectory.from_json(json.loads(line)) for line in lines] == episodes
    old = tmp_path / "old.jsonl"
    old.write_text("".join(json.dumps(one.to_json()) + "\n" for one in episodes))
    write_trajectories(old, episodes, append=True)
    assert list(read_trajectories(old)) == [*episodes, *episodes]
