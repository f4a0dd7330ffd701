from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.errors import LanguageModelError
from comap.facts import State
from comap.lm import CAPABILITIES, Completion, Generate, Usage
from comap.lm.base import BaseLanguageModel
from comap.worldmodel import ImaginedEnv, Query, Turn
from comap.worldmodel.language import LanguageWorldModel, prediction_of

ENV = "comap/ALFWorld-v0"


class Scripted(BaseLanguageModel):
    """Answers with the given texts in turn, and remembers what it was asked."""

    name, capabilities = "scripted", CAPABILITIES

    def __init__(self, *replies: str | LanguageModelError):
        self.replies = list(replies)
        self.asked: list[Any] = []
        self.usage = Usage()

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        self.asked += requests
        replies = [self.replies.pop(0) for _ in requests]
        return [Completion(reply) if isinstance(reply, str) else reply for reply in replies]

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def config(self) -> dict[str, Any]:
        return {}


def query(turns: int = 3, size: int = 4, action: str = "open fridge 1") -> Query:
    first = "You are in a room. Your task is to: put a clean mug in shelf."
    history = [Turn(None, first)]
    history += [Turn(f"go to place {n}", f"step{n} " + "thing " * size) for n in range(turns)]
    return Query(ENV, "put a clean mug in shelf.", tuple(history), State(), action)


def text_of(request: Generate) -> str:
    return "\n".join(message.content for message in request.messages)


def test_a_temperature_gives_each_prompt_a_seed_of_its_own() -> None:
    lm = Scripted(*["a"] * 3)
    model = LanguageWorldModel(lm, temperature=0.7)
    model.predict([query(), query(), query(action="close fridge 1")])
    first, repeated, other_prompt = (request.sampling for request in lm.asked)
    assert first == repeated and first.temperature == 0.7 and first.seed != other_prompt.seed
    assert (
        model.options["temperature"] == 0.7 and "temperature" not in LanguageWorldModel(lm).options
    )


def test_a_thought_before_the_observation_is_left_out() -> None:
    for text in ("Thought: It opens.\nSo.\nObservation:\nIt is open.", "Next state: It is open."):
        assert prediction_of(Completion(text), "").observation == "It is open."
    for block in ("<think>Observation: It is shut.</think>", "It is shut.</think>\n"):
        assert prediction_of(Completion(f"{block}It is open."), "").observation == "It is open."
    assert prediction_of(Completion("<think>It may be"), "").observation == ""
    plain = "Thought: no label"
    assert prediction_of(Completion(plain), "").observation == plain


def test_the_prompt_tells_state_action_and_form_in_order() -> None:
    lm = Scripted("You open the fridge 1.")
    (prediction,) = LanguageWorldModel(lm).predict([query()])
    assert (
        prediction.observation == "You open the fridge 1."
        and prediction.source == "language:scripted"
    )
    text = text_of(lm.asked[0])
    marks = [
        "put a clean mug in shelf",
        "> go to place 0",
        "step2",
        "open fridge 1",
        "Predicted next",
    ]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert text.endswith("Predicted next state:")
    assert lm.asked[0].sampling.temperature == 0 and lm.asked[0].sampling.max_new_tokens == 512


@settings(deadline=None)
@given(
    turns=st.integers(0, 40),
    size=st.integers(0, 300),
    intro=st.integers(0, 3000),
    belief=st.booleans(),
)
def test_what_is_too_long_loses_old_turns_and_nothing_else(
    turns: int, size: int, intro: int, belief: bool
) -> None:
    lm = Scripted("ok")
    long_query = query(turns, size)
    start = Turn(None, "word " * intro + long_query.history[0].observation)
    long_query = Query(
        ENV, long_query.goal, (start, *long_query.history[1:]), State(), long_query.action
    )
    state_text = "belief" if belief else "history"
    model = LanguageWorldModel(lm, max_length=600, max_new_tokens=64, state_text=state_text)
    model.predict([long_query])
    text = text_of(lm.asked[0])
    assert lm.count_tokens(text) <= 600 - 64
    assert long_query.goal in text and "open fridge 1" in text and text.endswith("next state:")
    if not belief and turns:
        kept_turns = [n for n in range(turns) if f"> go to place {n}\n" in text]
        assert kept_turns == list(range(turns - len(kept_turns), turns)), (
            "only the oldest may be missing"
        )
        assert kept_turns, "the newest turn is always there"


@pytest.mark.parametrize(
    ("text", "observation", "terminated"),
    [
        ("You win.\nDone: yes", "You win.", True),
        ("You go on.\nDone: no.", "You go on.", False),
        ("You go on.", "You go on.", None),
        ("Done: yes", "", True),
        ("The oven says done: yes it does", "The oven says done: yes it does", None),
    ],
)
def test_the_end_in_the_models_own_words(
    text: str, observation: str, terminated: bool | None
) -> None:
    prediction = prediction_of(Completion(text), "me", "words")
    assert (prediction.observation, prediction.terminated) == (observation, terminated)
    assert prediction_of(Completion(text), "me").terminated is None


def test_confidence_is_the_mean_probability_of_the_tokens() -> None:
    prediction = prediction_of(Completion("x", (1, 2), (-0.2, -0.4)), "me")
    assert prediction.confidence == pytest.approx(0.740818, abs=1e-6)
    assert prediction_of(Completion("x"), "me").confidence is None


def test_a_failure_of_the_language_model_is_told() -> None:
    lm = Scripted("fine", LanguageModelError("the server is gone"))
    with pytest.raises(LanguageModelError, match="gone"):
        LanguageWorldModel(lm).predict([query(), query()])


def test_imagined_episodes_end_by_facts_or_by_the_models_words() -> None:
    env = gymnasium.make(ENV)
    lm = Scripted("You wait.\nDone: no", "You have done it.\nDone: yes")
    world = ImaginedEnv(env, LanguageWorldModel(lm, ending="words"))
    world.reset(seed=0)
    _, _, terminated, _, info = world.step("look")
    assert not terminated and info["imagined"]
    _, reward, terminated, _, _ = world.step("look")
    assert terminated and reward == 1.0


PEN = "put a pen in safe"


class Counter:
    """Counts a token for every three bytes, rounded up; answers nothing."""

    name = "counter"

    @staticmethod
    def count_tokens(text: str) -> int:
        return -(-len(text.encode("utf-8", "replace")) // 3)


def prompt(question: Query, **options: Any) -> str:
    model: Any = Counter()
    (message,) = LanguageWorldModel(model, **options).prompt(question)
    return message.content


def query_at(first: str, *, goal: str = PEN, turns: int = 0, action: str = "look") -> Query:
    history = (Turn(None, first), *(Turn("wait", "Hm. " * 9) for _ in range(turns)))
    return Query("comap/ALFWorld-v0", goal, history, State(), action)


def test_a_first_observation_has_all_the_room_until_there_are_turns() -> None:
    first = f"You see {'a desk 1, ' * 55}and a safe 1. Your task is to: {PEN}"
    options: dict[str, Any] = {"prompts": "brief", "max_length": 512}
    assert prompt(query_at(first), **options).startswith(first + "\n")
    cut = prompt(query_at(first, turns=1), **options)
    assert first not in cut and f"Task goal: {PEN}" in cut and "> wait\nHm." in cut
