"""What web applications are wrapped in: bodies, failures, tokens, and how many may connect."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from comap.envs import http as serving
from comap.envs.http import MAX_REQUEST_BYTES, Guard, json_app

TOKEN = "a-token-of-some-length"


async def echo(scope, receive, send):
    """Send a body back; fail where it says so."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        raise ValueError("secret words")
    body = (await receive())["body"]
    if b"fail" in body:
        raise ValueError("secret words")
    body = b"x" * int(body) if body.isdigit() else body
    size = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": size})
    await send({"type": "http.response.body", "body": body})


def ask(parts, kind="http", extensions=None, token=TOKEN, app=None, **extra_headers):
    """Return what a guarded application sends after a body that comes in parts."""
    sent_messages = []
    waiting = [
        {"type": "http.request", "body": part, "more_body": place < len(parts) - 1}
        for place, part in enumerate(parts)
    ]

    async def receive():
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    async def send(message):
        sent_messages.append(message)

    header_fields = {"host": "127.0.0.1", "authorization": f"Bearer {token}"}
    header_fields |= {name.replace("_", "-"): value for name, value in extra_headers.items()}
    headers = [(name.encode(), value.encode()) for name, value in header_fields.items()]
    scope = {"type": kind, "path": "/x", "headers": headers, "extensions": extensions}
    asyncio.run((app or Guard(echo, "127.0.0.1", TOKEN))(scope, receive, send))
    return sent_messages


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
        b"[NaN, Infinity]",
    ],
)
def test_a_body_that_is_no_json_is_refused(body):
    start, rest = ask([body[:1], body[1:]])
    assert start["status"] == 400 and "expected" in json.loads(rest["body"])["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{}", '"ä\\n"'.encode(), b'"\\ud83d\\ude00"', b'"\\\\ud800"']
)
def test_a_body_of_json_is_handed_on_as_it_is(body):
    start, rest = ask([body])
    assert (start["status"], rest["body"]) == (200, body)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://a.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"host": "a.example"}, 403),
        ({"host": "[::1"}, 400),
        ({"host": "[::1]:80", "content_type": "application/json; charset=utf-8"}, 200),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_length": "2", "transfer_encoding": "chunked"}, 400),
        ({"content_length": "-2"}, 413),
    ],
)
def test_headers(headers, status):
    assert ask([b"{}"], **headers)[0]["status"] == status


def test_a_large_answer_is_sent_in_parts_and_counted_until_it_is_read(monkeypatch):
    size = 300_000
    monkeypatch.setattr(serving, "MAX_ANSWER_BYTES", size)
    monkeypatch.setattr(serving, "MOST_UNSENT_BYTES", size + 100_000)
    start, *parts = ask([str(size).encode()])
    assert start["status"] == 200 and sum(len(part["body"]) for part in parts) == size
    assert len(parts) > 3 and [part["more_body"] for part in parts[-2:-1]] == [True]
    assert ask([str(size + 1).encode()])[0]["status"] == 422
    guard, stuck = Guard(echo, "127.0.0.1"), asyncio.Event()
    statuses = []

    async def client(read):
        waiting = [{"type": "http.request", "body": str(size).encode(), "more_body": False}]

        async def receive():
            return waiting.pop(0)

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            elif not read:
                await stuck.wait()

        await guard({"type": "http", "headers": [(b"host", b"localhost")]}, receive, send)

    async def talk():
        slow = asyncio.create_task(client(False))
        await asyncio.sleep(0.01)
        await client(True)
        stuck.set()
        await slow
        await client(True)

    asyncio.run(talk())
    assert statuses == [200, 503, 200] and guard.unsent == 0


def test_the_rest_of_a_refused_body_is_read(monkeypatch):
    assert ask([b" " * MAX_REQUEST_BYTES, b"  ", b"  "])[0]["status"] == 413
    monkeypatch.setattr(serving, "_LINGER", 0.05)
    monkeypatch.setattr(serving, "_TIMEOUT", 0.05)
    assert ask([b"{}"], token="wrong")[0]["status"] == 401
    assert ask([])[0]["status"] == 408


def test_what_fails_is_told_in_a_line_without_its_words(caplog):
    with caplog.at_level(logging.WARNING):
        start, rest = ask([b'"fail"'])
        assert start["status"] == 500 and b"ValueError" in rest["body"]
        closed = ask([], "websocket")[-1]
        assert (closed["type"], closed["code"]) == ("websocket.close", 1011)
    assert len(caplog.records) == 2 and "secret words" not in caplog.text + rest["body"].decode()
    assert "'/x' failed (ValueError at line" in caplog.text and "Traceback" not in caplog.text


def test_a_websocket_is_refused_with_a_status_where_that_can_be_told():
    start, rest = ask([], "websocket", {"websocket.http.response": {}}, token="wrong")
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert b"token" in rest["body"]
    (closed,) = ask([], "websocket", token="wrong")
    assert closed["code"] == 1008


@pytest.mark.parametrize("extensions", [None, {"websocket.http.response": {}}])
def test_a_websocket_to_a_server_of_json_is_refused(extensions, caplog):
    app = json_app({"/x": ("POST",)}, lambda *_: {}, host="127.0.0.1", token=TOKEN)
    first, *_ = ask([], "websocket", extensions, app=app)
    if extensions is None:
        assert first["type"] == "websocket.close" and "found a WebSocket" in first["reason"]
    else:
        assert (first["type"], first["status"]) == ("websocket.http.response.start", 404)
    assert not caplog.records
