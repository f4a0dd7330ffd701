"""`comap run` plays tasks into a folder; `comap view` shows what is in one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import CoMapError

__all__ = ["add_parser", "run", "view"]

_MODEL = "tiny (built in OUT/model), a folder, a name on the hub, http://HOST/v1#NAME, replay:FILE"
_WORLD = "oracle, noisy, null, retrieval, a saved one (.jsonl), or a language model as in --model"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `run` and `view` to the parser of `comap`.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["run", "--agent", "react", "--decoding", "scored"]).decoding
        'scored'
    """
    parser = subparsers.add_parser(
        "run",
        help="let an agent play tasks, and record everything in a folder",
        description="Let an agent play tasks, and record everything in a folder. A run that was "
        "stopped goes on where it was when the same command is given again. Each agent has options "
        "of its own: see comap run --agent NAME --help.",
        allow_abbrev=False,
    )
    parser.__class__ = _RunParser  # argparse makes the parsers of commands itself
    parser.set_defaults(run=run, fields={})
    _add_tasks(parser)
    _add_models(parser)
    _add_way(parser)
    viewer = subparsers.add_parser("view", help="show a run's episodes in the browser")
    viewer.set_defaults(run=view)
    viewer.add_argument("path", metavar="RUN", help="folder of a run, or a file of trajectories")
    viewer.add_argument("--out", metavar="FILE", help="the page (default: RUN/view.html)")
    viewer.add_argument("--no-open", action="store_true", help="write the page, open nothing")
    viewer.add_argument("--max", type=int, default=200, metavar="N", help="most episodes (200)")


def run(options: argparse.Namespace) -> int:
    """Run `comap run` with parsed arguments and return the exit status: 0, whatever failed in play.

    Raises:
        CoMapError: The options are not right, or the folder is another run's.
    """
    from .agents.run import run_to
    from .benchmarks.record import circumstances
    from .benchmarks.run_display import failures, run_progress, summary_table
    from .benchmarks.run_setup import PACKAGES, setup
    from .benchmarks.terminal import print_table

    out = Path("runs", options.agent) if options.out is None else Path(options.out)
    prepared = setup(options, out)
    with run_progress(len(prepared.tasks)) as shown:
        summary = run_to(
            out,
            prepared,
            live=options.live,
            retry_failed=options.retry_failed,
            about=circumstances(PACKAGES) | {"data_dir": options.data_dir},
            on_start=shown.begin,
            on_done=shown.advance,
        )
    print_table(summary_table(f"{options.agent} on {options.env}, {options.split}", summary))
    if failures(summary):
        print(f"\n{failures(summary)}; play them again with --retry-failed")
    print(f"\nrun: {out} (to look at it: comap view {out})")
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


class _RunParser(argparse.ArgumentParser):
    """Adds the options of the agent that was named, before it parses the rest."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        from .agents.create import agent_options
        from .benchmarks.options import add_fields

        words = list(args or ())
        named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        named.add_argument("--agent", nargs="?")
        agent = named.parse_known_args(words)[0].agent
        try:
            config = agent_options(agent) if agent else None
        except CoMapError as error:
            self.error(str(error))
        if config is not None:
            taken = {action.dest for action in self._actions}
            self.set_defaults(fields=add_fields(self, config, "agent_", taken))
        return super().parse_known_args(words, namespace)


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_argument_group("what is played")
    add = tasks.add_argument
    add(
        "--agent", required=True, metavar="NAME", help="who acts: react, comap, expert, random, ..."
    )
    add("--agent-option", action="append", metavar="NAME=VALUE", help="of agents without settings")
    add("--env", default="comap/ALFWorld-v0", metavar="ID", help="id (default: %(default)s)")
    add("--env-option", action="append", metavar="NAME=VALUE", help="such as expert=explore")
    add("--split", default="valid_unseen", help="split (default: %(default)s)")
    add("--data-dir", metavar="DIR", help="folder with official data")
    add("--episodes", type=int, metavar="N", help="so many tasks, spread evenly (default: all)")
    add("--tasks", nargs="+", metavar="TASK", help="these tasks, or a file with one a line")


def _add_models(parser: argparse.ArgumentParser) -> None:
    models = parser.add_argument_group("with which models")
    add = models.add_argument
    add("--model", metavar="M", help=_MODEL)
    add("--base-url", metavar="URL", help="address of a server that has the model")
    add("--adapter", action="append", metavar="NAME=DIR", help="load a LoRA adapter (repeatable)")
    add("--device", help="auto, cpu, cuda or cuda:N")
    add("--dtype", help="auto, float32, float64, bfloat16 or float16")
    add("--model-option", action="append", metavar="NAME=VALUE", help="such as concurrency=32")
    add("--tiny-parameters", type=int, default=500_000, metavar="N", help="size of a tiny model")
    add("--world-model", metavar="W", help=_WORLD)
    add("--world-model-prompts", metavar="STYLE", help="standard or brief")
    add("--world-model-state-text", metavar="KIND", help="history or belief")
    add("--world-model-adapter", metavar="NAME", help="adapter of its language model")
    add("--error-rate", type=float, default=0.1, help="of the noisy model (default: %(default)s)")
    add("--fit-tasks", type=int, default=100, metavar="N", help="that retrieval learns from (100)")
    add("--imagined", action="store_true", help="play in the world model's imagination")
    add("--horizon", type=int, metavar="N", help="steps of an imagined episode")
    add("--real-every", type=int, metavar="N", help="take every so many-th step for real")


def _add_way(parser: argparse.ArgumentParser) -> None:
    way = parser.add_argument_group("how, and where to")
    add = way.add_argument
    add("--live", type=int, default=32, metavar="N", help="episodes at the same time (32)")
    add("--seed", type=int, default=0, help="of agent, models and environment (default: 0)")
    add(
        "--keep", default="replies", metavar="WHAT", help="replies, prompts or tokens, of each call"
    )
    add("--retry-failed", action="store_true", help="play the tasks again that a fault ended")
    add("--out", metavar="DIR", help="the run's folder (default: runs/AGENT)")
