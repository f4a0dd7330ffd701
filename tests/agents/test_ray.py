"""Ray: the same results as in one process, on two nodes of which one is killed in the middle."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Decision, RandomAgent, View, run_to
from comap.agents.ray import RayPool, import_ray
from comap.agents.run import Run
from comap.cli import main
from comap.errors import EngineError, OptionError
from comap.lm import ReplayLanguageModel
from comap.trajectory import read_trajectories

if find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install 'comap-agents[ray]'", allow_module_level=True)

ALFWORLD = "comap/ALFWorld-v0"
make_env = partial(gym.make, ALFWORLD, split="valid_seen", source="generated", max_episode_steps=6)
TASKS = make_env().unwrapped.tasks.ids[:10]  # type: ignore[attr-defined]


class Waits(RandomAgent):
    """A random agent that takes its time, and does not begin before one of a node has begun."""

    def __init__(self, node: str, sign: Path):
        super().__init__(3)
        self._node, self._sign = node, sign

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        if import_ray().get_runtime_context().get_node_id() == self._node:
            self._sign.touch()
        ends = time.monotonic() + 60
        while not self._sign.exists() and time.monotonic() < ends:
            time.sleep(0.05)
        time.sleep(0.05)
        return (yield from super().decide(view))


class Slow(RandomAgent):
    """A random agent that takes its time, and in one task ends its process."""

    def __init__(self, seconds: float = 0.0, deadly: str = ""):
        super().__init__(3)
        self._seconds, self._deadly = seconds, deadly

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        time.sleep(self._seconds)
        if view.task == self._deadly and view.step == 2:
            os._exit(1)
        return (yield from super().decide(view))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on loopback, the second of which can be killed."""
    ray = import_ray(loopback=True)
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    options = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
    options |= {"node_ip_address": "127.0.0.1"}
    ray_cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **options})
    ray_cluster.second = ray_cluster.add_node(num_cpus=1, **options)
    ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield ray_cluster
    ray.shutdown()
    ray_cluster.shutdown()


def plan(agent: Any = None, tasks: Any = TASKS, **options: Any) -> Run:
    return Run(make_env=make_env, agent=agent or Slow(), tasks=tasks, seed=5, **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one process records."""
    folder = tmp_path_factory.mktemp("alone")
    run_to(folder, plan())
    return (folder / "trajectories.jsonl").read_bytes()


def test_a_language_model_is_made_in_each_worker(cluster: Any, tmp_path: Path) -> None:
    from comap.agents import create_agent

    file = Path(__file__).parents[2] / "examples" / "react.jsonl"
    task = "generated/valid_seen/normal/0-000033"

    def prepare() -> Run:
        agent = create_agent("react", state_text="belief", prompts="brief", temperature=0)
        env = partial(gym.make, ALFWORLD, split="valid_seen", source="generated")
        return Run(make_env=env, agent=agent, tasks=(task,), lm=ReplayLanguageModel(file))

    run_to(tmp_path / "one", prepare())
    run_to(tmp_path / "ray", prepare(), play=RayPool(1, prepare=prepare))
    local_file, ray = (tmp_path / name / "trajectories.jsonl" for name in ("one", "ray"))
    assert local_file.read_bytes() == ray.read_bytes()
    assert next(read_trajectories(ray)).success


def test_the_command(cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--agent", "random", "--episodes", "4", "--env-option", "source=generated"]
    words += ["--env-option", "max_episode_steps=5"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    ray = [*words, "--out", str(tmp_path / "ray"), "--workers", "ray:2", "--live", "1"]
    assert main(ray) == 0
    local_file, ray_file = (tmp_path / name / "trajectories.jsonl" for name in ("one", "ray"))
    assert local_file.read_bytes() == ray_file.read_bytes()
    run_record = json.loads((tmp_path / "ray" / "run.json").read_text())
    assert run_record["sessions"][0]["workers"] == "ray:2"
    summary = json.loads((tmp_path / "ray" / "summary.json").read_text())
    assert summary["n"] == 4
    capsys.readouterr()
    assert main([*words, "--workers", "4", "--out", str(tmp_path / "no")]) == 2
    assert "ray:N" in capsys.readouterr().err


def test_a_task_that_kills_its_worker_costs_itself_alone(
    cluster: Any, alone: bytes, tmp_path: Path
) -> None:
    deadly, pool = TASKS[4], RayPool(1, retries=1)
    assert not list(pool(plan(), (), 2))
    run_to(tmp_path, plan(Slow(deadly=deadly)), concurrency=2, play=pool)
    episodes = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    assert [episode.task for episode in episodes] == list(TASKS)
    assert [episode.task for episode in episodes if episode.error] == [deadly]
    (failed,) = (episode for episode in episodes if episode.error)
    assert failed.error is not None and failed.error.startswith("WorkerLost")
    assert pool.restarts in (2, 3)  # 3 where what a worker told last was lost with it
    run_to(tmp_path, plan(), retry_failed=True, concurrency=2)  # where it is not deadly
    assert (tmp_path / "trajectories.jsonl").read_bytes() == alone


def test_what_a_worker_cannot_do_is_told(cluster: Any, tmp_path: Path) -> None:
    def refuse() -> Run:
        raise OptionError("no such file here")

    with pytest.raises(OptionError, match="no such file here"):
        run_to(tmp_path / "a", plan(), play=RayPool(1, prepare=refuse))
    with pytest.raises(OptionError, match="prepare="):
        unpicklable_run = plan(world_model=(item for item in ()))  # type: ignore[arg-type]
        list(RayPool(1)(unpicklable_run, TASKS, 1))
    with pytest.raises(EngineError, match="room"):
        list(RayPool(1, cpus=64, patience=0.1)(plan(), TASKS, 1))


def test_listeners_stay_in_this_process(cluster: Any, alone: bytes, tmp_path: Path) -> None:
    """They may hold what cannot be pickled, as a display holds its lock."""
    lock = threading.Lock()

    def listen(event: object) -> None:
        with lock:
            raise AssertionError(f"a worker told {event!r}")

    run_to(tmp_path, plan(on_step=listen, on_work=listen, on_note=listen), play=RayPool(1))
    assert (tmp_path / "trajectories.jsonl").read_bytes() == alone


def test_a_node_is_killed_in_the_middle(cluster: Any, alone: bytes, tmp_path: Path) -> None:
    """The last test here: there is one node less afterwards."""
    pool, sign, finished_tasks = RayPool(3), tmp_path / "begun", 0

    def on_done(trials: Any) -> None:
        nonlocal finished_tasks
        finished_tasks += 1
        if finished_tasks == 1:
            cluster.remove_node(cluster.second, allow_graceful=False)

    agent = Waits(cluster.second.node_id, sign)
    run_to(tmp_path / "run", plan(agent), concurrency=2, play=pool, on_done=on_done)
    assert sign.exists() and pool.restarts >= 1
    assert (tmp_path / "run" / "trajectories.jsonl").read_bytes() == alone
