"""`comap serve tools`: reference pipelines' requests, and what no request may do."""

from __future__ import annotations

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
from comap.envs.stabletoolbench.apps import api_records
from comap.envs.stabletoolbench.backends import ResponseCache, VirtualTools
from kits.stabletoolbench import NAMES, call, write_query

ROOT = Path(comap.__file__).parent.parent


def body(**changes):
    request = {
        "category": "Finance",
        "tool_name": "currency",
        "api_name": "list",
        "tool_input": "{}",
    }
    return request | {"strip": "", "toolbench_key": ""} | changes


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server in a process of its own; its URL."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    words = [sys.executable, "-m", "comap", "serve", "tools", "--port", "0", "--no-token"]
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
    status, answer = post(server, json.dumps(body()).encode())
    assert status == 200 and answer["error"] == "" and len(answer["response"]["currencies"]) == 5
    request_body = body(
        tool_name="hotels", category="Travel", api_name="details", tool_input={"hotel_id": 3}
    )
    status, answer = post(server, json.dumps(request_body).encode())
    assert (status, answer) == (200, {"error": "hotel '3' not found", "response": ""})


def test_an_environment_asks_a_server(server, tmp_path):
    """Our environment as a client of our server, on queries that only the server knows."""
    folder = write_query(tmp_path, *api_records("geography"))
    env = gym.make(
        "comap/StableToolBench-v0",
        data_dir=str(folder),
        split="G1_tool",
        live_url=server,
        overlay=str(tmp_path / "overlay.jsonl"),
    )
    env.reset(seed=0)
    observation, *_, info = env.step(call("city_for_geography", city_id="G-20"))
    assert info["tool_source"] == "live" and json.loads(observation)["response"]["id"] == "G-20"


@pytest.mark.parametrize("name", [*NAMES, 7, None])
def test_no_name_is_a_path(official, name):
    tools = VirtualTools([ResponseCache(official / "tool_response_cache")], world=0)
    for key in ("category", "tool_name", "api_name"):
        answer = tools.answer(body(**{key: name}))
        assert answer["response"] == "" or key == "category"
    assert tools.answer(body(tool_input="{"))["error"].startswith("Tool input parse error")
    assert tools.answer(body(tool_input="[1]"))["error"].startswith("Tool input parse error")
    assert tools.answer(body(tool_input="__import__('os')"))["response"] == ""


def test_many_threads_share_one_world():
    tools = VirtualTools([], world=0)
    booking_input = {"flight_id": "FL-101", "seats": 1}
    answers = []

    def book():
        answer = tools.answer(
            body(category="Travel", tool_name="flights", api_name="book", tool_input=booking_input)
        )
        answers.append(answer["response"] and answer["response"]["booking_id"])

    threads = [threading.Thread(target=book) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    booked = [answer for answer in answers if answer]
    assert len(set(booked)) == len(booked) >= 2 and len(answers) == 30
