"""``comap bench speed ENV``: what a step costs, beside the original where it is installed.

Every measurement runs in fresh processes, one after another, ours and the peer's in turns. The processes
run this file as a script and use nothing but the public interface, so that another checkout of comap can
be measured beside this one by the same program: ``--against FOLDER`` names the folder that it lies in.

Times are CPU seconds of the process and of its children (a JVM) unless named otherwise: ``first`` is the
mean step when an episode is played for the first time, ``again`` when it was played before.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Plan = list[tuple[str, list[str]]]
"""Episodes: a task and the actions to take in it."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An environment to measure: how it is made, and what it is compared with."""

    env: str
    split: str
    options: Mapping[str, Any] = field(default_factory=lambda: {"source": "generated"})
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"ours": {}})
    peer: str | None = None
    episodes: int = 40
    steps: int = 50
    passes: int = 6
    skipped: str | None = None


TARGETS: Mapping[str, Target] = {
    "alfworld": Target(
        env="comap/ALFWorld-v0", split="valid_unseen", peer="TextWorld", episodes=20
    ),
    "scienceworld": Target(
        env="comap/ScienceWorld-v0",
        split="test",
        options={"task_limits": False},
        ways={"ours": {}, "with admissible actions": {"admissible_actions": True}},
        peer="scienceworld",
        episodes=8,
        steps=30,
        passes=8,  # Java compiles while it runs
        skipped="mendelian",  # their gold paths take 20 s each to find
    ),
    "webshop": Target(env="comap/WebShop-v0", split="all"),
    "stabletoolbench": Target(env="comap/StableToolBench-v0", split="train", episodes=100),
    "searchqa": Target(env="comap/SearchQA-v0", split="test", episodes=200),
}
PACKAGES = ("gymnasium", "numpy", "alfworld", "textworld", "scienceworld")
_WARM = 2  # episodes that are played first, so that no measured one pays for imports


def run(
    target: str,
    *,
    peer: bool = False,
    against: Path | None = None,
    data_dir: str | None = None,
    episodes: int | None = None,
    processes: int = 3,
    out: Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure a target and return the result, as written to `out`."""
    from ..errors import MissingExtra, OptionError, check_number, suggest
    from .record import circumstances, spread, write_result

    if target not in TARGETS:
        raise OptionError(
            f"there is nothing to measure named {target!r:.40}; {suggest(target, TARGETS)}"
        )
    check_number("--processes", processes)
    check_number("--episodes", 1 if episodes is None else episodes)
    result: dict[str, Any] = {"benchmark": "speed", "target": target, "processes": processes}
    result |= circumstances(PACKAGES)
    known = TARGETS[target]
    given: dict[str, Any] = {"target": target, "data_dir": data_dir, "episodes": episodes}
    given["plan"] = plan = _in_process({**given, "do": "plan"})
    result |= {"env": known.env, "units": "CPU seconds, children (a JVM) included"}
    result |= {"episodes": len(plan) - _WARM, "steps": sum(len(p[1]) for p in plan[_WARM:])}
    jobs = {way: {**given, "way": way} for way in known.ways}
    if peer and known.peer is not None:
        if find_spec(known.peer.lower()) is None:
            raise MissingExtra.of(target, f"the peer {known.peer}")
        jobs[known.peer] = {**given, "way": known.peer}
    if against is not None:
        jobs["against"] = {**jobs["ours"], "against": str(against.resolve())}
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    for number in range(1, processes + 1):
        for name, job in jobs.items():
            measured[name].append(_in_process({**job, "do": "measure"}))
            progress(f"process {number} of {processes}, {name}: {_shown(measured[name][-1])}")
    result["measured"] = {
        name: {
            key: spread([one[key] for one in some]) if isinstance(value, float) else value
            for key, value in some[0].items()
            if key != "texts"
        }
        for name, some in measured.items()
    }
    result |= _compared(measured)
    if out is not None:
        write_result(out, result)
    return result


def _compared(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return how many times longer others take, and in how many steps they answered the same."""

    def median(name: str, key: str) -> float:
        return float(statistics.median(one[key] for one in measured[name]))

    found: dict[str, Any] = {"ratios": {}, "same_answers": {}}
    mine = measured["ours"][0]
    for name, (other, *_) in measured.items():
        if name != "ours":
            keys = [key for key, value in other.items() if isinstance(value, float) and key in mine]
            found["ratios"][name] = {key: median(name, key) / median("ours", key) for key in keys}
            pairs = list(zip(mine["texts"], other["texts"], strict=True))
            found["same_answers"][name] = [sum(a == b for a, b in pairs), len(pairs)]
    return found


def table(result: Mapping[str, Any]) -> str:
    lines = [f"{result['episodes']} episodes, {result['steps']} steps"]
    for name, parts in result["measured"].items():
        medians = {k: v["median"] if isinstance(v, dict) else v for k, v in parts.items()}
        lines.append(f"{name}: {_shown(medians)}")
    for name, ratios in result["ratios"].items():
        shown = ", ".join(f"{key} {ratio:,.2f}" for key, ratio in ratios.items())
        lines.append(f"{name} / ours: {shown}")
    for name, (same, answers) in result["same_answers"].items():
        lines.append(f"{name}: the same answers as ours in {same} of {answers}")
    return "\n".join(lines)


def _shown(parts: Mapping[str, Any]) -> str:
    shown = (name for name, value in parts.items() if isinstance(value, float))
    return ", ".join(f"{name} {1e6 * parts[name]:,.1f} us" for name in shown)


def _in_process(job: Mapping[str, Any]) -> Any:
    from ..errors import EngineError

    path = [job.get("against"), os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(job),
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in path if part)},
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise EngineError(f"expected measurements of {job['target']}, found a failure: {why}")
    return json.loads(done.stdout.splitlines()[-1])


def _work(job: Mapping[str, Any]) -> Any:
    """Do a job in a process of its own: from here on everything is public interface."""
    importlib.import_module("comap")
    target = TARGETS[job["target"]]
    if job["do"] == "plan":
        return _plan(target, job["data_dir"], job["episodes"] or target.episodes)
    if job["way"] == "scienceworld":
        return _measure(_UpstreamScienceWorld(), job["plan"], 4, opened=0.0)
    before = _cpu_seconds()
    options = {"engine": "textworld"} if job["way"] == "TextWorld" else target.ways[job["way"]]
    env = _made(target, job["data_dir"], **options)
    passes = 1 if job["way"] == "TextWorld" else target.passes  # it remembers nothing
    return _measure(env, job["plan"], passes, opened=_cpu_seconds() - before)


def _made(target: Target, data_dir: str | None, **options: Any) -> Any:
    import gymnasium

    given = dict(target.options)
    if data_dir is not None:
        given["data_dir"] = data_dir
        given.pop("source", None)
    return gymnasium.make(target.env, split=target.split, **{**given, **options})


def _plan(target: Target, data_dir: str | None, episodes: int) -> Plan:
    """Return an expert's episodes of tasks spread evenly over a split, and `_WARM` before them."""
    env = _made(target, data_dir, **target.ways["ours"])
    ids = [id for id in env.unwrapped.tasks.ids if not (target.skipped and target.skipped in id)]
    count = min(episodes + _WARM, len(ids))
    plan: Plan = []
    for task in (ids[number * len(ids) // count] for number in range(count)):
        env.reset(options={"task": task})
        actions: list[str] = []
        over = False
        while not over and len(actions) < target.steps:
            action = env.unwrapped.expert_action()
            if action is None:
                break
            actions.append(action)
            _, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        plan.append((task, actions))
    env.close()
    return plan


def _measure(env: Any, plan: Plan, passes: int, opened: float) -> dict[str, Any]:
    """Play a plan several times and return CPU seconds of a reset and of a step."""
    for task, actions in plan[:_WARM]:
        env.reset(options={"task": task})
        for action in actions:
            env.step(action)
    clock = _cpu_seconds if _children() else time.process_time  # looking for children takes time
    plan = plan[_WARM:]
    steps = sum(len(actions) for _, actions in plan)
    means, resets, texts = [], 0.0, []
    for number in range(passes):
        spent = 0.0
        for task, actions in plan:
            started = clock()
            observation = env.reset(options={"task": task})[0]
            ready = clock()
            answers = [env.step(action)[0] for action in actions]
            spent += clock() - ready
            resets += ready - started
            if number == 0:
                texts += [observation, *answers]
        means.append(spent / steps)
    env.close()
    again = statistics.median(means[1:] or means)
    reset = resets / passes / len(plan)
    return {"open": opened, "reset": reset, "first": means[0], "again": again, "texts": texts}


class _UpstreamScienceWorld:
    """The original's own Python package, behind `reset` and `step`."""

    def __init__(self) -> None:
        package = importlib.import_module("scienceworld")
        self._env = package.ScienceWorldEnv("", envStepLimit=1_000_000)

    def reset(self, options: Mapping[str, str]) -> tuple[str, Any]:
        name, _, variation = options["task"].rpartition("/")
        self._env.load(name, int(variation), "easy")
        return "", self._env.reset()  # where ours shows the look, it shows the task

    def step(self, action: str) -> tuple[str, Any]:
        observation, *rest = self._env.step(action)
        return observation, rest

    def close(self) -> None:
        self._env.close()


def _cpu_seconds() -> float:
    spent = time.process_time()
    for process in _children():
        try:
            text = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
        except OSError:
            continue
        user, system = text.rpartition(")")[2].split()[11:13]
        spent += (int(user) + int(system)) / float(os.sysconf("SC_CLK_TCK"))
    return spent


def _children() -> list[int]:
    try:
        tasks = list(Path("/proc/self/task").iterdir())
        return [int(c) for task in tasks for c in (task / "children").read_text("ascii").split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are no packages of their own
    print("\n" + json.dumps(_work(json.load(sys.stdin))))
