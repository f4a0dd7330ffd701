"""Replies whose first fixed word is given: the model only goes on."""

from __future__ import annotations

import gymnasium as gym
import pytest

from comap.agents import run_episode
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.config import AgentConfig
from comap.agents.react import ReActAgent, ReActConfig
from comap.lm import CAPABILITIES, Completion, Generate, Scores, Usage


class Continuing:
    """Says what goes on after the word that is given, and keeps what it was asked."""

    name = "continuing"
    capabilities = CAPABILITIES - {"tokens"}

    def __init__(self) -> None:
        self.usage = Usage()
        self.asked: list[Generate] = []

    def generate(self, requests):
        self.asked += requests
        said = {"Action:": " look", "Decision:": " REVISE\nFinal Action: inventory"}
        return [Completion(said.get(request.prefix, "Hm.")) for request in requests]

    def score(self, requests):
        return [Scores(((-0.1, -0.1),)) for _ in requests]

    def words(self, requests):
        raise AssertionError("no words are asked for")

    encode = words

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def config(self):
        return {}


def play(agent, lm):
    env = gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=2)
    return run_episode(env, agent, lm=lm, world_model="null", seed=0)


def test_a_draft_goes_on_after_the_word_that_is_given():
    lm = Continuing()
    episode = play(ReActAgent(ReActConfig(prompts="brief", form="given")), lm)
    assert [step.action for step in episode.steps] == ["look", "look"]
    assert {request.prefix for request in lm.asked} == {"Action:"}


def test_a_reflection_goes_on_after_its_own_word():
    lm = Continuing()
    config = CoMapConfig(prompts="brief", form="given", p_source="verbal")
    episode = play(CoMapAgent(config), lm)
    notes = episode.steps[0].notes
    assert notes["draft_response"] == "Action: look"
    assert notes["reflect_response"] == "Decision: REVISE\nFinal Action: inventory"
    assert (notes["decision"], notes["ref_action"]) == ("REVISE", "inventory")
    assert episode.steps[0].action == "inventory"
    assert [request.prefix for request in lm.asked[:2]] == ["Action:", "Decision:"]


def test_standard_prompts_begin_with_the_thought_and_the_reflection():
    lm = Continuing()
    config = CoMapConfig(form="given", p_source="verbal", q_source="proxy")
    play(CoMapAgent(config), lm)
    assert lm.asked[0].prefix == "Thought:"


@pytest.mark.parametrize("form", ["asked", "given"])
def test_a_model_must_be_able_to_go_on_only_where_a_word_is_given(form: str):
    assert ("prefix" in AgentConfig(form=form).needs()) is (form == "given")
