"""WebEvolver's look-ahead against scripted replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import run_episode
from comap.agents.base import Imagine
from comap.agents.webevolver import WebEvolverAgent, WebEvolverConfig
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.facts import Delta, State
from comap.worldmodel import Imagined, Prediction

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
HashedModel = load(f"{HERE}:HashedModel")

TWO = (("look", "A desk."), ("go to desk 1", "A pen."))
HOSTILE = (
    "",
    "\x00\x07",
    "$actions $goal",
    "<|im_end|>",
    "Action:",
    "8" * 5000,
    "Action: " + "w" * 900,
)


def agent(**options: Any) -> WebEvolverAgent:
    return WebEvolverAgent(WebEvolverConfig(**options))


def draft(action: str) -> str:
    return f"Thought: So.\nAction: {action}"


def test_before_the_third_step_it_is_react() -> None:
    for turns in ((), TWO[:1]):
        talk = converse_with(agent(), view(*turns), [draft("look")])
        assert talk.purposes == ["draft"] and talk.decision.action == "look"
    assert converse_with(agent(start_step=1), view(), lambda r: _any(r)).kinds.count("Imagine") > 0


def _any(request: Any) -> Any:
    if isinstance(request, Imagine):
        return "Hm."
    if request.purpose.startswith("critic"):
        return "0.5"
    number = len(request.messages[-1].content)
    return draft(f"go to place {number}")


def test_three_candidates_step_by_step() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(
        agent(adapter="acts", critic_adapter="judges"),
        view(*TWO, memory=memory),
        [
            draft("look"),
            draft("go to safe 1"),
            draft("go to shelf 1"),
            "A desk.",
            "The safe 1 is closed.",
            "A book.",
            "0.2",
            " 0.9 since it is the goal",
            "0.9",
        ],
    )
    assert talk.purposes == [
        "draft",
        "candidate 2, try 1",
        "candidate 3, try 1",
        "imagine look",
        "imagine go to safe 1",
        "imagine go to shelf 1",
        "critic 1",
        "critic 2",
        "critic 3",
    ]
    first, second, third = talk.requests[:3]
    assert first.sampling.temperature == 0.7
    assert second.sampling.temperature == third.sampling.temperature == 1.0
    assert second.messages[-1].content.endswith("different from:\nlook")
    assert third.messages[-1].content.endswith("different from:\nlook\ngo to safe 1")
    critic = talk.requests[7]
    assert critic.prefix == "Score:" and critic.adapter == "judges" and first.adapter == "acts"
    assert critic.sampling.temperature == 0.0 and critic.sampling.max_new_tokens == 16
    told = critic.messages[-1].content
    assert "go to safe 1" in told and "The safe 1 is closed." in told and "A book." not in told
    assert talk.decision.action == "go to safe 1"  # the first of the best
    assert talk.decision.imagined is talk.replies[4]
    assert [
        (c["action"], c["score"], c["score_parsed"]) for c in talk.decision.notes["candidates"]
    ] == [("look", 0.2, True), ("go to safe 1", 0.9, True), ("go to shelf 1", 0.9, True)]
    assert memory["replies"] == {2: draft("go to safe 1")}


def test_two_steps_of_simulation() -> None:
    talk = converse_with(
        agent(depth=2, candidates=2),
        view(*TWO),
        [
            draft("look"),
            draft("go to safe 1"),
            "A desk.",
            "A safe.",
            draft("wait"),
            draft("open safe 1"),
            "Hm.",
            "A pen.",
            "0",
            "1",
        ],
    )
    assert talk.purposes[4:8] == [
        "simulation 1: action 2",
        "simulation 2: action 2",
        "imagine wait",
        "imagine open safe 1",
    ]
    later = talk.requests[7]
    assert later.after == (talk.replies[3],)
    assert talk.requests[5].messages[-1].content == "A safe."  # drafted on the imagined turn
    assert talk.requests[5].sampling.temperature == 0.0
    assert "A safe." in talk.requests[9].messages[-1].content
    assert "A pen." in talk.requests[9].messages[-1].content
    assert talk.decision.action == "go to safe 1"
    assert talk.decision.notes["candidates"][1]["future"] == [
        ["go to safe 1", "A safe."],
        ["open safe 1", "A pen."],
    ]


def test_a_simulation_ends_where_the_goal_is_reached() -> None:
    solved = Imagined("Done.", State(), Delta(), True, Prediction("Done."), "look", None)
    talk = converse_with(
        agent(depth=3, candidates=2),
        view(*TWO),
        [draft("look"), draft("wait"), solved, solved, "1", "0"],
    )
    assert talk.kinds.count("Imagine") == 2 and talk.decision.action == "look"


def test_repeated_candidates_are_asked_again_then_left_out() -> None:
    talk = converse_with(
        agent(),
        view(*TWO),
        [draft("look"), draft("Look."), draft("wait"), draft("wait"), draft("LOOK")]
        + ["A.", "B.", "0.1", "none"],
    )
    assert talk.purposes[1:5] == [f"candidate {n}, try {i}" for n in (2, 3) for i in (1, 2)]
    assert [c["action"] for c in talk.decision.notes["candidates"]] == ["look", "wait"]
    assert talk.decision.notes["candidates"][1]["score_parsed"] is False
    alone = converse_with(agent(tries=1), view(*TWO), [draft("look")] * 3)
    assert alone.decision.action == "look" and alone.decision.notes["candidates"] == []
    assert "Imagine" not in alone.kinds


def test_scores_are_brought_into_range_and_unreadable_ones_count_nothing() -> None:
    replies = [draft("look"), draft("wait"), draft("help"), "A.", "B.", "C."]
    talk = converse_with(agent(), view(*TWO), [*replies, "no number", "-3", "17"])
    assert [c["score"] for c in talk.decision.notes["candidates"]] == [0.0, 0.0, 1.0]
    assert talk.decision.action == "help"
    none = converse_with(agent(), view(*TWO), [*replies, "", "?", "x"])
    assert none.decision.action == "look"


def test_an_unreadable_draft_goes_to_the_environment() -> None:
    talk = converse_with(agent(), view(*TWO), ["Hm.", "Hm again."])
    assert talk.purposes == ["draft", "draft: retry"] and talk.decision.action == "Hm again"


def test_masked_candidates_leave_earlier_ones_out() -> None:
    masked = converse_with(
        agent(decoding="masked", prompts="brief"),
        view(*TWO, actions=("look", "wait")),
        ["look", "wait", "A.", "B.", "0.1", "0.3"],
    )
    assert masked.requests[1].choices == (" wait",)
    assert masked.decision.action == "wait"  # there was no third action to try
    scored = converse_with(
        agent(decoding="scored", temperature=0.0, candidate_temperature=0.0, prompts="brief"),
        view(*TWO),
        [[-1, -2, -3, -4], [-3, -1, -2], [-1, -2], "A.", "B.", "C.", "0", "0", "1"],
    )
    assert [c["action"] for c in scored.decision.notes["candidates"]] == [
        "go to desk 1",
        "go to shelf 1",
        "go to safe 1",
    ]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("actions", [None, ("look", "wait")])
@pytest.mark.parametrize("depth", [1, 2])
def test_hostile_replies(text: str, actions: tuple[str, ...] | None, depth: int) -> None:
    count = 0

    def reply(request: Any) -> Any:
        nonlocal count
        count += 1
        if getattr(request, "purpose", "").startswith(("draft", "candidate")):
            return f"Action: {count} {text}" if text else text
        return text

    seen = view(*TWO, actions=actions)
    talk = converse_with(agent(depth=depth), seen, reply)
    assert talk.decision.action and len(talk.decision.action) <= 1000
    json.dumps(talk.decision.notes, allow_nan=False)
    for request in talk.requests:
        if not isinstance(request, Imagine) and "retry" not in request.purpose:
            assert sum(seen.count_tokens(m.content) for m in request.messages) <= 2048


def test_same_seed_same_decision() -> None:
    def play(seed: int) -> list[Any]:
        env = gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=6)
        episode = run_episode(env, agent(seed=seed, depth=2), seed=1, lm=HashedModel())
        assert episode.error is None
        return [(step.action, json.dumps(dict(step.notes))) for step in episode.steps]

    assert play(0) == play(0) and len(play(0)) == 6
    assert play(0) != play(1)


def test_settings() -> None:
    names = ("start_step", "candidates", "depth", "critic_tokens", "future_tokens")
    wrongs: list[dict[str, Any]] = [{name: 0} for name in names]
    for wrong in [*wrongs, {"critic_temperature": -1}]:
        with pytest.raises(OptionError):
            WebEvolverConfig(**wrong)
    assert WebEvolverAgent().name == "webevolver"
