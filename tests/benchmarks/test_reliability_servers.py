"""The reliability benchmark's episodes on servers of environments, in each style."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.reliability import episodes, server_clients, servers
from comap.benchmarks.reliability.all_served import SERVED
from comap.benchmarks.reliability.episodes import ENVIRONMENT, OPTIONS, overfill, scripts
from comap.benchmarks.reliability.served import Line, Served
from comap.benchmarks.reliability.server_clients import altered, client
from comap.envs.conformance.transcripts import load
from comap.integrations import Offered, Session, Sessions
from comap.integrations.agentgym import EnvironmentServer

TOKEN = "a-token-of-some-length"
STYLES = {served.words[-1]: served for served in SERVED if served.words[0] == "env"}
LIMIT, IDLE = 3, 0.6


@contextmanager
def agentgym() -> Iterator[str]:
    sessions = Sessions(Offered([ENVIRONMENT], OPTIONS), LIMIT, IDLE)
    with EnvironmentServer(sessions, token=TOKEN) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.base
        server.shutdown()


@contextmanager
def serving(style: str) -> Iterator[str]:
    if style == "agentgym":
        with agentgym() as url:
            yield url
        return
    pytest.importorskip("uvicorn")
    pytest.importorskip(style)
    served: Any = load(f"{Path(__file__).parents[1] / 'integrations' / 'serving_kit.py'}:served")
    options: dict[str, Any] = {"host": "127.0.0.1", "token": TOKEN, "limit": LIMIT, "idle": IDLE}
    if style == "openenv":
        from comap.integrations.openenv import openenv_app as app
    else:
        from comap.integrations.mcp import http_app as app
    with served(app(Offered([ENVIRONMENT], OPTIONS), **options)) as url:
        yield f"{url}/mcp" if style == "mcp" else url


def line_to(served: Served, url: str, seed: int = 0) -> Line:
    return Line(served, url, TOKEN, random.Random(seed))


@pytest.mark.parametrize("style", STYLES)
def test_clients_play_whole_episodes(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "_WRONG", 0.5)
    monkeypatch.setattr(server_clients, "_WAITS", (0.01, 0.2))
    with serving(style) as url:
        lines = [line_to(STYLES[style], url, seed) for seed in range(LIMIT + 1)]
        threads = [threading.Thread(target=client, args=(line, 5)) for line in lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [line.found.plain() for line in lines]
    assert [one["losses"] for one in found] == [[]] * len(lines)
    counts = [one["counts"] for one in found]
    assert sum(one.get("episodes played", 0) for one in counts) >= 3
    assert sum(one.get("wrong requests", 0) for one in counts) >= 10


@pytest.mark.parametrize("style", STYLES)
def test_who_does_not_know_the_token_is_told_401(style: str) -> None:
    with serving(style) as url:
        found = servers.Findings()
        process: Any = type("Process", (), {"poll": lambda self: None, "returncode": None})()
        servers._check_alive(found, STYLES[style], url, TOKEN, process)
    told = found.plain()
    assert told["losses"] == [] and told["counts"]["requests without the token"] >= 4


def test_a_wrong_answer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Session.step

    def wrong(self: Session, action: Any) -> dict[str, Any]:
        told = step(self, action)
        return told | ({"reward": 2.0} if told["step"] == 5 else {})

    monkeypatch.setattr(Session, "step", wrong)
    monkeypatch.setattr(episodes, "_ABANDONED", 0.0)
    with agentgym() as url:
        line = line_to(STYLES["agentgym"], url)
        STYLES["agentgym"].talk(line, 0)
    assert "reward" in line.found.plain()["losses"][0]


def test_a_server_has_room_again_when_environments_were_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from comap.benchmarks.reliability.guests import AgentGymGuest

    monkeypatch.setattr(episodes, "LIMIT", LIMIT)
    monkeypatch.setattr(episodes, "IDLE", IDLE)
    monkeypatch.setattr(episodes, "_CLEARED", 0.5)
    with agentgym() as url:
        line = line_to(STYLES["agentgym"], url)
        overfill(line, lambda: AgentGymGuest(line))
        told = line.found.plain()
        assert told["losses"] == [] and told["counts"]["environments left open"] == LIMIT
        monkeypatch.setattr(Sessions, "close_idle", lambda self: 0)
        overfill(line, lambda: AgentGymGuest(line))
        assert "idle environments made way" in line.found.plain()["losses"][0]


def test_scripts_have_hostile_actions_and_requests_are_altered_anywhere() -> None:
    said = [action for script in scripts() for action, _ in script]
    assert len(said) > 50 and any("\x00" in action or "<" in action for action in said)
    rng = random.Random(0)
    sample = {"a": {"b": 1, "c": 2}, "d": 3}
    assert {altered(sample, rng)[1] for _ in range(200)} == {"a", "a.b", "a.c", "d"}
    assert sample == {"a": {"b": 1, "c": 2}, "d": 3}


def test_what_is_not_installed_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Served("a server", ("x",), lambda line, number: None, (), needs=("no_such_module",))
    monkeypatch.setattr(servers, "SERVED", (lacking,))
    told: list[str] = []
    found = servers.run_servers(0.01, 0, told.append)
    assert found["servers"] == {} and "no_such_module" in found["a server left out"]
    assert "left out" in told[0] and found["lost"] == 0
