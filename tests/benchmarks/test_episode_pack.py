"""What the viewer's page holds: packed episodes, their index, gates, tokens, kinds of tasks."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from comap.benchmarks.episode_gates import gates_of, was_revised
from comap.benchmarks.episode_pack import Pack
from comap.benchmarks.episodes import Episode, episode_record
from comap.benchmarks.task_types import task_type
from comap.benchmarks.viewer_episodes import episodes
from comap.facts import Delta, State
from comap.trajectory import TOLD, Call, Step, Trajectory

SETTINGS = {"tau_p": 0.5, "tau_q": 0.6, "tau_wm": 0.7, "action_gate": True}
NOTES: dict[str, Any] = {
    "path": "reflected",
    "draft_action": "go to desk 1",
    "ref_action": "open safe 1",
    "exec_action": "open safe 1",
    "decision": "REVISE",
    "p": 0.8,
    "p_source": "verbalizer",
    "q": 0.7,
    "q_source": "token_geo_mean",
    "gate": True,
    "gate_parts": {"p": True, "q": True, "changed": True},
    "agreement": 0.4,
    "wm_gate": False,
    "context_source": "env",
}


def test_gates_are_told_with_their_thresholds() -> None:
    found = gates_of(NOTES, SETTINGS)
    assert found is not None and found["revised"] is True and found["gated"] is True
    assert found["draft"] == "go to desk 1" and found["reflected"] == found["taken"]
    numbers = found["numbers"]
    assert numbers["p"] == {
        "value": 0.8,
        "threshold": 0.5,
        "source": "verbalizer",
        "enough": True,
    }
    assert numbers["agreement"]["enough"] is False and numbers["agreement"]["threshold"] == 0.7


def test_only_what_is_there_is_told() -> None:
    assert gates_of({}, {}) is None
    assert gates_of({"draft": "look", "decoding": "free"}, SETTINGS) is None
    kept = gates_of({"draft_action": "look", "p": None, "gate": False}, {})
    assert kept is not None and kept["numbers"] == {} and kept["revised"] is False
    chosen = gates_of({"proposal": "look", "choice": "wait", "changed": True}, {})
    assert chosen is not None and chosen["draft"] == "look" and chosen["reflected"] == "wait"
    assert chosen["revised"] is True


ANYTHING = ["0.7", True, float("nan"), float("inf"), [1], {}, None, 10**400]


@pytest.mark.parametrize("value", ANYTHING, ids=range(len(ANYTHING)))
def test_notes_of_other_types_are_not_believed(value: Any) -> None:
    notes = dict.fromkeys(NOTES, value)
    found = gates_of(notes, dict.fromkeys(SETTINGS, value))
    json.dumps(found, allow_nan=False)
    assert found is None or not found["numbers"]
    was_revised(notes)


def test_kinds_of_tasks() -> None:
    official = "valid_seen/pick_two_obj_and_place-Pen-None-Desk-3/trial_T2019"
    assert task_type("comap/ALFWorld-v0", official) == "pick_two_obj_and_place"
    for game in ("generated/train/normal/0-000000", "generated/train/nonsense/0-000000", "x", ""):
        kind = task_type("comap/ALFWorld-v0", game, "train")
        assert (kind == "pick_and_place_simple") == ("normal" in game), game
    assert task_type("comap/SearchQA-v0", "generated/2hop/7", "train") == "2hop"
    assert task_type("comap/SearchQA-v0", "test_7", "all") == ""
    assert task_type("comap/StableToolBench-v0", "generated/train/7", "train") == ""
    assert task_type("comap/WebShop-v0", "generated/synthetic/7", "train") == "synthetic"


def one_step(notes: dict[str, Any] | None = None, calls: tuple[Call, ...] = ()) -> Trajectory:
    step = Step(
        *(1, "look", "dark", 0.0, False, False, False, State(), Delta()),
        calls=calls,
        notes=notes or {},
    )
    return Trajectory(
        *("comap/X-v0", "boil/1", "dev", "Boil.", "me", "Hello.", State(), (step,)),
        settings=SETTINGS,
    )


def test_what_the_environment_told_is_not_what_the_agent_noted() -> None:
    notes = {"draft": "look", TOLD: {"backend": "cache"}}
    record = episode_record(Episode("", one_step(notes), None))
    (step,) = record["real"]["steps"]
    texts = record["texts"]
    assert [[texts[i] for i in pair] for pair in step["told"]] == [["backend", "cache"]]
    assert [[texts[i] for i in pair] for pair in step["notes"]] == [["draft", "look"]]


def test_tokens_are_told_where_they_fit() -> None:
    known = Call("generate", "draft", "a b", logprobs=(-0.5, -1.0), tokens=("a", " b"))
    ids = Call("generate", "draft", "a b", logprobs=(-0.5, -1.0), token_ids=(3, 4))
    wrong = Call("generate", "draft", "a b", logprobs=(-0.5, -1.0), tokens=("a",), token_ids=(3,))
    record = episode_record(Episode("", one_step(calls=(known, ids, wrong)), None))
    first, second, third = record["real"]["steps"][0]["calls"]
    assert [record["texts"][i] for i in first["pieces"]] == ["a", " b"] and "ids" not in first
    assert second["ids"] == [3, 4] and second["logprobs"] == [-0.5, -1.0]
    assert "pieces" not in third and "ids" not in third


@pytest.mark.parametrize("value", ANYTHING, ids=range(len(ANYTHING)))
def test_files_may_hold_anything_in_a_number_s_place(value: Any) -> None:
    call = Call("generate", "draft", "a", prompt_tokens=value, logprobs=(value,), tokens=(value,))
    record = episode_record(Episode("", one_step(calls=(call,)), None))
    json.dumps(record, allow_nan=False)


def test_the_index_says_what_filters_ask() -> None:
    pack = Pack()
    pack.add(Episode("first", one_step(NOTES), None, "run a"))
    pack.add(Episode("second", one_step(), one_step(), "run b"))
    index = pack.index()
    first, second = index["episodes"]
    names = index["names"]
    assert names[first["type"]] == "boil" and names[second["run"]] == "run b"
    assert first["outcome"] == "not solved" and first["flags"] == ["revised"]
    assert "imagined" in second["flags"] and second["f1"] == 1.0
    for part, episode in zip(pack.parts(), ("first", "second"), strict=True):
        record = json.loads(zlib.decompress(base64.b64decode(part)))
        assert record["texts"][record["about"]["title"]] == episode


def test_the_benchmark_s_episodes_are_like_real_ones() -> None:
    (first,), (again,) = (list(episodes(1, 6, "tokens")) for _ in range(2))
    assert first == again and len(first.steps) == 6 and first.error is None
    index = Pack([Episode("", first, None)]).index()["episodes"][0]
    assert {"predicted", "tokens"} <= set(index["flags"]) and "f1" in index
    kinds = {call.kind for step in first.steps for call in step.calls}
    assert kinds == {"generate", "words", "score"}
    assert all(call.messages and call.tokens for step in first.steps for call in step.calls)
