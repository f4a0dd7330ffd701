"""All settings of PaW's training: what they can be, and what the papers say they are."""

from __future__ import annotations

import json
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from comap.agents.create import create_agent
from comap.benchmarks.options import field_help
from comap.errors import OptionError
from comap.trainers.paw.config import PaWTraining
from comap.trainers.paw.config_checks import RANGES
from comap.trainers.paw.presets import (
    PAW_ENVIRONMENTS,
    PAW_PRESETS,
    paw_preset,
    preset_of_env,
)

NAMES = [part.name for part in fields(PaWTraining)]
HINTS = get_type_hints(PaWTraining)
OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("alpha", "top_p", "gigpo_similarity", "clip_low"), (0.0, 1.1)),
    **dict.fromkeys(("rho", "warmup_ratio", "noise_start", "noise_end"), (-0.01, 1.01)),
    **dict.fromkeys(("gigpo_gamma", "gamma_gae", "lambda_gae"), (-0.01, 1.01)),
    **dict.fromkeys(("lora_dropout", "beta2"), (-0.1, 1.0)),
    **dict.fromkeys(("learning_rate", "critic_rate", "warmup_rate", "clip"), (0.0, -1.0)),
    **dict.fromkeys(("clip_high", "value_clip", "success_reward", "r_max"), (0.0, -1.0)),
    **dict.fromkeys(("dual_clip",), (1.0, 0.5)),
    **dict.fromkeys(("groups", "members", "live", "updates", "max_updates"), (0, -1)),
    **dict.fromkeys(("mini_batch_rows", "micro_batch_rows", "micro_batch_tokens"), (0,)),
    **dict.fromkeys(("prompt_tokens", "response_tokens", "observation_tokens"), (0,)),
    **dict.fromkeys(("max_episode_steps", "lora_r", "lora_alpha", "demonstrations"), (0,)),
    **dict.fromkeys(("warmup_batch_tokens", "evaluation_seeds", "noise_base"), (0,)),
    **dict.fromkeys(("kl", "entropy_bonus", "wm_coef", "gigpo_omega", "weight_decay"), (-1.0,)),
    **dict.fromkeys(("invalid_penalty", "temperature", "evaluation_temperature"), (-0.1,)),
    **dict.fromkeys(("seed", "save_updates", "warmup_tokens", "history_turns"), (-1,)),
    **dict.fromkeys(("evaluation_tasks", "evaluation_every"), (-1,)),
    **dict.fromkeys(("simulator_tokens", "simulator_warmup_tokens"), (0,)),
    "simulator_temperature": (-0.1,),
}


def kinds_of_setting(name: str) -> tuple[Any, ...]:
    hint = HINTS[name]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def wrong_values(name: str) -> list[Any]:
    """Values that a setting cannot have, by its kind alone."""
    kinds = kinds_of_setting(name)
    found: list[Any] = [] if type(None) in kinds else [None]
    kind = next(one for one in kinds if one is not type(None))
    if kind is bool:
        return [*found, 1, "yes"]
    if kind is int:
        return [*found, 1.5, "3", True, float("inf")]
    if kind is float:
        return [*found, "0.5", True, float("nan")]
    if get_origin(kind) is Literal:
        return [*found, "none of them", "", 3]
    return [*found, "", 3, ()]


def test_every_number_of_paw_has_a_range_and_every_setting_is_told() -> None:
    numbers = {name for name in NAMES if {int, float} & {*kinds_of_setting(name)}}
    assert numbers == set(RANGES) == set(OUT_OF_RANGE)
    told = field_help(PaWTraining)
    assert all(told.get(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_setting_of_paw_cannot_be_is_refused_by_name(name: str) -> None:
    for value in (*wrong_values(name), *OUT_OF_RANGE.get(name, ())):
        with pytest.raises(OptionError, match=rf"^{name} must be .*, not "):
            PaWTraining(**{name: value})


def test_edges_of_paw_are_taken() -> None:
    PaWTraining(alpha=1, rho=0, top_p=1, kl=0, entropy_bonus=0, wm_coef=0, temperature=0)
    PaWTraining(dual_clip=None, value_clip=None, mini_batch_rows=None, history_turns=None)
    PaWTraining(updates=None, max_updates=1, evaluation_tasks=0, save_updates=0, noise_base=1)
    PaWTraining(micro_batch_rows=256, micro_batch_tokens=None, members=1, history_turns=0)
    PaWTraining(schedule="constant_with_warmup", warmup_ratio=1, gamma_gae=0, gigpo_gamma=0)
    PaWTraining(prompts="brief", state_text="belief", form="given")
    PaWTraining(prompts="brief", state_text="history", form="asked")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"micro_batch_rows": 8}, "either micro_batch_rows or micro_batch_tokens"),
        ({"micro_batch_tokens": None}, "either micro_batch_rows or micro_batch_tokens"),
        (
            {"micro_batch_rows": 65, "micro_batch_tokens": None, "mini_batch_rows": 64},
            r"at most mini_batch_rows \(64\), not 65",
        ),
        ({"algorithm": "rloo", "members": 1}, "members must be at least 2, not 1"),
        ({"warmup_ratio": 0.1}, "constant_with_warmup"),
        ({"state_text": "belief"}, "prompts='brief'"),
        ({"form": "given"}, "prompts='brief'"),
        ({"prompts": "brief", "context": "concat"}, "prompts='tags'"),
        ({"prompts": "brief", "entropy_span": "action_tag"}, "prompts='tags'"),
    ],
)
def test_settings_of_paw_that_do_not_go_together(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        PaWTraining(**settings)


def test_all_presets_of_paw() -> None:
    assert paw_preset("alfworld") == PaWTraining()
    assert set(PAW_PRESETS) == set(PAW_ENVIRONMENTS)
    for name in PAW_PRESETS:
        config = paw_preset(name, seed=3)
        assert config.seed == 3
        told = json.loads(json.dumps(config.describe()))
        hidden = {one for one in NAMES if one.startswith("simulator_")}  # nothing without an engine
        assert set(told) == set(NAMES) - (set() if config.engine == "simulated" else hidden)
        assert told["evaluation_splits"] == list(config.evaluation_splits)
    with pytest.raises(OptionError, match=r"no preset 'alfword'.*'alfworld'"):
        paw_preset("alfword")
    with pytest.raises(OptionError, match=r"no setting 'group'.*'groups'"):
        paw_preset("tiny", group=3)
    with pytest.raises(OptionError, match="alpha must be a number above 0 and at most 1"):
        paw_preset("tiny", alpha=0.0)


def test_hyperparameters_of_the_paper() -> None:
    """METHODS.md 2.7, column by column, and what 2.3 and 2.6 add."""
    columns = {
        "prompt_tokens": (2048, 4096, 4096),
        "response_tokens": (512, 512, 512),
        "max_episode_steps": (50, 15, 4),
        "learning_rate": (1e-6, 1e-6, 1e-6),
        "critic_rate": (1e-5, 1e-5, 1e-5),
        "warmup_ratio": (0.0, 0.0, 0.1),
        "groups": (16, 16, 256),
        "members": (8, 8, 5),
        "mini_batch_rows": (256, 64, 512),
        "success_reward": (10.0, 10.0, 1.0),
        "highest_return": (10.0, 10.0, 1.0),
        "invalid_penalty": (0.1, 0.1, 0.01),
        "gigpo_omega": (1.0, 1.0, 1.0),
        "gigpo_gamma": (0.95, 0.95, 0.95),
        "gigpo_similarity": (None, None, 0.9),
        "temperature": (1.0, 1.0, 1.0),
        "evaluation_temperature": (0.4, 0.4, 0.0),
        "history_turns": (2, 2, 4),
        "updates": (150, 150, None),
        "alpha": (0.75, 0.75, 0.75),
        "rho": (0.2, 0.2, 0.2),
        "observation_tokens": (512, 1024, 1024),
        "kl": (0.01, 0.01, 0.001),
        "entropy_bonus": (0.001, 0.001, 0.0),
        "clip_low": (0.2, 0.2, 0.2),
        "clip_high": (0.2, 0.2, 0.2),
        "dual_clip": (3.0, 3.0, 3.0),
        "clip": (1.0, 1.0, 1.0),
        "weight_decay": (0.01, 0.01, 0.01),
        "entropy_mode": ("sampled_plogp",) * 3,
        "gigpo_mode": ("mean_std_norm",) * 3,
        "advantage_over": ("rows",) * 3,
        "wm_loss": ("cmae",) * 3,
    }
    presets = [paw_preset(name) for name in ("alfworld", "webshop", "search")]
    for name, values in columns.items():
        assert tuple(getattr(one, name) for one in presets) == values, name


def test_baselines_of_search() -> None:
    r1, zero = paw_preset("search_r1"), paw_preset("zerosearch")
    assert not r1.paw and not zero.paw  # METHODS.md 3: plain algorithms
    assert (r1.context, r1.engine, r1.reward) == ("concat", "environment", "success")
    assert (zero.context, zero.engine, zero.reward) == ("concat", "simulated", "f1")
    assert (zero.noise_start, zero.noise_end, zero.noise_base) == (0.25, 0.5, 4.0)
    assert r1.agent == zero.agent == "paw"
    assert (r1.row, zero.row) == ("Search-R1", "ZeroSearch")
    tiny = paw_preset("tiny_search_r1"), paw_preset("tiny_zerosearch")
    for small, large in zip(tiny, (r1, zero), strict=True):
        assert small.row == large.row and small.reward == large.reward
        assert small.invalid_penalty == large.invalid_penalty == 0.01
        assert small.success_reward == large.success_reward == 1.0
        assert small.max_episode_steps == large.max_episode_steps == 4


def test_ppo_plays_each_task_once() -> None:
    config = paw_preset("alfworld", algorithm="ppo")
    assert (config.groups, config.members) == (128, 1)  # METHODS.md 2.1
    kept = paw_preset("alfworld", algorithm="ppo", groups=16)
    assert (kept.groups, kept.members) == (16, 8)
    assert paw_preset("tiny", algorithm="ppo").groups == 16


def test_rows_of_the_tables() -> None:
    def named(**settings: Any) -> str:
        return PaWTraining(**settings).row

    assert [named(paw=False), named()] == ["GRPO", "GRPO+PaW"]  # Table 4
    assert [named(adaptive=False), named(wm_loss="ce")] == ["w/o Ada. Coef.", "w/ CE"]
    assert [named(algorithm=one) for one in ("rloo", "gigpo", "ppo")] == [
        "RLOO+PaW",
        "GiGPO+PaW",
        "PPO+PaW",
    ]
    assert named(algorithm="gigpo", paw=False, adaptive=False) == "GiGPO"
    assert named(algorithm="gigpo", adaptive=False) == "GiGPO+PaW w/o Ada. Coef."
    assert named(adaptive=False, wm_loss="mae") == "w/o Ada. Coef., w/ MAE"
    assert named(alpha=0.25) == "α = 0.25" and named(alpha=1) == "α = 1"  # Figure 6
    assert named(rho=0.4, selection="bottom") == "Lowest-entropy Selection, ρ = 0.4"
    assert named(entropy_mode="full") == "entropy mode = full"
    assert paw_preset("webshop").row == paw_preset("search").row == "GRPO+PaW"


def test_no_two_variants_share_a_name() -> None:
    variants: list[dict[str, Any]] = [
        {"algorithm": algorithm, "paw": True, **variant}
        for algorithm in ("grpo", "rloo", "gigpo", "ppo")
        for variant in (
            {},
            {"adaptive": False},
            *({"wm_loss": loss} for loss in ("ce", "mae", "clipped_ce")),
            *({"selection": how} for how in ("random", "bottom")),
            *({"alpha": share} for share in (0.25, 0.5, 1.0)),
            *({"rho": share} for share in (0.1, 0.4, 0.6, 0.8, 1.0)),
            *({"entropy_mode": mode} for mode in ("full", "neg_logp")),
            {"entropy_span": "action_tag"},
            {"paw": False},
            {"context": "concat"},
            {"context": "concat", "paw": False},
            {"engine": "simulated"},
        )
    ]
    names = [PaWTraining(**variant).row for variant in variants]
    assert len(names) == len(set(names))


def test_when_to_evaluate() -> None:
    seldom, often = PaWTraining(evaluation_every=0), PaWTraining(evaluation_every=2)
    assert [seldom.evaluates_after(update) for update in range(4)] == [True, False, False, False]
    assert [often.evaluates_after(update) for update in range(4)] == [True, False, True, False]


def test_presets_by_environment() -> None:
    assert preset_of_env("comap/ALFWorld-v0") == "alfworld"
    assert preset_of_env("comap/WebShop-v1") == "webshop"
    assert preset_of_env("comap/SearchQA-v0") == "search"
    assert preset_of_env("comap/StableToolBench-v0") == "tools"
    assert paw_preset("tools").max_episode_steps == 20
    assert preset_of_env("comap/ScienceWorld-v0") == "alfworld"
    assert preset_of_env("") == "alfworld"


@pytest.mark.parametrize("name", sorted(PAW_PRESETS))
def test_the_agent_of_a_preset_can_be_made(name: str) -> None:
    config = paw_preset(name)
    agent = create_agent(config.agent, **config.agent_settings(config.evaluation_temperature))
    told = agent.config  # type: ignore[attr-defined]
    assert told.temperature == config.evaluation_temperature and told.top_p == 1.0
    assert told.max_length - told.draft_tokens == config.prompt_tokens
    assert told.draft_tokens == config.response_tokens and told.decoding == "free"
    assert told.history_turns == (None if config.context == "concat" else config.history_turns)
    rollouts = create_agent(config.agent, **config.agent_settings())
    assert rollouts.config.temperature == 1.0  # type: ignore[attr-defined]
