"""No request is longer than the settings allow: histories, actions and replies of all lengths."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from comap.agents.base import Imagine
from comap.agents.create import create_agent
from comap.agents.foresight import listed_actions
from comap.agents.knowledge import Knowledge
from comap.agents.reflexion import ReflexionAgent
from comap.envs.conformance.transcripts import load
from comap.facts import State
from comap.lm import Completion, Encode, Generate, Score, Words
from comap.lm.prompts import OVERHEAD

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")

NAMES = ("comap", "imagine-and-act", "itp", "iwm", "rap", "react", "reflexion", "webevolver", "wkm")
LENGTH = {"standard": 2048, "brief": 512}
OPTIONS: dict[str, dict[str, Any]] = {
    "rap": {"candidates": 2, "depth": 2, "rollouts": 2},
    "webevolver": {"start_step": 1, "depth": 2},
}
BRIEF: dict[str, dict[str, Any]] = {
    "itp": {"reply_tokens": 64, "foresight_tokens": 64},
    "wkm": {"task_tokens": 64},
}
PIECES = ("desk", "safe 1", "You see", "é" * 5, "😀", "word")


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(PIECES) for _ in range(words))


def some_view(rng: random.Random) -> Any:
    actions = [f"go to shelf {n}" for n in range(rng.choice([3, 40]))]
    actions.append("take " + "x y " * rng.choice([1, 10, 30]))
    turns = [
        (rng.choice([*actions, "z" * 900]), text(rng, rng.choice([1, 5, 30, 150])))
        for _ in range(rng.choice([0, 1, 5, 40]))
    ]
    return view(
        *turns,
        observation=text(rng, rng.choice([5, 150])),
        goal="Put " + rng.choice(["a pen", "pens " * 60]),
        actions=rng.choice([None, tuple(actions)]),
        facts=State(frozenset(("exists", f"desk {n}") for n in range(rng.choice([1, 60])))),
        memory={"reflections": ["note " * 100] * 3},
    )


def any_reply(rng: random.Random, seen: Any, request: Any) -> Any:
    """Return a reply that keeps to the tokens it was given."""
    if isinstance(request, Imagine):
        return text(rng, rng.choice([1, 150]))
    if isinstance(request, Score):
        return [-rng.random() for _ in request.completions]
    if isinstance(request, Words):
        return [rng.random() for _ in request.words]
    if isinstance(request, Encode):
        return [0.5]
    if request.choices is not None:
        return max(request.choices, key=len)
    action = rng.choice(["go to shelf 1", "open " + "é " * 60])
    said = rng.choice(
        [
            f"Thought: {text(rng, 9)}\nAction: {action}",
            f"Reflection: {text(rng, 30)}\nDecision: REVISE\nFinal Action: {action}",
            text(rng, 300),
            "3",
        ]
    )
    while seen.count_tokens(said) > request.sampling.max_new_tokens:
        said = said[: len(said) * 9 // 10]
    return Completion(said, None, None, rng.choice(["stop", "length"]), 1, 1)


def size_of(request: Any, seen: Any) -> int:
    """Return the most tokens of a request with its reply."""
    size = sum(seen.count_tokens(message.content) + OVERHEAD for message in request.messages)
    size += seen.count_tokens(request.prefix)
    options = getattr(request, "choices", None) or getattr(request, "completions", None)
    if options:
        return int(size + max(map(seen.count_tokens, options)))
    return int(size + (request.sampling.max_new_tokens if isinstance(request, Generate) else 0))


@pytest.mark.parametrize("decoding", ["free", "masked", "scored"])
@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_asked_fits(name: str, decoding: str) -> None:
    for style, state, number in product(LENGTH, ("history", "belief"), range(3)):
        rng = random.Random(f"{name} {decoding} {style} {state} {number}")
        options = {"decoding": decoding, "prompts": style, "state_text": state}
        options |= OPTIONS.get(name, {}) | (BRIEF.get(name, {}) if style == "brief" else {})
        if name == "comap":
            options["p_source"] = rng.choice(["verbal", "verbalizer"])
        agent: Any = create_agent(name, max_length=LENGTH[style], **options)
        if name == "wkm":
            agent.knowledge.add(Knowledge("x", "look", "go to x"))
        seen = some_view(rng)
        talk = converse_with(agent, seen, lambda asked, r=rng, s=seen: any_reply(r, s, asked))
        for request in talk.requests:
            if not isinstance(request, Imagine):
                assert size_of(request, seen) <= LENGTH[style], f"{style}: {request.purpose}"


@pytest.mark.parametrize("decoding", ["masked", "scored"])
def test_an_action_fits_after_a_thought_of_full_length(decoding: str) -> None:
    long = "click[" + "a rather long name of a thing " * 6 + "]"
    for turns in range(60, 100):  # prompts that are full to the brim, in steps of a few tokens
        seen = view(*[("look", "You see nothing." + "!" * turns)] * turns, actions=("look", long))
        thought = "w" * 3 * 64
        last: Any = long if decoding == "masked" else (-2.0, -1.0)
        agent = create_agent("react", decoding=decoding, temperature=0.0)
        talk = converse_with(agent, seen, [thought, last])
        assert talk.requests[1].prefix == f"{thought}\nAction:"
        assert talk.decision.action == long
        assert 1900 < size_of(talk.requests[1], seen) <= 2048


def test_notes_of_earlier_trials_leave_room_in_brief_prompts() -> None:
    memory = {"reflections": ["word " * 400] * 3}
    seen = view(*[("look", "You see nothing.")] * 30, memory=memory)
    agent: Any = create_agent("reflexion", prompts="brief", max_length=512)
    assert isinstance(agent, ReflexionAgent)
    (asked,) = converse_with(agent, seen, ["Action: look"]).requests
    assert size_of(asked, seen) <= 512
    assert asked.messages[-1].content.count("> look") > 3


def test_listed_actions_are_whole() -> None:
    actions = tuple(f"go to shelf {number}" for number in range(500))
    listed = listed_actions(view(actions=actions), 300).splitlines()
    assert tuple(listed) == actions[: len(listed)] and 20 < len(listed) < 100
    assert view().count_tokens("\n".join(listed)) <= 300
    assert listed_actions(view(actions=("x" * 9000, "look")), 300) == ""
