"""Converters: what goes out and comes back, and what malformed rows are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comap.agents import ExpertAgent, run_episode
from comap.agents.convert import (
    from_comap_records,
    from_dataset,
    from_sharegpt,
    reply_of,
    to_comap_records,
    to_dataset,
    to_sharegpt,
    views_of,
)
from comap.agents.parsing import clean_action
from comap.agents.react import ReActAgent
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt
from comap.facts import Delta, State
from comap.trajectory import Call, Step, Trajectory

HERE = Path(__file__).with_name("scripted.py")
HashedModel = load(f"{HERE}:HashedModel")

TEXT = st.text(st.characters(exclude_categories=()), max_size=30)  # surrogates and all
LINE = st.text(st.characters(exclude_characters="\n"), min_size=1, max_size=20).filter(
    lambda text: clean_action(text) == text
)
SHARE = st.floats(0, 1)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
MAYBE = st.none() | st.text(min_size=1, max_size=10)
COMAP_NOTES = st.fixed_dictionaries(
    {
        "draft_action": MAYBE,
        "draft_response": MAYBE,
        "predicted_next_state": MAYBE,
        "reflect_response": MAYBE,
        "ref_action": MAYBE,
        "p": st.none() | SHARE,
        "gate": st.none() | st.booleans(),
        "wm_teacher_hint": MAYBE,
    }
)


@st.composite
def trajectories(draw: Any, action: Any = LINE, notes: Any = None) -> Trajectory:
    steps = []
    count = draw(st.integers(0, 4))
    for t in range(1, count + 1):
        success = t == count and draw(st.booleans())
        steps.append(
            Step(
                t,
                draw(action),
                draw(TEXT),
                draw(SHARE),
                success or (t == count and draw(st.booleans())),
                t == count and draw(st.booleans()),
                False,
                State(),
                Delta(),
                draw(SHARE),
                success,
                draw(st.booleans()),
                notes=draw(st.dictionaries(TEXT, JSON, max_size=2) if notes is None else notes),
            )
        )
    task, split, goal, agent, first = (draw(TEXT) for _ in range(5))
    return Trajectory("comap/ALFWorld-v0", task, split, goal, agent, first, State(), tuple(steps))


def played(**options: Any) -> Trajectory:
    env = gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=5)
    return run_episode(env, ReActAgent(), seed=3, lm=HashedModel(), **options)


def expert() -> Trajectory:
    return run_episode(gym.make("comap/ALFWorld-v0", source="generated"), ExpertAgent(), seed=0)


def told(trajectory: Trajectory) -> tuple[Any, ...]:
    return (
        trajectory.env_id,
        trajectory.task,
        trajectory.split,
        trajectory.goal,
        trajectory.agent,
        trajectory.observation,
        [(step.t, step.action, step.observation) for step in trajectory.steps],
        trajectory.success,
        trajectory.score,
    )


class TestDatasets:
    @pytest.fixture(autouse=True)
    def _datasets(self) -> None:
        pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")

    @given(st.lists(trajectories(action=TEXT), max_size=3))
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    def test_lossless_there_and_back(self, episodes: list[Trajectory]) -> None:
        assert from_dataset(to_dataset(episodes, "lossless")) == episodes

    def test_real_episodes_there_and_back(self, tmp_path: Path) -> None:
        episodes = [expert(), played(keep="tokens")]
        dataset = to_dataset(episodes, "lossless")
        dataset.to_json(str(tmp_path / "rows.jsonl"))
        lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").open()]
        assert from_dataset(dataset) == from_dataset(lines) == episodes


@given(trajectories())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_sharegpt_keeps_what_was_done_and_seen(episode: Trajectory) -> None:
    rows = json.loads(json.dumps(to_sharegpt([episode])))
    (back,) = from_sharegpt(rows)
    assert told(back) == told(episode)
    assert to_sharegpt([back]) == rows or any(step.reward for step in episode.steps)


def test_reading_etos_rows() -> None:
    said = [
        ("human", "Interact with a household to solve a task."),
        ("gpt", "OK"),
        ("human", "A room with a desk 1.\n\nYour task is to: find a pen. "),
        ("gpt", "Thought: I look.\nAction: go to desk 1"),
        ("human", "Observation: A pen 1."),
        ("gpt", "I take it"),
        ("human", "Observation: Invalid format."),
        ("gpt", "Thought: Now.\nAction: take pen 1"),
    ]
    row: dict[str, Any] = {
        "id": 17,
        "conversations": [{"from": who, "value": text} for who, text in said],
    }
    (found,) = from_sharegpt([row], env_id="comap/ALFWorld-v0", agent="eto")
    assert (found.task, found.goal, found.agent) == ("17", "find a pen.", "eto")
    assert found.observation == said[2][1]
    assert [(s.action, s.observation) for s in found.steps] == [
        ("go to desk 1", "A pen 1."),
        ("I take it", "Invalid format."),
        ("take pen 1", ""),
    ]
    system = {"conversations": [{"from": "system", "value": "Rules."}, *row["conversations"][2:]]}
    assert from_sharegpt([system])[0].steps == found.steps


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "expected a list as 'conversations'"),
        ({"conversations": [{"from": "human"}]}, "turn 1: expected a text as 'value'"),
        ({"conversations": [{"from": "robot", "value": ""}]}, "found 'robot'"),
        ({"conversations": [{"from": "gpt", "value": ""}]}, "expected human's turn"),
        ({"conversations": [{"from": "human", "value": "a"}] * 2}, "turn 2: expected gpt's"),
    ],
)
def test_malformed_conversations(row: Any, message: str) -> None:
    with pytest.raises(DataCorrupt, match=message):
        from_sharegpt([row])


@given(st.lists(trajectories(action=TEXT, notes=COMAP_NOTES), max_size=3))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_records_there_and_back(episodes: list[Trajectory]) -> None:
    episodes = [episode for episode in episodes if episode.steps]
    rows = json.loads(json.dumps(to_comap_records(episodes)))
    back = from_comap_records(rows)
    assert [told(episode) for episode in back] == [told(episode) for episode in episodes]
    assert to_comap_records(back) == rows
    for was, now in zip(episodes, back, strict=True):
        for before, after in zip(was.steps, now.steps, strict=True):
            kept = {key: value for key, value in before.notes.items() if value is not None}
            assert kept.items() <= after.notes.items()
            assert (before.reward, before.terminated) == (after.reward, after.terminated)


def test_records_of_a_gated_step() -> None:
    episode = expert()
    notes = {
        "draft_action": "look",
        "predicted_next_state": "You see a desk.",
        "ref_action": episode.steps[0].action,
        "p": 0.75,
        "gate": True,
    }
    first = replace(episode.steps[0], notes=notes, observation="You see a pen.")
    rows = to_comap_records([replace(episode, steps=(first, *episode.steps[1:]))], round_id=2)
    assert len(rows) == len(episode.steps)
    row = rows[0]
    assert (row["draft_action"], row["revised_action"]) == ("look", first.action)
    assert row["revise_triggered"] is row["used_revised_action"] is True
    assert (row["refinement_label"], row["reflect_action_prob"]) == (1, 0.75)
    assert row["wm_consistency"] == 0.75 and row["round_id"] == 2
    assert row["observation"] == f"Observation: {episode.observation}"
    assert [m["role"] for m in row["history_messages"]] == ["user", "assistant", "user"]
    assert len(rows[1]["history_messages"]) == 5
    assert rows[1]["observation"] == "Observation: You see a pen."
    plain = rows[1]
    assert plain["revise_triggered"] is plain["refinement_label"] is plain["wm_consistency"] is None
    assert rows[-1]["feedback_text"] == "The task is solved." and rows[-1]["done"] is True
    kept = replace(first, notes={**notes, "gate": False})
    assert to_comap_records([replace(episode, steps=(kept,))])[0]["refinement_label"] == 0


def test_reading_the_authors_rows() -> None:
    row = {
        "task_name": "alfworld",
        "task_id": "sample-0",
        "episode_id": "alfworld__sample-0",
        "round_id": 0,
        "step_id": 0,
        "goal": "put an apple in the fridge",
        "history_messages": [{"role": "user", "content": "..."}],
        "observation": "Observation:You see an apple 1.",
        "action": "take apple 1",
        "reward": 0.0,
        "done": False,
        "next_observation": "Observation: You pick it up.",
        "draft_action": "look",
        "pred_next_state_student": "You look.",
        "reflect_action_prob": 0.82,
        "used_revised_action": True,
        "draft_action_prob": None,
    }
    last = {**row, "step_id": 1, "action": "put it", "reward": 1, "done": True, "success": True}
    other = {**row, "episode_id": "alfworld__sample-1", "step_id": 0}
    one, two = from_comap_records([row, last, other])
    assert one.env_id == "comap/ALFWorld-v0" and one.observation == "You see an apple 1."
    assert [s.action for s in one.steps] == ["take apple 1", "put it"] and one.success
    assert one.steps[1].terminated and len(two.steps) == 1
    assert one.steps[0].notes == {
        "draft_action": "look",
        "predicted_next_state": "You look.",
        "p": 0.82,
        "gate": True,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"goal": None}, "row 1: expected a text as 'goal', found none"),
        ({"action": 3}, "expected a text as 'action', found 3"),
        ({"reward": float("nan")}, "finite number as 'reward'"),
        ({"draft_action": ["look"]}, "'draft_action'"),
        ({"step_id": 3}, "next step of an episode"),
    ],
)
def test_malformed_records(change: dict[str, Any], message: str) -> None:
    row = {"goal": "g", "observation": "o", "action": "a", "next_observation": "n"}
    with pytest.raises(DataCorrupt, match=message):
        from_comap_records([{**row, **change}])
    with pytest.raises(DataCorrupt, match="row 2: expected an object"):
        from_comap_records([row, "text"])


def test_replies_and_views() -> None:
    step = expert().steps[0]
    asked = Call("generate", "draft", f"Thought: So.\nAction: {step.action}")
    other = Call("generate", "draft", "Action: dance")
    assert reply_of(replace(step, calls=(asked, other))) == asked.text
    begun = Call("generate", "action", step.action[2:], prefix=f"Action: {step.action[:2]}")
    assert reply_of(replace(step, calls=(begun,))) == f"Action: {step.action}"
    assert reply_of(replace(step, calls=(other,))) == f"Action: {step.action}"
    episode = expert()
    views = [view for view, _, _ in views_of(episode)]
    assert [len(seen.history) for seen in views] == [s.t for s in episode.steps]
    assert views[0].facts == episode.facts and views[1].facts == episode.steps[0].facts
