"""The command line: ``comap demo | data | run | view | train | serve | hub | score | ...``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from gymnasium.error import Error as GymnasiumError

from . import (
    __version__,
    cli_bench,
    cli_data,
    cli_hub,
    cli_run,
    cli_score,
    cli_serve,
    cli_train,
    cli_verify,
)
from .errors import CoMapError

__all__ = ["main"]

_JOURNALED = ("run", "train", "verify", "bench")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    A mistake in the input is told in one line on standard error, with exit code 1 (2 for a wrong
    command line); no traceback. A fault of comap itself is told in the same way, with exit code 70,
    unless ``--traceback`` was given.

    Args:
        arguments: The words after ``comap``; None takes those of the process.

    Example:
        >>> main(["demo", "--env", "comap/Nowhere-v0", "--out", "/nonexistent"])
        1
    """
    if arguments is None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # the terminal may not know every character
    options = _parser().parse_args(arguments)
    if options.command not in _JOURNALED:
        return _guarded(options, arguments is None)
    from .benchmarks.journal import journal

    with journal(sys.argv[1:] if arguments is None else arguments) as session:
        try:
            session.exit = _guarded(options, arguments is None)
        finally:
            session.folder = _folder(options)
    return session.exit


def _guarded(options: argparse.Namespace, own_process: bool) -> int:
    """Run a command and return the exit code, whatever happens."""
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("comap: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if own_process:  # else Python complains about what it cannot write at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (CoMapError, GymnasiumError, OSError) as error:
        return _complain(str(error), 1)
    except Exception as error:
        if options.traceback:
            raise
        hint = "a fault of comap; 'comap --traceback ...' shows where"
        return _complain(f"{type(error).__name__}: {error} ({hint})", 70)


def _folder(options: argparse.Namespace) -> Path | None:
    """Return the folder that a command wrote to, where it has one; it may be missing."""
    if options.command == "verify":
        return Path(options.results)
    out = getattr(options, "out", None)
    return None if out is None else Path(out)


def _complain(message: str, code: int) -> int:
    """Print a message on one line of standard error and return the exit code."""
    print(f"comap: {' '.join(message.split())}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "comap", description="Text environments, world models and agents: try 'comap demo'."
    )
    parser.add_argument("--version", action="version", version=f"comap {__version__}")
    parser.add_argument(
        "--traceback", action="store_true", help="show where a fault of comap itself comes from"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    cli_data.add_parser(commands)
    cli_run.add_parser(commands)
    cli_train.add_parser(commands)
    cli_serve.add_parser(commands)
    cli_hub.add_parser(commands)
    cli_score.add_parser(commands)
    cli_verify.add_parser(commands)
    _add_bench(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap demo``, one option for each field of `DemoConfig`."""
    from .benchmarks.demo import DemoConfig

    demo = commands.add_parser(
        "demo",
        help="learn a world model, score it, act in imagination, and write a report",
        description="Learn a world model from transitions, score it by Delta-F1 on unseen tasks, "
        "let agents act really and in imagination, and write a report.",
    )
    for part in fields(DemoConfig):
        default = part.default
        told = _HELP[part.name] + ("" if default is None else " (default: %(default)s)")
        options: dict[str, Any] = {"default": default, "help": told}
        if isinstance(default, tuple):
            options |= {"type": type(default[0]), "nargs": "+"}
        elif default is not None and default is not MISSING:
            options["type"] = type(default)
        elif part.name in _NUMBERS:
            options["type"] = int
        demo.add_argument(f"--{part.name.replace('_', '-')}", **options)
    demo.set_defaults(run=_demo)


_NUMBERS = ("train_tasks", "test_tasks")
_HELP = {
    "env": "id of the environment",
    "data_dir": "folder with official data (default: what is on the machine, else generated tasks)",
    "out": "folder for the report and everything else",
    "train_split": "split to learn from",
    "test_split": "split to measure on (default: the environment's hardest for tests)",
    "train_tasks": "number of tasks to learn from (default: 300, or 14 if episodes take seconds)",
    "test_tasks": "number of tasks to measure on (default: 60, or 7 if episodes take seconds)",
    "seed": "seed of the random agent and of the noisy models",
    "error_rates": "error rates of the noisy models",
    "lengths": "lengths of imagined rollouts",
}


def _demo(options: argparse.Namespace) -> int:
    from .benchmarks.demo import DemoConfig, run_demo

    values = {part.name: getattr(options, part.name) for part in fields(DemoConfig)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    print(f"\nreport: {run_demo(DemoConfig(**values))}")
    return 0


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench``."""
    from .benchmarks import (
        capacity,
        coevolution,
        experts,
        parity,
        paw_bench,
        paw_bench_overhead,
        paw_noise,
        runner_speed,
        scienceworld_beliefs,
        selective,
        serving_speed,
        shipped,
        small_results,
        speed,
        trained,
        training_scale,
        viewer_speed,
    )
    from .benchmarks.reliability import bench as reliability

    bench = commands.add_parser(
        "bench", help="measure speed, agreement with the original, and what small models learn"
    )
    kinds = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")
    measured = (
        speed,
        parity,
        experts,
        scienceworld_beliefs,
        runner_speed,
        training_scale,
        viewer_speed,
        serving_speed,
        capacity,
        reliability,
    )
    paw = (paw_bench, paw_bench_overhead, paw_noise)
    for module in (*measured, small_results, coevolution, shipped, trained, selective, *paw):
        module.add_parser(kinds)
    cli_bench.add_parsers(kinds, main)
