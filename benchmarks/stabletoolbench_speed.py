"""`comap bench speed stabletoolbench`: steps for each CPU second, opening, and memory."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from ..errors import OptionError
from .fresh_process import in_fresh_process
from .record import circumstances, resident_bytes, spread, write_result

__all__ = ["main", "measure_tools", "run", "table"]

_PACKAGES = ("gymnasium", "numpy", "jsonschema")
_ID = "comap/StableToolBench-v0"
_PARTS = ("open", "reset", "step", "cached")


def run(
    data_dir: str | Path | None = None,
    *,
    episodes: int = 100,
    processes: int = 5,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure the expert's episodes on generated tasks, and calls answered from the official cache.

    Args:
        data_dir: Folder of official files with a cache; None to measure generated tasks alone.
        episodes: Of the expert, on the split ``train``.
        processes: Fresh processes, one after another; of what they measure the median is told.
        out: File for the result, or None.
        progress: Told of each process that is done.

    Returns:
        The result, as written to `out`: CPU seconds of the first environment (``open``), of a reset, of
        a step, and of a step that the cache answers; and what one environment holds in memory.

    Raises:
        OptionError: A number is less than 1.

    Example:
        >>> run(episodes=5, processes=1)["ours"]["step"] < 0.05
        True
    """
    if any(type(count) is not int or count < 1 for count in (episodes, processes)):
        raise OptionError(
            f"episodes and processes must be whole numbers of at least 1, not {episodes!r} and "
            f"{processes!r}"
        )
    where = None if data_dir is None else str(data_dir)
    measured: list[dict[str, Any]] = []
    for number in range(1, processes + 1):
        measured.append(in_fresh_process(measure_tools, where, episodes))
        progress(f"process {number} of {processes}")
    names = [name for name in _PARTS if measured[0][name] is not None]
    spreads = {name: spread([one[name] for one in measured]) for name in names}
    result: dict[str, Any] = {
        "benchmark": "speed",
        "env": "stabletoolbench",
        **circumstances(_PACKAGES),
        "units": "CPU seconds of one process (time.process_time), bytes",
        "processes": processes,
        "episodes": episodes,
        "steps": measured[0]["steps"],
        "solved": measured[0]["solved"],
        "ours": {name: found["median"] for name, found in spreads.items()},
        "spread": spreads,
        "resident_bytes": measured[0]["resident_bytes"],
    }
    if out is not None:
        write_result(Path(out), result)
    return result


def measure_tools(data_dir: str | None, episodes: int) -> dict[str, Any]:
    """Play the expert's episodes, and calls that the cache answers, in this process.

    Args:
        data_dir: Folder of official files; None for generated tasks alone.
        episodes: How many.

    Example:
        >>> measure_tools(None, 3)["solved"]
        3
    """
    before = resident_bytes()
    start = time.process_time()
    env: Any = gymnasium.make(_ID, source="generated").unwrapped
    env.reset(seed=0)
    opened = time.process_time() - start
    after = resident_bytes()
    played = []
    for task in env.tasks.ids[:episodes]:
        _, info = env.reset(options={"task": task})
        actions = []
        over = False
        while not over:
            actions.append(env.expert_action())
            _, _, over, _, info = env.step(actions[-1])
        played.append((task, actions, info["success"]))
    resets = steps = 0.0
    for task, actions, _ in played:
        start = time.process_time()
        env.reset(options={"task": task})
        ready = time.process_time()
        for action in actions:
            env.step(action)
        steps += time.process_time() - ready
        resets += ready - start
    number = sum(len(actions) for _, actions, _ in played)
    held = None if before is None or after is None else after - before
    return {
        "open": opened,
        "reset": resets / len(played),
        "step": steps / number,
        "cached": None if data_dir is None else _cached(data_dir),
        "steps": number,
        "solved": sum(success for _, _, success in played),
        "resident_bytes": held,
    }


def _cached(data_dir: str) -> float:
    """Return CPU seconds of a step that the official cache answers."""
    env: Any = gymnasium.make(
        _ID, data_dir=data_dir, split="G1_instruction", max_calls=500
    ).unwrapped
    call = '{"name": "songkick_artist_for_theclique", "arguments": {"artist_id": "lionel-messi"}}'
    env.reset(options={"task": "G1_instruction/588"})
    spent = 0.0
    for _ in range(20):
        env.reset(options={"task": "G1_instruction/588"})
        start = time.process_time()
        for _ in range(5):
            info = env.step(call)[-1]
        spent += time.process_time() - start
        assert info["tool_source"] == "cache"
    return spent / 100


def main(args: argparse.Namespace) -> int:
    """Run `comap bench speed stabletoolbench` with parsed arguments and return the exit status.

    Example:
        >>> from .speed import add_parser
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> main(parser.parse_args(["speed", "stabletoolbench"]))  # doctest: +SKIP
        0
    """
    result = run(args.data_dir, out=args.out, progress=lambda line: print(line, file=sys.stderr))
    print(table(result))
    return 0


def table(result: Mapping[str, Any]) -> str:
    """Return the result for people.

    Example:
        >>> told = {"episodes": 1, "steps": 4, "solved": 1, "ours": {"step": 1e-4}}
        >>> print(table(told | {"resident_bytes": 2**20}))
        1 episodes of the expert, 4 steps, 1 solved; CPU time
        step                                  100.0 us
        memory of the first environment           1 MiB
    """
    titles = {
        "open": "first environment",
        "reset": "reset",
        "step": "step",
        "cached": "step answered from the cache",
    }
    lines = [
        f"{result['episodes']} episodes of the expert, {result['steps']} steps, {result['solved']} "
        "solved; CPU time"
    ]
    for name, seconds in result["ours"].items():
        lines.append(f"{titles[name]:32}{seconds * 1e6:>11,.1f} us")
    if result["resident_bytes"] is not None:
        lines.append(
            f"{'memory of the first environment':32}{result['resident_bytes'] / 2**20:>11,.0f} MiB"
        )
    return "\n".join(lines)
