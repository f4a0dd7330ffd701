"""`comap bench speed webshop`: steps for each CPU second, search at scale, and memory."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from ..envs.webshop.analyzer import analyze
from ..errors import DataCorrupt, DataNotFound, OptionError
from .record import circumstances, write_result
from .webshop_scale import memory, scale

__all__ = ["PEER", "SIZES", "Played", "main", "run", "table"]

SIZES = (1_000, 100_000, 1_000_000)
"""Numbers of products at which search is measured."""

PEER: Mapping[str, Any] = {
    "seconds_per_step": 0.0374,
    "steps": 819,
    "what": "the original WebShop text environment on its 1,000 products; CPU time of a mixed script, "
    "recorded earlier (env/webshop.md, section 4), not run beside ours",
}
"""What the original costs; a record, since it needs Java, spaCy and Flask to run."""

_AGAIN = 5
_PACKAGES = ("gymnasium", "numpy", "rapidfuzz")
_STEPS = 200


@dataclass(frozen=True)
class Played:
    """A session to be measured.

    Attributes:
        task: The task's id.
        actions: What is done.
        told: The observation after each action, to compare with; empty where none is known.
        options: Of the environment: ``observation_mode``, ``show_attrs``, ``legacy``.
    """

    task: str
    actions: tuple[str, ...]
    told: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]


def run(
    data_dir: str | Path | None = None,
    sessions: Sequence[str | Path] = (),
    *,
    products: Sequence[int] = SIZES,
    environments: Sequence[int] = (1, 16),
    out: str | Path | None = None,
    seed: int = 0,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure WebShop.

    Args:
        data_dir: Folder of a catalogue; None for the generated one.
        sessions: Files of recorded sessions (``transcripts_*.jsonl``) on that catalogue; none for
            the expert's episodes, which cannot be compared with the original.
        products: At how many invented products to measure search; a million takes some minutes
            and 3 GB of disk for a while.
        environments: Of how many environments to measure the memory.
        out: File for the result, or None.
        seed: Of the invented products and the expert's tasks.
        progress: Told of each part that is done.

    Returns:
        The result, as written to `out`. ``first`` is the mean step when each session is played for
        the first time in the process, ``again`` when it is played again.

    Raises:
        DataNotFound, DataCorrupt: The catalogue or a recording is missing or broken.
        OptionError: A number of products is less than 1.

    Example:
        >>> result = run(products=(), environments=(1,))
        >>> result["steps"] > 100, result["ours"]["again"] < 0.01
        (True, True)
    """
    if any(type(count) is not int or count < 1 for count in products):
        raise OptionError(f"products must be whole numbers of at least 1, not {products!r}")
    where = None if data_dir is None else str(data_dir)
    recorded = [played for path in sessions for played in _recorded(Path(path))]
    _expert_sessions(None, seed, 20)  # no session pays for imports and tables of words
    analyze("caf\u00e9")
    played = recorded or _expert_sessions(where, seed, _STEPS)
    ours, agreed = _measure(where, played)
    progress(f"{len(played)} sessions")
    steps = sum(len(one.actions) for one in played)
    result: dict[str, Any] = {
        "benchmark": "speed",
        "env": "webshop",
        **circumstances(_PACKAGES),
        "units": "CPU seconds of one process (time.process_time), bytes; ratios are peer / ours",
        "sessions": [Path(path).name for path in sessions] or "the expert's",
        "episodes": len(played),
        "steps": steps,
        "ours": ours,
    }
    if recorded:
        ratios = {name: PEER["seconds_per_step"] / ours[name] for name in ("first", "again")}
        result |= {"peer": PEER, "ratios": ratios, "steps_that_agree": agreed}
    result["memory"] = memory(where, environments)
    progress("memory")
    result["scale"] = [scale(count, seed, progress) for count in products]
    if out is not None:
        write_result(Path(out), result)
    return result


def main(args: argparse.Namespace) -> int:
    """Run `comap bench speed webshop` with parsed arguments and return the exit status.

    Example:
        >>> from .speed import add_parser
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> main(parser.parse_args(["speed", "webshop"]))  # doctest: +SKIP
        0
    """
    result = run(
        args.data_dir,
        args.sessions,
        products=SIZES if args.products is None else args.products,
        out=args.out,
        seed=args.seed,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(table(result))
    return 0


def table(result: Mapping[str, Any]) -> str:
    """Return the result for people.

    Example:
        >>> print(table(run(products=())))  # doctest: +SKIP
        60 sessions, 769 steps; CPU time
        ...
    """
    lines = [f"{result['episodes']} sessions, {result['steps']} steps; CPU time", ""]
    for name, title in (
        ("first", "step, first time"),
        ("again", "step, again"),
        ("reset", "reset"),
    ):
        row = f"{title:18}{result['ours'][name] * 1e6:>9,.1f} us"
        if name in result.get("ratios", ()):
            row += f"{result['ratios'][name]:>8,.0f} times the original's steps (recorded)"
        lines.append(row)
    if "steps_that_agree" in result:
        lines.append(f"same answers in {result['steps_that_agree']} of {result['steps']} steps")
    lines += ["", f"{'environments':>14}{'one process':>16}{'processes':>16}"]
    for count, held in result["memory"].items():
        lines.append(f"{count:>14}{_mib(held['one_process']):>16}{_mib(held['processes']):>16}")
    lines += [
        "",
        f"{'products':>14}{'open':>12}{'before query':>16}{'query, median':>16}{'q3':>12}",
    ]
    for row in result["scale"]:
        query = row["query_seconds"]
        lines.append(
            f"{row['products']:>14,}{row['open_seconds'] * 1e3:>9,.1f} ms"
            f"{_mib(row['resident_bytes']['opened']):>16}{query['median'] * 1e3:>13,.2f} ms"
            f"{query['q3'] * 1e3:>9,.2f} ms"
        )
    return "\n".join(lines)


def _mib(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**20:,.0f} MiB"


def _recorded(path: Path) -> Iterable[Played]:
    """Yield the sessions of a recording."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                record = json.loads(line)
                goal, steps = record["goal"], record["steps"]
                yield Played(
                    f"{goal['goal_kind']}/{goal['enum_index']}",
                    tuple(step["action"] for step in steps),
                    tuple(step["observation"] for step in steps),
                    (
                        ("legacy", True),
                        ("observation_mode", record["observation_mode"]),
                        ("show_attrs", record["show_attrs"]),
                    ),
                )
    except FileNotFoundError as error:
        raise DataNotFound(f"expected recorded sessions at {path}, found nothing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"expected recorded sessions in {path}, found: {error!r}") from error


def _expert_sessions(data_dir: str | None, seed: int, steps: int) -> list[Played]:
    """Return the expert's episodes on a catalogue, so many that they have that many steps."""
    env: Any = gymnasium.make("comap/WebShop-v0", data_dir=data_dir, split="all").unwrapped
    found: list[Played] = []
    while sum(len(played.actions) for played in found) < steps:
        _, info = env.reset(seed=None if found else seed)
        actions: list[str] = []
        told: list[str] = []
        over = False
        while not over and len(actions) < 30:
            actions.append(env.expert_action())
            observation, _, over, _, _ = env.step(actions[-1])
            told.append(observation)
        found.append(Played(info["task"], tuple(actions), tuple(told), ()))
    return found


def _measure(data_dir: str | None, sessions: Sequence[Played]) -> tuple[dict[str, float], int]:
    """Return mean CPU seconds of a step and of a reset, and how many answers are as recorded."""
    envs: dict[tuple[tuple[str, Any], ...], Any] = {}
    for played in sessions:
        if played.options not in envs:
            envs[played.options] = gymnasium.make(
                "comap/WebShop-v0",
                data_dir=data_dir,
                max_episode_steps=1000,
                **dict(played.options),
            )
    steps = sum(len(played.actions) for played in sessions)
    passes, resets, agreed = [], 0.0, 0
    for number in range(1 + _AGAIN):
        spent = 0.0
        for played in sessions:
            env = envs[played.options]
            started = time.process_time()
            env.reset(options={"task": played.task})
            ready = time.process_time()
            answers = [env.step(action) for action in played.actions]
            spent += time.process_time() - ready
            resets += ready - started
            if number == 0:
                agreed += sum(a[0] == b for a, b in zip(answers, played.told, strict=True))
        passes.append(spent / steps)
    again = sum(passes[1:]) / _AGAIN
    mean = {"first": passes[0], "again": again, "reset": resets / len(passes) / len(sessions)}
    return mean, agreed
