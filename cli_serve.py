"""`comap serve`: what environments ask, as servers that others can ask too."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import cli_serve_env
from .envs.json_server import MAX_REQUEST_BYTES, MOST_CONNECTIONS, check_exposure, read_token
from .errors import MissingExtra, OptionError

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `serve` to the parser of `comap`; each kind sets its own ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["serve", "tools"]).port
        8080
    """
    server = commands.add_parser(
        "serve", help="serve environments, a search engine, or tools to other pipelines"
    )
    kinds = server.add_subparsers(dest="served", required=True, metavar="WHAT")
    cli_serve_env.add_parser(kinds)
    _add_search(kinds)
    _add_tools(kinds)


def _add_search(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap serve search`."""
    parser = kinds.add_parser(
        "search",
        help="passages: POST /retrieve, as Search-R1's and verl-agent's servers answer it",
        description="Serve an index: POST /retrieve with 'queries' (Search-R1) or 'query' "
        "(verl-agent), and GET /health.",
    )
    parser.set_defaults(run=_serve_search)
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
    _add_token(parser)


def _serve_search(args: argparse.Namespace) -> int:
    from .envs.searchqa.choice import choose_retriever, index_home
    from .envs.searchqa.server import RetrievalServer

    token = _token(args)
    if not 0 <= args.port < 65_536:
        raise OptionError(f"--port must be from 0 to 65,535, not {args.port}")
    generated = args.data_dir is None and not index_home().is_dir()
    retriever = choose_retriever(args.retriever, args.data_dir, generated)
    with RetrievalServer(retriever, args.host, args.port, args.max_topk, token) as server:
        print(f"{server.url} ({retriever.identity}); stop it with Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
    return 0


def _add_tools(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap serve tools`."""
    parser = kinds.add_parser(
        "tools",
        help="StableToolBench's /virtual",
        description="Answer POST /virtual as StableToolBench's server does: from the embedded tools, "
        "the official cache of responses, and what else is named.",
    )
    parser.set_defaults(run=_serve_tools)
    parser.add_argument("--data-dir", metavar="DIR", help="folder with tool_response_cache/")
    parser.add_argument(
        "--world", type=int, default=0, metavar="N", help="seed of the embedded tools (default: 0)"
    )
    parser.add_argument("--no-embedded", action="store_true", help="serve no embedded tools")
    parser.add_argument("--live-url", metavar="URL", help="a /virtual server to ask")
    parser.add_argument(
        "--simulator", metavar="MODEL", help="a language model that makes answers up"
    )
    parser.add_argument("--overlay", metavar="FILE", help="file that keeps what these answered")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="default: 30 s")
    parser.add_argument(
        "--host", default="127.0.0.1", help="default: this machine alone, 127.0.0.1"
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="default: 8080; 0 for any that is free"
    )
    _add_token(parser)


def _serve_tools(args: argparse.Namespace) -> int:
    from .envs.stabletoolbench.serving import virtual_app

    token = _token(args)
    return serve(virtual_app(_tools(args), token), args.host, args.port, "/virtual")


def _add_token(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the token's file."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="requests must tell the token in it, as 'Authorization: Bearer TOKEN' (default: "
        "COMAP_SERVE_TOKEN, else none); without one only this machine is served",
    )


def _token(args: argparse.Namespace) -> str | None:
    """Return the token; without one, an address that other machines reach is refused."""
    token = read_token(args.token_file)
    check_exposure(args.host, token)
    return token


def _tools(args: argparse.Namespace) -> Any:
    """Return the tools that the options name."""
    from .envs.stabletoolbench.chains import CACHE_FOLDER, BackendOptions, open_chain
    from .envs.stabletoolbench.serving import VirtualTools

    if args.world < 0:
        raise OptionError(f"--world must be at least 0, not {args.world}")
    folder = None if args.data_dir is None else Path(args.data_dir)
    if folder is not None and not (folder / CACHE_FOLDER).is_dir():
        raise OptionError(f"--data-dir must have a folder {CACHE_FOLDER}, found none in {folder}")
    options = BackendOptions(args.live_url, args.simulator, args.overlay, args.timeout)
    world = None if args.no_embedded else args.world
    return VirtualTools(open_chain(folder, options), world)


def serve(app: Any, host: str, port: int, route: str) -> int:
    """Serve an application until it is stopped, and return the exit status.

    Args:
        app: The application.
        host: Where to listen; who names others' addresses has checked that there is a token.
        port: The port, or 0.
        route: What to tell that it serves.

    Raises:
        MissingExtra: The package ``uvicorn`` is not installed.
        OptionError: There is no such port, or it is taken.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra.of("serve", "serving tools") from error
    import socket

    if not 0 <= port <= 65_535:
        raise OptionError(f"--port must be from 0 to 65535, not {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            raise OptionError(
                f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        print(f"serving http://{shown}:{listener.getsockname()[1]}{route}", flush=True)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                ws_max_size=MAX_REQUEST_BYTES,
                limit_concurrency=MOST_CONNECTIONS,
            )
        )
        server.run(sockets=[listener])
    return 0
