"""`comap serve env`: environments as servers for other stacks."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .errors import OptionError

if TYPE_CHECKING:
    from .integrations import Sessions

__all__ = ["add_parser"]

STYLES = ("agentgym", "openenv", "mcp")
_PORT = 36_001


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `comap serve env`.

    Example:
        >>> parser = argparse.ArgumentParser("comap serve")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["env", "--env", "comap/ALFWorld-v0"]).style
        'agentgym'
    """
    parser = kinds.add_parser(
        "env",
        help="environments: reset and step for programs in other stacks",
        description="Serve environments. Clients choose among those named here, and give the options "
        "named by --allow; nothing else of a request is used.",
    )
    parser.set_defaults(run=_serve)
    parser.add_argument(
        "--env",
        action="append",
        required=True,
        metavar="ID",
        help="an environment's id; several times for several, the first is the default",
    )
    parser.add_argument(
        "--style",
        choices=STYLES,
        default=STYLES[0],
        help="what clients speak: AgentGym's /create /reset /step (default), OpenEnv, or MCP: "
        "tools for language agents",
    )
    parser.add_argument(
        "--stdio",
        action="store_true",
        help="with --style mcp: one client, at standard input and output",
    )
    parser.add_argument(
        "--env-option", action="append", metavar="NAME=VALUE", help="an option of the environments"
    )
    parser.add_argument(
        "--allow", action="append", metavar="NAME", help="an option that clients may give (split)"
    )
    parser.add_argument(
        "--limit", type=int, default=64, metavar="N", help="most open environments (default: 64)"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=3600.0,
        metavar="S",
        help="close an environment that nobody used for so long (default: 3600 s)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="default: this machine alone")
    parser.add_argument(
        "--port", type=int, default=_PORT, help=f"0 for any that is free (default: {_PORT})"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="requests must tell the token in it, as 'Authorization: Bearer TOKEN' (default: "
        "COMAP_SERVE_TOKEN, else none); without one only this machine is served",
    )


def _serve(args: argparse.Namespace) -> int:
    from .benchmarks.options import pairs
    from .envs.json_server import check_exposure, read_token
    from .integrations import Offered, Sessions

    if not 0 <= args.port < 65_536:
        raise OptionError(f"--port must be from 0 to 65,535, not {args.port}")
    token = read_token(args.token_file)
    check_exposure(args.host, token)
    if args.stdio and args.style != "mcp":
        raise OptionError("--stdio is for --style mcp alone")
    offered = Offered(args.env, pairs(args.env_option, "--env-option"), args.allow or ())
    for env_id in offered.env_ids:  # options that are wrong are told now, not to the first client
        offered.make(env_id).close()
    sessions = Sessions(offered, args.limit, args.idle)
    if args.style == "agentgym":
        return _serve_agentgym(args, sessions, token)
    if len(offered.env_ids) > 1:
        raise OptionError(
            f"--style {args.style} serves one environment, found {len(offered.env_ids)}"
        )
    if args.style == "openenv":
        return _serve_openenv(args, sessions, token)
    return _serve_mcp(args, sessions, token)


def _serve_agentgym(args: argparse.Namespace, sessions: Sessions, token: str | None) -> int:
    from .integrations.agentgym import EnvironmentServer

    try:
        server: Any = EnvironmentServer(sessions, args.host, args.port, token)
    except OSError as error:
        raise OptionError(
            f"cannot listen on {args.host} port {args.port}: {error.strerror or error}; choose another "
            "--port"
        ) from error
    with server:
        print(
            f"serving {server.base} ({', '.join(sessions.offered.env_ids)}); Ctrl-C stops it",
            flush=True,
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
    return 0


def _serve_mcp(args: argparse.Namespace, sessions: Sessions, token: str | None) -> int:
    from .cli_serve import serve
    from .integrations.mcp import http_app, serve_stdio

    offered = sessions.offered
    if args.stdio:
        serve_stdio(offered)
        return 0
    app = http_app(offered, host=args.host, token=token, limit=args.limit, idle=args.idle)
    return serve(app, args.host, args.port, "/mcp")


def _serve_openenv(args: argparse.Namespace, sessions: Sessions, token: str | None) -> int:
    from .cli_serve import serve
    from .integrations.openenv import openenv_app

    limit, idle = args.limit, args.idle
    app = openenv_app(sessions.offered, host=args.host, token=token, limit=limit, idle=idle)
    return serve(app, args.host, args.port, "")
