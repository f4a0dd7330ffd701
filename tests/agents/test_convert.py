"""Converters: what goes out and comes back, and what malformed rows are told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comap.agents import ExpertAgent, run_episode
from comap.agents.convert import (
    from_sharegpt,
    reply_of,
    to_dataset,
    to_sharegpt,
    views_of,
)
from comap.agents.parsing import clean_action
from comap.agents.react import ReActAgent
from comap.errors import DataCorrupt
from comap.facts import Delta, State
from comap.trajectory import Call, Step, Trajectory
from kits.scripted import HashedModel

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


def recorded_fields(trajectory: Trajectory) -> tuple[Any, ...]:
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


def test_rows_for_trl() -> None:
    pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    episode = expert()
    (row,) = to_dataset([episode])["messages"]
    assert [message["role"] for message in row[-2:]] == ["user", "assistant"]
    assert row[-1]["content"] == f"Action: {episode.steps[-1].action}"
    steps = to_dataset([episode], "steps")
    assert len(steps) == len(episode.steps)
    assert steps[0]["completion"][0]["content"] == f"Action: {episode.steps[0].action}"


@pytest.mark.parametrize("form", ["messages", "steps"])
def test_a_prompt_asks_for_a_thought_only_where_the_replies_have_one(form: Any) -> None:
    pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    reply_text = "Thought: I look around.\nAction: look"
    by_expert = expert()
    thoughtful = replace(
        by_expert,
        steps=tuple(
            replace(step, action="look", calls=(Call("generate", "draft", text=reply_text),))
            for step in by_expert.steps
        ),
    )
    for episode, has_thought in ((by_expert, False), (thoughtful, True)):
        for row in to_dataset([episode], form):
            talk = row["messages"] if form == "messages" else row["prompt"] + row["completion"]
            assert "Action:" in talk[0]["content"]
            message_texts = [
                message["content"] for message in talk if message["role"] in ("system", "assistant")
            ]
            assert all(("Thought:" in text) == has_thought for text in message_texts), message_texts


@given(trajectories())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_sharegpt_keeps_what_was_done_and_seen(episode: Trajectory) -> None:
    rows = json.loads(json.dumps(to_sharegpt([episode])))
    (back,) = from_sharegpt(rows)
    assert recorded_fields(back) == recorded_fields(episode)
    assert to_sharegpt([back]) == rows or any(step.reward for step in episode.steps)


def test_reading_etos_rows() -> None:
    turns = [
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
        "conversations": [{"from": who, "value": text} for who, text in turns],
    }
    (episode,) = from_sharegpt([row], env_id="comap/ALFWorld-v0", agent="eto")
    assert (episode.task, episode.goal, episode.agent) == ("17", "find a pen.", "eto")
    assert episode.observation == turns[2][1]
    assert [(s.action, s.observation) for s in episode.steps] == [
        ("go to desk 1", "A pen 1."),
        ("I take it", "Invalid format."),
        ("take pen 1", ""),
    ]
    system = {"conversations": [{"from": "system", "value": "Rules."}, *row["conversations"][2:]]}
    assert from_sharegpt([system])[0].steps == episode.steps


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


def test_replies_and_views() -> None:
    step = expert().steps[0]
    matching_call = Call("generate", "draft", f"Thought: So.\nAction: {step.action}")
    other_call = Call("generate", "draft", "Action: dance")
    assert reply_of(replace(step, calls=(matching_call, other_call))) == matching_call.text
    prefixed_call = Call("generate", "action", step.action[2:], prefix=f"Action: {step.action[:2]}")
    assert reply_of(replace(step, calls=(prefixed_call,))) == f"Action: {step.action}"
    assert reply_of(replace(step, calls=(other_call,))) == f"Action: {step.action}"
    episode = expert()
    views = [view for view, _, _ in views_of(episode)]
    assert [len(view.history) for view in views] == [s.t for s in episode.steps]
    assert views[0].facts == episode.facts and views[1].facts == episode.steps[0].facts
