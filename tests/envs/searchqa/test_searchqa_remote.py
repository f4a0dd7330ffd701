"""Servers of passages: ours, and hostile ones (more in `test_http_exchange.py`); searches written down."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.envs.http import Server
from comap.envs.searchqa import (
    RemoteRetriever,
    open_index,
)
from comap.envs.searchqa.retriever import answer, retrieval_app
from comap.errors import EngineError, OptionError
from kits.hostile_server import HostileServer, hangs, raw, sends

ROW = {"document": {"id": "7", "contents": '"Emma"\nBy Jane Austen.'}, "score": 2.5}
BARE = {"id": 8, "contents": "Ada"}
TIMEOUT = 0.6


def url_of(server: Any) -> str:
    return f"{server.base}/retrieve"


@pytest.mark.parametrize("wire", ["queries", "query"])
def test_both_wire_formats(wire) -> None:
    with HostileServer(sends({"result": [[ROW, BARE, ROW]]})) as server:
        hits = RemoteRetriever(url_of(server), wire).search(["who?"], 2)
        assert server.requests == [
            {wire: ["who?"] if wire == "queries" else "who?", "topk": 2, "return_scores": True}
        ]
    assert hits == [[("7", "Emma", "By Jane Austen.", 2.5), ("8", "Ada", "", 0.5)]]


HOSTILE = {
    "hangs": (hangs, "no whole answer"),
    "garbage": (raw(b"<html>\xff"), "cannot be read"),
    "half a JSON": (raw(b'{"result": [[{"document"'), "cannot be read"),
    "500": (sends({"error": "x"}, 500), "status 500"),
    "no object": (sends([1]), "cannot be read"),
    "no result": (sends({"results": []}), "cannot be read"),
    "too few": (sends({"result": []}), "cannot be read"),
    "no passage": (sends({"result": [[3]]}), "cannot be read"),
    "no text": (sends({"result": [[{"document": {"id": "1"}}]]}), "cannot be read"),
    "no score": (
        raw(b'{"result": [[{"document": {"contents": "x"}, "score": NaN}]]}'),
        "cannot be read",
    ),
    "deep": (raw(b"[" * 100_000), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_fault_ends_the_episode_in_time_and_the_next_is_clean(name: str) -> None:
    behaviour, phrase = HOSTILE[name]
    now = behaviour
    with HostileServer(lambda handler: now(handler)) as server:
        options = {"retriever": url_of(server), "timeout": TIMEOUT, "topk": 1}
        env = gym.make("comap/SearchQA-v0", source="generated", **options)
        env.reset(seed=0)
        start = time.monotonic()
        observation, reward, terminated, truncated, info = env.step("<search>Emma</search>")
        assert time.monotonic() - start < TIMEOUT + 1.0
        assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
        assert info["error"].startswith("EngineError: ") and phrase in info["error"]
        now = sends({"result": [[ROW]]})
        _, info = env.reset(seed=1)
        assert "error" not in info
        observation, _, _, truncated, info = env.step("<search>Emma</search>")
        assert 'Doc 1(Title: "Emma") By Jane Austen.' in observation
        assert not truncated and "error" not in info and info["retrieved"] == ("7",)


def test_a_short_fault_is_asked_again() -> None:
    with HostileServer(sends({}, 503), sends({"result": [[ROW]]})) as server:
        assert RemoteRetriever(url_of(server)).search(["a"])[0][0].id == "7"
    right = sends({"result": [[ROW]]})
    for status, options in ((503, {"retries": 0}), (403, {})):
        with (
            HostileServer(sends({}, status), right) as server,
            pytest.raises(EngineError, match=str(status)),
        ):
            RemoteRetriever(url_of(server), **options).search(["a"])
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://x/y", "http://u:p@host/", "http://host/?q=1", "http://ho st/", "http://h:x/", "", 3],
)
def test_what_is_no_url(url: Any) -> None:
    with pytest.raises(OptionError) as refusal:
        RemoteRetriever(url)
    assert "u:p" not in str(refusal.value)


@pytest.fixture
def served(index: Path) -> Iterator[Server]:
    """A server of five passages."""
    with Server(retrieval_app(open_index(index), max_topk=4)) as server:
        yield server


@pytest.mark.parametrize("wire", ["queries", "query"])
def test_our_server_answers_our_client(wire, served: Server, index: Path) -> None:
    queries = ["Who wrote Emma?", "river", ""]
    hits = RemoteRetriever(served.base, wire).search(queries, 3)
    assert hits == open_index(index).search(queries, 3)
    assert RemoteRetriever(served.base).search(["a novel at a river by Jane Austen"], 50)[0] != []


def exchange(served: Server, body: bytes, path: str = "/retrieve", **headers: str):
    connection = http.client.HTTPConnection(served.base.removeprefix("http://"), timeout=10)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    status_and_body = response.status, json.loads(response.read())
    connection.close()
    return status_and_body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[" * 50_000, 400),
        (b"3", 422),
        (b"{}", 422),
        (b'{"query": "a", "queries": ["a"]}', 422),
        (b'{"query": 3}', 422),
        (b'{"queries": "a"}', 422),
        (b'{"queries": ["a", 3]}', 422),
        (b'{"query": "a", "topk": 0}', 422),
        (b'{"query": "a", "topk": true}', 422),
        (b'{"query": "a", "topk": "3"}', 422),
        (json.dumps({"queries": ["a"] * 600}).encode(), 422),
        (json.dumps({"query": "a" * 20_000}).encode(), 422),
        (b" " * (2**20 + 1), 413),
        (b" " * 2**24, 413),
        (b'{"query": "river", "topk": 1000000000}', 200),
        (b'{"query": "river", "top_k": 1}', 200),
        (b'{"queries": [], "return_scores": false}', 200),
    ],
)
def test_requests_are_checked(body: bytes, status: int, served: Server) -> None:
    answer_status, content = exchange(served, body)
    assert answer_status == status and ("result" if status == 200 else "error") in content
    if status == 200:
        assert all(len(row) <= 4 for row in content["result"])
    assert exchange(served, b'{"query": "emma"}')[1]["result"][0][0]["document"]["id"] == "c"


def test_one_query_too_long_refuses_itself_alone(served: Server) -> None:
    body = {"queries": ["emma", "a" * 20_000, "river"], "topk": 1}
    status, content = exchange(served, json.dumps(body).encode())
    first, second, third = content["result"]
    assert status == 200 and first[0]["document"]["id"] == "c"
    assert second == [] and third
    assert content["errors"] == [None, "expected at most 10,000 characters, found 20,000", None]
    assert "errors" not in exchange(served, b'{"query": "emma"}')[1]

    hits_by_query = RemoteRetriever(served.base).search(body["queries"], 1)
    assert [len(hits) for hits in hits_by_query] == [1, 0, 1]


def test_a_broken_index_is_a_500(index: Path) -> None:
    class Broken:
        identity = "broken"

        def search(self, queries, k=3):
            raise RuntimeError("secret path")

    with pytest.raises(OptionError, match="max_topk"):
        retrieval_app(Broken(), max_topk=0)
    with pytest.raises(RuntimeError):
        answer(Broken(), {"query": "x"})
    with Server(retrieval_app(Broken())) as server:
        status, content = exchange(server, b'{"query": "x"}')
    assert status == 500 and "secret" not in content["error"]
