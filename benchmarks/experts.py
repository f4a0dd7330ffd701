"""`comap bench experts`: do the experts win all tasks, and are all beliefs true?"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium

from ..envs.alfworld import ALFWorldEnv
from ..envs.alfworld.engine import NativeEngine
from ..envs.alfworld.truth import is_true
from ..errors import OptionError
from . import tool_experts
from .record import circumstances, write_result

__all__ = ["add_parser", "main", "run"]

_SPLITS = ("train", "valid_seen", "valid_unseen")
_RANDOM = 15
_LIMIT = 50


def run(
    data_dir: str | Path | None = None,
    *,
    every: int = 1,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Play the experts on official games and check every belief on the way.

    Each game is played by the expert that knows everything, from the start and again after 15 random
    actions, and by the one that knows only its belief. All actions count towards 50 steps. A state
    from which the expert knows no plan is counted as a dead end only if the agent holds a thing that
    is not wanted and fits into no receptacle of the room, which proves it.

    Args:
        data_dir: Folder of the official games, as for the environment.
        every: Play only every so many-th game.
        out: File for the result, or None.
        progress: Told of each split that is done.

    Raises:
        DataNotFound: There are no official games.

    Example:
        >>> run("no such folder")
        Traceback (most recent call last):
        ...
        comap.errors.DataNotFound: expected ALFWorld's games in ...
    """
    result: dict[str, Any] = {
        "benchmark": "experts",
        **circumstances(("gymnasium", "numpy")),
        "every": every,
        "random_actions": _RANDOM,
        "step_limit": _LIMIT,
        "splits": {},
    }
    for split in _SPLITS:
        counts = _split(data_dir, split, every)
        result["splits"][split] = dict(sorted(counts.items()))
        progress(f"{split}: {counts['games']} games")
    total: Counter[str] = Counter()
    for counts in result["splits"].values():
        total.update({key: n for key, n in counts.items() if not key.startswith("longest")})
    result["total"] = dict(sorted(total.items()))
    if out is not None:
        write_result(Path(out), result)
    return result


def _split(data_dir: str | Path | None, split: str, every: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    env = gymnasium.make(ALFWorldEnv.env_id, split=split, data_dir=data_dir, source="official")
    inner = env.unwrapped
    assert isinstance(inner, ALFWorldEnv)
    for task in inner.tasks.ids[::every]:
        counts["games"] += 1
        for name, policy in _policies(inner, task).items():
            _play(env, inner, task, name, policy, counts)
    return counts


Policy: TypeAlias = Callable[[dict[str, Any]], "str | None"]


def _policies(inner: ALFWorldEnv, task: str) -> dict[str, Policy]:
    rng = random.Random(task)

    def wanders(info: dict[str, Any]) -> str | None:
        if info["step"] < _RANDOM:
            wander: str = rng.choice(info["admissible_actions"])
            return wander
        return inner.expert_action()

    return {
        "plan": lambda info: inner.expert_action(),
        "plan_after_random": wanders,
        "explore": lambda info: inner.expert_from(info["facts"], info["admissible_actions"]),
    }


def _play(
    env: gymnasium.Env[str, str],
    inner: ALFWorldEnv,
    task: str,
    name: str,
    policy: Policy,
    counts: Counter[str],
) -> None:
    """Play one episode and count how it went."""
    _, info = env.reset(options={"task": task})
    ended = False
    while not ended:
        action = policy(info)
        if action is None:
            counts[f"{name}: proved dead ends"] += _is_dead_end(inner)
            counts[f"{name}: given up"] += not _is_dead_end(inner)
            return
        _, _, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
        _check(inner, info, counts)
    counts[f"{name}: won"] += info["success"]
    counts[f"{name}: steps"] += info["step"]
    longest = f"longest {name}"
    counts[longest] = max(counts[longest], info["step"])


def _check(inner: ALFWorldEnv, info: dict[str, Any], counts: Counter[str]) -> None:
    """Compare the belief with the truth."""
    engine = inner.native_engine()
    counts["states"] += 1
    counts["unparsed texts"] += not info["facts"].parsed
    for fact in info["facts"].facts:
        truth = is_true(engine, fact)
        counts["beliefs"] += truth is not None
        counts["false beliefs"] += truth is False
    reached = inner.goal_reached(info["facts"])
    counts["wins that facts tell"] += bool(reached and info["success"])
    counts["wins that facts do not tell"] += bool(info["success"] and not reached)
    counts["goals told wrongly"] += bool(reached and not info["success"])


def _is_dead_end(inner: ALFWorldEnv) -> bool:
    """Return whether the agent holds a thing that it can never put down, and that is not wanted."""
    engine: NativeEngine = inner.native_engine()
    game, held = engine.game, engine.held
    if held is None or held in game.wanted:
        return False
    return not any((game.kind[place], game.kind[held]) in game.fits for place in game.receptacles)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `experts`; `main` is set as its default ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["experts", "alfworld"]).every
        1
    """
    parser = subparsers.add_parser("experts", help="play the experts and check every belief")
    parser.set_defaults(run=main)
    parser.add_argument(
        "env",
        choices=["alfworld", "stabletoolbench"],
        help="ALFWorld's official games, or StableToolBench's embedded tasks",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder of ALFWorld's official games")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th task")
    parser.add_argument("--out", metavar="FILE", help="write the result to this file, as JSON")


def main(args: argparse.Namespace) -> int:
    """Run `comap bench experts` with parsed arguments and return the exit status.

    Example:
        >>> main(argparse.Namespace(env="alfworld", data_dir=None, every=1, out=None))
        ... # doctest: +SKIP
        0
    """
    if args.every < 1:
        raise OptionError(f"--every must be at least 1, not {args.every}")

    def told(line: str) -> None:
        print(line, file=sys.stderr)

    if args.env == "stabletoolbench":
        if args.data_dir is not None:
            raise OptionError("stabletoolbench's experts play embedded tasks; leave --data-dir out")
        result = tool_experts.run(every=args.every, out=args.out, progress=told)
        lost = result["total"]["tasks"] - result["total"]["won"]
    else:
        result = run(args.data_dir, every=args.every, out=args.out, progress=told)
        lost = 0
    for name, number in result["total"].items():
        print(f"{name:32}{number:>12,}")
    return 0 if not (result["total"]["false beliefs"] or lost) else 1
