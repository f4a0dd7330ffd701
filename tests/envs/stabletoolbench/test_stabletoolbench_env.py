"""StableToolBench's environment: tasks, tools, ends, observations, options and the expert."""

from __future__ import annotations

import hashlib
import json
import random

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.envs.stabletoolbench.apps import APPS, answering, api_records, world_of
from comap.envs.stabletoolbench.apps.world import ToolError
from comap.envs.stabletoolbench.backends import own_functions
from comap.envs.stabletoolbench.canonicalizer import observation_of
from comap.envs.stabletoolbench.functions import problem_of
from comap.envs.stabletoolbench.tasks import GROUPS, SIZES, generated_task
from kits.stabletoolbench import call

ID = "comap/StableToolBench-v0"
SPLITS = ("train", *GROUPS)


def make(**options):
    return gym.make(ID, **({"source": "generated"} | options))


def played(env, task, actions=None):
    """Play a task by the expert, or by actions; return the observations and the last info."""
    _, info = env.reset(options={"task": task})
    observations, over = [], False
    while not over:
        action = env.unwrapped.expert_action() if actions is None else actions.pop(0)
        observation, _, terminated, truncated, info = env.step(action)
        observations.append(observation)
        over = terminated or truncated or (actions is not None and not actions)
    return observations, info


@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_solves_every_task(split):
    env = make(split=split)
    panel = env.unwrapped.tasks
    assert len(panel) == SIZES[split]
    for task in panel.ids[:: 4 if split == "train" else 2]:
        observations, info = played(env, task)
        assert info["success"] and info["score"] == 1.0, task
        assert 2 <= info["step"] <= 10 and info["facts"].parsed
        assert all(json.loads(text)["error"] == "" for text in observations)


def test_golden_tasks():
    """The same in any process, for any hash seed and Python version."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for number in range(0, SIZES[split], 2):
            task = generated_task(split, number)
            task_content = [task.record, task.plan, task.answer, sorted(task.effects.items())]
            digest.update(json.dumps(task_content, default=dict).encode())
    assert digest.hexdigest() == "601a8e36f31f06f2d7afac5521690eaa8221b155b6b8ac1a0feb2f848335d04a"


def test_tasks_are_what_their_groups_promise():
    test_queries, train_queries = set(), set()
    for split in SPLITS:
        lengths = set()
        for number in range(0, SIZES[split], 3):
            task = generated_task(split, number)
            tools = {offer.tool for offer in task.offers}
            relevant_tools = {tool for tool, _ in task.record["relevant APIs"]}
            lengths.add(len(task.plan))
            assert 1 <= len(task.plan) <= 5 and len(task.offers) <= 10
            if split.startswith("G1"):
                assert len(tools) == 1
            if split.startswith("G2"):
                assert len(relevant_tools) == 2
                assert len({offer.category for offer in task.offers}) == 1
            if split.startswith("G3"):
                assert len({a["category_name"] for a in task.record["api_list"]}) > 1
            if split == "G1_tool":
                assert relevant_tools <= {"files", "library"}
            (train_queries if split == "train" else test_queries).add(task.record["query"])
            if split == "train":
                assert not relevant_tools & {"files", "library", "weather", "geography"}
            if split.endswith("_category"):
                assert relevant_tools <= {"weather", "geography"}
        assert len(lengths) > 1
    assert not train_queries & test_queries and len(train_queries) > 100
    distracting = [generated_task("train", n) for n in range(40)]
    assert all(len(t.offers) > len(t.record["relevant APIs"]) for t in distracting)


def test_a_wrong_answer_or_a_second_change_fails():
    task = next(
        f"generated/train/{n}" for n in range(400) if len(generated_task("train", n).effects) > 1
    )
    env = make()
    generated = generated_task("train", int(task.rpartition("/")[2]))
    plan = [call(name, **arguments) for name, arguments in generated.plan]
    finish_call = call(
        "Finish", return_type="give_answer", final_answer=json.dumps(generated.answer)
    )
    assert played(env, task, [*plan, finish_call])[1]["success"]
    wrong = call("Finish", return_type="give_answer", final_answer="nothing")
    info = played(env, task, [*plan, wrong])[1]
    assert not info["success"] and 0 < info["score"] < 1
    info = played(env, task, [finish_call])[1]
    assert not info["success"] and 0 < info["score"] < 1
    given_up = call("Finish", return_type="give_up_and_restart", final_answer=finish_call)
    info = played(env, task, [*plan, given_up])[1]
    assert info["score"] == 0.0 and ("finished", "give_up") in info["facts"].facts


@pytest.mark.parametrize("app", sorted(APPS))
def test_tools_refuse_what_they_must(app):
    """No arguments that fit their schema, however odd, break a tool."""
    rng = random.Random(app)
    texts = ["", "x" * 10_000, "\x00", "../x", "２", "2031-02-30", "25:99", "None", "-1", "G-20"]
    world = world_of(1)
    keys = [key for table in world.tables.values() for key in list(table)[:4]]
    numbers = [0, -1, 1, 2, 10**30]
    refused = answered = 0
    for _ in range(300):
        ledger = world.ledger()
        record = rng.choice(api_records(app))
        offer = own_functions(app)[record["api_name"].replace(" ", "_")]
        arguments = {}
        for name, schema in offer.parameters["properties"].items():
            choices = schema.get("enum") or {
                "string": texts + keys,
                "integer": numbers,
                "number": [*numbers, 0.5, float("inf"), 1e300],
            }.get(schema["type"])
            arguments[name] = rng.choice(choices)
        assert problem_of(offer, arguments) == ""
        try:
            response = answering(app, offer.api)(ledger, arguments)
            json.dumps(response)
            answered += 1
        except ToolError as refusal:
            assert str(refusal) and len(str(refusal)) < 300
            assert not ledger.changed_cells()
            refused += 1
    assert refused > 20


def test_quirks():
    """Pages, identifiers first, other units, limits of rates, conflicts, seats that run out."""
    ledger = world_of(3).ledger()
    tools = {name: answering(*name.split(".")) for name in ("flights.search", "currency.list")}
    key, row = next(iter(ledger.tables["flight"].items()))
    flight_query = {name: row[name] for name in ("origin", "destination", "date")}
    first = tools["flights.search"](ledger, flight_query)
    assert first["page"] == 1 and len(first["flights"]) <= 3 and "seats" not in first["flights"][0]
    with pytest.raises(ToolError, match="page 99 not found"):
        tools["flights.search"](ledger, {**flight_query, "page": 99})
    book = answering("flights", "book")
    booked = book(ledger, {"flight_id": key, "seats": row["seats"]})
    assert booked["changed"][1]["set"] == {"seats": 0}
    with pytest.raises(ToolError, match="Conflict"):
        book(ledger, {"flight_id": key, "seats": 1})
    assert book(ledger, {"flight_id": "FL-102", "seats": 1})["booking_id"] == "BK-2"
    for number in range(7):
        ledger.clock = number
        if number in (3, 4):
            with pytest.raises(ToolError, match="Rate limit"):
                tools["currency.list"](ledger, {})
        else:
            tools["currency.list"](ledger, {})
    assert world_of(3).tables["flight"][key]["seats"] == row["seats"]


def test_refusals_are_told_and_count():
    env = make(max_calls=6)
    env.reset(seed=0)
    name = env.unwrapped.functions[0]["name"]
    kinds = []
    for text in (
        "hello there",
        call("no_such_tool"),
        call(name, nothing=1),
        f"{name}({{broken)",
        call("Finish", return_type="later"),
        call("Finish", return_type="give_answer"),
    ):
        observation, reward, terminated, truncated, info = env.step(text)
        assert info["invalid_action"] and reward == 0 and info["tool_source"] == ""
        assert env.unwrapped.refused(observation) and not terminated
        kinds.append(info["tool_status"])
    del kinds[2]
    assert kinds == ["bad_action", "no_function", "bad_input", "bad_arg", "missing_arg"]
    assert truncated and ("budget", "0") in info["facts"].facts


def test_the_belief_knows_scores_of_wild_play():
    for seed in range(25):
        env = make(admissible_actions=True, split="G3_instruction")
        _, info = env.reset(seed=seed)
        rng, over = random.Random(seed), False
        while not over:
            if rng.random() < 0.5 or not info["admissible_actions"]:
                action = env.unwrapped.expert_action()
            else:
                action = rng.choice(info["admissible_actions"])
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            inner = env.unwrapped
            assert inner.goal_reached(info["facts"]) is info["success"]
            assert inner.score_of(info["facts"]) == info["score"]


@pytest.mark.parametrize("longest", [64, 100, 300, 1024])
@pytest.mark.parametrize(
    "response",
    [
        "x" * 5000,
        ["é" * 50] * 200,
        {"a": {"b": [{"c": "\\" * 900}] * 90}},
        {"k" * 1900: 1},
        "\n" * 999,
    ],
)
def test_observations_stay_json_within_their_length(response, longest):
    text = observation_of("", response, longest)
    assert len(text) <= longest
    assert json.loads(text)["truncated"] is True
    text = observation_of("e" * 900, response, longest)
    assert len(text) <= longest and set(json.loads(text)) == {"error", "response", "truncated"}
    cut = observation_of("", response, longest, "reference")
    assert cut.endswith("...") and len(cut) == longest + 3


def test_official_queries_are_played(official):
    env = make(data_dir=str(official), source="auto", split="all")
    assert len(env.unwrapped.tasks) == 580
    of_group = make(data_dir=str(official), source="official", split="G1_tool")
    assert len(of_group.unwrapped.tasks) == 158
    env.reset(options={"task": "G1_instruction/588"})
    assert env.unwrapped.expert_action() is None
    assert env.unwrapped.goal_reached(env.unwrapped.state_facts()) is None
    assert env.unwrapped.functions[0]["name"] == "songkick_concert_for_theclique"
    action = call("songkick_artist_for_theclique", artist_id="lionel-messi")
    observation, *_, info = env.step(action)
    assert json.loads(observation) == {"error": "", "response": {"on_tour": "no"}}
    assert info["tool_source"] == "cache" and ("ret", "1", "$.on_tour", "no") in info["facts"].facts
    for group in ("G1_instruction", "G1_category", "G1_tool", "G2_instruction"):
        panel = make(data_dir=str(official), source="auto", split=group).unwrapped.tasks
        for task in panel.ids[::9]:
            observation, info = env.reset(options={"task": task})
            assert info["facts"].parsed and len(observation) < 20_000
            tools = {fact[1] for fact in info["facts"].facts if fact[0] == "tool"}
            assert tools == {function["name"].lower() for function in env.unwrapped.functions}


def test_a_judge_scores_official_answers(official):
    judged = []

    def judge(query, answer, calls):
        judged.append((query, answer, [tool_call.name for tool_call in calls]))
        return 0.5

    env = make(data_dir=str(official), source="auto", split="G1_instruction", judge=judge)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(
        call("Finish", return_type="give_answer", final_answer={"a": 1})
    )
    assert (reward, terminated, info["score"], info["success"]) == (0.5, True, 0.5, False)
    assert judged == [(info["goal"], '{"a":1}', ["Finish"])]
    env.reset(seed=0)
    assert env.step(call("Finish", return_type="give_up_and_restart"))[1] == 0.0
    wrong = make(data_dir=str(official), source="auto", split="G1_tool", judge=lambda *_: 7)
    wrong.reset(seed=0)
    *_, truncated, info = wrong.step(call("Finish", return_type="give_answer", final_answer="x"))
    assert truncated and "verdict" in info["error"]


def test_actions_that_mean_harm_do_none():
    env = make(split="G1_tool")
    env.reset(seed=0)
    for text in (
        "__import__('os').system('touch harmed')",
        'eval({"name": "x"})',
        call("list_for_files", folder="../../etc"),
        call("list_for_files\x00"),
        call("l\u0456st_for_files", folder="plans"),
        call("x" * 10_000, **{"y" * 10_000: "z" * 10_000}),
        "[" * 30_000,
        '{"name": "list_for_files", "arguments": {"page": ' + "9" * 5000 + "}}",
    ):
        observation, reward, terminated, truncated, info = env.step(text)
        assert not terminated and not truncated and "error" not in info and reward == 0
        assert json.loads(observation)["error"] and len(observation) <= 1024
