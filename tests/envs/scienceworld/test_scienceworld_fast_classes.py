"""What goes before the simulator's classes changes no answer, and stays away where it must."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.envs.scienceworld import keep_idle
from comap.envs.scienceworld import simulator as faster
from comap.envs.scienceworld.simulator import simulator_jar
from comap.envs.scienceworld.tasks import task_table
from kits.scienceworld_classes import COMPILED, compiled, digests, javac

TASKS = ("boil/2", "power-component/1", "grow-plant/4")
LONG, SHORT = 4, 1
ALL = {f"{name}/0": SHORT for name in list(task_table())[::15]} | dict.fromkeys(TASKS, LONG)
STRANGE = ("open door", "1", "xyzzy", "look  at   THE kitchen", "task", "focus on", "wait")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, with nothing in it."""
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    faster._jar_before.cache_clear()
    return tmp_path / "home"


def played(env: Any, task: str, actions: list[str], turns: int = LONG) -> list[Any]:
    """All that an episode tells; actions are chosen where none are given, and noted."""
    draw, draws_actions = random.Random(task), not actions
    env.reset(options={"task": task})
    engine = env.unwrapped.engine
    record: list[Any] = []
    for turn in range(turns):
        valid = env.unwrapped.valid_actions()
        if draws_actions:
            actions.append(STRANGE[turn // 2] if turn % 2 else draw.choice(valid))
        record.append((valid, engine.look(), engine.inventory(), engine.progress()))
        engine.act(actions[turn])
        record.append(engine.last)
    record.append(sorted(env.unwrapped.engine_facts()))
    return record


def test_the_patched_classes_answer_as_the_simulators(
    simulator: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_idle(0)
    try:
        jar = simulator_jar()
        assert faster.classpath(jar)[0].parent == home / "scienceworld-classes"
        env = gym.make("comap/ScienceWorld-v0", split="train")
        actions: dict[str, list[str]] = {task: [] for task in ALL}
        fast = [played(env, task, actions[task], turns) for task, turns in ALL.items()]
        env.close()
        monkeypatch.setattr(faster, "_KNOWN", "none")
        faster._jar_before.cache_clear()
        assert faster.classpath(jar) == (jar,)
        assert [played(env, task, actions[task], turns) for task, turns in ALL.items()] == fast
        env.close()
    finally:
        keep_idle(2)
        faster._jar_before.cache_clear()


def test_sets_of_things_are_those_of_the_simulator_whatever_their_size(
    simulator: None, tmp_path: Path
) -> None:
    pytest.importorskip("jpype", reason="JPype1 is not installed")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.run(
        [sys.executable, "-m", "kits.scienceworld_worlds"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["compared"] > 500
    assert report["longest"] > 1000  # so that Scala's tables have grown several times


def test_our_classes_were_compiled_from_their_sources() -> None:
    recorded = json.loads(COMPILED.read_text())
    assert recorded == digests(), (
        "the sources have changed; run python tests/kits/scienceworld_classes.py"
    )


def test_compiling_our_sources_gives_our_classes(simulator: None) -> None:
    if javac() is None:
        pytest.skip("needs the JDK that they were compiled with")
    shipped = {
        class_file.name: class_file.read_bytes() for class_file in faster.OURS.glob("*.class")
    }
    assert compiled() == shipped


def test_another_simulator_is_left_alone_and_ours_where_nothing_can_be_written(
    simulator: None, home: Path, tmp_path: Path
) -> None:
    other_jar = tmp_path / "scienceworld.jar"
    other_jar.write_bytes(b"another release")
    assert faster.classpath(other_jar) == (other_jar,)
    assert not home.exists()
    home.write_text("a file, not a folder")
    assert faster.classpath(simulator_jar()) == (simulator_jar(),)


def test_a_damaged_jar_is_written_again(simulator: None, home: Path) -> None:
    jar = simulator_jar()
    ours = faster.classpath(jar)[0]
    if ours == jar:
        pytest.skip("another release of scienceworld is installed")
    whole = ours.read_bytes()
    ours.write_bytes(whole[:100] + b"damage" + whole[106:])
    faster._jar_before.cache_clear()
    assert faster.classpath(jar)[0].read_bytes() == whole
    assert [file.name for file in ours.parent.iterdir()] == [ours.name]
