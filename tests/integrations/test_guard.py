"""What web applications are wrapped in: bodies, failures, tokens, and how many may connect."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from comap.envs import json_server
from comap.envs.json_server import MAX_REQUEST_BYTES, JsonServer
from comap.integrations import guard
from comap.integrations.guard import Guard

TOKEN = "a-token-of-some-length"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Send a body back; fail where it says so."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        raise ValueError("secret words")
    body = (await receive())["body"]
    if b"fail" in body:
        raise ValueError("secret words")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def ask(parts: Any, kind: str = "http", extensions: Any = None, token: str = TOKEN) -> list[Any]:
    """Return what a guarded application sends after a body that comes in parts."""
    sent: list[Any] = []
    waiting = [
        {"type": "http.request", "body": part, "more_body": place < len(parts) - 1}
        for place, part in enumerate(parts)
    ]

    async def receive() -> Any:
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode())]
    scope = {"type": kind, "path": "/x", "headers": headers, "extensions": extensions}
    asyncio.run(Guard(echo, "127.0.0.1", TOKEN)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe",
        b'{"a": 1} x',
        b"[" * 100_000,
        b"1" * 5000,
        b'"\\ud800"',
        b'{"\\uDC00": 1}',
    ],
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    start, rest = ask([body[:1], body[1:]])
    assert start["status"] == 400 and "expected" in json.loads(rest["body"])["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{}", '"ä\\n"'.encode(), b'"\\ud83d\\ude00"', b'"\\\\ud800"']
)
def test_a_body_of_json_is_handed_on_as_it_is(body: bytes) -> None:
    start, rest = ask([body])
    assert (start["status"], rest["body"]) == (200, body)


def test_the_rest_of_a_refused_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask([b" " * MAX_REQUEST_BYTES, b"  ", b"  "])[0]["status"] == 413
    monkeypatch.setattr(guard, "_LINGER", 0.05)
    monkeypatch.setattr(guard, "_TIMEOUT", 0.05)
    assert ask([b"{}"], token="wrong")[0]["status"] == 401
    assert ask([])[0]["status"] == 408


def test_what_fails_is_told_in_a_line_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        start, rest = ask([b'"fail"'])
        assert start["status"] == 500 and b"ValueError" in rest["body"]
        closed = ask([], "websocket")[-1]
        assert (closed["type"], closed["code"]) == ("websocket.close", 1011)
    assert len(caplog.records) == 2 and "secret words" not in caplog.text + rest["body"].decode()
    assert "'/x' failed (ValueError at line" in caplog.text and "Traceback" not in caplog.text


def test_a_websocket_is_refused_with_a_status_where_that_can_be_told() -> None:
    start, rest = ask([], "websocket", {"websocket.http.response": {}}, token="wrong")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert b"token" in rest["body"]
    (closed,) = ask([], "websocket", token="wrong")
    assert closed["code"] == 1008


class Yes(JsonServer):
    routes: ClassVar[Mapping[str, tuple[str, ...]]] = {"/": ("GET", "POST")}

    def answer(self, method: str, path: str, asked: Any) -> Any:
        return "yes"


def test_one_connection_too_many_is_told_and_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_server, "MOST_CONNECTIONS", 1)
    with Yes() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        place = ("127.0.0.1", server.server_address[1])
        asked = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        with socket.create_connection(place, 10) as one:
            one.sendall(asked)
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
            for _ in range(3):
                with socket.create_connection(place, 10) as two:
                    assert b"503 Service Unavailable" in two.recv(1000)
        for _ in range(200):  # the first one's thread ends in a moment
            with socket.create_connection(place, 10) as three:
                three.sendall(asked)
                if three.recv(1000).startswith(b"HTTP/1.1 200"):
                    break
        else:
            pytest.fail("the server did not make way")
        server.shutdown()


@pytest.mark.parametrize(
    "begun",
    [b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"],
    ids=["headers", "body"],
)
def test_a_request_that_drips_is_hung_up_on(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What bounds each wait alone would never end a client that says a byte now and then."""
    monkeypatch.setattr(json_server._Handler, "timeout", 1.0)
    with Yes() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        place = ("127.0.0.1", server.server_address[1])
        with socket.create_connection(place, 10) as line:
            for _ in range(2):  # a connection that is used again has as long for each request
                line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert line.recv(1000).startswith(b"HTTP/1.1 200")
                time.sleep(0.6)
            line.sendall(begun)
            line.settimeout(0.1)
            for _ in range(200):
                try:
                    line.sendall(b"x")
                    if line.recv(1000) == b"":
                        break
                except TimeoutError:
                    continue
                except OSError:  # it is gone
                    break
            else:
                pytest.fail("the server waits on")
        server.shutdown()
