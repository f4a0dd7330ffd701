"""Agents made from their names and options: the papers' settings, and what a model must be able to do."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import run_episodes
from comap.agents.config import AgentConfig, required_capabilities
from comap.agents.create import AGENTS, agent_options, create_agent
from comap.agents.heads import RefinementHead
from comap.agents.run import Run, run_to
from comap.errors import OptionError
from comap.lm import CAPABILITIES, Completion, Encode, Encoding, Generate, NextWord, Score
from kits.scripted import HashedModel

EACH = pytest.mark.parametrize("name", sorted(AGENTS))


@EACH
def test_each_agent_is_made_and_knows_its_name(name: str) -> None:
    agent = create_agent(name)
    assert agent.name == name
    config = agent_options(name)
    if config is None:
        assert name in ("random", "expert")
    else:
        assert issubclass(config, AgentConfig)
        assert config.__module__.startswith("comap.agents.")
        decoding = "free" if name == "paw" else "scored"  # "paw" has no other
        configured_agent = create_agent(name, decoding=decoding, seed=3)
        assert (configured_agent.config.decoding, configured_agent.config.seed) == (decoding, 3)  # type: ignore[attr-defined]
        assert type(configured_agent.config) is config  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reakt", {}, "there is no agent 'reakt'; did you mean 'react'"),
        (3, {}, "there is no agent 3"),
        ("react", {"decodin": "free"}, "has no option 'decodin'; did you mean 'decoding'"),
        ("react", {"decoding": "loud"}, "decoding cannot be"),
        ("react", {"temperature": "hot"}, "temperature must be a number of at least 0, not 'hot'"),
        ("react", {"temperature": -1}, "temperature"),
        ("expert", {"seed": 1}, "it has no options"),
        ("random", {"mixed": 2}, "mixed must be from 0 to 1"),
        ("random", {"mixed": "much"}, "expected options of the agent 'random'"),
        ("comap", {"tau": 0.5}, "did you mean 'tau_"),
        ("comap", {"tau_q": math.nan}, "tau_q"),
        ("rap", {"rollouts": True}, "rollouts"),
        ("paw", {"decoding": "masked"}, "decoding"),
        ("paw", {"state_text": "belief"}, "state_text"),
        ("paw", {"examples": 1}, "examples"),
    ],
    ids=str,
)
def test_mistakes_are_told(name: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        create_agent(name, **options)


def test_options_reach_their_agent() -> None:
    random: Any = create_agent("random", seed=4, mixed=0.5)
    assert (random.seed, random.mixed) == (4, 0.5)
    comap: Any = create_agent("comap", tau_q=0.1, p_source="verbal", head=None)
    assert (comap.config.tau_q, comap.head) == (0.1, None)


STATED = json.loads(Path(__file__).with_name("constants.json").read_text("utf-8"))
SHARED = STATED.pop("shared")


@pytest.mark.parametrize("name", sorted(STATED))
def test_constants(name: str) -> None:
    options = agent_options(name)
    assert options is not None
    default_options = options().describe()
    assert {key: default_options[key] for key in SHARED | STATED[name]} == SHARED | STATED[name]
    assert "eviations" in inspect.getdoc(type(create_agent(name)))  # type: ignore[operator]


# Whether a language model can do what an agent asks is known before any episode.

ASKING = sorted(set(AGENTS) - {"random", "expert"})
SMALL: dict[str, dict[str, Any]] = {
    "rap": {"rollouts": 2, "depth": 2, "candidates": 3},
    "webevolver": {"start_step": 1},
}


def short() -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=2
    )


def capabilities_of(agent: Any) -> set[str]:
    """All capabilities that an agent names, alternatives among them."""
    return {name for need in required_capabilities(agent) for name in need.split("|")}


TASKS: tuple[str, ...] = short().unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]


class Noting(HashedModel):  # type: ignore[misc, valid-type]
    """Answers everything, and notes which capabilities that took."""

    name = "noting"

    def __init__(self, capabilities: frozenset[str] = CAPABILITIES) -> None:
        super().__init__()
        self.capabilities = capabilities

    @property
    def used(self) -> set[str]:
        kinds = {Generate: "generate", Score: "score", NextWord: "words", Encode: "encode"}
        capabilities = {kinds[type(request)] for request in self.asked}
        capabilities |= {"prefix" for request in self.asked if request.prefix}
        return capabilities | {
            "choices" for request in self.asked if getattr(request, "choices", None)
        }

    def _one(self, request: Generate) -> Completion:
        text = (
            request.choices[0] if request.choices else f"Thought: {len(self.asked)}\nAction: look"
        )
        return Completion(text, finish="length")  # so that a reflection is gone on with

    def _encoding(self, request: Encode) -> Encoding:
        return Encoding((0.5, 0.5))


@pytest.mark.parametrize("decoding", ["free", "masked", "scored"])
@pytest.mark.parametrize("name", ASKING)
def test_what_agents_ask_is_what_they_need(name: str, decoding: str) -> None:
    if name == "paw" and decoding != "free":
        return  # refused: test_mistakes_are_told
    agent = create_agent(name, decoding=decoding, **SMALL.get(name, {}))
    lm = Noting()
    played = run_episodes(short, agent, TASKS, lm=lm)
    assert not any(t.error for t in played) and lm.asked
    assert lm.used <= capabilities_of(agent), "it asked what it did not say"
    unused = [need for need in required_capabilities(agent) if lm.used.isdisjoint(need.split("|"))]
    assert all(need == "generate" or "prefix" in need for need in unused), "and no more"


COMAP: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"prefix"}),
    ({"q_source": "token_geo_mean"}, {"score", "prefix"}),
    ({"head": RefinementHead.zeros(2)}, {"score", "prefix", "encode"}),
    ({"p_source": "verbal", "head": RefinementHead.zeros(2)}, {"score", "prefix"}),
    ({"p_source": "verbalizer", "q_source": "proxy"}, {"words", "prefix"}),
    ({"p_source": "verbal", "q_source": "proxy", "final_tokens": 0}, set()),
    ({"q_source": "min_token", "decoding": "masked"}, {"score", "prefix", "choices"}),
]


@pytest.mark.parametrize(
    ("options", "extra_capabilities"),
    COMAP,
    ids=[str(sorted(extra_capabilities)) for _, extra_capabilities in COMAP],
)
def test_comap_needs_what_its_gate_reads(
    options: dict[str, Any], extra_capabilities: set[str]
) -> None:
    agent = create_agent("comap", **options)
    assert capabilities_of(agent) - {"tokens"} == {"generate"} | extra_capabilities
    lm = Noting()
    assert not any(t.error for t in run_episodes(short, agent, TASKS, lm=lm))
    assert lm.used <= capabilities_of(agent)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("react", {"decoding": "masked"}, "keep a reply to given choices; .* set decoding='free'"),
        ("comap", {"p_source": "verbal"}, "score given texts .* set q_source='proxy'"),
        ("comap", {"q_source": "proxy", "head": RefinementHead.zeros(2)}, "p_source='verbal'"),
        ("rap", {}, "next-word probabilities; .* set evaluation_weight=0"),
    ],
)
def test_nothing_is_played_where_the_model_cannot(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    agent, lm = create_agent(name, **options), Noting(frozenset({"generate", "prefix"}))
    envs: list[Any] = []

    def make_env() -> gym.Env[str, str]:
        envs.append(short())
        env: gym.Env[str, str] = envs[-1]
        return env

    with pytest.raises(OptionError, match=f"the agent '{name}' needs .*{message}"):
        run_episodes(make_env, agent, TASKS, lm=lm)
    assert lm.asked == [] and envs == []
    with pytest.raises(OptionError, match="'noting' cannot"):
        run_to(tmp_path, Run(make_env=short, agent=agent, tasks=TASKS, lm=lm))
    assert not (tmp_path / "run.json").exists() and lm.asked == []
