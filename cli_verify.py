"""`comap verify`: recorded results are played again and compared."""

from __future__ import annotations

import argparse
from pathlib import Path

from .errors import OptionError

__all__ = ["add_parser", "run"]

_DIFFERS, _UNCHECKED = 1, 3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `verify` to the parser of `comap`.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["verify", "runs/first", "--sample", "all"]).sample
        0
    """
    parser = commands.add_parser(
        "verify",
        help="play recorded episodes again, and see whether results are what they say",
        description="Play a sample of recorded episodes again in the environment, make the recorded "
        "numbers again from the trajectories, and compare. Nobody outside is asked: what a server or "
        "a model answered is taken from the record, and imagined steps are read again. Exit status: 0 "
        "if all agrees, 1 if something differs, 3 if something could not be checked.",
        epilog="example: comap verify runs/first --sample 50",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add(
        "results",
        metavar="RESULTS",
        help="folder of comap run or comap train, or that holds such, or a file of trajectories",
    )
    add(
        "--sample",
        type=_sample,
        default=20,
        metavar="N",
        help="how many episodes, drawn at random; 0 or all for all of them (default: %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the draw (default: %(default)s)")
    add(
        "--data-dir",
        action="append",
        metavar="DIR",
        help="folder with official data (default: what is on this machine); for one environment of "
        "several: ID=DIR, such as comap/WebShop-v0=catalog (repeatable)",
    )
    add(
        "--env-option",
        action="append",
        metavar="NAME=VALUE",
        help="option of the environment that records do not tell, such as questions=FILE (repeatable)",
    )
    add("--out", metavar="FILE", help="write the result to this file, as JSON")


def run(options: argparse.Namespace) -> int:
    """Run `comap verify` with parsed arguments and return the exit status.

    Raises:
        CoMapError: There is nothing to verify, or the options are not right.
    """
    from .benchmarks.options import pairs
    from .benchmarks.record import write_result
    from .benchmarks.terminal import print_table
    from .benchmarks.verify import verify
    from .benchmarks.verify_display import first_difference, reasons, verify_table

    if options.out is not None and Path(options.out).is_dir():
        raise OptionError(f"--out is a file, but {options.out} is a folder; name a file in it")
    result = verify(
        options.results,
        sample=options.sample,
        seed=options.seed,
        data=_folders(options.data_dir or ()),
        options=pairs(options.env_option, "--env-option"),
    )
    if options.out is not None:
        write_result(Path(options.out), result)
    print_table(verify_table(result))
    print()
    for line in filter(None, (*reasons(result), first_difference(result))):
        print(line)
    counts = ", ".join(f"{count} {status}" for status, count in result["counts"].items())
    print(f"episodes: {counts or 'none'}; steps compared: {result['steps']:,}")
    if options.out is not None:
        print(f"result: {options.out}")
    return 0 if result["agree"] else _DIFFERS if result["differ"] else _UNCHECKED


def _sample(text: str) -> int:
    if text == "all":
        return 0
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _folders(given: list[str] | tuple[()]) -> dict[str, str]:
    """Return the folder of each environment's id; that of ``""`` is for all others."""
    found = {}
    for text in given:
        name, equals, folder = text.partition("=")
        found.update({name: folder} if equals and name.startswith("comap/") else {"": text})
    return found
