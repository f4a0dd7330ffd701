"""Our environments as tools of the Model Context Protocol: each client has an episode."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from typing import Any, NamedTuple

from .. import __version__
from ..envs.http import CLIENT, MAX_REQUEST_BYTES, Guard, is_loopback
from ..errors import CoMapError, OptionError, needs_extra, suggest
from .sessions import Offered, Session, Share, seed_of, task_of

_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_RESET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "The task's id."},
        "data_idx": {"type": "integer", "minimum": 0, "description": "Or its place, from 0."},
        "seed": {"type": "integer", "minimum": 0, "description": "Or a seed that chooses one."},
    },
}
_ACT: dict[str, Any] = {
    "type": "object",
    "properties": {"action": {"type": "string", "description": "The action, in words."}},
    "required": ["action"],
}
_ABOUT_ACT = "Takes an action in the environment and tells what is observed after it."
_OWN = {
    "reset": ("Starts an episode, of a task or of any, and tells the first observation.", _RESET),
    "observe": ("Tells the present observation again.", {"type": "object", "properties": {}}),
}
_INSTRUCTIONS = (
    "An environment for language agents. An episode is running from the start: 'observe' tells its "
    "task. 'reset' starts another one; tools other than 'reset' and 'observe' act in it."
)


# The reward, the score and the facts would tell a model how far it is.
_FOR_MODELS = ("observation", "available_actions", "invalid_action", "done")
_STATE = "comap/state"


class Result(NamedTuple):
    """The answer of a tool: `message` is that of the `Session`, None for an error."""

    text: str
    message: dict[str, Any] | None = None
    tools_changed: bool = False

    @property
    def shown(self) -> dict[str, Any] | None:
        """What of the message the model may see: not its progress."""
        return self.message and {name: self.message[name] for name in _FOR_MODELS}


class EpisodeTools:
    """One environment as tools, for one client."""

    def __init__(self, offered: Offered):
        self._offered = offered
        self._session: Session | None = None
        self._functions: dict[str, dict[str, Any]] = {}

    @property
    def session(self) -> Session:
        if self._session is None:
            offered = self._offered
            session = Session(offered.env_ids[0], offered.make(), seconds=offered.seconds)
            session.reset()
            self._begin(session)
            return session
        return self._session

    def listed(self) -> list[dict[str, Any]]:
        """Return the tools: ``name``, ``description`` and ``inputSchema`` of each."""
        _ = self.session  # an episode is running from the start: its task decides on the functions
        tools = [
            {"name": name, "description": description, "inputSchema": schema}
            for name, (description, schema) in _OWN.items()
        ]
        for name, function in self._functions.items():
            description = function["description"]
            parameters = function["parameters"]
            tools.append({"name": name, "description": description, "inputSchema": parameters})
        if not self._functions:
            description = f"{_ABOUT_ACT}\n\n{self.session.instructions}"
            tools.append({"name": "act", "description": description, "inputSchema": _ACT})
        return tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Call a tool; errors are returned as text, not raised."""
        try:
            return self._call(name, arguments)
        except CoMapError as error:
            return Result(f"{error}")

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        session = self.session
        if name == "reset":
            unknown = set(arguments) - set(_RESET["properties"])
            if unknown:
                raise OptionError(f"expected task, data_idx or seed, found {min(unknown)[:80]!r}")
            names_before = list(self._functions)
            message = session.reset(task_of(session, arguments), seed_of(arguments))
            self._begin(session)
            tools_changed = names_before != list(self._functions)
            return Result(message["observation"], message, tools_changed)

        if name == "observe":
            message = session.message()
        elif name in self._functions:
            message = session.step(self._call_text(name, arguments))
        elif name == "act" and not self._functions:
            message = session.step(arguments.get("action"))
        else:
            names = [tool["name"] for tool in self.listed()]
            raise OptionError(
                f"expected one of the tools, found {name[:80]!r}; {suggest(name[:80], names)}"
            )

        if "error" in message:
            return Result(
                f"the environment failed ({message['error']}); reset starts another episode"
            )
        return Result(message["observation"], message)

    def _call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call of one of the task's functions as the environment reads it."""
        from ..envs.stabletoolbench.calls import write_call

        try:
            return write_call(self._functions[name]["name"], arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(
                f"expected arguments of plain JSON, found others ({error})"
            ) from error

    def _begin(self, session: Session) -> None:
        """Take an episode that has started, with the functions of its task as tools."""
        self._session = session
        self._functions = {}
        for function in getattr(session.env.unwrapped, "functions", []):
            name = function["name"]
            if name in _OWN:  # a task's function may be called reset, as a tool of ours is
                name = f"function_{name}"
            self._functions[name] = function


def mcp_server(offered: Offered, share: Share | None = None) -> Any:
    """Return a server of the official package ``mcp``; each connection has its `EpisodeTools`."""
    with needs_extra("mcp", "serving MCP"):
        import anyio
        from mcp import types
        from mcp.server.lowlevel import Server

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[tuple[EpisodeTools, Any]]:
        tools = EpisodeTools(offered)
        client = CLIENT.get()
        if share is not None:
            share.take(client, refuse=False)  # `_Handler` has done that
        try:
            yield tools, anyio.Lock()
        finally:
            tools.close()
            if share is not None:
                share.give_back(client)

    server: Any = Server("comap", __version__, _INSTRUCTIONS, lifespan=lifespan)

    async def list_tools() -> Any:
        tools, lock = server.request_context.lifespan_context
        async with lock:
            return [types.Tool(**tool) for tool in await anyio.to_thread.run_sync(tools.listed)]

    async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
        context = server.request_context
        tools, lock = context.lifespan_context
        async with lock:
            # In a thread: other clients are answered meanwhile.
            result = await anyio.to_thread.run_sync(tools.call, name, arguments)
        if result.tools_changed:
            await context.session.send_tool_list_changed()

        text = result.text.encode("utf-8", "replace").decode()  # without halves of characters
        content: list[Any] = [types.TextContent(type="text", text=text)]
        answer: dict[str, Any] = {"content": content, "isError": result.message is None}
        if result.message is not None:  # hosts show models the structured content, not the metadata
            answer |= {"structuredContent": result.shown, "_meta": {_STATE: result.message}}
        return types.CallToolResult(**answer)

    server.list_tools()(list_tools)
    server.call_tool(validate_input=False)(call_tool)  # the environment tells what is wrong
    return server


def http_app(
    offered: Offered,
    *,
    host: str,
    token: str | None = None,
    limit: int = 64,
    idle: float = 3600.0,
    share: int | None = None,
) -> Any:
    """Return the web application with the route ``/mcp``, MCP's streamable HTTP."""
    shares = Share(limit, share)
    server = mcp_server(offered, shares)
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.applications import Starlette
    from starlette.routing import Route

    logging.getLogger("mcp.server.streamable_http").addFilter(_worth_telling)
    hosts = [*_LOCAL, *(f"{name}:*" for name in _LOCAL)]
    manager = StreamableHTTPSessionManager(
        server,
        security_settings=TransportSecuritySettings(
            enable_dns_rebinding_protection=is_loopback(host), allowed_hosts=hosts
        ),
        session_idle_timeout=idle,
        json_response=True,  # answers are whole at once; as streams of events they take twice as long
        max_request_body_size=MAX_REQUEST_BYTES,
        max_sessions=limit,
    )

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(routes=[Route("/mcp", _Handler(manager, shares))], lifespan=lifespan)
    return Guard(app, host, token)


def _worth_telling(record: logging.LogRecord) -> bool:
    """Return whether a record of ``mcp`` tells more than that a client said good-bye."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ClosedResourceError"


class _Handler:
    """An ASGI application, which `Route` takes for one since it is no function."""

    def __init__(self, manager: Any, share: Share):
        self._manager = manager
        self._share = share

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import JSONResponse

        # A request without the id of a session opens one, and is refused where an HTTP status can say so.
        app = self._manager.handle_request
        opens_session = all(name != b"mcp-session-id" for name, _ in scope["headers"])
        if opens_session:
            refusal = self._share.refusal(CLIENT.get())
            if refusal is not None:
                app = JSONResponse({"error": str(refusal)}, refusal.status)
        await app(scope, receive, send)


def serve_stdio(offered: Offered) -> None:
    """Serve the client at standard input and output until it hangs up."""
    server = mcp_server(offered)
    import anyio
    from mcp.server.lowlevel import NotificationOptions
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        ends = [anyio.wrap_file(end) for end in (reader, writer)]
        async with stdio_server(*ends) as (reading, writing):
            await server.run(reading, writing, options)

    # What the package would read and write itself, it closes. An environment's own print must not
    # come between messages.
    with (
        os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8", errors="replace") as reader,
        os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as writer,
        redirect_stdout(sys.stderr),
    ):
        anyio.run(run)
