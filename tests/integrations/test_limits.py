"""What no client can do to a server: hold connections, wait for ever, take all, or be a web page."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import comap
from comap.envs import http as serving
from comap.envs.http import CLIENT, Refused, Server, json_app
from comap.envs.searchqa.retriever import CallableRetriever, RemoteRetriever, retrieval_app
from comap.envs.stabletoolbench.backends import VirtualTools, virtual_app
from comap.errors import EngineError, NoEpisode
from comap.integrations import Offered, Sessions
from comap.integrations.agentgym import agentgym_app
from comap.integrations.mcp import http_app
from comap.integrations.sessions import Session, Share

pytest.importorskip("uvicorn")

ALFWORLD = "comap/ALFWorld-v0"
GENERATED = {"source": "generated"}
ROOT = Path(comap.__file__).parent.parent
FINDS = CallableRetriever(lambda queries, k: [[{"id": "7", "contents": "Emma"}] for _ in queries])


def offered():
    return Offered([ALFWORLD], GENERATED)


def openenv():
    from comap.integrations.openenv import openenv_app

    return openenv_app(offered(), host="127.0.0.1")


APPS = {
    "search": ("/retrieve", lambda: retrieval_app(FINDS)),
    "tools": ("/virtual", lambda: virtual_app(VirtualTools([], world=0))),
    "agentgym": ("/create", lambda: agentgym_app(Sessions(offered(), limit=2))),
    "openenv": ("/reset", openenv),
    "mcp": ("/mcp", lambda: http_app(offered(), host="127.0.0.1")),
}


def connect(base):
    host, _, port = base.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def post(base, path, body=b"{}", **headers):
    header_fields = {"content-type": "application/json"}
    header_fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    line = http.client.HTTPConnection(base.removeprefix("http://"), timeout=10)
    with contextlib.closing(line):
        line.request("POST", path, body, header_fields)
        response = line.getresponse()
        return response.status, response.read()


@pytest.mark.parametrize("kind", APPS)
def test_no_server_answers_a_web_page(kind):
    if kind in ("mcp", "openenv"):
        pytest.importorskip(kind)
    path, make = APPS[kind]
    with Server(make()) as server:
        assert post(server.base, path, origin="http://evil.example")[0] == 403
        assert post(server.base, path, host="evil.example")[0] == 403
        assert post(server.base, path, content_type="text/plain")[0] == 415
        assert post(server.base, path, host="[::1")[0] == 400
        assert post(server.base, path, b'{"a": NaN}')[0] == 400
        with connect(server.base) as line:
            lengths = b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"
            line.sendall(
                b"POST %s HTTP/1.1\r\nHost: localhost\r\n" % path.encode()
                + lengths
                + b"\r\n0\r\n\r\n"
            )  # with its end, for which the server else waits 2 s
            assert line.recv(100).startswith(b"HTTP/1.1 400")


@pytest.fixture
def hasty(monkeypatch):
    """A server with little patience."""
    monkeypatch.setattr(serving, "_TIMEOUT", 0.3)
    monkeypatch.setattr(serving, "_KEEP_ALIVE", 0.3)
    answers = {
        "/large": lambda: "x" * (2**23 - 100),
        "/slow": threading.Event().wait,
        "/small": lambda: 1,
    }
    app = json_app(
        dict.fromkeys(answers, ("POST",)),
        lambda method, path, arguments: answers[path](*arguments),
        host="127.0.0.1",
        seconds=0.2,
    )
    with Server(app) as server:
        yield server


SMALL = b"POST /small HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n[]"
LARGE = SMALL.replace(b"small", b"large")


@pytest.mark.parametrize(
    "payload", [b"", b"POST /small HTTP/1.1\r\nHost: loc", SMALL, SMALL + b"POST /small HTTP"]
)
def test_a_connection_without_a_request_is_ended(payload, hasty):
    with connect(hasty.base) as line:
        line.sendall(payload)
        while line.recv(2**16):  # until the server hangs up
            pass


def test_a_connection_is_kept_while_the_model_of_a_client_thinks(monkeypatch):
    """A request into a connection that the server ends just then is lost."""
    monkeypatch.setattr(serving, "_TIMEOUT", 0.3)
    monkeypatch.setattr(serving, "_KEEP_ALIVE", 60.0)
    app = json_app({"/small": ("POST",)}, lambda method, path, arguments: 1, host="127.0.0.1")
    with Server(app) as server, connect(server.base) as line:
        for _ in range(2):
            line.sendall(SMALL)
            assert line.recv(2**16).startswith(b"HTTP/1.1 200")
            time.sleep(1)


def test_a_client_that_does_not_read_is_hung_up_on(hasty):
    connections = hasty._server.server_state.connections
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            line = stack.enter_context(connect(hasty.base))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sendall(LARGE)
        end = time.monotonic() + 20
        while not connections:
            assert time.monotonic() < end
        while connections:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert post(hasty.base, "/small", b"[]")[0] == 200


def test_an_answer_has_a_limit_of_time(hasty):
    status, body = post(hasty.base, "/slow", b"[1.0]")
    assert status == 504 and b"within 0.2 s" in body


def test_a_client_that_waits_for_100_continue_is_told_to_go_on(hasty):
    with connect(hasty.base) as line:
        line.sendall(SMALL[:-2].replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert line.recv(100).startswith(b"HTTP/1.1 100")
        line.sendall(b"[]")
        assert line.recv(1000).startswith(b"HTTP/1.1 200")


class Stuck:
    """An environment whose step waits."""

    def __init__(self):
        self.go, self.closed = threading.Event(), False

    def reset(self, seed=None, options=None):
        info = {"admissible_actions": None, "facts": comap.State(), "success": False, "score": 0.0}
        return "Hello.", info | dict.fromkeys(("task", "split", "goal", "invalid_action", "step"))

    def step(self, action):
        self.go.wait(20)
        return self.reset()[0], 0.0, False, False, self.reset()[1]

    def close(self):
        self.closed = True


def test_a_step_has_a_limit_of_time():
    env = Stuck()
    session = Session("", env, seconds=0.1)
    session.reset()
    with pytest.raises(Refused) as late:
        session.step("look")
    assert late.value.status == 504
    with pytest.raises(NoEpisode):
        session.step("look")
    with pytest.raises(Refused) as busy:
        session.reset()
    assert busy.value.status == 409
    session.close()
    assert not env.closed  # not while it steps
    env.go.set()
    while session.busy:
        time.sleep(0.01)
    assert session.reset()["observation"] == "Hello." and session.step("look")
    session.close()
    assert env.closed


def test_a_client_has_a_share_of_the_environments():
    sessions = Sessions(offered(), limit=4)
    for client, most in (("192.0.2.1", 2), ("192.0.2.2", 2)):
        CLIENT.set(client)
        session_ids = [sessions.create()[0] for _ in range(most)]
        with pytest.raises(Refused, match=r"of a client|on this server"):
            sessions.create()
        assert all(re.fullmatch("[0-9a-f]{32}", name) for name in session_ids)
    CLIENT.set("127.0.0.1")
    with pytest.raises(Refused, match="fewer than 4 open environments on this server"):
        sessions.create()
    sessions.close_all()
    assert len([sessions.create() for _ in range(4)]) == 4  # programs of this machine: all
    sessions.close_all()
    share = Share(8, 1)
    share.take("a")
    with pytest.raises(Refused, match="of a client"):
        share.take("a")
    share.give_back("a")
    share.take("a")


def test_a_token_is_the_default(tmp_path, monkeypatch):
    """It is printed, requests without it are refused, and comap's own clients have it from a variable."""
    words = [sys.executable, "-m", "comap", "serve", "search", "--port", "0"]
    environ = {"COMAP_HOME": str(tmp_path), "PATH": "", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            printed = process.stdout.readline() + process.stdout.readline()
            token = re.search(r"Bearer ([\w-]{32})'", printed)[1]
            base = re.search(r"http://[\d.:]+", printed)[0]
            query_body = json.dumps({"query": "river"}).encode()
            assert post(base, "/retrieve", query_body)[0] == 401
            assert post(base, "/retrieve", query_body, authorization=f"Bearer {token}")[0] == 200
            with pytest.raises(EngineError, match="COMAP_CLIENT_TOKEN"):
                RemoteRetriever(base).search(["river"])
            monkeypatch.setenv("COMAP_CLIENT_TOKEN", token)
            assert RemoteRetriever(base).search(["river"])[0]
        finally:
            process.terminate()


HELLO = {
    **{"jsonrpc": "2.0", "id": 1, "method": "initialize"},
    "params": {
        **{"protocolVersion": "2025-06-18", "capabilities": {}},
        "clientInfo": {"name": "host", "version": "1"},
    },
}


@pytest.mark.parametrize("said", ["", f"{json.dumps(HELLO)}\n"])
def test_a_host_of_mcp_that_hangs_up_is_no_fault(said):
    pytest.importorskip("mcp")
    words = ["serve", "env", "--env", ALFWORLD, "--style", "mcp", "--stdio"]
    process = subprocess.run(
        [sys.executable, "-m", "comap", *words],
        cwd=ROOT,
        input=said,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0 and ('"serverInfo"' in process.stdout) == bool(said), (
        process.stderr
    )
