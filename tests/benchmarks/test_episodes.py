"""What a page holds of episodes: changes of beliefs, how well they were foreseen, calls, gates."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from comap.benchmarks.report import (
    Episode,
    Pack,
    episode_record,
    gates_of,
    was_revised,
)
from comap.envs.registry import text_env_of
from comap.facts import Delta, State, apply, fact_to_text
from comap.trajectory import ENV_INFO, Call, Step, Trajectory
from kits import episode_pages
from kits.episode_pages import FILLED, OPENED, START, compared, foreseen, step, trajectory


def folded(data, side):
    facts = set(side["facts"])
    beliefs = [set(facts)]
    for record in side["steps"]:
        facts = facts - set(record.get("removed", ())) | set(record.get("added", ()))
        beliefs.append(set(facts))
    return [{data["facts"][fact] for fact in belief} for belief in beliefs]


def test_folding_the_changes_gives_the_beliefs():
    episode = compared()
    data = episode_record(episode)
    for name, side in (("real", episode.real), ("imagined", episode.imagined)):
        expected = [side.facts, *(step.facts for step in side.steps)]
        assert folded(data, data[name]) == [
            {fact_to_text(fact) for fact in belief.facts} for belief in expected
        ]


def test_delta_f1_of_each_step():
    episodes = [compared(), foreseen(), Episode("", compared().real, None)]
    records = [episode_record(episode) for episode in episodes]
    assert [record["delta_f1"] for record in records] == [
        [0.8, 1.0, None],
        [0.8, None],
        [None, None, None],
    ]
    assert records[0]["deltas"] == [[2, 1, 0], [0, 0, 0], None], "foreseen, missed, made up"
    assert records[2]["imagined"] is None


def test_delta_f1_does_not_count_drift():
    """The imagined belief lacks the pen since step 1; step 2 is nevertheless foreseen exactly."""
    away = Delta(frozenset({("closed", "safe 1")}), frozenset({("open", "safe 1")}))
    real = trajectory(step(1, START, FILLED), step(2, FILLED, apply(FILLED, away)))
    imagined = trajectory(step(1, START, OPENED), step(2, OPENED, apply(OPENED, away)))
    assert episode_record(Episode("", real, imagined))["delta_f1"] == [0.8, 1.0]


def test_what_was_asked_and_noted_is_in_the_data():
    episode = episode_record(Episode("thoughtful", episode_pages.thought_of(), None))
    texts = episode["texts"]
    first, second, third = episode["real"]["steps"]

    def texts_by_name(pairs):
        return {texts[name]: texts[value] for name, value in pairs}

    notes = texts_by_name(first["notes"])
    assert notes["gate"] == "true" and notes["p"] == "0.8"
    assert json.loads(notes["gate_parts"])["changed"] is True
    draft, imagined, scored, _ = first["calls"]
    assert texts[draft["text"]] == "open safe 1" and texts[draft["prefix"]] == "Action:"
    assert draft["tokens"] == [40, 3] and texts[imagined["finish"]] == "length"
    assert [texts[part] for part in draft["messages"][0]] == ["system", "You are a robot."]
    assert draft["messages"] == imagined["messages"], "and they are stored once"
    assert texts[imagined["kind"]] == "imagine" and texts[imagined["adapter"]] == "wm"
    assert "messages" not in scored and "prefix" not in scored and "notes" not in second
    assert len(third["calls"]) + third["calls_left_out"] == 150
    assert (
        len(episode["real"]["review"]) == 1 and texts_by_name(episode["settings"])["tau_p"] == "0.5"
    )


SETTINGS = {**episode_pages.SETTINGS, "tau_wm": 0.7}
NOTES = {
    **{name: value for name, value in episode_pages.GATES.items() if name != ENV_INFO},
    **{"path": "reflected", "decision": "REVISE", "q_source": "token_geo_mean"},
    **{"agreement": 0.4, "wm_gate": False, "context_source": "env"},
}


def test_gates_are_told_with_their_thresholds():
    gates = gates_of(NOTES, SETTINGS)
    assert gates is not None and gates["revised"] is True and gates["gated"] is True
    assert gates["draft"] == "go to desk 1" and gates["reflected"] == gates["taken"]
    numbers = gates["numbers"]
    assert numbers["p"] == {"value": 0.8, "threshold": 0.5, "source": "verbalizer", "enough": True}
    assert numbers["agreement"]["enough"] is False and numbers["agreement"]["threshold"] == 0.7


def test_only_what_is_there_is_told():
    assert gates_of({}, {}) is None
    assert gates_of({"draft": "look", "decoding": "free"}, SETTINGS) is None
    gates = gates_of({"draft_action": "look", "p": None, "gate": False}, {})
    assert gates is not None and gates["numbers"] == {} and gates["revised"] is False
    choice = gates_of({"proposal": "look", "choice": "wait", "changed": True}, {})
    assert choice is not None and choice["draft"] == "look" and choice["reflected"] == "wait"
    assert choice["revised"] is True


ANYTHING = ["0.7", True, float("nan"), float("inf"), [1], {}, None, 10**400]


@pytest.mark.parametrize("value", ANYTHING, ids=range(len(ANYTHING)))
def test_notes_of_other_types_are_not_believed(value):
    notes = dict.fromkeys(NOTES, value)
    gates = gates_of(notes, dict.fromkeys(SETTINGS, value))
    json.dumps(gates, allow_nan=False)
    assert gates is None or not gates["numbers"]
    was_revised(notes)


def test_kinds_of_tasks():
    official = "valid_seen/pick_two_obj_and_place-Pen-None-Desk-3/trial_T2019"
    assert text_env_of("comap/ALFWorld-v0").task_type(official) == "pick_two_obj_and_place"
    for game in ("generated/train/normal/0-000000", "generated/train/nonsense/0-000000", "x", ""):
        kind = text_env_of("comap/ALFWorld-v0").task_type(game, "train")
        assert (kind == "pick_and_place_simple") == ("normal" in game), game
    assert text_env_of("comap/SearchQA-v0").task_type("generated/2hop/7", "train") == "2hop"
    assert text_env_of("comap/SearchQA-v0").task_type("test_7", "all") == ""
    assert text_env_of("comap/StableToolBench-v0").task_type("generated/train/7", "train") == ""
    assert (
        text_env_of("comap/WebShop-v0").task_type("generated/synthetic/7", "train") == "synthetic"
    )


def one_step(notes=None, calls=()):
    step = Step(
        *(1, "look", "dark", 0.0, False, False, False, State(), Delta()),
        calls=calls,
        notes=notes or {},
    )
    return Trajectory(
        *("comap/X-v0", "boil/1", "dev", "Boil.", "me", "Hello.", State(), (step,)),
        settings=SETTINGS,
    )


def test_tokens_are_told_where_they_fit():
    text_tokens_call = Call("generate", "draft", "a b", logprobs=(-0.5, -1.0), tokens=("a", " b"))
    ids = Call("generate", "draft", "a b", logprobs=(-0.5, -1.0), token_ids=(3, 4))
    wrong = Call("generate", "draft", "a b", logprobs=(-0.5, -1.0), tokens=("a",), token_ids=(3,))
    record = episode_record(Episode("", one_step(calls=(text_tokens_call, ids, wrong)), None))
    first, second, third = record["real"]["steps"][0]["calls"]
    assert [record["texts"][i] for i in first["pieces"]] == ["a", " b"] and "ids" not in first
    assert second["ids"] == [3, 4] and second["logprobs"] == [-0.5, -1.0]
    assert "pieces" not in third and "ids" not in third


@pytest.mark.parametrize("value", ANYTHING, ids=range(len(ANYTHING)))
def test_files_may_hold_anything_in_a_number_s_place(value):
    call = Call("generate", "draft", "a", prompt_tokens=value, logprobs=(value,), tokens=(value,))
    record = episode_record(Episode("", one_step(calls=(call,)), None))
    json.dumps(record, allow_nan=False)


def test_the_index_says_what_filters_ask():
    pack = Pack()
    pack.add(Episode("first", one_step(NOTES), None, "run a"))
    pack.add(Episode("second", one_step(), one_step(), "run b"))
    index = pack.index()
    first, second = index["episodes"]
    names = index["names"]
    assert names[first["type"]] == "boil" and names[second["run"]] == "run b"
    assert first["outcome"] == "not solved" and first["flags"] == ["revised"]
    assert "imagined" in second["flags"] and "f1" not in second, "no step changed a fact"
    for part, episode in zip(pack.parts, ("first", "second"), strict=True):
        record = json.loads(zlib.decompress(base64.b64decode(part)))
        assert record["texts"][record["about"]["title"]] == episode
