"""CoMap's confidence q from the tokens that a backend says it wrote, without scoring the action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import run_episode
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.generated_tokens import Piece, logprobs_of_span
from comap.agents.needs import check_needs
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.lm import Completion, Score
from comap.lm.openai import OpenAILanguageModel

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
SERVER = Path(__file__).parents[1] / "lm" / "hostile_server.py"
LOCAL = "http://127.0.0.1:9/v1"

DRAFT = "Thought: The safe is far.\nAction: go to desk 1"
DESK = "You arrive at desk 1. On the desk 1, you see a pen 1."
BEFORE = ("Reflection", ": Not there.\nDecision", ": REVISE\n", "Final", " Action")
AFTER = ("\n", "Revise", " Probability:", " 0.9")
PURPOSES = ["draft", "imagine go to desk 1", "reflect"]


def agent(**options: Any) -> CoMapAgent:
    return CoMapAgent(CoMapConfig(**{"p_source": "verbal", **options}))


def wrote(*parts: Sequence[str] | dict[str, float], **changes: Any) -> Completion:
    """Return a completion of tokens; those in a mapping have their log-probability, others -9."""
    tokens = [token for part in parts for token in part]
    logprobs = [part[t] if isinstance(part, dict) else -9.0 for part in parts for t in part]
    fields: dict[str, Any] = {"logprobs": tuple(logprobs), "tokens": tuple(tokens), **changes}
    return Completion(**{"text": "".join(tokens), **fields})


def notes_of(*replies: Any, score: Any = None, **options: Any) -> dict[str, Any]:
    """Return what is noted of a step; the action must be scored where there are scores."""
    scores = [] if score is None else [score]
    talk = converse_with(agent(**options), view(), [DRAFT, DESK, *replies, *scores])
    assert ("Score" in talk.kinds) is bool(scores)
    found: dict[str, Any] = talk.decision.notes
    return found


SAFE = {":": -9.0, " go": -0.1, " to": -0.2, " safe": -0.4, " 1": -0.3}


@pytest.mark.parametrize(
    ("source", "q"),
    [("token_geo_mean", math.exp(-0.25)), ("min_token", math.exp(-0.4))],
)
def test_q_is_of_the_tokens_of_the_action(source: str, q: float) -> None:
    notes = notes_of(wrote(BEFORE, SAFE, AFTER), q_source=source)
    assert (notes["q"], notes["ref_action"]) == (round(q, 6), "go to safe 1")
    assert notes["gate"] and notes["exec_action"] == "go to safe 1"


@pytest.mark.parametrize(
    ("written", "q"),
    [
        ({": go": -0.2, " to safe": -0.4, " 1\n": -0.6}, math.exp(-0.4)),
        ({":": -9, " ": -9, '"': -9, "go to": -0.2, " safe 1": -0.4, '".\n': -9}, math.exp(-0.3)),
        ({": **go to safe 1**\n": -0.5}, math.exp(-0.5)),
        ({":": -9, " go to safe": -0.1, "": -0.3, " 1\n": -0.2}, math.exp(-0.2)),
        ({": go": -math.inf, " to safe 1\n": -0.4}, 0.0),
    ],
    ids=str,
)
def test_an_action_that_does_not_begin_or_end_with_a_token(
    written: dict[str, float], q: float
) -> None:
    notes = notes_of(wrote(BEFORE, written, AFTER[1:]))
    assert (notes["q"], notes["ref_action"]) == (round(q, 6), "go to safe 1")


def test_the_action_is_found_though_tokens_say_more_than_the_text() -> None:
    q = round(math.exp(-0.25), 6)
    first = wrote(("\n ", *BEFORE), SAFE)
    cut = wrote(("\n ", *BEFORE), SAFE, ("\nObservation:", " x"), text=first.text)
    ended = wrote(BEFORE, SAFE, ("<|im_end|>",), text="".join((*BEFORE, *SAFE)))
    thought = wrote(("Final Action: look\n</think>", *BEFORE), SAFE, text=ended.text)
    assert [notes_of(said)["q"] for said in (first, cut, ended, thought)] == [q] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": None},
        {"logprobs": None},
        {"logprobs": (-0.1,)},
        {"tokens": ("x",) * 10, "logprobs": (-0.1,) * 10},
        {"text": "Well. " + "".join((*BEFORE, *SAFE))},
    ],
    ids=["no tokens", "no logprobs", "fewer logprobs", "other tokens", "another text"],
)
def test_what_cannot_be_located_is_scored(changes: dict[str, Any]) -> None:
    notes = notes_of(wrote(BEFORE, SAFE, **changes), score=[(-0.5, -0.7)])
    assert notes["q"] == round(math.exp(-0.6), 6)


def test_a_text_that_was_generated_twice_is_not_located() -> None:
    said = Completion("ab", logprobs=(-1.0,) * 3, tokens=("x", "ab", "ab"))
    assert logprobs_of_span([Piece(said, 0, 2, at=0)], 0, 2) is None
    once = Completion("ab", logprobs=(-1.0, -2.0), tokens=("x", "ab"))
    assert logprobs_of_span([Piece(once, 0, 2, at=0)], 0, 2) == (-2.0,)
    assert logprobs_of_span([Piece(once, 0, 2, at=1)], 0, 2) is None  # who wrote the rest?
    assert logprobs_of_span([], 0, 2) is None


@pytest.mark.parametrize("said", ["Decision: KEEP", "Final Action:", ""])
def test_without_an_action_q_is_0(said: str) -> None:
    assert notes_of(wrote((said,)))["q"] == 0.0


def test_a_continued_reflection_has_the_tokens_of_both() -> None:
    begun = wrote(BEFORE, {":": -9, " go": -0.1, " to": -0.3, " ": -9}, finish="length")
    rest = wrote({" safe": -0.2, " 1": -0.6}, ("\n", "safe 1"), text=" safe 1")
    talk = converse_with(agent(), view(), [DRAFT, DESK, begun, rest])
    assert talk.purposes == [*PURPOSES, "reflect: final action"]
    assert talk.decision.notes["ref_action"] == "go to safe 1"
    assert talk.decision.notes["q"] == round(math.exp(-0.3), 6)
    told_only_once = Completion(" safe 1")
    assert notes_of(begun, told_only_once, score=[(-0.5,)])["q"] == round(math.exp(-0.5), 6)


def test_a_continuation_that_has_the_whole_action_is_enough() -> None:
    begun = Completion("Reflection: Hm.\nFinal Ac", finish="length")
    rest = wrote({" go to": -0.2, " safe 1": -0.4})
    assert notes_of(begun, rest)["q"] == round(math.exp(-0.3), 6)


def test_masked_decoding_scores_as_ever() -> None:
    said = wrote(("Decision: REVISE",))
    replies = ["", "go to desk 1", DESK, said, "go to safe 1", " 0.8", [(-0.5,)]]
    talk = converse_with(agent(decoding="masked"), view(), replies)
    assert isinstance(talk.requests[-1], Score)


# Which language models will do.


def test_a_server_that_tells_tokens_will_do_and_others_are_refused() -> None:
    check_needs(agent(), OpenAILanguageModel("m", LOCAL))
    with pytest.raises(OptionError, match=r"score given texts or tell .*set q_source='proxy'"):
        check_needs(agent(), OpenAILanguageModel("m", LOCAL, logprobs=False))
    vllm = OpenAILanguageModel("m", LOCAL, choices_mode="vllm")
    with pytest.raises(OptionError, match=r"score given texts; .*set decoding='free'"):
        check_needs(agent(decoding="masked"), vllm)


@pytest.mark.parametrize("decoding", ["free", "masked"])
def test_scores_will_do_with_prefixes(decoding: str) -> None:
    lm: Any = OpenAILanguageModel("m", LOCAL)
    lm.capabilities = frozenset({"generate", "choices", "prefix", "score"})
    check_needs(agent(decoding=decoding), lm)
    lm.capabilities = frozenset({"generate", "tokens"})
    check_needs(agent(final_tokens=0), lm)
    lm.capabilities = frozenset({"generate", "score"})
    with pytest.raises(OptionError, match="go on with a reply"):
        check_needs(agent(final_tokens=0), lm)


def test_a_server_that_tells_no_tokens_after_all_is_named_in_the_error() -> None:
    pytest.importorskip("openai")
    env = gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
    says = load(f"{SERVER}:says")("Action: look\nFinal Action: inventory")
    with load(f"{SERVER}:HostileServer")(says) as server:
        lm = OpenAILanguageModel("m", server.url, max_retries=0)
        trajectory = run_episode(env, agent(future_state=False), lm=lm)
    assert trajectory.error is not None and "set q_source='proxy'" in trajectory.error
