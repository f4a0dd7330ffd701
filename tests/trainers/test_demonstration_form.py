"""A policy is asked in training and in play for replies of the form that its demonstrations have."""

from __future__ import annotations

import warnings
from dataclasses import replace

import gymnasium as gym
import pytest

from comap.agents import ReActConfig
from comap.trainers.setup import expert_demonstrations
from comap.trainers.sft import SFTTraining, imitation_samples
from comap.trainers.stages import warn_of_other_form
from comap.trajectory import Trajectory

ASKS = "Thought: <one short line of reasoning>"


@pytest.fixture(scope="module")
def plain() -> Trajectory:
    """A demonstration of an environment's expert, who has no thoughts."""
    env = gym.make("comap/ALFWorld-v0", source="generated", split="train")
    (demonstration,) = expert_demonstrations(env, env.get_wrapper_attr("tasks").ids[:1])
    return demonstration


@pytest.fixture(scope="module")
def thoughtful(plain: Trajectory) -> Trajectory:
    """The same demonstration, with a thought before each action."""
    steps = [replace(step, notes={**step.notes, "thought": "I go on."}) for step in plain.steps]
    return replace(plain, steps=tuple(steps))


def test_a_training_asks_for_no_thought_that_demonstrations_lack(plain: Trajectory) -> None:
    agent = replace(SFTTraining().agent, max_length=8192)
    samples = list(imitation_samples([plain], agent))

    prompts = ["\n".join(message.content for message in sample.messages) for sample in samples]
    assert all("Thought:" not in prompt for prompt in prompts), "nor do its examples have one"
    assert all("That was an example" in prompt for prompt in prompts)
    assert all(sample.text.startswith("Action: ") for sample in samples)


def test_a_training_asks_for_the_thoughts_that_demonstrations_have(thoughtful: Trajectory) -> None:
    agent = SFTTraining(agent=ReActConfig(with_thought=True, max_length=8192)).agent
    samples = list(imitation_samples([thoughtful], agent))

    assert all(ASKS in sample.messages[0].content for sample in samples)
    assert all(sample.text.startswith("Thought: I go on.\nAction: ") for sample in samples)


@pytest.mark.parametrize("with_thought", [True, False])
def test_another_form_than_that_of_demonstrations_is_said(
    with_thought: bool, plain: Trajectory, thoughtful: Trajectory
) -> None:
    agent = ReActConfig(with_thought=with_thought)
    same = thoughtful if with_thought else plain
    mismatched = plain if with_thought else thoughtful

    with pytest.warns(UserWarning, match=f"give the agent with_thought={not with_thought}"):
        warn_of_other_form(agent, [mismatched])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_form(agent, [same])
        warn_of_other_form(replace(agent, prompts="brief"), [mismatched])
