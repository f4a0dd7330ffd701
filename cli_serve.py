"""`comap serve`: what environments ask, as servers that others can ask too."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `serve` to the parser of `comap`; its `run` is set as a default.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["serve", "search", "--port", "8001"]).port
        8001
    """
    parser = subparsers.add_parser("serve", help="serve what environments ask: a search engine")
    parser.set_defaults(run=run)
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    _add_search(kinds)


def run(args: argparse.Namespace) -> int:
    """Run `comap serve` with parsed arguments until it is stopped, and return the exit status.

    Raises:
        CoMapError: What is asked for cannot be served.

    Example:
        >>> run(argparse.Namespace(serve=lambda args: 0))
        0
    """
    status: int = args.serve(args)
    return status


def _add_search(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap serve search`."""
    parser = kinds.add_parser(
        "search",
        help="passages: POST /retrieve, as Search-R1's and verl-agent's servers answer it",
        description="Serve an index: POST /retrieve with 'queries' (Search-R1) or 'query' "
        "(verl-agent), and GET /health.",
    )
    parser.set_defaults(serve=_serve_search)
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="folder of an index (default: comap's, else the generated encyclopedia's)",
    )
    parser.add_argument(
        "--retriever", default="auto", help="auto, fts5, bm25s, dense or hybrid (default: auto)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: this machine alone")
    parser.add_argument("--port", type=int, default=8000, help="0 for any (default: 8000)")
    parser.add_argument(
        "--max-topk", type=int, default=100, metavar="N", help="most passages (default: 100)"
    )


def _serve_search(args: argparse.Namespace) -> int:
    from .envs.searchqa.choice import choose_retriever, index_home
    from .envs.searchqa.server import RetrievalServer
    from .errors import OptionError

    if not 0 <= args.port < 65_536:
        raise OptionError(f"--port must be from 0 to 65,535, not {args.port}")
    generated = args.data_dir is None and not index_home().is_dir()
    retriever = choose_retriever(args.retriever, args.data_dir, generated)
    with RetrievalServer(retriever, args.host, args.port, args.max_topk) as server:
        print(f"{server.url} ({retriever.identity}); stop it with Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
    return 0
