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
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"ours": {}})
    """Options by name: each is measured."""
    peer: str | None = None
    peer_needs_data: bool = False
    """Whether the peer plays official data alone, and no generated tasks."""
    episodes: int = 40
    steps: int = 50
    passes: int = 6
    skipped: str | None = None
    """A part of the names of tasks that are left out."""


TARGETS: Mapping[str, Target] = {
    "alfworld": Target(
        env="comap/ALFWorld-v0",
        split="valid_unseen",
        peer="TextWorld",
        peer_needs_data=True,
        episodes=20,
    ),
    "scienceworld": Target(
        env="comap/ScienceWorld-v0",
        split="test",
        options={"task_limits": False},
        variants={"ours": {}, "with admissible actions": {"admissible_actions": True}},
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

    chosen_target = TARGETS[target]
    if peer and chosen_target.peer_needs_data and data_dir is None:
        raise OptionError(
            f"--peer needs official data: {chosen_target.peer} plays no generated tasks; add --data-dir DIR"
        )

    # All play the same plan, made once: an expert's search would be a part of the time otherwise.
    shared_job: dict[str, Any] = {"target": target, "data_dir": data_dir, "episodes": episodes}
    plan = _in_process({**shared_job, "do": "plan"})
    shared_job["plan"] = plan

    jobs = {name: {**shared_job, "variant": name} for name in chosen_target.variants}
    if peer and chosen_target.peer is not None:
        if find_spec(chosen_target.peer.lower()) is None:
            raise MissingExtra.of(target, f"the peer {chosen_target.peer}")
        jobs[chosen_target.peer] = {**shared_job, "variant": chosen_target.peer}
    if against is not None:
        jobs["against"] = {**jobs["ours"], "against": str(against.resolve())}

    # In turns: what slows the machine for a while slows all of them.
    measurements: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    for number in range(1, processes + 1):
        for name, job in jobs.items():
            measurement = _in_process({**job, "do": "measure"})
            measurements[name].append(measurement)
            progress(f"process {number} of {processes}, {name}: {_in_microseconds(measurement)}")

    result: dict[str, Any] = {
        "benchmark": "speed",
        "target": target,
        "processes": processes,
        **circumstances(PACKAGES),
        "env": chosen_target.env,
        "units": "CPU seconds, children (a JVM) included",
        "episodes": len(plan) - _WARM,
        "steps": sum(len(actions) for _, actions in plan[_WARM:]),
        "measured": {},
    }
    for name, of_processes in measurements.items():
        spreads = {}
        for key in _times(of_processes[0]):
            spreads[key] = spread([measurement[key] for measurement in of_processes])
        result["measured"][name] = spreads

    result |= _compared(measurements)
    if out is not None:
        write_result(out, result)
    return result


def _times(measurement: Mapping[str, Any]) -> list[str]:
    """Return the names of the times in a measurement: all of it but what was answered."""
    return [name for name, value in measurement.items() if isinstance(value, float)]


def _compared(measurements: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return how many times longer others take, and in how many steps they answered the same."""

    def median(name: str, key: str) -> float:
        return float(statistics.median(measurement[key] for measurement in measurements[name]))

    all_ratios: dict[str, dict[str, float]] = {}
    same_answers: dict[str, list[int]] = {}
    ours = measurements["ours"][0]
    for name, (theirs, *_) in measurements.items():
        if name == "ours":
            continue

        ratios = {}
        for key in _times(theirs):
            if key in ours:
                ratios[key] = median(name, key) / median("ours", key)
        all_ratios[name] = ratios
        pairs = list(zip(ours["texts"], theirs["texts"], strict=True))
        same_count = sum(our_text == their_text for our_text, their_text in pairs)
        same_answers[name] = [same_count, len(pairs)]
    return {"ratios": all_ratios, "same_answers": same_answers}


def table(result: Mapping[str, Any]) -> str:
    """Return a result in lines: medians, how others compare, and whether they answered the same."""
    lines = [f"{result['episodes']} episodes, {result['steps']} steps"]
    for name, spreads in result["measured"].items():
        medians = {key: spread["median"] for key, spread in spreads.items()}
        lines.append(f"{name}: {_in_microseconds(medians)}")
    for name, ratios in result["ratios"].items():
        listed = ", ".join(f"{key} {ratio:,.2f}" for key, ratio in ratios.items())
        lines.append(f"{name} / ours: {listed}")
    for name, (same, answers) in result["same_answers"].items():
        lines.append(f"{name}: the same answers as ours in {same} of {answers}")
    return "\n".join(lines)


def _in_microseconds(measurement: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {1e6 * measurement[name]:,.1f} us" for name in _times(measurement))


def _in_process(job: Mapping[str, Any]) -> Any:
    """Do a job in a fresh process, with the checkout that it names first on the path."""
    from ..errors import EngineError

    path = [job.get("against"), os.environ.get("PYTHONPATH")]
    process = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(job),
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(part for part in path if part)},
    )
    if process.returncode:
        why = (process.stderr.strip().splitlines() or ["no answer"])[-1]
        raise EngineError(f"expected measurements of {job['target']}, found a failure: {why}")

    # Engines may print what they like before.
    return json.loads(process.stdout.splitlines()[-1])


def _work(job: Mapping[str, Any]) -> Any:
    """Do a job in a process of its own: from here on everything is public interface."""
    importlib.import_module("comap")
    target = TARGETS[job["target"]]
    if job["do"] == "plan":
        return _plan(target, job["data_dir"], job["episodes"] or target.episodes)

    variant = job["variant"]
    if variant == "scienceworld":
        return _measure(_UpstreamScienceWorld(), job["plan"], 4, opened=0.0)
    if variant == "TextWorld":
        options: Mapping[str, Any] = {"engine": "textworld"}
        passes = 1  # it remembers nothing
    else:
        options = target.variants[variant]
        passes = target.passes

    seconds_before = _cpu_seconds()
    env = _make_env(target, job["data_dir"], **options)
    return _measure(env, job["plan"], passes, opened=_cpu_seconds() - seconds_before)


def _make_env(target: Target, data_dir: str | None, **options: Any) -> Any:
    """Return the environment of a target, on official data where their folder is named."""
    import gymnasium

    env_options = dict(target.options)
    if data_dir is not None:
        env_options["data_dir"] = data_dir
        env_options.pop("source", None)
    return gymnasium.make(target.env, split=target.split, **{**env_options, **options})


def _plan(target: Target, data_dir: str | None, episodes: int) -> Plan:
    """Return an expert's episodes of tasks spread evenly over a split, and `_WARM` before them."""
    env = _make_env(target, data_dir, **target.variants["ours"])
    ids = env.unwrapped.tasks.ids
    if target.skipped:
        ids = [task_id for task_id in ids if target.skipped not in task_id]

    count = min(episodes + _WARM, len(ids))
    plan: Plan = []
    for number in range(count):
        task = ids[number * len(ids) // count]
        env.reset(options={"task": task})
        actions: list[str] = []
        is_over = False
        while not is_over and len(actions) < target.steps:
            action = env.unwrapped.expert_action()
            if action is None:
                break
            actions.append(action)
            _, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
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
    measured_plan = plan[_WARM:]
    step_count = sum(len(actions) for _, actions in measured_plan)
    mean_steps = []  # seconds, of each pass
    reset_seconds = 0.0
    texts = []
    for pass_number in range(passes):
        step_seconds = 0.0
        for task, actions in measured_plan:
            reset_at = clock()
            observation = env.reset(options={"task": task})[0]
            ready_at = clock()
            answers = [env.step(action)[0] for action in actions]
            step_seconds += clock() - ready_at
            reset_seconds += ready_at - reset_at
            if pass_number == 0:
                texts += [observation, *answers]
        mean_steps.append(step_seconds / step_count)
    env.close()

    return {
        "open": opened,
        "reset": reset_seconds / passes / len(measured_plan),
        "first": mean_steps[0],
        "again": statistics.median(mean_steps[1:] or mean_steps),
        "texts": texts,
    }


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
    """Return the CPU seconds of this process and of its children."""
    seconds = time.process_time()
    for process in _children():
        try:
            text = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
        except OSError:  # it has ended
            continue

        # utime and stime of proc(5): behind the name, which may have spaces and brackets in it.
        user_ticks, system_ticks = text.rpartition(")")[2].split()[11:13]
        seconds += (int(user_ticks) + int(system_ticks)) / float(os.sysconf("SC_CLK_TCK"))
    return seconds


def _children() -> list[int]:
    """Return the processes that this one started; none where the system does not say it."""
    processes: list[int] = []
    try:
        for task in Path("/proc/self/task").iterdir():
            processes += map(int, (task / "children").read_text("ascii").split())
    except OSError:
        return []
    return processes


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are no packages of their own
    print("\n" + json.dumps(_work(json.load(sys.stdin))))
