"""The official client of the package ``mcp``, alike for its versions 1 and 2."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any


class McpSession:
    """A session of the official client; tools and results are plain dictionaries."""

    def __init__(self, session: Any):
        self._session = session

    async def initialize(self) -> dict[str, Any]:
        return _plain(await self._session.initialize())

    async def list_tools(self) -> list[dict[str, Any]]:
        return _plain(await self._session.list_tools())["tools"]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return _plain(await self._session.call_tool(name, arguments))


def _plain(result: Any) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json")


@asynccontextmanager
async def http_session(url: str, token: str) -> AsyncIterator[McpSession]:
    """Open a session at a server of streamable HTTP, without its handshake."""
    import mcp
    from mcp.client import streamable_http

    # mcp 2 has a client of HTTP of its own.
    library = getattr(streamable_http, "httpx2", None) or streamable_http.httpx
    headers = {"authorization": f"Bearer {token}"}
    async with AsyncExitStack() as stack:
        client = library.AsyncClient(headers=headers, trust_env=False, timeout=20)
        await stack.enter_async_context(client)
        transport = streamable_http.streamable_http_client(url, http_client=client)
        ends = await stack.enter_async_context(transport)
        session = mcp.ClientSession(*ends[:2])
        yield McpSession(await stack.enter_async_context(session))


@asynccontextmanager
async def stdio_session(command: str, words: list[str], folder: Any) -> AsyncIterator[McpSession]:
    """Start a server and open a session at its standard input and output, without its handshake."""
    import mcp
    from mcp.client.stdio import StdioServerParameters, stdio_client

    parameters = StdioServerParameters(command=command, args=words, cwd=folder)
    async with stdio_client(parameters) as ends, mcp.ClientSession(*ends) as session:
        yield McpSession(session)
