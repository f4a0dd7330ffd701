"""Our environments as tools of the Model Context Protocol: each client has an episode."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import __version__
from ..envs.http import CLIENT, MAX_REQUEST_BYTES, Guard, is_loopback
from ..errors import CoMapError, NoEpisode, OptionError, needs_extra, suggest
from .recording import RecordedEpisode, Recording
from .sessions import IDLE, SPARED, Offered, Session, Share, seed_of, task_of

_CLOSING_SECONDS = 10.0  # that closing an environment may take on a busy machine
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
    "An environment for language agents. Each session has its own episode, which starts when the tools "
    "are listed: 'observe' tells its task. 'reset' starts another one; tools other than 'reset' and "
    "'observe' act in it. Keep one session open for an episode: a new session knows nothing of it."
)
_INSTRUCTIONS_OF_ONE = (
    "An environment for language agents, with one episode: 'observe' tells its task and the present "
    "observation, the other tools act in it. It cannot be begun again."
)
_NO_EPISODE = (
    "expected 'reset' first, found {name!r} as the first call of a new session, which has no episode. If "
    "you have called 'reset' before, that was in another session: your client opens one for each call. "
    "Keep one session open (in LangChain: async with client.session(...))"
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
    """One environment as tools, for one client.

    Args:
        offered: What clients may make; the first environment is taken.
        recording: Where its episodes are recorded.
        task: The only task, of which there is one episode: it begins by itself and is not begun again,
            and how far it is, is not in the metadata of results either.
    """

    def __init__(
        self, offered: Offered, recording: Recording | None = None, task: str | None = None
    ):
        self.client = ""
        """Name and version of the client, where it gave them."""
        self._offered = offered
        self._recording = recording
        self._task = task
        self._session: Session | None = None
        self._episode: RecordedEpisode | None = None
        self._functions: dict[str, dict[str, Any]] = {}

    @property
    def session(self) -> Session:
        if self._session is None:
            offered = self._offered
            session = Session(offered.env_ids[0], offered.make(), seconds=offered.seconds)
            seed = None if self._task is None else 0
            self._reset(session, self._task, seed, is_asked=self._task is not None)
            return session
        return self._session

    @property
    def hides_state(self) -> bool:
        """Whether results have no reward, score and facts in their metadata either."""
        return self._task is not None

    def listed(self) -> list[dict[str, Any]]:
        """Return the tools: ``name``, ``description`` and ``inputSchema`` of each."""
        _ = self.session  # an episode is running from the start: its task decides on the functions
        tools = [
            {"name": name, "description": description, "inputSchema": schema}
            for name, (description, schema) in _OWN.items()
            if name != "reset" or self._task is None
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

    def call_of(self, action: str) -> tuple[str, dict[str, Any]]:
        """Return the call of a tool, and its arguments, that takes an action of the environment."""
        if not self._functions:
            return "act", {"action": action}
        call = json.loads(action)
        names = {function["name"]: name for name, function in self._functions.items()}
        return names[call["name"]], dict(call["arguments"])

    def close(self) -> None:
        if self._episode is not None:
            self._episode.leave()
        if self._session is not None:
            self._session.close()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        # A client with a session for each call would play first steps of new episodes for ever.
        if self._session is None and name != "reset" and self._task is None:
            raise NoEpisode(_NO_EPISODE.format(name=name[:80]))
        session = self.session
        if name == "reset" and self._task is None:
            unknown = set(arguments) - set(_RESET["properties"])
            if unknown:
                raise OptionError(f"expected task, data_idx or seed, found {min(unknown)[:80]!r}")
            names_before = list(self._functions)
            task, seed = task_of(session, arguments), seed_of(arguments)
            message = self._reset(session, task, seed, is_asked=True)
            tools_changed = names_before != list(self._functions)
            return Result(message["observation"], message, tools_changed)

        if name == "observe":
            message = session.message()
            if self._episode is not None:
                self._episode.take_part()
        elif name in self._functions:
            message = self._step(session, self._call_text(name, arguments))
        elif name == "act" and not self._functions:
            message = self._step(session, arguments.get("action"))
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

    def _reset(
        self, session: Session, task: str | None, seed: int | None, *, is_asked: bool
    ) -> dict[str, Any]:
        """Start an episode, and its record where there is one; return its message."""
        if self._recording is None:
            message = session.reset(task, seed)
            self._begin(session)
            return message

        if self._episode is not None:
            self._episode.leave("the client began another one")
            self._episode = None
        if task is None and seed is not None:
            task = session.reset(None, seed)["task"]  # which one the seed selects

        # Task and seed are both given: a replay of the record begins in the same way.
        tasks = session.env.get_wrapper_attr("tasks").ids
        place = self._recording.reserve(tasks, task, seed)
        try:
            message = session.reset(place.task, place.seed)
        except BaseException:
            self._recording.release(place)
            raise
        self._begin(session)
        self._episode = self._recording.begin(place, session, self.client, is_asked=is_asked)
        return message

    def _step(self, session: Session, action: Any) -> dict[str, Any]:
        """Take an action, and record it where episodes are."""
        try:
            message = session.step(action)
        except Exception as error:
            # A step that took too long has no answer, and ends the episode.
            if self._episode is not None and session.moment is None:
                self._episode.end(f"{type(error).__name__}: {error}")
            raise
        if self._episode is not None and session.moment is not None:
            self._episode.step(action, session.moment)
        return message

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


def mcp_server(
    offered: Offered,
    share: Share | None = None,
    recording: Recording | None = None,
    task: str | None = None,
) -> Any:
    """Return a server of the official package ``mcp``; each connection has its `EpisodeTools`.

    Args:
        offered: What clients may make.
        share: How many connections there may be; None for a single one.
        recording: Where the episodes are recorded.
        task: The only task: all connections share its one episode.
    """
    with needs_extra("mcp", "serving MCP"):
        import anyio
        from mcp.server.lowlevel import Server

    instructions = _INSTRUCTIONS if task is None else _INSTRUCTIONS_OF_ONE
    shared: list[_Connected] = []  # one, of the first connection

    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[_Connected]:
        is_shared = task is not None and share is not None
        own = _Connected(EpisodeTools(offered, recording, task), anyio.Lock())
        if is_shared and not shared:
            shared.append(own)
        client = CLIENT.get()
        if share is not None:
            share.take(client, refuse=False)  # `_Handler` has done that
        try:
            yield shared[0] if is_shared else own
        finally:
            if not is_shared:
                own.tools.close()
            if share is not None:
                share.give_back(client)

    with needs_extra("mcp", "serving MCP"):
        if "on_call_tool" in inspect.signature(Server).parameters:
            return _second_server(connected, instructions, is_single=share is None)
        return _first_server(connected, instructions)


class _Connected(NamedTuple):
    """The episode of a connection; whoever uses it holds the lock."""

    tools: EpisodeTools
    lock: Any


def _name_of(client: Any) -> str:
    """Return name and version of the client of a session of ``mcp``, as far as it gave them."""
    parameters = getattr(client, "client_params", None)
    about = getattr(parameters, "clientInfo", None) or getattr(parameters, "client_info", None)
    return f"{getattr(about, 'name', '')} {getattr(about, 'version', '')}".strip()


async def _list_tools(connected: _Connected, client: Any) -> Any:
    import anyio
    from mcp import types

    connected.tools.client = _name_of(client)
    async with connected.lock:
        tools = await anyio.to_thread.run_sync(connected.tools.listed)
    return types.ListToolsResult.model_validate({"tools": tools})


async def _call_tool(
    connected: _Connected, name: str, arguments: Mapping[str, Any] | None, client: Any
) -> Any:
    import anyio
    from mcp import types

    connected.tools.client = _name_of(client)
    async with connected.lock:
        # In a thread: other clients are answered meanwhile.
        result = await anyio.to_thread.run_sync(connected.tools.call, name, arguments or {})
    if result.tools_changed:
        await client.send_tool_list_changed()

    text = result.text.encode("utf-8", "replace").decode()  # without halves of characters
    answer: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    answer["isError"] = result.message is None
    if result.message is not None:  # hosts show models the structured content, not the metadata
        answer["structuredContent"] = result.shown
        if not connected.tools.hides_state:
            answer["_meta"] = {_STATE: result.message}
    return types.CallToolResult.model_validate(answer)


def _first_server(connected: Callable[[Any], Any], instructions: str) -> Any:
    """Return the server of mcp 1, whose lifespan is that of a connection."""
    from mcp import types
    from mcp.server.lowlevel import Server

    server: Any = Server("comap", __version__, instructions, lifespan=connected)

    async def list_tools(_: Any) -> Any:
        context = server.request_context
        return types.ServerResult(await _list_tools(context.lifespan_context, context.session))

    async def call_tool(request: Any) -> Any:
        context = server.request_context
        name, arguments = request.params.name, request.params.arguments
        result = await _call_tool(context.lifespan_context, name, arguments, context.session)
        return types.ServerResult(result)

    # Not by the decorators: theirs check arguments, where the environment tells what is wrong, and list
    # the tools before a call, which is for clients to do.
    server.request_handlers[types.ListToolsRequest] = list_tools
    server.request_handlers[types.CallToolRequest] = call_tool
    return server


def _second_server(connected: Callable[[Any], Any], instructions: str, is_single: bool) -> Any:
    """Return the server of mcp 2, whose lifespan is that of the whole server."""
    from mcp.server.lowlevel import Server

    @asynccontextmanager
    async def nothing(_: Any) -> AsyncIterator[None]:
        yield None

    async def connected_of(context: Any) -> _Connected:
        if is_single:
            single: _Connected = context.lifespan_context
            return single

        # The package keeps a state for each connection, and handlers get no other way to it.
        connection = context.session._connection
        if _STATE not in connection.state:
            entered = await connection.exit_stack.enter_async_context(connected(None))
            connection.state[_STATE] = entered
        present: _Connected = connection.state[_STATE]
        return present

    async def open_at_once(context: Any, call_next: Any) -> Any:
        await connected_of(context)  # it counts from the first message
        return await call_next(context)

    async def list_tools(context: Any, _: Any) -> Any:
        return await _list_tools(await connected_of(context), context.session)

    async def call_tool(context: Any, call: Any) -> Any:
        current = await connected_of(context)
        return await _call_tool(current, call.name, call.arguments, context.session)

    server: Any = Server(
        "comap",
        version=__version__,
        instructions=instructions,
        lifespan=connected if is_single else nothing,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.append(open_at_once)
    return server


def http_app(
    offered: Offered,
    *,
    host: str,
    token: str | None = None,
    limit: int = 64,
    idle: float = IDLE,
    share: int | None = None,
    recording: Recording | None = None,
    task: str | None = None,
    is_private: bool = False,
) -> Any:
    """Return the web application with the route ``/mcp``, MCP's streamable HTTP.

    Args:
        offered: What clients may make.
        host: The address that it is served at.
        token: What requests must send; None for programs of this machine alone.
        limit: How many sessions may be open.
        idle: Seconds after which an unused session is ended.
        share: How many sessions a client may have open.
        recording: Where the episodes are recorded.
        task: The only task: all clients share its one episode.
        is_private: Whether nobody but its clients reaches the network, so that no token is needed.
    """
    shares = Share(limit, share)
    server = mcp_server(offered, shares, recording, task)
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.applications import Starlette
    from starlette.routing import Route

    logging.getLogger("mcp.server.streamable_http").addFilter(_worth_telling)
    hosts = [*_LOCAL, *(f"{name}:*" for name in _LOCAL)]

    # mcp 2.0, which verifiers 0.4 needs, counts no sessions; `_Handler` does.
    limits = {}
    if "max_sessions" in inspect.signature(StreamableHTTPSessionManager).parameters:
        limits["max_sessions"] = limit
    manager = StreamableHTTPSessionManager(
        server,
        security_settings=TransportSecuritySettings(
            enable_dns_rebinding_protection=is_loopback(host), allowed_hosts=hosts
        ),
        session_idle_timeout=idle,
        json_response=True,  # answers are whole at once; as streams of events they take twice as long
        max_request_body_size=MAX_REQUEST_BYTES,
        **limits,
    )

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with manager.run():
            yield
            if recording is not None:  # sessions that end now were not left by their clients
                recording.is_stopping = True

    app = Starlette(
        routes=[Route("/mcp", _WithHandshake(_Handler(manager, shares, idle)))], lifespan=lifespan
    )
    return Guard(app, host, token, is_private=is_private)


def _worth_telling(record: logging.LogRecord) -> bool:
    """Return whether a record of ``mcp`` tells more than that a client said good-bye."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ClosedResourceError"


_UNSUPPORTED = -32022  # the protocol's own number for a version that is not served


class _WithHandshake:
    """Refuses requests of protocol versions without sessions, which have no place for an episode.

    Clients that know such a version know the others, too: they open a session then.
    """

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import JSONResponse

        version = ""
        for name, value in scope["headers"]:
            if name == b"mcp-protocol-version":
                version = value.decode("latin-1")
        supported = _versions_with_sessions()
        if not version or version in supported:
            await self._app(scope, receive, send)
            return

        error = {
            "code": _UNSUPPORTED,
            "message": "expected a protocol version with sessions: an episode is a session's",
            "data": {"supported": supported, "requested": version[:80]},
        }
        response = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)
        await response(scope, receive, send)


def _versions_with_sessions() -> list[str]:
    try:
        from mcp_types import version
    except ImportError:  # mcp 1 has none without sessions
        from mcp.shared.version import SUPPORTED_PROTOCOL_VERSIONS

        return list(SUPPORTED_PROTOCOL_VERSIONS)
    return list(version.HANDSHAKE_PROTOCOL_VERSIONS)


@dataclass
class _Connection:
    """A session of the protocol: whose it is, when it was used, and what goes on in it."""

    client: str
    used: float
    calls: int = 0
    streams: int = 0  # a client that is there reads one, for what the server says by itself


class _Handler:
    """An ASGI application, which `Route` takes for one since it is no function.

    Clients that break off end no session: where no more may be open, the one that was unused longest is
    ended for a new one, by the request that its own client would have sent.
    """

    def __init__(self, manager: Any, share: Share, idle: float):
        self._manager = manager
        self._share = share
        self._idle = idle
        self._connections: dict[str, _Connection] = {}
        self._opening = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        # A request without the id of a session opens one, and is refused where an HTTP status can say so.
        session_id = _session_in(scope["headers"])
        if session_id:
            await self._within(session_id, scope, receive, send)
            return

        # One at a time: a session counts only once it is open, and two must not take the last place.
        async with self._opening:
            await self._open(scope, receive, send)

    async def _open(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request that opens a session, once there is room for it."""
        from starlette.responses import JSONResponse

        client = CLIENT.get()
        await self._make_room(client, scope)
        refusal = self._share.refusal(client)
        if refusal is not None:
            await JSONResponse({"error": str(refusal)}, refusal.status)(scope, receive, send)
            return

        async def send_noted(message: Any) -> None:
            opened_id = _session_in(message.get("headers", ()))
            if opened_id:
                self._connections[opened_id] = _Connection(client, time.monotonic())
            await send(message)

        await self._manager.handle_request(scope, receive, send_noted)

    async def _within(self, session_id: str, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request of an open session on, and note when it ends."""
        connection = self._connections.get(session_id)
        is_gone = scope["method"] == "DELETE"

        async def send_noted(message: Any) -> None:
            nonlocal is_gone
            is_gone = is_gone or message.get("status") == 404
            await send(message)

        is_stream = scope["method"] == "GET"
        if connection is not None:
            connection.streams += is_stream
            connection.calls += not is_stream
        try:
            await self._manager.handle_request(scope, receive, send_noted)
        finally:
            if connection is not None:
                connection.streams -= is_stream
                connection.calls -= not is_stream
                connection.used = time.monotonic()
            if is_gone:
                self._connections.pop(session_id, None)

    async def _make_room(self, client: str, scope: Any) -> None:
        """End the session that was unused longest, where a client could else open none."""
        import anyio

        # The package ends idle sessions by itself.
        now = time.monotonic()
        for session_id, connection in list(self._connections.items()):
            is_used = connection.calls or connection.streams
            if now - connection.used > 2 * self._idle and not is_used:
                del self._connections[session_id]

        # An environment is closed, and counted no more, a moment after its session has ended.
        async def wait_while(full_of: str | None) -> None:
            with anyio.move_on_after(_CLOSING_SECONDS):
                while full_of is not None and self._share.crowd(client) == full_of:
                    await anyio.sleep(0.01)

        if len(self._connections) < self._share.limit:
            await wait_while(self._share.crowd(client))

        while (crowd := self._share.crowd(client)) is not None:
            now = time.monotonic()
            unused = [
                (connection.streams > 0, connection.used, session_id)
                for session_id, connection in self._connections.items()
                if crowd in ("", connection.client)
                and now - connection.used >= SPARED
                and not connection.calls
            ]
            if not unused:
                return
            _, _, session_id = min(unused)
            if await self._end(session_id, scope):
                await wait_while(crowd)

    async def _end(self, session_id: str, scope: Any) -> bool:
        """End a session of another client; return whether it was open still."""
        was_open = True
        headers = [pair for pair in scope["headers"] if pair[0] not in (b"content-length",)]
        headers.append((_SESSION_HEADER, session_id.encode()))

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal was_open
            was_open = was_open and message.get("status") != 404

        request = {**scope, "method": "DELETE", "headers": headers}
        await self._within(session_id, request, receive, send)
        return was_open


_SESSION_HEADER = b"mcp-session-id"


def _session_in(headers: Any) -> str:
    """Return the id of a session that headers name; empty for none."""
    values = (value.decode("latin-1") for name, value in headers if name.lower() == _SESSION_HEADER)
    return next(values, "")


def serve_stdio(
    offered: Offered, recording: Recording | None = None, task: str | None = None
) -> None:
    """Serve the client at standard input and output until it hangs up.

    Args:
        offered: What the client may make.
        recording: Where its episodes are recorded.
        task: The only task, of which there is one episode.
    """
    server = mcp_server(offered, recording=recording, task=task)
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
