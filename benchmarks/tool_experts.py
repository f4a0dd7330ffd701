"""`comap bench experts stabletoolbench`: does the expert solve all embedded tasks?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium

from ..envs.stabletoolbench import StableToolBenchEnv
from ..envs.stabletoolbench.generate import SIZES, cells
from .record import circumstances, write_result

__all__ = ["run"]

_NAMES = (
    "won",
    "steps",
    "longest",
    "refused actions",
    "unparsed texts",
    "beliefs",
    "false beliefs",
    "untold changes",
    "goals told wrongly",
)


def run(
    *,
    every: int = 1,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Play the expert on the embedded tasks and check beliefs on the way.

    The expert knows a task's plan, and takes from its belief which calls went well. Beliefs about what
    calls changed are held against the tools' tables, and what the facts tell of the goal against the
    environment's own checker.

    Args:
        every: Play only every so many-th task.
        out: File for the result, or None.
        progress: Told of each split that is done.

    Example:
        >>> total = run(every=200)["total"]
        >>> total["tasks"] == total["won"], total["false beliefs"]
        (True, 0)
    """
    splits: dict[str, dict[str, int]] = {}
    for split in SIZES:
        counts = _split(split, every)
        splits[split] = dict(sorted(counts.items()))
        progress(f"{split}: {counts['tasks']} tasks")
    total: Counter[str] = Counter()
    for one in splits.values():
        total.update({name: number for name, number in one.items() if name != "longest"})
    total["longest"] = max(one["longest"] for one in splits.values())
    result: dict[str, Any] = {
        "benchmark": "experts",
        **circumstances(("gymnasium", "jsonschema")),
        "env": StableToolBenchEnv.env_id,
        "every": every,
        "splits": splits,
        "total": dict(sorted(total.items())),
    }
    if out is not None:
        write_result(Path(out), result)
    return result


def _split(split: str, every: int) -> Counter[str]:
    counts: Counter[str] = Counter(dict.fromkeys(_NAMES, 0))
    env = gymnasium.make(StableToolBenchEnv.env_id, split=split, source="generated")
    inner = env.unwrapped
    assert isinstance(inner, StableToolBenchEnv)
    for task in inner.tasks.ids[::every]:
        counts["tasks"] += 1
        _play(env, inner, task, counts)
    env.close()
    return counts


def _play(
    env: gymnasium.Env[str, str], inner: StableToolBenchEnv, task: str, counts: Counter[str]
) -> None:
    """Play one episode and count how it went."""
    _, info = env.reset(options={"task": task})
    ended = False
    while not ended:
        action = inner.expert_action()
        if action is None:
            break
        _, _, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
        _check(inner, info, counts)
    counts["won"] += info["success"]
    counts["steps"] += info["step"]
    counts["longest"] = max(counts["longest"], info["step"])


def _check(inner: StableToolBenchEnv, info: dict[str, Any], counts: Counter[str]) -> None:
    """Compare the belief with the tools' tables, and with the checker."""
    state, tools = info["facts"], inner.session.embedded
    assert tools is not None
    changed = cells(tools.ledger)
    counts["refused actions"] += info["invalid_action"]
    counts["unparsed texts"] += not state.parsed
    told = {fact[1:4]: fact[4] for fact in state.facts if fact[0] == "db"}
    counts["beliefs"] += len(told)
    counts["false beliefs"] += sum(changed.get(cell) != value for cell, value in told.items())
    counts["untold changes"] += len(changed.keys() - told.keys())
    counts["goals told wrongly"] += inner.goal_reached(state) != info["success"]
