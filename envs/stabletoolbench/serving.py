"""`/virtual` served here, for reference pipelines: embedded tools, the cache, what is configured."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Mapping
from typing import Any

from ...errors import MissingExtra
from ..json_server import same_token
from .apps import world_of
from .backends import Answered, Backend, Chain, Embedded, Request
from .names import changed, standard
from .values import NotJSON, read_json_text

__all__ = ["MAX_BODY_BYTES", "VirtualTools", "virtual_app"]

MAX_BODY_BYTES = 2**20
"""A larger request is refused."""

_LONGEST_NAME = 300
_TIMEOUT = 30.0


class VirtualTools:
    """Answers requests of reference pipelines; many threads may ask at once.

    The embedded tools are one world that all callers share; everything else is as in an episode. Names
    come from anywhere: they are looked up, and lead to no file outside of the cache.

    Args:
        backends: What is asked after the embedded tools.
        world: Seed of the embedded tools' tables; None to serve none.

    Example:
        >>> tools = VirtualTools([], world=0)
        >>> tools.answer({"category": "Finance", "tool_name": "currency", "api_name": "list",
        ...               "tool_input": "{}"})["error"]
        ''
        >>> tools.answer({"category": "Food", "tool_name": "x", "api_name": "y", "tool_input": "{"})
        {'error': 'Tool input parse error: expected JSON', 'response': ''}
    """

    def __init__(self, backends: list[Backend], world: int | None = None):
        self._embedded = None if world is None else Embedded(world_of(world).ledger())
        self._chain = Chain(backends)
        self._lock = threading.Lock()
        self.answered: dict[str, int] = {}

    def answer(self, body: Any) -> dict[str, Any]:
        """Return ``{"error", "response"}`` for a request's body."""
        request = _request(body)
        if isinstance(request, str):
            return {"error": request, "response": ""}
        hit, _ = self._asked(request)
        with self._lock:
            self.answered[hit.source] = self.answered.get(hit.source, 0) + 1
        return {"error": hit.error, "response": hit.response}

    def _asked(self, request: Request) -> Answered:
        if self._embedded is not None:
            with self._lock:
                hit = self._embedded.answer(request)
            if hit is not None:
                return Answered(hit)
        return self._chain.ask(request)


def _request(body: Any) -> Request | str:
    """Return the request of a body, or what is wrong with it."""
    if not isinstance(body, Mapping):
        return "request invalid: expected an object"
    names = [body.get(name) for name in ("category", "tool_name", "api_name")]
    texts = [name for name in names if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME]
    if len(texts) < len(names):
        return "request invalid: expected the texts category, tool_name and api_name"
    said = body.get("tool_input", {})
    if isinstance(said, str):
        try:
            said = read_json_text(said) if said.strip() else {}
        except NotJSON:
            return "Tool input parse error: expected JSON"
    if said is None:
        said = {}
    if not isinstance(said, dict):
        return "Tool input parse error: expected an object"
    category, tool, api = texts
    tool = tool.removesuffix(f"_for_{category}")
    return Request(category, standard(tool), changed(standard(api)), said)


def virtual_app(tools: VirtualTools, token: str | None = None) -> Any:
    """Return the web application with the route ``/virtual``.

    A body is at most `MAX_BODY_BYTES`, and comes within 30 seconds.

    Args:
        tools: What answers.
        token: What requests must tell as ``Authorization: Bearer TOKEN``; None for nothing.

    Raises:
        MissingExtra: The package ``fastapi`` is not installed.
    """
    try:
        from fastapi import FastAPI
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import Request as WebRequest
        from starlette.responses import JSONResponse
    except ImportError as error:
        raise MissingExtra.of("serve", "serving tools") from error
    app = FastAPI(title="comap tools", docs_url=None, redoc_url=None, openapi_url=None)

    def refused(status: int, why: str) -> JSONResponse:
        told = {"error": f"request invalid: {why}", "response": ""}
        return JSONResponse(told, status, {"connection": "close"})

    async def virtual(request: WebRequest) -> JSONResponse:
        if token is not None and not same_token(request.headers.get("authorization"), token):
            return refused(401, "expected the token")
        try:
            body = await asyncio.wait_for(_whole(request.stream()), _TIMEOUT)
        except asyncio.TimeoutError:
            return refused(408, f"expected the body within {_TIMEOUT:.0f} seconds")
        if body is None:
            return refused(413, "the body is too large")
        try:
            data = read_json_text(body.decode())
        except (NotJSON, UnicodeDecodeError):
            return refused(400, "expected JSON")
        return JSONResponse(await run_in_threadpool(tools.answer, data))

    app.add_route("/virtual", virtual, methods=["POST"])
    return app


async def _whole(chunks: AsyncIterable[bytes]) -> bytes | None:
    """Return a body that comes in chunks; None where it is too large."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    return bytes(body)
