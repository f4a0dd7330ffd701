"""What tests of the policy's samples share: episodes, and notes of decisions written by hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import comap
from comap.agents import ExpertAgent, View, run_episode
from comap.agents.comap import CoMapConfig
from comap.lm import Message
from comap.trainers.replayed import views_of
from comap.trainers.suffix_label import SuffixLabel
from comap.trajectory import Trajectory

SCRIPTED = Path(comap.__file__).parent / "tests" / "agents" / "scripted.py"
BLOCKS = ("given in training only", "\nseen:", "\noutcome:")
CONFIGS = [
    CoMapConfig(prompts=prompts, state_text=state_text)  # type: ignore[arg-type]
    for prompts in ("standard", "brief")
    for state_text in ("history", "belief")
]
EACH_CONFIG = pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.prompts}-{c.state_text}"
)


@pytest.fixture(scope="module")
def expert() -> Trajectory:
    env = gymnasium.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
    return run_episode(env, ExpertAgent(), seed=0)


@pytest.fixture(scope="module")
def failed(expert: Trajectory) -> Trajectory:
    return replace(expert, steps=expert.steps[:-1], seed=7)


def words(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


def noted(taken: str, **notes: Any) -> dict[str, Any]:
    """The notes of a training rollout that drafted `look` and was told of nothing new."""
    return {
        "path": "reflected",
        "decoding": "free",
        "draft_action": "look",
        "draft_parsed": True,
        "draft_response": "Thought: Where am I?\nAction: look",
        "predicted_next_state": "A dark room.",
        "reflection_text": "That shows nothing new.",
        "decision": "REVISE",
        "ref_action": taken,
        "gate": True,
        "exec_action": taken,
        "agreement": 0.75,
        "context_source": "env",
        "context": "A bright room.",
        "env_next_of_draft": {
            "observation": "Nothing happens.",
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
            "success": False,
        },
        "shown": f"Thought: That shows nothing new.\nAction: {taken}",
    } | notes


def decisions(episode: Trajectory, changes: Mapping[int, Mapping[str, Any]]) -> Trajectory:
    """The episode with notes of a decision at the steps (from 0) that are named, and no others."""
    steps = [
        replace(step, notes=noted(step.action, **changes[number]) if number in changes else {})
        for number, step in enumerate(episode.steps)
    ]
    return replace(episode, steps=tuple(steps))


def at(episode: Trajectory, number: int) -> tuple[View, dict[str, Any] | dict[int, str]]:
    view, replies, _ = list(views_of(episode))[number]
    return view, replies


def label(expert: Trajectory, step: int, y: int, draft: str = "look", **more: Any) -> SuffixLabel:
    actions = [one.action for one in expert.steps]
    same = draft == actions[step]
    told: dict[str, Any] = {
        "task": expert.task,
        "step": step,
        "prefix": tuple(actions[:step]),
        "draft_action": draft,
        "draft_response": f"Action: {draft}",
        "expert_action": actions[step],
        "succ_draft": None if same else 0.0,
        "succ_exp": None if same else float(y),
        "ret_draft": None if same else 0.0,
        "ret_exp": None if same else float(y),
        "y": y,
        "target": actions[step] if y else draft,
        "future": "A dark room.",
        "future_source": "wm",
    }
    return SuffixLabel(**told | more)


KIT = sys.modules[__name__]
"""This module, for tests: ``load("policy_samples_kit.py:KIT")``."""
