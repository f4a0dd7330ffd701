"""`comap data list | get | build | verify | path`: the data that the environments play on.

Nothing is downloaded unless `comap data get` is run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import cli_build
from .cli_progress import shown_progress
from .cli_verify_built import BUILT, verify_built
from .envs.downloads import (
    Patience,
    catalogue,
    comap_home,
    data_path,
    find,
    get,
    is_installed,
    verify,
)
from .errors import CoMapError

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `data` to the parser of `comap`; its `run` is set as a default.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["data", "get", "alfworld"]).name
        'alfworld'
    """
    parser = subparsers.add_parser(
        "data", help="list, download, build, verify and locate data sets"
    )
    parser.set_defaults(run=run)
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="show the data sets and which of them are here")
    getter = commands.add_parser("get", help="download a data set")
    getter.add_argument("name", help="name of the data set (see: comap data list)")
    getter.add_argument("--mirror", metavar="URL", help="folder to take the archive from")
    getter.add_argument("--force", action="store_true", help="replace what is here")
    getter.add_argument(
        "--allow-changed", action="store_true", help="take it even if it is not as expected"
    )
    getter.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="longest silence (default: 30 s)"
    )
    verifier = commands.add_parser("verify", help="check that a data set is whole and unchanged")
    verifier.add_argument(
        "name", help="name of the data set, or of what was built: webshop, searchqa"
    )
    verifier.add_argument("--path", metavar="DIR", help="check this folder, not the one of comap")
    cli_build.add_parser(commands)
    locator = commands.add_parser("path", help="print where a data set is, or would be")
    locator.add_argument("name", nargs="?", help="name of the data set (default: all data)")


def run(args: argparse.Namespace) -> int:
    """Run `comap data` with parsed arguments and return the exit status.

    Example:
        >>> run(argparse.Namespace(data_command="path", name="alfworld"))  # doctest: +SKIP
        /home/me/.cache/comap/alfworld
        0
    """
    commands = {
        "list": _list,
        "get": _get,
        "build": cli_build.run,
        "verify": _verify,
        "path": _path,
    }
    try:
        return commands[args.data_command](args)
    except CoMapError as error:
        print(f"comap data {args.data_command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the command again to continue", file=sys.stderr)
        return 130


def _list(args: argparse.Namespace) -> int:
    for name, data_set in catalogue().items():
        state = "here" if is_installed(name) else f"not here; run: comap data get {name}"
        print(f"{name}: {data_set.title}, {data_set.size}, licence {data_set.licence}")
        print(f"  from {data_set.url}")
        print(f"  in {data_path(name)} ({state})")
    return 0


def _get(args: argparse.Namespace) -> int:
    with shown_progress() as progress:
        path = get(
            args.name,
            mirror=args.mirror,
            force=args.force,
            allow_changed=args.allow_changed,
            patience=Patience(timeout=args.timeout),
            progress=progress,
        )
    print(path)
    return 0


def _verify(args: argparse.Namespace) -> int:
    if args.name in BUILT:
        print(verify_built(args.name, args.path))
        return 0
    report = verify(args.name, args.path)
    print(report)
    if not report.ok and args.path is None:
        print(f"to get it anew, run: comap data get {args.name} --force", file=sys.stderr)
    return 0 if report.ok else 1


def _path(args: argparse.Namespace) -> int:
    if args.name is None:
        print(comap_home())
        return 0
    path: Path = data_path(find(args.name).name)
    print(path)
    if not path.exists():
        print(f"nothing there yet; run: comap data get {args.name}", file=sys.stderr)
    return 0
