"""`comap data list | get | build | verify | path`: the data that the environments play on.

Nothing is downloaded unless `comap data get` is run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .envs.downloads import (
    Patience,
    Progress,
    catalogue,
    comap_home,
    data_path,
    find,
    get,
    is_installed,
    verify,
)
from .envs.storage import Listener
from .errors import CoMapError

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

__all__ = ["add_parser", "run"]

_STEP = 5


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `data` to the parser of `comap`; its `run` is set as a default.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["data", "get", "alfworld"]).name
        'alfworld'
    """
    parser = subparsers.add_parser("data", help="list, download, verify and locate data sets")
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
    verifier.add_argument("name", help="name of the data set")
    verifier.add_argument("--path", metavar="DIR", help="check this folder, not the one of comap")
    builder = commands.add_parser("build", help="make data on this machine")
    _add_demonstrations(builder.add_subparsers(dest="what", required=True, metavar="WHAT"))
    locator = commands.add_parser("path", help="print where a data set is, or would be")
    locator.add_argument("name", nargs="?", help="name of the data set (default: all data)")


def _add_demonstrations(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap data build scienceworld-demos`."""
    demos = kinds.add_parser(
        "scienceworld-demos", help="make demonstrations along ScienceWorld's gold paths"
    )
    demos.set_defaults(build=_build_demonstrations)
    demos.add_argument("--out", required=True, metavar="FILE", help="the file to write, JSON lines")
    demos.add_argument("--split", default="train", help="train (default), dev or test")
    demos.add_argument("--splits", default="upstream", help="upstream (default) or eto")
    demos.add_argument("--data-dir", metavar="DIR", help="folder of ETO's lists")
    demos.add_argument("--simplification", default="easy", help="default: easy")
    demos.add_argument("--tasks", nargs="+", default=[], metavar="NAME", help="default: all tasks")
    demos.add_argument("--variations", type=int, metavar="N", help="of each task (default: all)")
    demos.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    demos.add_argument("--java", metavar="PATH", help="the Java to use (default: as found)")


def run(args: argparse.Namespace) -> int:
    """Run `comap data` with parsed arguments and return the exit status.

    Example:
        >>> run(argparse.Namespace(data_command="path", name="alfworld"))  # doctest: +SKIP
        /home/me/.cache/comap/alfworld
        0
    """
    commands = {"list": _list, "get": _get, "build": _build, "verify": _verify, "path": _path}
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
    with _shown() as progress:
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


def _build(args: argparse.Namespace) -> int:
    status: int = args.build(args)
    return status


def _build_demonstrations(args: argparse.Namespace) -> int:
    from .envs.scienceworld.demos import build_demonstrations

    names = ("split", "splits", "data_dir", "simplification", "java")
    with _shown() as progress:
        built = build_demonstrations(
            args.out,
            tasks=args.tasks,
            variations=args.variations,
            workers=args.workers,
            options={name: getattr(args, name) for name in names},
            progress=progress,
        )
    print(f"{built.path}: {len(built.kept)} demonstrations, {len(built.failed)} tasks without one")
    return 0 if built.kept else 1


def _verify(args: argparse.Namespace) -> int:
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


@contextmanager
def _shown() -> Iterator[Listener]:
    """Show progress on the terminal: bars with `rich`, lines without it or into a file."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as Bars
    except ImportError:
        yield _Lines()
        return
    with Bars(console=Console(stderr=True)) as bars:
        yield _RichBars(bars)


class _Lines:
    """Prints a line at each twentieth of a stage; where its end is unknown, each 32 MiB."""

    def __init__(self) -> None:
        self._last: tuple[str, int] = ("", -1)

    def __call__(self, progress: Progress) -> None:
        stage, done, total, note = progress
        if note:
            print(f"{stage}: {note}", file=sys.stderr)
            return
        share = 100 * done // max(total, 1) // _STEP if total is not None else done >> 25
        if (stage, share) == self._last:
            return
        self._last = (stage, share)
        text = f"{share * _STEP} %" if total is not None else f"{done:,}"
        print(f"{stage}: {text}", file=sys.stderr)


class _RichBars:
    """One bar of `rich` for each stage."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        stage, done, total, note = progress
        if note:
            self._bars.console.print(f"{stage}: {note}", markup=False)
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)
