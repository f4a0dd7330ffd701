"""`comap bench speed`: steps and resets for each CPU second, beside the upstream engine's.

This is ALFWorld's part; `comap.benchmarks.webshop_speed` is WebShop's, `scienceworld_speed` beside it
ScienceWorld's, and `searchqa_speed` search QA's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..envs.alfworld.tasks import open_source
from ..errors import DataNotFound, OptionError, suggest
from . import scienceworld_speed, searchqa_speed, webshop_speed
from .alfworld_speed import first_pass, make_env, time_game
from .record import write_result
from .speed_report import result_of, table
from .textworld_peer import TextWorldPeer

__all__ = ["add_parser", "main", "run"]

_MEMORY_PROGRAM = """
import json, sys
from comap.benchmarks.alfworld_speed import memory_of_resets
print(json.dumps(memory_of_resets(*json.loads(sys.argv[1]))))
"""
_ENVS = ("alfworld", "scienceworld", "searchqa", "webshop")
_PEERS = ("textworld", "upstream")


def run(
    env: str,
    peer: str | None = None,
    *,
    data_dir: str | Path | None = None,
    games: int = 12,
    out: str | Path | None = None,
    split: str = "valid_unseen",
    seed: int = 0,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure an environment's speed, and its peer's in the same process on the same games.

    Args:
        env: ``"alfworld"``; the others have modules of their own.
        peer: ``"textworld"``, or None to measure ours alone.
        data_dir: Folder of the official games, as for the environment; a peer needs them.
        games: How many games of the split, taken at equal distances; 0 for all.
        out: File for the result, or None.
        split: The split that the games are from.
        seed: Seeds the side steps.
        progress: Told of each game that is done.

    Returns:
        The result, as written to `out`: times in CPU seconds, ratios peer / ours.

    Raises:
        OptionError: There is no such environment or peer, or `games` is negative.
        DataNotFound: A peer is asked for and there are no official games.
        MissingExtra: The peer is not installed.

    Example:
        >>> result = run("alfworld", games=2)
        >>> result["ours"]["per_second"]["step"] > 100
        True
    """
    for name, value, known in (
        ("environment", env, _ENVS[:1]),
        ("peer", peer or "textworld", _PEERS[:1]),
    ):
        if value not in known:
            raise OptionError(f"there is no {name} {value!r} to measure; {suggest(value, known)}")
    if games < 0:
        raise OptionError(f"games must be 0 (all) or more, not {games}")
    source = "official" if peer else "auto"
    ours = make_env(data_dir, split, source)
    ids = ours.get_wrapper_attr("tasks").ids
    _warm_up()
    opponent = TextWorldPeer(_paths(split, data_dir)) if peer else None
    count = min(games, len(ids)) or len(ids)
    chosen = [ids[number * len(ids) // count] for number in range(count)]
    measured = []
    for number, (task, other) in enumerate(zip(chosen, _others(ids, chosen), strict=False), 1):
        measured.append(time_game(ours, task, other, opponent, seed))
        progress(f"{number}/{len(chosen)} {task}")
    if opponent is not None:
        opponent.close()
    once = first_pass(ours, ids, seed)
    memory = _memory(data_dir, split, source)
    result = result_of(env, peer, split, seed, measured, memory, once)
    if out is not None:
        write_result(Path(out), result)
    return result


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `speed`; `main` is set as its default ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["speed", "alfworld", "--peer", "textworld"]).peer
        'textworld'
    """
    parser = subparsers.add_parser("speed", help="steps and resets for each CPU second")
    parser.set_defaults(run=main)
    parser.add_argument("env", choices=_ENVS, help="the environment to measure")
    parser.add_argument("--peer", choices=_PEERS, help="measure this engine too, in turns")
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the official data")
    parser.add_argument("--split", default="valid_unseen", help="default: valid_unseen")
    parser.add_argument(
        "--games",
        type=int,
        default=12,
        metavar="N",
        help="number of games, 0 for all (default: 12)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the side steps (default: 0)")
    parser.add_argument(
        "--sessions",
        nargs="+",
        default=(),
        metavar="FILE",
        help="webshop: recorded sessions to replay (default: the expert's episodes)",
    )
    parser.add_argument(
        "--products",
        nargs="*",
        type=int,
        metavar="N",
        help="webshop: numbers of products to search (default: 1000 100000 1000000)",
    )
    parser.add_argument(
        "--passages",
        nargs="*",
        type=int,
        metavar="N",
        help="searchqa: numbers of invented passages to search (default: 1000000)",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        metavar="KIND",
        help="searchqa: kinds of indexes to measure (default: fts5 bm25s)",
    )
    parser.add_argument("--out", metavar="FILE", help="write the result to this file, as JSON")


def main(args: argparse.Namespace) -> int:
    """Run `comap bench speed` with parsed arguments and return the exit status.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> main(parser.parse_args(["speed", "alfworld"]))  # doctest: +SKIP
        0
    """
    if args.env == "webshop":
        return webshop_speed.main(args)
    if args.env == "searchqa":
        return searchqa_speed.main(args)
    if args.env == "scienceworld":
        return scienceworld_speed.main(args)
    result = run(
        args.env,
        args.peer,
        data_dir=args.data_dir,
        games=args.games,
        out=args.out,
        split=args.split,
        seed=args.seed,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(table(result))
    return 0


def _others(ids: Sequence[str], chosen: Sequence[str]) -> Iterator[str]:
    """Return, without end, games to play between those that are measured.

    None of those, since the environment remembers the games it has read last; where all games are
    measured, the ones that are farthest away in the order.
    """
    half = len(ids) // 2
    return itertools.cycle(sorted(set(ids) - set(chosen)) or [*ids[half:], *ids[:half]])


def _warm_up() -> None:
    """Play one generated game, so that the first one measured pays for no import or cache."""
    env = make_env(None, "train", "generated")
    env.reset(seed=0)
    env.step("look")


def _paths(split: str, data_dir: str | Path | None) -> Callable[[str], Path]:
    """Return what tells the file of a task."""
    source = open_source(split, data_dir, "official", "normal", 0)

    def path_of(task: str) -> Path:
        path = source.game(task, "move")[1]
        if path is None:
            raise DataNotFound(f"expected a file for the task {task!r}, found none")
        return path

    return path_of


def _memory(data_dir: str | Path | None, split: str, source: str) -> dict[str, Any]:
    """Return what `memory_of_resets` measures, in a fresh process."""
    where = None if data_dir is None else str(data_dir)
    arguments = json.dumps([where, split, source])
    command = [sys.executable, "-c", _MEMORY_PROGRAM, arguments]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    memory: dict[str, Any] = json.loads(told)
    held = memory["resident_bytes"]
    if None in held:
        return memory
    half = held[len(held) // 2 :]
    return memory | {"growth": held[-1] - held[0], "growth_in_second_half": half[-1] - half[0]}
