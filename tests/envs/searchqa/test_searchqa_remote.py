"""Servers of passages: ours, and hostile ones. Whatever they do, an episode goes on or ends in time."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.envs.conformance.transcripts import load
from comap.envs.searchqa import RemoteRetriever, open_index
from comap.envs.searchqa.server import RetrievalServer, answer
from comap.errors import EngineError, OptionError

hostile = load(f"{Path(__file__).parents[2] / 'lm' / 'hostile_server.py'}:KIT")
HostileServer, sends, raw = hostile.HostileServer, hostile.sends, hostile.raw

ROW = {"document": {"id": "7", "contents": '"Emma"\nBy Jane Austen.'}, "score": 2.5}
BARE = {"id": 8, "contents": "Ada"}
TIMEOUT = 0.6


def url_of(server: Any) -> str:
    return f"{server.base}/retrieve"


@pytest.mark.parametrize("wire", ["queries", "query"])
def test_both_wire_formats(wire) -> None:
    with HostileServer(sends({"result": [[ROW, BARE, ROW]]})) as server:
        found = RemoteRetriever(url_of(server), wire).search(["who?"], 2)
        assert server.requests == [
            {wire: ["who?"] if wire == "queries" else "who?", "topk": 2, "return_scores": True}
        ]
    assert found == [[("7", "Emma", "By Jane Austen.", 2.5), ("8", "Ada", "", 0.5)]]


def test_many_queries() -> None:
    with HostileServer(sends({"result": [[ROW], []]})) as server:
        assert [len(hits) for hits in RemoteRetriever(url_of(server)).search(["a", "b"])] == [1, 0]
        assert RemoteRetriever(url_of(server)).search([]) == []
        assert len(server.requests) == 1


HOSTILE = {
    "hangs": (hostile.hangs, "no whole answer"),
    "trickles": (hostile.trickles, "no whole answer"),
    "trickles headers": (hostile.trickles_headers, "no whole answer"),
    "garbage": (raw(b"<html>\xff"), "cannot be read"),
    "half a JSON": (raw(b'{"result": [[{"document"'), "cannot be read"),
    "half an answer": (hostile.breaks_off, "broke"),
    "closes": (hostile.slams, "broken connection"),
    "500": (sends({"error": "x"}, 500), "status 500"),
    "404": (sends({"error": "x"}, 404), "status 404"),
    "a redirect": (raw(b"", 302, location="http://127.0.0.1:1/"), "status 302"),
    "50 MB": (hostile.floods(200), "more than 8,388,608 bytes"),
    "compressed": (raw(b"xxxx", content_encoding="gzip"), "compressed"),
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
    behaviour, said = HOSTILE[name]
    calls: list[int] = []

    def first_bad(handler: Any) -> None:
        calls.append(1)
        (behaviour if bad[0] else sends({"result": [[ROW]]}))(handler)

    bad = [True]
    with HostileServer(first_bad) as server:
        retriever = url_of(server)
        env = gym.make(
            "comap/SearchQA-v0", source="generated", retriever=retriever, timeout=TIMEOUT, topk=1
        )
        env.reset(seed=0)
        start = time.monotonic()
        observation, reward, terminated, truncated, info = env.step("<search>Emma</search>")
        assert time.monotonic() - start < TIMEOUT + 1.0
        assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
        assert info["error"].startswith("EngineError: ") and said in info["error"]
        bad[0] = False
        _, info = env.reset(seed=1)
        assert "error" not in info
        observation, _, _, truncated, info = env.step("<search>Emma</search>")
        assert 'Doc 1(Title: "Emma") By Jane Austen.' in observation
        assert not truncated and "error" not in info and info["retrieved"] == ("7",)


def test_a_style_asks_its_own_server() -> None:
    for style, name in (("search_r1", "queries"), ("verl", "query")):
        with HostileServer(sends({"result": [[ROW]]})) as server:
            env = gym.make(
                "comap/SearchQA-v0", source="generated", retriever=url_of(server), style=style
            )
            env.reset(seed=0)
            assert env.step("<search>Emma</search>")[4]["retrieved"] == ("7",)
            assert name in server.requests[0]


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


def test_nobody_there() -> None:
    with pytest.raises(EngineError, match="broken connection"):
        RemoteRetriever("http://127.0.0.1:1/retrieve", timeout=2).search(["a"])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/y",
        "http://",
        "http://u:p@host/",
        "http://host/?q=1",
        "http://ho st/",
        "http://h:x/",
        "",
        3,
    ],
)
def test_what_is_no_url(url: Any) -> None:
    with pytest.raises(OptionError) as told:
        RemoteRetriever(url)
    assert "u:p" not in str(told.value)


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"timeout": float("inf")}, {"wire": "x"}, {"retries": -1}]
)
def test_what_are_no_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        RemoteRetriever("http://127.0.0.1:1", **options)


@pytest.fixture
def served(index: Path) -> Iterator[RetrievalServer]:
    """A server of five passages."""
    with RetrievalServer(open_index(index), port=0, max_topk=4) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("wire", ["queries", "query"])
def test_our_server_answers_our_client(wire, served: RetrievalServer, index: Path) -> None:
    queries = ["Who wrote Emma?", "river", ""]
    found = RemoteRetriever(served.url, wire).search(queries, 3)
    assert found == open_index(index).search(queries, 3)
    assert RemoteRetriever(served.url).search(["a novel at a river by Jane Austen"], 50)[0] != []


def asked(served: RetrievalServer, body: bytes, path: str = "/retrieve", **headers: str):
    connection = http.client.HTTPConnection(*served.server_address[:2], timeout=10)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


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
def test_requests_are_checked(body: bytes, status: int, served: RetrievalServer) -> None:
    found, told = asked(served, body)
    assert found == status and ("result" if status == 200 else "error") in told
    if status == 200:
        assert all(len(row) <= 4 for row in told["result"])
    assert asked(served, b'{"query": "emma"}')[1]["result"][0][0]["document"]["id"] == "c"


def test_other_paths_and_health(served: RetrievalServer) -> None:
    assert asked(served, b"{}", "/other")[0] == 404
    connection = http.client.HTTPConnection(*served.server_address[:2], timeout=10)
    connection.request("GET", "/health")
    told = json.loads(connection.getresponse().read())
    assert told["status"] == "ok" and told["retriever"].startswith("fts5:")
    assert served.server_address[0] == "127.0.0.1"


def test_a_broken_index_is_a_500(index: Path) -> None:
    class Broken:
        identity = "broken"

        def search(self, queries, k=3):
            raise RuntimeError("secret path")

    with pytest.raises(OptionError, match="max_topk"):
        RetrievalServer(Broken(), port=0, max_topk=0)
    with pytest.raises(RuntimeError):
        answer(Broken(), {"query": "x"})
    with RetrievalServer(Broken(), port=0) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        status, told = asked(server, b'{"query": "x"}')
        server.shutdown()
    assert status == 500 and "secret" not in told["error"]
