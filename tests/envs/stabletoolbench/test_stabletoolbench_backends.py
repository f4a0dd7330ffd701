"""Backends: the cache, the overlay, live servers and simulators, in order, and all that goes wrong."""

from __future__ import annotations

import ast
import json
import re
import time
from pathlib import Path

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.envs.stabletoolbench.apps import world_of
from comap.envs.stabletoolbench.backends import (
    BackendFault,
    Chain,
    GeneratedTools,
    Hit,
    Overlay,
    Request,
    ResponseCache,
)
from comap.errors import OptionError
from kits.hostile_server import HostileServer, hangs, raw, sends
from kits.stabletoolbench import NAMES, Scripted, api, call, write_query

ID = "comap/StableToolBench-v0"


ASKED = Request("Food", "drinks", "by_id", {"is_id": "7", "n": 1})
QUICK = 0.4


def url_of(server):
    return f"{server.base}/virtual"


def says(response, error=""):
    """Answer rightly."""
    return sends({"error": error, "response": response})


FAULTS = {
    "hangs": (hangs, "no whole answer"),
    "half a JSON, told whole": (raw(b'{"error": "", "resp'), "expected JSON"),
    "garbage": (raw(b"\xff\xfe<html>"), "expected JSON"),
    "a list": (raw(b"[1]"), "expected an object"),
    "other keys": (raw(b'{"detail": 1}'), "expected an object"),
    "deep": (raw(b"[" * 100_000), "expected JSON"),
    "500": (raw(b"oops", 500), "status 500"),
}


@pytest.fixture
def data(tmp_path):
    """Official files of one query, made here."""
    folder = write_query(tmp_path / "data", api("By ID", [("id",)], [("n", "NUMBER")]))
    place = folder / "tool_response_cache" / "Food" / "drinks_for_Food"
    place.mkdir(parents=True)
    cached_answers = {"{'is_id': '7', 'n': 1}": {"error": "", "response": {"name": "Daiquiri"}}}
    cached_answers['{"n": "2", "is_id": 7}'] = {"error": "no", "response": ""}
    cached_answers["__import__('os').abort()"] = {"error": "", "response": "never"}
    (place / "by_id.json").write_text(json.dumps(cached_answers))
    return folder


def make(data, **options):
    return gym.make(ID, data_dir=str(data), split="G1_tool", **options)


def answered(env, **arguments):
    observation, _, terminated, truncated, info = env.step(call("by_id_for_drinks", **arguments))
    assert not terminated and not truncated and "error" not in info
    return json.loads(observation), info


def test_the_cache_answers_exact_and_equal_calls(data):
    env = make(data)
    env.reset(seed=0)
    for arguments in ({"id": "x"}, {}):
        answer, info = answered(env, **arguments)
        assert info["invalid_action"] and info["tool_source"] == ""
    for arguments in ({"is_id": "7", "n": 1}, {"n": "1", "is_id": 7}, {"n": 1.0, "is_id": "7"}):
        answer, info = answered(env, **arguments)
        assert answer == {"error": "", "response": {"name": "Daiquiri"}}
        assert (info["tool_source"], info["tool_status"]) == ("cache", "ok")
        assert ("ret", str(info["step"]), "$.name", "daiquiri") in info["facts"].facts
    answer, info = answered(env, is_id="7", n=2)
    assert (answer["error"], info["tool_source"], info["tool_status"]) == ("no", "cache", "failed")
    answer, info = answered(env, is_id="8")
    assert answer["error"].startswith("Cache miss") and info["tool_source"] == "none"
    assert info["tool_status"] == "cache_miss" and info["tool_faults"] == ()


def test_the_official_cache_of_real_responses_is_read(official):
    cache = ResponseCache(official / "tool_response_cache")
    files = sorted(official.glob("tool_response_cache/*/*/*.json"))
    assert len(files) == 54
    entry_count = 0
    for path in files:
        category = path.parent.parent.name
        tool = path.parent.name.removesuffix(f"_for_{category}")
        for key, entry in json.loads(path.read_bytes()).items():
            arguments = ast.literal_eval(key)
            request = Request(category, tool, path.stem, arguments)
            if category.startswith("_"):
                continue
            hit = cache.answer(request)
            assert hit is not None and hit.response == entry["response"]
            turned = dict(reversed([(name, str(value)) for name, value in arguments.items()]))
            assert cache.answer(request._replace(arguments=turned)) is not None
            entry_count += 1
    assert entry_count > 80


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leaves_the_cache(data, name):
    (data / "secret.json").write_text('{"{}": {"error": "", "response": "secret"}}')
    cache = ResponseCache(data / "tool_response_cache")
    for part in ("category", "tool", "api"):
        assert cache.answer(ASKED._replace(arguments={}, **{part: name})) is None
    env = make(data)
    env.reset(seed=0)
    for text in (call(name), f"Action: {name}\nAction Input: {{}}"):
        observation, *_, info = env.step(text)
        assert info["invalid_action"] and "error" not in info
        assert json.loads(observation)["response"] == ""


def test_a_link_out_of_the_cache_is_not_followed(data, tmp_path):
    outside = tmp_path / "outside.json"
    outside.write_text('{"{}": {"error": "", "response": "secret"}}')
    place = data / "tool_response_cache" / "Food" / "drinks_for_Food" / "linked.json"
    place.symlink_to(outside)
    cache = ResponseCache(data / "tool_response_cache")
    assert cache.answer(ASKED._replace(api="linked", arguments={})) is None


@pytest.mark.parametrize("content", ["{", "[]", '{"{}": 3}', '{"{}": {"error": ""}}'])
def test_a_broken_cache_file_is_a_fault_and_no_end(data, content):
    path = data / "tool_response_cache" / "Food" / "drinks_for_Food" / "by_id.json"
    path.write_text(content)
    cache = ResponseCache(data / "tool_response_cache")
    with pytest.raises(BackendFault, match="by_id"):
        cache.answer(ASKED._replace(arguments={}))
    if content in "{[]":
        env = make(data)
        env.reset(seed=0)
        _, info = answered(env, is_id="7")
        assert info["tool_faults"] and info["tool_status"] == "not_working"


@pytest.mark.parametrize("kind", sorted(FAULTS))
def test_a_bad_server_costs_its_time_and_no_more(data, tmp_path, kind):
    behaviour, expected = FAULTS[kind]
    options = {"timeout": QUICK, "retries": 0, "overlay": str(tmp_path / "overlay.jsonl")}
    good = says({"name": "Mojito"})
    with HostileServer(behaviour, good) as server:
        env = make(data, live_url=url_of(server), **options)
        env.reset(seed=0)
        start = time.monotonic()
        answer, info = answered(env, is_id="8")
        assert time.monotonic() - start < QUICK + 1.5
        assert info["tool_status"] == "not_working" and len(info["tool_faults"]) == 1
        assert re.search(expected, info["tool_faults"][0]), info["tool_faults"]
        assert server.base not in info["tool_faults"][0]
        assert not Path(options["overlay"]).exists()
        _, info = env.reset(seed=0)
        assert info["tool_faults"] == ()
        answer, info = answered(env, is_id="8")
        assert answer["response"] == {"name": "Mojito"} and info["tool_source"] == "live"
        assert info["tool_faults"] == ()


def test_a_server_is_asked_again_and_then_never(data, tmp_path):
    options = {"timeout": 5, "retries": 2, "overlay": str(tmp_path / "overlay.jsonl")}
    with HostileServer(raw(b"", 503), raw(b"", 500), says(["ok"])) as server:
        env = make(data, live_url=url_of(server), **options)
        env.reset(seed=0)
        assert answered(env, is_id="8")[0]["response"] == ["ok"]
        assert len(server.requests) == 3
        body = server.requests[0]
        assert [body[key] for key in ("category", "tool_name", "api_name")] == list(ASKED[:3])
        assert json.loads(body["tool_input"]) == {"is_id": "8"} and body["toolbench_key"] == ""
        for next_env in (env, make(data, live_url=url_of(server), **options)):
            next_env.reset(seed=0)
            answer, info = answered(next_env, is_id=8)
            assert (answer["response"], info["tool_source"]) == (["ok"], "live")
        assert len(server.requests) == 3
    next_env = make(data, overlay=options["overlay"])
    assert next_env.unwrapped.fingerprint()["overlay"] == env.unwrapped.fingerprint()["overlay"]
    next_env.reset(seed=0)
    assert answered(next_env, is_id="8")[1]["tool_source"] == "live"


def test_a_simulator_answers_what_nobody_else_knows(data, tmp_path):
    model = Scripted("no JSON", '```json\n{"error": "", "response": {"name": "Gimlet"}}\n```')
    env = make(data, simulator=model, overlay=str(tmp_path / "overlay.jsonl"))
    env.reset(seed=0)
    assert answered(env, is_id="7", n=1)[1]["tool_source"] == "cache" and not model.asked
    answer, info = answered(env, is_id="8")
    assert info["tool_status"] == "not_working" and "wrote no JSON" in info["tool_faults"][0]
    answer, info = answered(env, is_id="8")
    assert (answer["response"], info["tool_source"]) == ({"name": "Gimlet"}, "sim")
    answer, info = answered(env, is_id="8")
    assert (answer["response"], info["tool_source"]) == ({"name": "Gimlet"}, "sim")
    assert len(model.asked) == 2 and "by_id" in model.asked[0]


def test_an_overlay_keeps_the_first_answer(tmp_path):
    path, second = tmp_path / "deep" / "overlay.jsonl", ASKED._replace(arguments={"b": 2})
    overlay, reopened = Overlay(path), Overlay(path)
    assert overlay.keep(ASKED, Hit("", "first", "sim")) == reopened.keep(
        ASKED, Hit("", "later", "live")
    )
    assert reopened.answer(ASKED).response == "first" and reopened.answer(second) is None
    overlay.keep(second, Hit("", "second", "live"))
    assert reopened.answer(second).response == "second"
    assert overlay.sha256() == Overlay(path).sha256() != Overlay(tmp_path / "none").sha256()


def test_the_first_that_answers_is_right():
    class Broken:
        name = "broken"

        def answer(self, request):
            raise BackendFault("down")

    tools = GeneratedTools(world_of(0).ledger())
    chain = Chain([Broken(), tools])
    hit, faults = chain.ask(Request("Finance", "currency", "list", {}))
    assert hit.source == "local" and faults == ("broken: down",)
    assert chain.ask(ASKED)[0].error.startswith("API not working")
    wrong = tools.answer(Request("Finance", "currency", "rate", {"is_from": []}))
    assert wrong.error == "Missing required parameter: to"


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("timeout", (0, float("nan"), "soon")),
        ("retries", (-1, True)),
        ("live_url", ("ftp://x/virtual", "http://user:pass@x/virtual")),
        ("simulator", (7, "")),
    ],
)
def test_wrong_options_are_told(data, option, values):
    for value in values:
        with pytest.raises(OptionError) as error:
            make(data, **{option: value})
        assert "pass@" not in str(error.value)
