"""Who owns a simulator, and what happens when one of the two dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest

from comap.envs.scienceworld import keep_idle
from comap.envs.scienceworld.simulator import simulator_jar
from comap.errors import NoEpisode, OptionError
from kits.scienceworld_owner import ACTIONS, transcript

TASK = {"task": "find-plant/3"}
PATIENCE = 60.0

pytestmark = [
    pytest.mark.usefixtures("simulator"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals and forks are tested"),
]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts the program `kits.scienceworld_owner`."""
    processes: list[subprocess.Popen[str]] = []

    def start(scenario: str, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", transcript.__module__, scenario],
                stdout=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": path} | environment,
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    output_line = process.stdout.readline()
    assert output_line, f"it ended with {process.wait(PATIENCE)} and said nothing"
    return json.loads(output_line)


def wait_until(condition: Callable[[], Any], event: str) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if outcome := condition():
            return outcome
        time.sleep(0.02)
    raise AssertionError(f"{event} did not happen")


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def fresh_transcript(env: gym.Env[str, str]) -> list[str]:
    texts: list[str] = transcript(env)
    return texts


def test_a_jvm_at_work_ends_with_its_killed_owner_though_a_child_lives(owner: Any) -> None:
    process = owner("stepping_with_a_child")
    report = line(process)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: is_gone(report["jvm"]), "the JVM's end")
    assert not is_gone(report["child"])
    os.kill(report["child"], signal.SIGKILL)


def test_forked_children_and_interrupts_leave_the_owner_in_order(owner: Any) -> None:
    report = line(owner("forking_and_interrupted"))
    child = report["child"]
    assert child["truncated"] and "forked" in child["error"]
    assert child["again"] == report["fresh"] == report["interrupted"]
    assert report["after"] == report["fresh"][1]


def test_a_killed_jvm_truncates_the_episode_and_the_next_reset_works(simulator: None) -> None:
    env = gym.make("comap/ScienceWorld-v0")
    whole = fresh_transcript(env)
    env.reset(options=TASK)
    inner: Any = env.unwrapped
    pid = inner.engine._line.simulator.pid
    env.step(ACTIONS[0])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), "the JVM's end")
    observation, reward, terminated, truncated, info = env.step(ACTIONS[1])
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert "EngineError" in info["error"] and "signal 9" in info["error"]
    assert (info["step"], info["success"], info["choices"]) == (2, False, ())
    with pytest.raises(NoEpisode):
        env.step("look around")
    assert fresh_transcript(env) == whole
    assert inner.engine._line.simulator.pid != pid
    env.close()


def test_a_closed_environment_hands_its_jvm_on_or_ends_it(simulator: None) -> None:
    table = simulator_jar().with_name("object_type_ids.tsv")
    before = table.read_bytes()

    def closed() -> int:
        env: Any = gym.make("comap/ScienceWorld-v0")
        env.reset(options=TASK)
        pid: int = env.unwrapped.engine._line.simulator.pid
        assert not is_gone(pid)
        env.close()
        env.close()
        assert env.step("look around")[-2] is True
        return pid

    try:
        pid = closed()
        assert closed() == pid and not is_gone(pid)
        keep_idle(0)
        assert is_gone(pid) and is_gone(closed())
        with pytest.raises(OptionError):
            keep_idle(-1)
    finally:
        keep_idle(2)
    assert table.read_bytes() == before, "none of the files of the package is changed"


def test_our_texts_scores_and_numbers_of_actions_are_upstreams(owner: Any) -> None:
    pytest.importorskip("scienceworld", reason="scienceworld is not installed")
    options = "-XX:+UnlockExperimentalVMOptions -XX:hashCode=2 -Xmx512m -XX:+UseSerialGC"
    ours, theirs = line(owner("both_sides", JDK_JAVA_OPTIONS=options))
    assert ours == theirs
    assert ours[-1][1] == 75 and ours[1][2] == 3
