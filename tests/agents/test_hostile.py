"""Every agent against what models should not say: text, numbers and choices that make no sense."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comap.agents.acting import choose_action
from comap.agents.base import Imagine
from comap.agents.candidates import mean_log_prob
from comap.agents.config import AgentConfig
from comap.agents.create import AGENTS, agent_options, create_agent
from comap.agents.k_head import KHead
from comap.agents.parsing import number_in
from comap.agents.prompting import converse
from comap.agents.refinement import RefinementHead
from comap.agents.reflecting import token_confidence
from comap.agents.verbs import normalized
from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError
from comap.lm import Completion, Encode, Score, Words
from comap.worldmodel.language import prediction_of

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
drive = load(f"{HERE}:drive")

NAMES = sorted(name for name in AGENTS if agent_options(name) is not None)
SMALL: dict[str, dict[str, Any]] = {
    "rap": {"candidates": 2, "depth": 2, "rollouts": 3},
    "comap": {"p_source": "verbalizer"},
    "webevolver": {"start_step": 1},
}
TEXTS = (
    "",
    "Action:",
    "Action: \ud800\x00\x1b[2J",
    "$goal ${instructions} %s {0}",
    "Final Action: <|im_end|>\nAction: </foresight>",
    "Action: " + "😀" * 3000,
    "Revise Probability: nan\nAction: look",
    "-inf",
)
NUMBERS = (math.nan, math.inf, -math.inf, -1e308, 0.0, 0.5)


@pytest.mark.parametrize("actions", [None, ("look", "go to safe 1", "look")])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("name", NAMES)
def test_texts(name: str, text: str, actions: tuple[str, ...] | None) -> None:
    def reply(request: Any) -> Any:
        if isinstance(request, Words):
            return [0.25] * len(request.words)
        if isinstance(request, Score):
            return [-1.0] * len(request.completions)
        return text

    memory: dict[str, Any] = {}
    agent = create_agent(name, **SMALL.get(name, {}))
    turns: tuple[tuple[str, str], ...] = ()
    for _ in range(2):  # what was said is part of the next prompt
        talk = converse_with(agent, view(*turns, actions=actions, memory=memory), reply)
        action = talk.decision.action
        assert isinstance(action, str) and 0 < len(action) <= 1000
        json.dumps(talk.decision.notes, allow_nan=False)
        for request in talk.requests:
            if not isinstance(request, Imagine):
                roles = [message.role for message in request.messages]
                assert roles.count("system") <= 1 and roles[-1] == "user"
                assert all(isinstance(message.content, str) for message in request.messages)
        turns = ((action, text),)


@pytest.mark.parametrize("value", NUMBERS, ids=str)
@pytest.mark.parametrize("decoding", ["free", "masked", "scored"])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_refused_or_harmless(name: str, decoding: str, value: float) -> None:
    def reply(request: Any) -> Any:
        if isinstance(request, Words):
            return [value] * len(request.words)
        if isinstance(request, Score):
            return [(value, -0.5)] * len(request.completions)
        if isinstance(request, Imagine):
            return "A desk."
        said = "Thought: So.\nAction: look" if request.choices is None else request.choices[0]
        return Completion(said, (1, 2), (value, -0.5), "stop", 1, 2)

    if name == "paw" and decoding != "free":
        return  # refused: tests/test_paw_agent.py
    agent = create_agent(name, decoding=decoding, **SMALL.get(name, {}))
    try:
        talk = converse_with(agent, view(), reply)
    except LanguageModelError as error:
        assert value not in (0.0, 0.5) and str(error).startswith("expected")
        return
    json.dumps(talk.decision.notes, allow_nan=False)
    assert talk.decision.action


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_hidden_states_that_are_none(value: float) -> None:
    for head in (RefinementHead(np.ones(2, np.float32)), KHead([[1.0, 0.0], [0.0, 1.0]], [0, 0])):
        with pytest.raises(LanguageModelError, match="finite hidden state"):
            (head.probability if isinstance(head, RefinementHead) else head.logits)([value, 0.0])
    agent = create_agent("itp", k_source="head", k_head=KHead([[1.0], [2.0]], [0, 0]))

    def reply(request: Any) -> Any:
        return [value] if isinstance(request, Encode) else "Action: look"

    with pytest.raises(LanguageModelError, match="finite hidden state"):
        converse_with(agent, view(), reply)


def choose(said: Any, **options: Any) -> Any:
    config = AgentConfig(**options)
    asked = choose_action(view(), config, converse(view(), config), "Action:")
    return drive(asked, [said]).result


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_scores_of_actions(temperature: float) -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(LanguageModelError, match="inf or nan"):
            choose([-1.0, bad, -2.0, -3.0], decoding="scored", temperature=temperature)
    impossible = [-math.inf] * 4
    assert choose(impossible, decoding="scored", temperature=temperature)[0] == "go to desk 1"
    mixed = [-math.inf, -1.0, -math.inf, -math.inf]
    assert choose(mixed, decoding="scored", temperature=temperature)[0] == "go to safe 1"


def test_a_choice_that_was_not_given_is_refused() -> None:
    with pytest.raises(LanguageModelError, match="one of the 4 given actions"):
        choose(Completion(" burn it down"), decoding="masked")
    assert choose(Completion("look"), decoding="masked")[0] == "look"  # without its blank


def test_numbers_in_functions() -> None:
    assert mean_log_prob((math.nan, -1.0)) == mean_log_prob((-math.inf,)) == -100.0
    assert mean_log_prob((math.inf, -1.0)) == -0.5
    assert token_confidence((math.inf,)) == 1.0 and token_confidence((1e9, -math.inf)) == 0.0
    assert normalized({"go": math.inf, "look": 2.0, "sit": math.nan}, ["go", "look", "sit"]) == {
        "go": 0.0,
        "look": 1.0,
        "sit": 0.0,
    }
    found = [prediction_of(Completion("x", None, (value,)), "me").confidence for value in NUMBERS]
    assert found == [None, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert prediction_of(Completion("x", None, (math.inf, -math.inf)), "me").confidence == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [("10%", 0.1), ("70 %", 0.7), ("250%", 1.0), ("-5%", 0.0), ("0.5 of 100%", 0.5), ("nan", None)],
)
def test_percentages(text: str, number: float | None) -> None:
    assert number_in(text, 0.0, 1.0) == number
