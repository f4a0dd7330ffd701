"""An exchange ends in time and leaves no thread behind, whatever the server does."""

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

import pytest

from comap.envs.http import MAX_ANSWER_BYTES
from comap.envs.http_client import ExchangeFailure, post_json
from kits import hostile_server

TIMEOUT = 0.3
NEVER = {
    name: getattr(hostile_server, name)
    for name in ("hangs", "trickles", "trickles_headers", "trickles_and_closes")
}


def failure_of(behaviour: Any, timeout: float = 5.0) -> ExchangeFailure:
    with (
        hostile_server.HostileServer(behaviour) as server,
        pytest.raises(ExchangeFailure) as failure,
    ):
        post_json(f"{server.base}/x", b"{}", timeout)
    assert server.base not in str(failure.value) and "127.0.0.1" not in str(failure.value)
    return failure.value


def asking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "comap-exchange"]


def test_an_answer_is_returned_as_it_came() -> None:
    with hostile_server.HostileServer(hostile_server.raw(b"\xff any bytes")) as server:
        assert post_json(f"{server.base}/x", b'{"a": 1}', 5) == b"\xff any bytes"
    assert server.requests == [{"a": 1}]
    assert server.headers[0]["accept-encoding"] == "identity"
    assert server.headers[0]["content-type"] == "application/json"


@pytest.mark.parametrize("name", NEVER)
def test_a_server_that_never_ends_costs_its_time_and_no_thread(name: str) -> None:
    with hostile_server.HostileServer(NEVER[name]) as server:
        start = time.monotonic()
        with pytest.raises(
            ExchangeFailure, match=f"no whole answer within {TIMEOUT:g} s"
        ) as failure:
            post_json(server.base, b"{}", TIMEOUT)
        assert time.monotonic() - start < TIMEOUT + 1.0 and failure.value.again
        while asking() and time.monotonic() - start < 5:
            time.sleep(0.02)
        assert not asking(), "the thread goes on while the server does"


def test_a_connection_that_comes_too_late_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, ready = http.client.HTTPConnection.connect, threading.Event()

    def slowly(connection: http.client.HTTPConnection) -> None:
        ready.wait(10)  # as a name that is looked up
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", slowly)
    with hostile_server.HostileServer(hostile_server.raw(b"late")) as server:
        with pytest.raises(ExchangeFailure, match="no whole answer"):
            post_json(server.base, b"{}", 0.1)
        (thread,) = asking()
        ready.set()
        thread.join(5)
        assert not thread.is_alive() and server.requests == []


@pytest.mark.parametrize(
    ("behaviour", "phrase", "retryable"),
    [
        (hostile_server.sends({}, 500), "the status 500", True),
        (hostile_server.sends({}, 429), "the status 429", True),
        (hostile_server.sends({}, 404), "the status 404", False),
        (hostile_server.raw(b"", 302, location="http://127.0.0.1:1/"), "the status 302", False),
        (hostile_server.raw(b"xx", content_encoding="gzip"), "a compressed answer", False),
        (hostile_server.floods(200), f"more than {MAX_ANSWER_BYTES:,} bytes", False),
        (hostile_server.breaks_off, "broke off", True),
        (hostile_server.slams, "a broken connection (RemoteDisconnected)", True),
    ],
)
def test_what_is_no_answer(behaviour: Any, phrase: str, retryable: bool) -> None:
    failure = failure_of(behaviour)
    assert phrase in str(failure) and failure.again is retryable
