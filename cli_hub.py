"""`comap hub push | load`: trajectories and models to and from the Hugging Face Hub."""

from __future__ import annotations

import argparse
import sys

__all__ = ["add_parser"]

_PLACE = "OWNER/NAME on the Hub, or local:DIR for a folder in its place"
_KINDS = ("trajectories", "model")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `hub` to the parser of `comap`.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["hub", "load", "model", "me/agent", "--out", "agent"]).revision
    """
    hub = subparsers.add_parser("hub", help="push and load trajectories and models, with cards")
    commands = hub.add_subparsers(dest="hub_command", required=True, metavar="COMMAND")
    pusher = commands.add_parser(
        "push",
        help="push a run's trajectories, or models, to the Hub",
        description="Push a run's trajectories as a data set, or adapters and small models, with a "
        "card. The token is that of the environment variable HF_TOKEN.",
    )
    pusher.set_defaults(run=_push)
    pusher.add_argument("kind", choices=_KINDS)
    pusher.add_argument("source", help="a run's folder; of models, theirs or a training's")
    pusher.add_argument("target", help=_PLACE)
    pusher.add_argument(
        "--licence", required=True, metavar="L", help="yours to choose: apache-2.0, cc-by-4.0, ..."
    )
    pusher.add_argument("--title", help="heading of the card (default: the source's name)")
    pusher.add_argument("--private", action="store_true", help="a new repository is private")
    pusher.add_argument(
        "--evaluation", metavar="RUN", help="of a model: a run that it played, for the card"
    )
    loader = commands.add_parser(
        "load",
        help="load what was pushed",
        description="Load what was pushed by comap into a new folder: names, sizes, hashes and kinds "
        "are checked, nothing is unpickled.",
    )
    loader.set_defaults(run=_load)
    loader.add_argument("kind", choices=_KINDS)
    loader.add_argument("source", help=_PLACE)
    loader.add_argument("--out", required=True, metavar="DIR", help="a folder that is to be")
    loader.add_argument("--revision", metavar="R", help="a commit, branch or tag")
    loader.add_argument("--most-bytes", type=int, metavar="N", help="the most to load (64 GiB)")


def _push(options: argparse.Namespace) -> int:
    from .errors import OptionError
    from .hub import push_model, push_trajectories

    told = {name: getattr(options, name) for name in ("licence", "title", "private")}
    if options.kind == "model":
        told["evaluation"] = options.evaluation
        pushed = push_model(options.source, options.target, **told)
    elif options.evaluation is not None:
        raise OptionError("--evaluation is about models; leave it out")
    else:
        pushed = push_trajectories(options.source, options.target, **told)
    if pushed.skipped:
        print(f"left out: {', '.join(pushed.skipped)}"[:2000], file=sys.stderr)
    print(f"{pushed.place}: {pushed.files} files, {pushed.size:,} bytes")
    print(f"revision: {pushed.revision}")
    return 0


def _load(options: argparse.Namespace) -> int:
    from .hub import load_model, load_trajectories

    load = load_model if options.kind == "model" else load_trajectories
    limits = {} if options.most_bytes is None else {"most_bytes": options.most_bytes}
    loaded = load(options.source, options.out, revision=options.revision, **limits)
    print(f"{loaded.path}: {loaded.size:,} bytes of {loaded.place}")
    print(f"revision: {loaded.revision}")
    return 0
