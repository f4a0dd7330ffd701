"""The canonicalizer: golden beliefs, any text, facts back to text, and what nobody could foresee."""

from __future__ import annotations

import json

import gymnasium as gym
import hypothesis
import hypothesis.strategies as some

import comap  # noqa: F401
from comap.envs.conformance.suite import NONSENSE
from comap.envs.stabletoolbench import ToolCanonicalizer
from comap.envs.stabletoolbench.canonicalizer import returned
from comap.facts import State, diff
from comap.trajectory import Turn
from kits.stabletoolbench import call

CANON = ToolCanonicalizer()
START = """Task: Book FL-204.
Functions:
- search_for_flights(origin: string, page?: integer): Flights (three a page): all of them.
- Finish(return_type: give_answer|give_up_and_restart, final_answer?: string): The end.
Calls left: 9"""


def answer_text(response="", error=""):
    return json.dumps({"error": error, "response": response})


def change(state, action, observation):
    after = CANON.update(state, action, observation)
    return after, diff(state, after).to_text().splitlines()


def test_a_session():
    state = CANON.initial("Book FL-204.", START)
    flights = {"flights": [{"id": "FL-204", "price": 99.5}], "page": 1, "total": 1}
    state, changes = change(state, call("search_for_flights", origin="OSL"), answer_text(flights))
    assert changes == [
        "+ arg(1, origin, osl)",
        "+ budget(8)",
        "+ call(1, search_for_flights, 4d0e9690)",
        "+ entity(flight, fl-204)",
        "+ ret(1, $.flights[0].id, fl-204)",
        "+ ret(1, $.flights[0].price, 99.5)",
        "+ ret(1, $.page, 1)",
        "+ ret(1, $.total, 1)",
        "+ retlen(1, $.flights, 1)",
        "+ status(1, ok)",
        "- budget(9)",
    ]
    state, changes = change(
        state, call("search_for_flights"), answer_text("", "Missing required parameter: origin")
    )
    assert "+ arg_missing(2, origin)" in changes and "+ status(2, error:missing_arg)" in changes
    assert not [line for line in changes if "ret" in line or "entity" in line]
    for seats, number in ((3, 3), (2, 4)):
        row = {"table": "flight", "id": "FL-204", "set": {"seats": seats}}
        state, changes = change(
            state, call("book"), answer_text({"booking_id": "BK-1", "changed": [row]})
        )
        assert f"+ db(flight, fl-204, seats, {seats})" in changes
        assert "+ entity(booking, bk-1)" in changes or number == 4
    assert "- db(flight, fl-204, seats, 3)" in changes
    answer = json.dumps({"Flight": "FL-204"})
    end = call("Finish", return_type="give_answer", final_answer=answer)
    state, changes = change(state, end, answer_text("Answer received."))
    assert "+ finished(give_answer)" in changes and "+ answer_field(flight, fl-204)" in changes


def test_upstreams_cut_observations_tell_the_error_alone():
    state = CANON.initial("", START)
    text = answer_text({"text": "x" * 2000})[:1024] + "..."
    after, changes = change(state, call("search_for_flights", origin="a"), text)
    assert after.parsed and "+ cut(1)" in changes and "+ status(1, ok)" in changes
    assert not [line for line in changes if line.startswith("+ ret")]


def test_responses_of_all_kinds():
    assert returned("1", '{"a": 1}') == {("ret", "1", "$", '{"a": 1}')}
    words = returned("1", "The quick brown fox jumps over the lazy dog. " * 9)
    assert ("ret_word", "1", "quick") in words and len(words) == 8
    deep = {"a": {"b": {"c": {"d": {"e": 1}}}}}
    assert not [fact for fact in returned("1", deep) if fact[-1] == "1"]
    item_facts = returned("1", {"items": [{"id": n, "name": "x" * 90} for n in range(99)]})
    assert ("retlen", "1", "$.items", "99") in item_facts
    assert {fact[2] for fact in item_facts if fact[0] == "entity"} == {"0", "1", "2"}
    assert len(returned("1", {str(n): n for n in range(999)})) <= 60
    assert returned("1", None) == {("ret", "1", "$", "null")}
    assert returned("1", {"changed": [None, {"set": 3}, {"table": 1, "set": {}}]}) == set()


def test_nonsense_changes_no_fact_and_says_so():
    state = CANON.initial("", START)
    for text in NONSENSE.values():
        after = CANON.update(state, call("x"), text)
        assert not after.parsed and after.facts == state.facts
        assert CANON.update(state, text, answer_text()).parsed
        CANON.initial(text, text), CANON.action(text)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    some.text(),
    some.recursive(
        some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=9),
        lambda inner: (
            some.lists(inner, max_size=5)
            | some.dictionaries(some.text(max_size=5), inner, max_size=5)
        ),
        max_leaves=20,
    ),
)
def test_any_call_and_any_response(text, response):
    state = CANON.initial("", START)
    for action in (text, call(text, a=text), f"Action: f\nAction Input: {text}"):
        after = CANON.update(state, action, answer_text(response))
        assert State.from_text(after.to_text()) == after
        assert all(part == part.lower() for fact in after.facts for part in fact)
        CANON.describe(state, action, after)
        assert CANON.action(CANON.action(action)) == CANON.action(action)


def test_facts_come_back_from_their_description():
    total = 0
    for split in ("train", "G1_tool", "G3_instruction"):
        env = gym.make("comap/StableToolBench-v0", source="generated", split=split)
        for task in env.unwrapped.tasks.ids[::9]:
            _, info = env.reset(options={"task": task})
            before, over = info["facts"], False
            while not over:
                action = env.unwrapped.expert_action()
                _, _, over, _, info = env.step(action)
                after = info["facts"]
                text = CANON.describe(before, action, after)
                assert CANON.update(before, action, text) == after, (task, action, text)
                before, total = after, total + 1
    assert total > 100
    state, refused = CANON.initial("", START), call("search_for_flights")
    for error in (
        "Missing required parameter: origin",
        "flight 'x' not found",
        "Conflict: full",
        "hm",
    ):
        after = CANON.update(state, refused, answer_text("", error))
        assert CANON.update(state, refused, CANON.describe(state, refused, after)) == after


def test_what_nobody_could_foresee():
    state = CANON.initial("Is FL-204 cheap?", START)
    turns = (Turn(None, START),)
    details_call = call("details", flight_id="FL-204")
    for response, expected in (({"price": 120}, True), ({"id": "FL-204"}, False)):
        after = CANON.update(state, details_call, answer_text(response))
        assert CANON.reveals("Is FL-204 cheap?", turns, state, details_call, after) is expected
