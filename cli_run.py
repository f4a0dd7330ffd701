"""`comap run` plays tasks into a folder; `comap view` shows what is in one."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

__all__ = ["add_parser", "run", "view"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `run` and `view` to the parser of `comap`.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["run", "--agent", "react", "--decoding", "scored"]).decoding
        'scored'
    """
    from .benchmarks.run_options import declare

    parser = subparsers.add_parser(
        "run",
        help="let an agent play tasks, and record everything in a folder",
        description="Let an agent play tasks, and record everything in a folder. A run that was "
        "stopped or killed goes on where it was when the same command is given again. Each agent "
        "has options of its own: comap run --agent NAME --help shows them.",
        epilog="example: comap run --agent comap --model tiny --world-model retrieval --episodes 8 "
        "--decoding masked --out runs/first",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    declare(parser)
    viewer = subparsers.add_parser(
        "view",
        help="show the episodes of runs in the browser",
        description="Write one HTML page that shows the results of a run, or of several, and their "
        "episodes step by step: what happened and what was predicted, beliefs, gates, what the "
        "models were asked and replied. Episodes are filtered and searched there. Open the page. "
        "Nothing else is needed to look at it, on any machine.",
        allow_abbrev=False,
    )
    viewer.set_defaults(run=view)
    viewer.add_argument(
        "path",
        metavar="RUN",
        nargs="+",
        help="folder of a run, or a file of trajectories; several are shown together",
    )
    viewer.add_argument(
        "--out",
        metavar="FILE",
        help="the page (default: RUN/view.html; of several, view-together.html in the first)",
    )
    viewer.add_argument("--no-open", action="store_true", help="write the page, open nothing")
    viewer.add_argument(
        "--max",
        type=int,
        default=5_000,
        metavar="N",
        help="most episodes of each run (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run `comap run` with parsed arguments and return the exit status: 0, whatever failed in play.

    Raises:
        CoMapError: The options are not right, or the folder is another run's or cannot be written.
    """
    from .agents.run import run_to
    from .benchmarks.record import circumstances
    from .benchmarks.run_display import failures, run_progress, summary_table, version_note
    from .benchmarks.run_setup import PACKAGES, setup
    from .benchmarks.run_workers import workers_of
    from .benchmarks.terminal import print_table
    from .envs.registered import engines_kept

    options.out = str(Path("runs", options.agent)) if options.out is None else options.out
    out = Path(options.out)
    play = workers_of(options, out)
    prepared, about = setup(options, out), circumstances(PACKAGES)
    note = version_note(out, about)
    if note:
        print(f"comap: {note}", file=sys.stderr)
    kept = engines_kept(options.env, options.live)
    with kept, run_progress(len(prepared.tasks)) as shown:
        summary = run_to(
            out,
            prepared,
            live=options.live,
            overlap=options.overlap,
            retry_failed=options.retry_failed,
            about=about | {"data_dir": options.data_dir, "workers": options.workers},
            play=play,
            on_start=shown.begin,
            on_done=shown.advance,
        )
    print()
    played = ", ".join(filter(None, (options.env, prepared.config["split"])))
    print_table(summary_table(f"{options.agent} on {played}", summary))
    if play is not None and play.restarts:
        print(f"\n{play.restarts} workers were lost and replaced")
    if failures(summary):
        print(f"\n{failures(summary)}; play them again with --retry-failed")
    print(f"\nrun: {out} (to look at it: comap view {shlex.quote(str(out))})")
    return 0


def view(options: argparse.Namespace) -> int:
    """Run `comap view` with parsed arguments and return the exit status.

    Raises:
        CoMapError: There is no such run.
    """
    from .benchmarks.view import show, view_run

    page = view_run(options.path, options.out, options.max)
    opened = not options.no_open and show(page)
    print(
        f"page: {page}" + ("" if opened or options.no_open else " (no display: open it yourself)")
    )
    return 0
