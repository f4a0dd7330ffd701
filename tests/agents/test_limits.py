"""Limits of tokens follow the language model, where nobody gives them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import AgentConfig, CoMapConfig, PaWConfig, ReActConfig, create_agent, run_episode
from comap.agents.base import Decision, View
from comap.agents.run import Run, run_to
from comap.errors import OptionError
from comap.worldmodel.language import LanguageWorldModel
from kits.scripted import HashedModel


class SizedModel(HashedModel):  # type: ignore[misc, valid-type]
    """A model that says how long its context is, and whether it thinks."""

    def __init__(self, context: Any = None, thinks: bool | None = False) -> None:
        super().__init__()
        self.context = context
        if thinks is not None:
            self.thinks = lambda asks_for_thoughts: thinks or asks_for_thoughts


def env() -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=2)


def limits(agent: Any, lm: Any) -> dict[str, int]:
    """Return the most new tokens of an episode's requests, by what they are for."""
    run_episode(env(), agent, seed=0, lm=lm)
    free = [request for request in lm.asked if getattr(request, "choices", 0) is None]
    return {request.purpose: request.sampling.max_new_tokens for request in free}


@pytest.mark.parametrize(
    ("context", "thinks", "limits"),
    [
        (4096, False, (4096, 256, 256)),
        (40_960, True, (32_768, 512, 512)),
        (None, False, (8192, 256, 256)),
        (512, True, (512, 128, 128)),
    ],
)
def test_limits_follow_the_model(
    context: int | None, thinks: bool, limits: tuple[int, ...]
) -> None:
    config = CoMapConfig().fitted(context, thinks)
    assert (config.max_length, config.draft_tokens, config.reflect_tokens) == limits


def test_brief_prompts_keep_the_published_numbers() -> None:
    config = CoMapConfig(prompts="brief")
    assert (config.max_length, config.draft_tokens, config.reflect_tokens) == (2048, 64, 128)
    assert config.fitted(40_960, True) == config
    assert "thinking" not in config.describe() and "thinking" in CoMapConfig().describe()


def test_a_limit_that_is_given_stays_through_changes_of_others() -> None:
    config = replace(ReActConfig(draft_tokens=64), temperature=0.0).fitted(4096)
    assert (config.max_length, config.draft_tokens) == (4096, 64)
    changed = replace(replace(ReActConfig(), seed=3), draft_tokens=99).fitted(4096)
    assert (changed.max_length, changed.draft_tokens) == (4096, 99)
    assert AgentConfig(max_length=None, draft_tokens=None).fitted(4096) == AgentConfig().fitted(
        4096
    )  # type: ignore[arg-type]
    published = CoMapConfig(draft_tokens=99).published()
    assert (published.max_length, published.draft_tokens, published.reflect_tokens) == (
        2048,
        99,
        128,
    )
    assert published.fitted(4096) == published


def test_paw_asks_as_published_and_lets_models_think() -> None:
    config = PaWConfig()
    assert config.fitted(40_960, True) == config
    assert (config.max_length, config.draft_tokens, config.asks_to_think) == (2560, 512, True)
    assert not PaWConfig(prompts="brief").asks_to_think and not CoMapConfig().asks_to_think


def test_wrong_limits_are_refused() -> None:
    for wrong in (0, -1, 2.5, True, "many"):
        with pytest.raises(OptionError, match="draft_tokens"):
            ReActConfig(draft_tokens=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("thinks", "most"), [(False, 256), (True, 512)])
def test_an_agent_asks_for_replies_that_suit_its_model(thinks: bool, most: int) -> None:
    assert limits(create_agent("react"), SizedModel(4096, thinks))["draft"] == most
    assert limits(create_agent("react", draft_tokens=64), SizedModel(4096, thinks))["draft"] == 64


def test_one_agent_meets_several_models() -> None:
    agent = create_agent("react")
    assert limits(agent, SizedModel(4096, True))["draft"] == 512
    assert limits(agent, SizedModel(400))["draft"] == 100
    assert limits(agent, HashedModel())["draft"] == 256, "a model of the user's own says nothing"


SMALL: dict[str, dict[str, Any]] = {
    "comap": {"p_source": "verbalizer", "q_source": "token_geo_mean"},
    "itp": {"k_source": "lm", "k_max": 1},
    "rap": {"rollouts": 1, "depth": 1, "candidates": 2, "log_probs": "scored"},
    "wkm": {"task_knowledge": False, "encoder": None},
}


@pytest.mark.parametrize("name", ["comap", "itp", "rap", "react", "reflexion", "wkm"])
@pytest.mark.parametrize("decoding", ["free", "masked"])
@pytest.mark.parametrize("thinking", [True, False])
def test_all_requests_of_an_agent_say_whether_to_think(
    name: str, decoding: str, thinking: bool
) -> None:
    agent = create_agent(name, thinking=thinking, decoding=decoding, **SMALL.get(name, {}))
    lm = HashedModel()
    run_episode(env(), agent, seed=0, lm=lm, world_model="null")
    assert lm.asked and {request.thinking for request in lm.asked} == {thinking}


@pytest.mark.parametrize("context", [0, -5, "many", None])
def test_a_context_that_is_none_counts_as_unknown(context: Any) -> None:
    run_episode(env(), create_agent("react"), seed=0, lm=SizedModel(context, None))


class Wrapped:
    """An agent of the user's own around one of comap's."""

    name = "wrapped"

    def __init__(self) -> None:
        self.inner = create_agent("react")

    @property
    def config(self) -> AgentConfig:
        return self.inner.config  # type: ignore[attr-defined, no-any-return]

    def decide(self, view: View) -> Any:
        decision: Decision = yield from self.inner.decide(view)
        return decision


def test_an_agent_whose_config_cannot_be_set_plays_with_the_published_numbers() -> None:
    assert limits(Wrapped(), SizedModel(4096))["draft"] == 64


def test_records_have_the_numbers(tmp_path: Path) -> None:
    tasks = env().unwrapped.tasks.ids[:1]  # type: ignore[attr-defined]
    agent, lm = create_agent("react", temperature=0.0), SizedModel(4096)
    run_to(tmp_path, Run(make_env=env, agent=agent, tasks=tasks, lm=lm))
    run_record = json.loads((tmp_path / "run.json").read_text())
    assert (run_record["agent"]["max_length"], run_record["agent"]["draft_tokens"]) == (4096, 256)
    line = json.loads((tmp_path / "trajectories.jsonl").read_text())
    assert line["settings"]["draft_tokens"] == 256


def test_a_world_model_s_limits_follow_its_model() -> None:
    model = LanguageWorldModel(SizedModel(4096))
    assert (model.options["max_length"], model.options["max_new_tokens"]) == (4096, 512)
    model = LanguageWorldModel(SizedModel(100_000, thinks=True))
    assert (model.options["max_length"], model.options["max_new_tokens"]) == (32_768, 1024)
    model = LanguageWorldModel(SizedModel(100_000), prompts="brief")
    assert (model.options["max_length"], model.options["max_new_tokens"]) == (2048, 192)
    model = LanguageWorldModel(SizedModel(100_000), max_length=2048, max_new_tokens=192)
    assert (model.max_length, model.sampling.max_new_tokens) == (2048, 192)
