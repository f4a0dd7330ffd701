"""Any text, any bytes, any JSON: what reads them is total, and what is canonical stays as it is.

``HYPOTHESIS_PROFILE=long`` tries fifty times as many examples.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import comap  # noqa: F401  (registers the environments)
from comap.agents import parsing
from comap.agents.parsing import read_tags, text_between
from comap.envs.registry import class_of
from comap.envs.searchqa.retriever import CallableRetriever, answer
from comap.envs.stabletoolbench.backends import VirtualTools
from comap.envs.stabletoolbench.calls import (
    NotJSON,
    canonical_json,
    parse_call,
    read_json_text,
    write_call,
)
from comap.errors import CoMapError, DataCorrupt, FactSyntaxError, OptionError
from comap.facts import State
from comap.lm.chat_replies import BadAnswer, read_chat
from comap.lm.thoughts import hide_thoughts, without_thoughts
from comap.trajectory import Trajectory, read_trajectories

ENVIRONMENTS = {
    f"comap/{name}-v0": pieces
    for name, pieces in {
        "ALFWorld": (
            "You are in the middle of a room. Looking quickly around you, you see a desk 1.",
            "You arrive at fridge 1. The fridge 1 is closed.",
            "You open the fridge 1. The fridge 1 is open. In it, you see a egg 1, and a cup 2.",
            "You pick up the egg 1 from the fridge 1.",
            "Nothing happens.",
            "Your task is to: put a hot egg in desk.",
        ),
        "ScienceWorld": (
            "This room is called the kitchen. In it, you see: \n\ta table. On the table is: a cup",
            "You move to the hallway.",
            "The door is now open.",
            "Ambiguous request: Please enter the number for the action you intended",
            "In your inventory, you see:\n\tan orange",
            "the thermometer measures a temperature of 10 degrees celsius",
        ),
        "WebShop": (
            "WebShop [SEP] Instruction: [SEP] a red shoe [SEP] Search",
            "Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP] B000000003",
            "color [SEP] red [SEP] Price: $9.99 [SEP] Rating: N.A. [SEP] Buy Now",
            "search[red shoes]",
            "click[b000000003]",
            "Your score (min 0.0, max 1.0): 1.0",
        ),
        "StableToolBench": (
            '{"error": "", "response": {"id": 7, "total": 3}}',
            'Action: city_for_geography\nAction Input: {"city_id": "C-1"}',
            '{"error": "Rate limit: 3 requests", "response": ""}',
            'Finish({"return_type": "give_answer", "final_answer": "7"})',
        ),
        "SearchQA": (
            "<search>who wrote Emma</search>",
            '<information>Doc 1(Title: "Emma") A novel.</information>',
            "<answer>Jane Austen</answer>",
            "<think>so</think>",
        ),
        "Web": (
            "URL shop.test/item?id=3\n[1] RootWebArea 'Lamp'\n\t[2] link 'Cart'",
            "\t[3] combobox 'Size' value: 'S'\n\t\t[4] option 'S' selected: true",
            "type [textbox 'Town'] [x] [1]",
            "click [link 'it\\'s [7]' 2]",
            "select 7 [ M ]",
            "stop [N/A]",
            "Answer: 'x'",
            "Tab 0 (current): Shop\n\n[1] RootWebArea 'it's' \n\t[2] textbox 'A' required: false",
            "\t\t[3] StaticText 'x' checked: true' checked: true",
        ),
    }.items()
}
PARTICLES = ("a", "an", "the", "on", "off", "in", "into", "to", "from", "with", "up", "down")
VERBS = ("put", "take", "move", "pour", "use", "connect", "go", "look", "focus", "turn", "open")
WORDS = (*PARTICLES, *VERBS, "fridge", "search[red]", "click[x]", "Finish", "P", ".", "..", "\n")
ODD = st.sampled_from(
    ["\x00", "\x85", "\u2028", "\u202e", "\ud800", "\u0130", "\ufb01", "[", "{", "<", "("]
)
ANY = st.text(st.characters(), max_size=80)
EACH = pytest.mark.parametrize("env_id", ENVIRONMENTS)
FUZZ = settings(deadline=None, suppress_health_check=list(HealthCheck))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY, inner, max_size=4),
    max_leaves=8,
)


def texts(pieces: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Texts made of an environment's own sentences, cut, joined and strewn with odd characters."""
    sentences = st.sampled_from(pieces)
    cut = st.tuples(sentences, st.integers(0, 90)).map(lambda pair: pair[0][pair[1] :])
    return st.lists(sentences | cut | ODD | ANY, max_size=5).map("".join) | ANY


REPLIES = texts(
    (
        "Thought: so\nAction: open fridge 1",
        "Action:",
        "Final action: take egg 1",
        "Refinement probability: 0.7",
        "Reflection: no\nDecision: keep",
        "<think>a</think><action>look</action>",
        '{"name": "x", "arguments": {"a": 1}}',
        'Action: f\nAction Input: {"a": "b"}',
        "0.5e99",
        "```json\n",
        "\n",
        "**Action:** `look`",
        "</think>",
        "- Decision: REVISE\n- Final Action: KEEP: look",
        "Observation 1: You see an egg.",
        "{'thought': 'x', 'action': 'look'}",
    )
)


@EACH
@FUZZ
@given(data=st.data())
def test_beliefs_take_any_text(env_id: str, data: st.DataObject) -> None:
    canon: Any = class_of(env_id).canonicalizer  # type: ignore[union-attr]
    text = texts(ENVIRONMENTS[env_id])
    state = canon.initial(data.draw(text), data.draw(text))
    for _ in range(data.draw(st.integers(0, 3))):
        action, observation = data.draw(text), data.draw(text)
        state = canon.update(state, action, observation)
        assert isinstance(state, State)
    for fact in state.facts:
        assert fact and all(isinstance(part, str) and part == part.lower() for part in fact)
    assert State.from_text(state.to_text()) == state


@EACH
@FUZZ
@given(data=st.data())
def test_a_canonical_action_is_its_own(env_id: str, data: st.DataObject) -> None:
    canon: Any = class_of(env_id).canonicalizer  # type: ignore[union-attr]
    words = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
    once = canon.action(data.draw(texts(ENVIRONMENTS[env_id]) | words))
    assert canon.action(once) == once


@FUZZ
@given(
    ANY | st.lists(ANY | st.sampled_from(["(at agent)", "at(a, b)", "\n", "!", ","])).map("".join)
)
def test_facts_are_read_or_refused(text: str) -> None:
    try:
        state = State.from_text(text)
    except FactSyntaxError:
        return
    assert State.from_text(state.to_text()) == state


@FUZZ
@given(REPLIES)
def test_replies_are_read_whatever_they_say(text: str) -> None:
    for listed in (None, ("look", "open fridge 1"), ("", "*", "[")):
        for read in (parsing.find_action, parsing.find_final_action):
            parsed_action = read(text, listed)
            assert parsed_action is None or 0 <= parsed_action.start < parsed_action.end <= len(
                text
            )
        parsing.parse_reflection(text, listed)
    parsing.final_action_span(text)
    hidden = hide_thoughts(text)
    assert len(hidden) == len(text) and hide_thoughts(hidden) == hidden
    assert "".join(without_thoughts(text).split()) == "".join(hidden.split())
    action = parsing.clean_action(text)
    assert action is None or parsing.clean_action(action) == action
    line = parsing.first_line(text)
    assert parsing.first_line(line) == line
    number = parsing.number_in(text, 0.0, 1.0)
    assert number is None or 0.0 <= number <= 1.0
    for env_id in ENVIRONMENTS:
        read_tags(env_id, text)
    text_between(text, "action")
    call = parse_call(text)
    if call is not None and not call.problem:
        assert parse_call(write_call(call.name, call.arguments)) is not None


@FUZZ
@given(REPLIES | JSON.map(json.dumps))
@example("[" * 50_000)
@example("9" * 10_000)
def test_json_is_read_or_refused(text: str) -> None:
    try:
        data = read_json_text(text)
    except NotJSON:
        return
    once = canonical_json(data)
    assert canonical_json(read_json_text(once)) == once


@FUZZ
@given(
    st.binary(max_size=60)
    | (JSON.map(json.dumps) | REPLIES).map(lambda t: t.encode("utf-8", "replace"))
)
@example(b"[" * 50_000)
def test_servers_answers_are_read_or_refused(body: bytes) -> None:
    with suppress(BadAnswer, CoMapError):
        read_chat(body)


ENGINE = CallableRetriever(lambda queries, k: [[{"id": "7", "contents": "Emma"}] for _ in queries])
TOOLS = VirtualTools([], world=0)
NAMES = st.sampled_from(
    ["query", "queries", "topk", "category", "tool_name", "api_name", "tool_input"]
)
ASKED = st.dictionaries(
    NAMES, JSON | st.sampled_from(["Media", "library", "search", '{"word": "a"}']), max_size=5
)


@FUZZ
@given(JSON | ASKED)
def test_requests_are_answered_or_refused(request_body: Any) -> None:
    with suppress(OptionError):
        assert isinstance(answer(ENGINE, request_body)["result"], list)
    tool_answer = TOOLS.answer(request_body)
    assert set(tool_answer) == {"error", "response"}
    json.dumps(tool_answer)


RECORDED = json.dumps(
    Trajectory("comap/X-v0", "a", "dev", "goal", "me", "Hello.", State()).to_json()
)


@FUZZ
@given(
    st.binary(max_size=60)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.tuples(st.integers(0, len(RECORDED)), st.binary(max_size=4)).map(
        lambda cut: RECORDED[: cut[0]].encode() + cut[1] + RECORDED[cut[0] + 1 :].encode()
    )
)
@example(b"[" * 100_000)
def test_trajectories_are_read_or_refused(tmp_path_factory: Any, content: bytes) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.write_bytes(content + b"\n")
    try:
        trajectories = list(read_trajectories(path))
    except DataCorrupt as error:
        assert "fuzzed.jsonl" in str(error)
        return
    for trajectory in trajectories:
        assert Trajectory.from_json(json.loads(json.dumps(trajectory.to_json()))) == trajectory
