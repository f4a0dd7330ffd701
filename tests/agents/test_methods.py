"""What METHODS.md 1.11 and 3 fix: the constants, and how many texts CoMap writes in a step."""

from __future__ import annotations

import inspect
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from comap.agents.acting import STOP
from comap.agents.base import Imagine
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.create import AGENTS, agent_options, create_agent
from comap.agents.gates import action_gate, world_state_gate
from comap.agents.itp import ITPConfig
from comap.agents.k_head import pseudo_label_k
from comap.envs.conformance.transcripts import load
from comap.facts import Delta
from comap.lm import Encode, Generate, Score, Words
from comap.worldmodel.language import LanguageWorldModel

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")

SHARED = {
    "max_length": 2048,
    "temperature": 0.7,
    "top_p": 0.9,
    "draft_tokens": 64,
    "examples": 1,
    "decoding": "free",
    "state_text": "history",
    "prompts": "standard",
}
STATED: dict[str, dict[str, Any]] = {
    "paw": {
        "max_length": 2048 + 512,
        "temperature": 1.0,
        "top_p": 1.0,
        "draft_tokens": 512,
        "examples": 0,
        "history_turns": 2,
        "memory_turns": 4,
    },
    "react": {},
    "imagine-and-act": {"imagine_tokens": 192},
    "reflexion": {"trials": 3, "reflections": 3},
    "comap": {
        "tau_p": 0.5,
        "tau_q": 0.6,
        "reflect_tokens": 128,
        "final_tokens": 16,
        "p_source": "head",
        "q_source": "token_geo_mean",
    },
    "rap": {
        "candidates": 8,
        "candidate_temperature": 0.8,
        "action_tokens": 32,
        "log_prob_weight": 0.2,
        "evaluation_weight": 0.6,
        "overlap_weight": 0.2,
        "exploration": 1.4,
        "depth": 6,
        "rollouts": 32,
        "discount": 1.0,
    },
    "itp": {
        "k_temperature": 0.8,
        "k_tokens": 32,
        "k_fallback": 1,
        "foresight_tokens": 256,
        "similarity": 0.72,
    },
    "wkm": {"gamma": 0.7, "neighbours": 3000},
    "iwm": {"alternatives": 8},
    "webevolver": {"start_step": 3, "candidates": 3, "candidate_temperature": 1.0, "depth": 1},
    "comap-selective": {"tau_p": 0.5, "tau_q": 0.6, "surprisal": None, "adoption": None},
}


def test_every_agent_that_asks_a_model_is_here() -> None:
    assert set(STATED) == {name for name in AGENTS if agent_options(name) is not None}


@pytest.mark.parametrize("name", sorted(STATED))
def test_constants(name: str) -> None:
    options = agent_options(name)
    assert options is not None
    found = options().describe()
    assert {key: found[key] for key in SHARED | STATED[name]} == SHARED | STATED[name]
    assert "eviations" in inspect.getdoc(type(create_agent(name)))  # type: ignore[operator]


def test_constants_that_are_no_settings() -> None:
    assert STOP == ("\nObservation:", "\nTask:", "\n---")
    assert [ITPConfig().k_max_of(f"comap/{env}-v0") for env in ("ALFWorld", "ScienceWorld")] == [
        5,
        3,
    ]
    assert inspect.signature(pseudo_label_k).parameters["cost"].default == 0.2
    model = inspect.signature(LanguageWorldModel).parameters
    assert model["max_new_tokens"].default == 192 and model["max_length"].default == 2048
    for gate, name, value in ((action_gate, "tau_p", 0.5), (action_gate, "tau_q", 0.6)):
        assert inspect.signature(gate).parameters[name].default == value
    assert inspect.signature(world_state_gate).parameters["tau"].default == 0.6


def test_gates_at_their_thresholds() -> None:
    """METHODS.md 4.1, 2 and 3: strict for actions, not for states."""
    assert not action_gate(0.5, 1.0, same=False) and not action_gate(1.0, 0.6, same=False)
    assert not action_gate(1.0, 1.0, same=True) and action_gate(0.51, 0.61, same=False)
    three = Delta(frozenset({("a", "1"), ("a", "2"), ("a", "3")}))
    five = Delta(frozenset({*three.added, ("a", "4"), ("a", "5"), ("a", "6"), ("a", "7")}))
    assert world_state_gate(three, five).agreement == pytest.approx(0.6)
    assert world_state_gate(three, five, tau=0.6).open


SETTINGS = [
    {"decoding": decoding, "prompts": prompts, "p_source": p, "q_source": q}
    for decoding, prompts, p, q in product(
        ("free", "masked", "scored"),
        ("standard", "brief"),
        ("head", "verbalizer", "verbal"),
        ("token_geo_mean", "proxy"),
    )
]


def _said(request: Any) -> Any:
    if isinstance(request, Imagine):
        return "The safe 1 is closed."
    if isinstance(request, Words):
        return [0.6] * len(request.words)
    if isinstance(request, Encode):
        return [0.5]
    if isinstance(request, Score):
        return [(-0.25,)] * len(request.completions)
    if request.choices is not None:
        return request.choices[0]
    if request.purpose.startswith("draft"):
        return "Thought: Hm.\nAction: look"
    return "Reflection: No.\nDecision: REVISE\nFinal Action: look\nRevise Probability: 0.5"


@pytest.mark.parametrize("options", SETTINGS, ids=lambda options: "-".join(options.values()))
def test_comap_writes_three_texts_a_step(options: dict[str, Any]) -> None:
    """Draft, prediction and reflection; what else is asked reads, or goes on with one of them."""
    talk = converse_with(CoMapAgent(CoMapConfig(**options)), view(), _said)
    writes = [r for r in talk.requests if isinstance(r, Generate)]
    begun = {request.messages for request in writes}
    assert talk.kinds.count("Imagine") == 1 and len(begun) <= 2
    if options["decoding"] == "free":
        assert len(writes) == 2 and not any(request.prefix for request in writes)
    asked = {request.messages for request in talk.requests if not isinstance(request, Imagine)}
    assert len(asked) == 2  # nothing is read but what was written on
    choices = [r for r in talk.requests if r in writes and r.choices is not None]
    assert not choices or options["decoding"] == "masked"


CAPABILITY = {Score: "score", Words: "words", Encode: "encode"}


@pytest.mark.parametrize("decoding", ["free", "masked", "scored"])
@pytest.mark.parametrize("name", sorted(STATED))
def test_agents_ask_only_for_what_they_say_they_need(name: str, decoding: str) -> None:
    small = {"rap": {"rollouts": 2, "depth": 2}, "webevolver": {"start_step": 1}}.get(name, {})
    if name == "paw" and decoding != "free":
        return  # refused: tests/test_paw_agent.py
    tries: list[dict[str, Any]] = [{}, {"prompts": "brief"}] if name != "paw" else [{}]
    if name == "comap":
        tries += [{"p_source": p, "q_source": "proxy"} for p in ("verbal", "verbalizer")]
    if name == "rap":
        tries += [{"evaluation_weight": 0}, {"log_probs": "scored"}]
    if name == "itp":
        tries += [{"foresight": "generate"}]
    for options in tries:
        agent: Any = create_agent(name, decoding=decoding, **small, **options)
        needs = agent.needs() if hasattr(agent, "needs") else agent.config.needs()
        for request in converse_with(agent, view(), _said).requests:
            if isinstance(request, Imagine):
                continue
            used = {CAPABILITY.get(type(request), "generate")}
            used |= {"prefix"} if request.prefix else set()
            used |= {"choices"} if getattr(request, "choices", None) else set()
            known = {part for need in needs for part in need.split("|")}
            assert used <= known, f"{options}: {request.purpose}"
