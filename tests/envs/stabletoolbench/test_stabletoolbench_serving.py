"""`comap serve tools`: reference pipelines' requests, and what no request may do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import gymnasium as gym
import pytest

import comap
from comap.cli import main
from comap.envs.stabletoolbench import ResponseCache, serving
from comap.envs.stabletoolbench.serving import MAX_BODY_BYTES, VirtualTools

ROOT = Path(comap.__file__).parent.parent


def body(**changes):
    told = {"category": "Finance", "tool_name": "currency", "api_name": "list", "tool_input": "{}"}
    return told | {"strip": "", "toolbench_key": ""} | changes


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server in a process of its own; its URL."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    words = [sys.executable, "-m", "comap", "serve", "tools", "--port", "0"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving http://127.0.0.1:") and line.endswith("/virtual\n")
        yield line.split()[1]
    finally:
        process.terminate()
        process.wait(20)


def post(url, data):
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_embedded_tools_are_served(server):
    status, told = post(server, json.dumps(body()).encode())
    assert status == 200 and told["error"] == "" and len(told["response"]["currencies"]) == 5
    asked = body(
        tool_name="hotels", category="Travel", api_name="details", tool_input={"hotel_id": 3}
    )
    status, told = post(server, json.dumps(asked).encode())
    assert (status, told) == (200, {"error": "hotel '3' not found", "response": ""})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b" " * (MAX_BODY_BYTES + 1), 413),
        (b"[]", 200),
        (b'{"category": 1}', 200),
    ],
)
def test_bad_requests_are_told(server, data, expected):
    status, told = post(server, data)
    assert status == expected and told["error"].startswith("request invalid")
    assert post(server, json.dumps(body(tool_name="x")).encode())[0] == 200


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    pytest.importorskip("fastapi")
    monkeypatch.setattr(serving, "_TIMEOUT", 0.05)
    said = []

    async def receive():
        await asyncio.sleep(0.02)  # a byte now and then
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message):
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/virtual",
        "headers": [],
        "query_string": b"",
    }
    asyncio.run(serving.virtual_app(VirtualTools([], 0))(scope, receive, send))
    assert said[0]["status"] == 408 and (b"connection", b"close") in said[0]["headers"]
    assert "request invalid" in json.loads(said[1]["body"])["error"]


def test_an_environment_asks_a_server(server, tmp_path):
    """Our environment as a client of our server, on queries that only the server knows."""
    folder = tmp_path / "test_instruction"
    folder.mkdir()
    from comap.envs.stabletoolbench.apps import api_records

    query = {"query_id": 7, "query": "Rates?", "api_list": list(api_records("geography"))}
    (folder / "G1_tool.json").write_text(json.dumps([query]))
    env = gym.make(
        "comap/StableToolBench-v0",
        data_dir=str(tmp_path),
        split="G1_tool",
        live_url=server,
        overlay=str(tmp_path / "overlay.jsonl"),
    )
    env.reset(seed=0)
    action = json.dumps({"name": "city_for_geography", "arguments": {"city_id": "G-20"}})
    observation, *_, info = env.step(action)
    assert info["tool_source"] == "live" and json.loads(observation)["response"]["id"] == "G-20"


@pytest.mark.parametrize(
    "name", ["../../x", "/etc/passwd", "a\x00", "x" * 10_000, "．．/x", "", 7, None]
)
def test_no_name_is_a_path(official, name):
    tools = VirtualTools([ResponseCache(official / "tool_response_cache")], world=0)
    for key in ("category", "tool_name", "api_name"):
        told = tools.answer(body(**{key: name}))
        assert told["response"] == "" or key == "category"
    assert tools.answer(body(tool_input="{"))["error"].startswith("Tool input parse error")
    assert tools.answer(body(tool_input="[1]"))["error"].startswith("Tool input parse error")
    assert tools.answer(body(tool_input="__import__('os')"))["response"] == ""


def test_the_cache_is_served(official):
    tools = VirtualTools([ResponseCache(official / "tool_response_cache")])
    asked = body(
        category="Data",
        tool_name="theclique",
        api_name="songkick_artist",
        tool_input='{"artist_id": "lionel-messi"}',
    )
    assert tools.answer(asked) == {"error": "", "response": {"on_tour": "no"}}
    assert tools.answer(body())["error"].startswith("Cache miss")
    assert tools.answered == {"cache": 1, "none": 1}


def test_many_threads_share_one_world():
    tools = VirtualTools([], world=0)
    asked = {"flight_id": "FL-101", "seats": 1}
    answers = []

    def book():
        told = tools.answer(
            body(category="Travel", tool_name="flights", api_name="book", tool_input=asked)
        )
        answers.append(told["response"] and told["response"]["booking_id"])

    threads = [threading.Thread(target=book) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    booked = [answer for answer in answers if answer]
    assert len(set(booked)) == len(booked) >= 2 and len(answers) == 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--world", "-1"], "--world"),
        (["--data-dir", "nowhere"], "tool_response_cache"),
        (["--port", "70000"], "--port"),
        (["--host", "203.0.113.1"], "expected a token"),
        (["--host", "203.0.113.1", "--token-file", "secret"], "cannot listen"),
        (["--live-url", "ftp://x"], "live_url"),
        (["--timeout", "0"], "timeout"),
    ],
)
def test_wrong_words_are_told(words, message, capsys, tmp_path, monkeypatch):
    pytest.importorskip("uvicorn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMAP_SERVE_TOKEN", raising=False)
    (tmp_path / "secret").write_text("a-token-of-some-length-1234567890\n")
    assert main(["serve", "tools", *words]) == 1
    assert message in capsys.readouterr().err
