"""The reliability benchmark: its parts find nothing, and find what is broken on purpose."""

from __future__ import annotations

import json
import mmap
import os
import random
import threading
from contextlib import contextmanager
from functools import partial

import pytest

from comap.benchmarks import reliability
from comap.benchmarks.reliability import environments, files, servers
from comap.benchmarks.reliability.environments import Findings, in_processes, play
from comap.cli import main
from comap.envs.alfworld.engine import NativeEngine
from comap.envs.http import Server
from comap.envs.searchqa.retriever import CallableRetriever, retrieval_app
from comap.errors import OptionError
from comap.integrations import Offered, Session, Sessions
from comap.integrations.agentgym import agentgym_app

TOKEN = "a-token-of-some-length"
ALFWORLD = {"comap/ALFWorld-v0": 1}


# -- actions and load ----------------------------------------------------------------------------


def test_actions_of_all_kinds_lose_nothing():
    found, again = (play(ALFWORLD, 0, True, 150) for _ in range(2))
    assert found["lost"] == 0 and found["counts"]["actions"] == 150
    assert {"hostile", "random", "of the expert"} <= set(found["counts"])
    assert found["counts"] == again["counts"] and found["reported"] == again["reported"]


def test_an_engine_that_breaks_is_a_loss(monkeypatch):
    act = NativeEngine.act

    def breaking(self, action):
        if "\x1b" in action or "<" in action:
            raise RuntimeError("odd")
        return act(self, action)

    monkeypatch.setattr(NativeEngine, "act", breaking)
    found = play(ALFWORLD, 0, True, 150)
    assert found["lost"] > 0 and "RuntimeError: odd" in found["losses"][0]


def test_growth_is_that_of_the_second_half():
    found = Findings()
    found.check_memory([50.0 * (n < 50) * n for n in range(100)], "a process")
    assert found.figures["memory_growth_mb"] == found.lost == 0
    found.check_memory([0.6 * n for n in range(100)], "a process")
    assert found.losses == ["a process: memory grew by 29.4 MB over the second half"]


def test_memory_follows_what_is_held():
    if not (before := environments.held_mb()):
        pytest.skip("this system does not say")
    with mmap.mmap(-1, 64 * 2**20) as held:  # an array could get memory that was held before
        held.write(b"\1" * len(held))
        assert environments.held_mb()[0] - before[0] > 32


def test_a_process_that_dies_is_a_finding():
    dead, failed = in_processes(os._exit, (3,)), in_processes(int, ("x",))
    assert "BrokenProcessPool" in dead[0]["losses"][0] and "ValueError" in failed[0]["losses"][0]


# -- processes -----------------------------------------------------------------------------------


def test_a_vector_whose_process_is_killed():
    found = Findings()
    environments.kill_vector_worker(found, random.Random(0))
    assert found.losses == [] and found.counts["workers killed"] == 1


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, kind in files.KINDS.items() if not kind.slow])
def test_damaged_files_are_reported_or_read_right(name):
    found = files.damage_kind(name, 0.01, 3)
    assert found["losses"] == []
    assert found["counts"]["damaged"] == 20


# -- servers -------------------------------------------------------------------------------------


def asked(name, url, rounds, seeds=1):
    """What clients of a server find when they ask it at the same time."""
    clients = [servers.SERVERS[name][0](url, TOKEN, seed) for seed in range(seeds)]
    threads = [threading.Thread(target=client.run, args=(rounds,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [client.found for client in clients]


@contextmanager
def serving():
    offered = Offered([servers.ENVIRONMENT], servers.OPTIONS)
    with Server(agentgym_app(Sessions(offered, 3, 60), token=TOKEN)) as server:
        yield server.base


def test_clients_play_whole_episodes_and_need_the_token():
    with serving() as url:
        found = asked("env", url, 3, seeds=4)
        assert [one.losses for one in found] == [[]] * 4
        assert sum(one.counts["episodes played"] for one in found) >= 2
        assert sum(one.counts["wrong requests"] for one in found) >= 5
        servers.check_token(found[0], servers.SERVERS["env"][0], url, TOKEN)
        assert found[0].losses == [] and found[0].counts["requests without the token"] >= 4


def test_a_wrong_answer_is_found_out(monkeypatch):
    step = Session.step

    def wrong(self, action):
        answer = step(self, action)
        return answer | ({"reward": 2.0} if answer["step"] == 5 else {})

    monkeypatch.setattr(Session, "step", wrong)
    with serving() as url:
        (found,) = asked("env", url, 3)
    assert "'reward': 2.0" in found.losses[0] or "for step 5" in found.losses[0]


@pytest.mark.parametrize("right", [True, False])
def test_a_server_that_answers_wrongly_is_found_out(right):
    engine = CallableRetriever(
        lambda queries, k: [[{"id": f"{n}", "contents": "a"} for n in range(k)] for _ in queries]
    )
    with Server(retrieval_app(engine, token=TOKEN)) as server:
        kind = "search" if right else "tools"
        (found,) = asked(kind, f"{server.base}/retrieve", 30)
    assert (found.losses == []) == right and found.counts["malformed bodies"] > 0


# -- the command ---------------------------------------------------------------------------------


def test_the_command(tmp_path, monkeypatch, capsys):
    def part(lost, scale, seed, progress):
        return {"counts": {}, "lost": lost, "losses": ["a run"] * lost}

    monkeypatch.setattr(files, "run_corruption", partial(part, 0))
    monkeypatch.setattr(environments, "run_load", partial(part, 1))
    monkeypatch.setattr(reliability, "PARTS", {"corruption": "files", "load": "environments"})
    result = tmp_path / "reliability.json"
    words = ["bench", "reliability", "--scale", "0.1", "--out", str(tmp_path)]
    assert main([*words, "--parts", "corruption"]) == 0
    assert json.loads(result.read_text())["parts"]["corruption"]["scale"] == 0.1
    assert main(words) == 1
    assert "lost: a run" in capsys.readouterr().out
    assert main(["bench", "reliability", "--parts", "corruption", "--out", str(tmp_path)]) == 0
    kept = json.loads(result.read_text())
    assert {name: one["scale"] for name, one in kept["parts"].items()} == {
        "corruption": 1.0,
        "load": 0.1,
    }
    assert kept["lost"] == 1
    result.write_text('{"benchmark": "speed"}')
    assert main([*words, "--parts", "corruption"]) == 1
    assert "expected figures of comap bench reliability" in capsys.readouterr().err
    with pytest.raises(OptionError, match="there is no part 'corrupt'; did you mean 'corruption'"):
        reliability.run_reliability(1.0, ["corrupt"])
    with pytest.raises(OptionError, match="--scale"):
        reliability.run_reliability(0.0)
