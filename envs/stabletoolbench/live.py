"""Asking a live ``/virtual`` server: one bounded exchange at a time, never longer than its time."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import ssl
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ...errors import OptionError
from ...lm.openai_connection import address_of
from .backends import BackendFault, Hit, Request
from .values import NotJSON, read_json_text

__all__ = ["MAX_ANSWER_BYTES", "LiveServer", "post_json"]

MAX_ANSWER_BYTES = 8 * 2**20
"""A larger answer is refused."""

_KEY = "TOOLBENCH_KEY"
_CHUNK = 65_536
_NO_MORE_TRIES = "not asked again"


class _Again(BackendFault):
    """A fault that may be gone at the next try."""


class LiveServer:
    """Asks a server that speaks StableToolBench's ``/virtual``.

    Redirects are not followed, proxies not used, and nothing of the environment is sent but the key in
    ``TOOLBENCH_KEY``, if there is one.

    Args:
        url: Of the route, such as ``http://127.0.0.1:8080/virtual``.
        timeout: The most seconds for one try, from its start to the answer's last byte.
        retries: How often it is asked again where it is silent or says that it is broken.

    Raises:
        OptionError: The URL is none.

    Example:
        >>> LiveServer("http://127.0.0.1:8080/virtual").name
        'live'
    """

    name = "live"

    def __init__(self, url: str, timeout: float = 10.0, retries: int = 1):
        try:
            self.url = address_of(url).url
        except OptionError as error:
            raise OptionError(str(error).replace("base_url", "live_url")) from None
        self.timeout, self.retries = timeout, retries

    def answer(self, request: Request) -> Hit | None:
        """Return what the server says.

        Raises:
            BackendFault: It says nothing in time, or nothing that is an answer.
        """
        body = {
            "category": request.category,
            "tool_name": request.tool,
            "api_name": request.api,
            "tool_input": json.dumps(dict(request.arguments)),
            "strip": "",
            "toolbench_key": os.environ.get(_KEY, ""),
        }
        for left in range(self.retries, -1, -1):
            try:
                return _hit(post_json(self.url, body, self.timeout))
            except _Again:
                if not left:
                    raise
        raise BackendFault(_NO_MORE_TRIES)


def _hit(data: Any) -> Hit:
    if not isinstance(data, dict) or not {"error", "response"} & data.keys():
        raise BackendFault(f"expected an object with error and response, found {_kind(data)}")
    error = data.get("error") or ""
    return Hit(
        error if isinstance(error, str) else json.dumps(error), data.get("response", ""), "live"
    )


def _kind(data: Any) -> str:
    return (
        f"an object with {sorted(data)[:5]!r:.80}"
        if isinstance(data, dict)
        else type(data).__name__
    )


def post_json(url: str, body: Mapping[str, Any], timeout: float) -> Any:
    """Send JSON and return the JSON that comes back.

    Args:
        url: An http or https URL.
        body: What to send.
        timeout: The most seconds from here to the answer's last byte, whatever the server does.

    Raises:
        BackendFault: No such answer came; its message names no address.
    """
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
    connection = _connection(url, timeout)

    def exchange() -> None:
        try:
            answers.put(_exchange(connection, url, body))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=exchange, daemon=True, name="comap-live").start()
    try:
        answer = answers.get(timeout=timeout)
    except queue.Empty:
        raise _Again(f"no whole answer within {timeout:g} s") from None
    finally:
        _hang_up(connection)
    if isinstance(answer, BackendFault):
        raise answer
    if isinstance(answer, TimeoutError):
        raise _Again(f"no whole answer within {timeout:g} s")
    if isinstance(answer, Exception):
        raise _Again(f"a broken connection ({type(answer).__name__})")
    try:
        return read_json_text(answer.decode())
    except (NotJSON, UnicodeDecodeError) as error:
        raise BackendFault(
            f"expected JSON, found {type(error).__name__}: {str(error)[:80]}"
        ) from None


def _connection(url: str, timeout: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout, context=context
        )
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def _exchange(connection: http.client.HTTPConnection, url: str, body: Mapping[str, Any]) -> bytes:
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    parts = urlsplit(url)
    connection.request("POST", parts.path or "/", json.dumps(body).encode(), headers)
    with connection.getresponse() as response:
        if response.status >= 500 or response.status == 429:
            raise _Again(f"status {response.status}")
        if response.status != 200:
            raise BackendFault(f"status {response.status}")
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise BackendFault("a compressed answer, which was not asked for")
        told = bytearray()
        while chunk := response.read(_CHUNK):
            told += chunk
            if len(told) > MAX_ANSWER_BYTES:
                raise BackendFault(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
        if response.length:
            raise _Again("an answer that broke off")
        return bytes(told)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """End a connection, whatever its thread is waiting for."""
    import socket

    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
