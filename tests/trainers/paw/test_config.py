"""All settings of PaW's training: what they can be, and what the papers say they are."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import reduce
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest

from comap.agents.paw import PaWAgent
from comap.errors import OptionError
from comap.trainers.paw.config import (
    ENVIRONMENT_OPTIONS,
    ENVIRONMENTS,
    PRESETS,
    PaWTraining,
    WorldModelLoss,
    preset,
)

CONFIGS = [PaWTraining(), *(part for part in vars(PaWTraining()).values() if is_dataclass(part))]
OWN = [(type(config), part.name) for config in CONFIGS for part in fields(config)]
OWN = [(kind, name) for kind, name in OWN if kind.__module__ == PaWTraining.__module__]
OUT_OF_RANGE = {
    name: values
    for names, values in (
        ("alpha rho gigpo_similarity clip_low", (0.0, 1.1)),
        ("side_steps", (-0.1, 1.1)),
        ("warmup_observations", (-0.1, 1.1)),
        ("warmup_final", (-0.1, 1.1)),
        ("warmup_ratio noise_start noise_end gigpo_gamma gamma_gae lambda_gae", (-0.01, 1.01)),
        ("learning_rate critic_rate warmup_rate clip", (0.0, -1.0)),
        ("clip_high value_clip success_reward r_max", (0.0, -1.0)),
        ("groups concurrency updates max_updates mini_batch_rows micro_batch_rows", (0, -1)),
        ("micro_batch_tokens max_episode_steps demonstrations warmup_batch_tokens", (0,)),
        ("evaluation_seeds noise_base simulator_tokens simulator_warmup_tokens", (0,)),
        ("kl entropy_bonus wm_coef gigpo_omega weight_decay invalid_penalty", (-1.0,)),
        ("evaluation_temperature simulator_temperature", (-0.1,)),
        ("seed save_updates staleness warmup_tokens evaluation_tasks evaluation_every", (-1,)),
        ("beta2", (-0.1, 1.0)),
        ("dual_clip", (1.0, 0.5)),
        ("members", (0, 70_000)),
    )
    for name in names.split()
}


def kinds_of(kind, name):
    hint = get_type_hints(kind)[name]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def wrong_values(kind, name):
    """Values that a setting cannot have."""
    kinds = kinds_of(kind, name)
    if type(None) not in kinds:
        yield None
    inner = next(value_kind for value_kind in kinds if value_kind is not type(None))
    wrong = {bool: (1, "yes"), int: (1.5, "3", True), float: ("0.5", True, float("nan"))}
    yield from wrong.get(inner, ("none of them", 3) if get_origin(inner) is Literal else ("", 3))
    yield from OUT_OF_RANGE.get(name, ())


def test_every_number_has_a_range():
    numbers = {name for kind, name in OWN if {int, float} & {*kinds_of(kind, name)}}
    assert numbers == set(OUT_OF_RANGE)


@pytest.mark.parametrize(
    ("kind", "name"), OWN, ids=lambda parameter: getattr(parameter, "__name__", parameter)
)
def test_what_a_setting_cannot_be_is_refused_by_name(kind, name):
    for value in wrong_values(kind, name):
        with pytest.raises(OptionError, match=rf"{name} (must be .*, not|cannot be) "):
            kind(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"micro_batch_rows": 65, "mini_batch_rows": 64},
            r"at most mini_batch_rows \(64\), not 65",
        ),
        ({"algorithm": "rloo", "members": 1}, "members must be at least 2, not 1"),
        ({"warmup_ratio": 0.1}, "constant_with_warmup"),
        ({"top_p": 0.9}, r"expected agent.top_p=1, .* found 0.9; leave it at 1 in a training"),
        ({"state_text": "belief"}, "expected state_text='history'"),
        ({"form": "given"}, "expected form='asked'"),
        ({"prompts": "brief", "context": "concat", "form": "given"}, "form='asked'"),
        ({"prompts": "brief", "entropy_span": "action_tag"}, "prompts='standard'"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(OptionError, match=message):
        preset("alfworld", **settings)


def test_all_presets():
    assert preset("alfworld") == preset("paper") == PaWTraining()
    assert set(PRESETS) == set(ENVIRONMENTS)
    for name in PRESETS:
        config = preset(name, seed=3)
        described = json.loads(json.dumps(config.describe()))
        assert described["seed"] == config.seed == 3
        assert described["evaluation_splits"] == list(config.evaluation_splits)
        acting = PaWAgent(config.acting(config.evaluation_temperature)).config
        assert (acting.seed, acting.temperature) == (3, config.evaluation_temperature)
        assert config.acting().temperature == 1.0 and acting.decoding == "free"
    with pytest.raises(OptionError, match=r"no preset 'alfword'.*'alfworld'"):
        preset("alfword")
    with pytest.raises(OptionError, match=r"no setting 'group'.*'groups'"):
        preset("tiny", group=3)
    with pytest.raises(OptionError, match="alpha must be a number above 0 and at most 1"):
        preset("tiny", loss={"alpha": 0.0})


def test_hyperparameters_of_the_paper():
    """PaW's table of hyper-parameters, column by column: ALFWorld, WebShop, search."""
    columns = {
        "agent.max_length": (2048 + 512, 4096 + 512, 4096 + 512),
        "agent.draft_tokens": (512, 512, 512),
        "max_episode_steps": (50, 15, 4),
        "optimization.learning_rate": (1e-6, 1e-6, 1e-6),
        "advantages.critic_rate": (1e-5, 1e-5, 1e-5),
        "optimization.warmup_ratio": (0.0, 0.0, 0.1),
        "groups": (16, 16, 256),
        "members": (8, 8, 5),
        "optimization.mini_batch_rows": (256, 64, 512),
        "success_reward": (10.0, 10.0, 1.0),
        "highest_return": (10.0, 10.0, 1.0),
        "invalid_penalty": (0.1, 0.1, 0.01),
        "advantages.gigpo_omega": (1.0, 1.0, 1.0),
        "advantages.gigpo_gamma": (0.95, 0.95, 0.95),
        "advantages.gigpo_similarity": (None, None, 0.9),
        "agent.temperature": (1.0, 1.0, 1.0),
        "evaluation_temperature": (0.4, 0.4, 0.0),
        "agent.history_turns": (2, 2, 2),
        "agent.memory_turns": (4, 4, 4),
        "updates": (150, 150, None),
        "loss.alpha": (0.75, 0.75, 0.75),
        "loss.rho": (0.2, 0.2, 0.2),
        "agent.observation_tokens": (512, 1024, 1024),
        "optimization.kl": (0.01, 0.01, 0.001),
        "optimization.entropy_bonus": (0.001, 0.001, 0.0),
        "optimization.clip_low": (0.2, 0.2, 0.2),
        "optimization.clip_high": (0.2, 0.2, 0.2),
        "optimization.dual_clip": (3.0, 3.0, 3.0),
        "optimization.clip": (1.0, 1.0, 1.0),
        "optimization.weight_decay": (0.01, 0.01, 0.01),
        "loss.entropy_mode": ("sampled_plogp",) * 3,
        "advantages.gigpo_mode": ("mean_std_norm",) * 3,
        "advantages.advantage_over": ("rows",) * 3,
        "loss.wm_loss": ("cmae",) * 3,
    }
    presets = [preset(name) for name in ("alfworld", "webshop", "search")]
    for name, values in columns.items():
        assert tuple(reduce(getattr, name.split("."), config) for config in presets) == values, name


def test_baselines_of_search():
    for prefix in ("", "tiny_"):
        r1, zero = preset(f"{prefix}search_r1"), preset(f"{prefix}zerosearch")
        assert (r1.title, zero.title) == ("Search-R1", "ZeroSearch")
        assert not r1.paw and not zero.paw  # plain algorithms
        assert (r1.agent.context, r1.search_engine, r1.reward) == (
            "concat",
            "environment",
            "success",
        )
        assert (zero.agent.context, zero.search_engine, zero.reward) == (
            "concat",
            "simulated",
            "f1",
        )
        for config in (r1, zero):  # an episode is one reply: no penalty for a step's form
            assert (
                config.invalid_penalty == 0 and config.advantages.advantage_over == "trajectories"
            )
            assert config.success_reward == 1.0
    r1, zero = preset("search_r1"), preset("zerosearch")
    assert (r1.groups, r1.members, r1.max_episode_steps) == (512, 5, 4)
    assert (r1.optimization.warmup_ratio, r1.agent.observation_tokens) == (0.285, 500)
    assert (zero.groups, zero.max_episode_steps) == (64, 5)
    assert ENVIRONMENT_OPTIONS["zerosearch"] == {"topk": 5}
    noise = preset("zerosearch").zerosearch
    assert (noise.noise_start, noise.noise_end, noise.noise_base) == (0.0, 0.5, 4.0)


def test_ppo_plays_each_task_once():
    config = preset("alfworld", algorithm="ppo")
    assert (config.groups, config.members) == (128, 1)
    with_groups = preset("alfworld", algorithm="ppo", groups=16)
    assert (with_groups.groups, with_groups.members) == (16, 8)
    assert preset("tiny", algorithm="ppo").groups == 16


def test_titles_of_the_tables():
    def title(algorithm="grpo", paw=True, **loss):
        return PaWTraining(algorithm=algorithm, paw=paw, loss=WorldModelLoss(**loss)).title

    assert [title(paw=False), title()] == ["GRPO", "GRPO+PaW"]  # Table 4
    assert [title(adaptive=False), title(wm_loss="ce")] == ["w/o Ada. Coef.", "w/ CE"]
    assert [title(name) for name in ("rloo", "gigpo", "ppo")] == [
        "RLOO+PaW",
        "GiGPO+PaW",
        "PPO+PaW",
    ]
    assert title("gigpo", paw=False, adaptive=False) == "GiGPO"
    assert title("gigpo", adaptive=False) == "GiGPO+PaW w/o Ada. Coef."
    assert title(adaptive=False, wm_loss="mae") == "w/o Ada. Coef., w/ MAE"
    assert title(alpha=0.25) == "α = 0.25" and title(alpha=1) == "α = 1"  # Figure 6
    assert title(rho=0.4, selection="bottom") == "Lowest-entropy Selection, ρ = 0.4"
    assert title(entropy_mode="full") == "entropy mode = full"
    assert preset("webshop").title == preset("search").title == "GRPO+PaW"
