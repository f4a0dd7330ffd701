"""All settings of a training: what they can be, and that an error names the one that cannot."""

from __future__ import annotations

from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from comap.errors import OptionError
from comap.trainers.config import ABLATIONS, PRESETS, CoMapTraining, preset
from comap.trainers.config_ranges import Range

HINTS = get_type_hints(CoMapTraining)
OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "lora_dropout": (-0.1, 1.0),
    "beta2": (-0.1, 1.0),
    "top_p": (0.0, 1.1),
    "max_length": (255,),
    **dict.fromkeys(
        ("tau_p", "tau_q", "tau_wm", "warmup_ratio", "privileged_share", "mu", "jsd_alpha"),
        (-0.01, 1.01),
    ),
    **dict.fromkeys(
        ("policy_rate", "world_model_rate", "warmup_rate", "head_rate", "clip"), (0.0, -1.0)
    ),
    "distill_temperature": (0.0,),
    **dict.fromkeys(
        [
            "seed",
            "final_tokens",
            "save_steps",
            "warmup_rollouts",
            "rounds",
            "evaluation_tasks",
            "diagnosed",
            "frozen_transitions",
            "weight_decay",
            "delta",
            "balance",
            "round_balance",
            "init_anchor",
            "eta",
            "alpha",
            "beta",
            "anchor",
            "draft_distill",
            "own_anchor",
            "fallback",
            "temperature",
            "rollout_temperature",
            "evaluation_temperature",
            "suffix_temperature",
        ],
        (-1,),
    ),
    **dict.fromkeys(
        [
            "lora_r",
            "lora_alpha",
            "draft_tokens",
            "reflect_tokens",
            "predict_tokens",
            "live",
            "batch_rows",
            "batch_tokens",
            "accumulate",
            "warmup_epochs",
            "init_epochs",
            "policy_epochs",
            "world_model_epochs",
            "logging_steps",
            "demonstrations",
            "reflection_tasks",
            "states_per_episode",
            "suffixes",
            "tasks_per_round",
            "topk",
            "chunk",
            "evaluation_seeds",
            "final_tasks",
        ],
        (0, -1),
    ),
}


def kinds_of(name: str) -> tuple[Any, ...]:
    """The kinds of values of a setting; of an optional one None is the second."""
    hint = HINTS[name]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def wrong(name: str) -> list[Any]:
    """Values that a setting cannot have, by its kind alone."""
    kinds = kinds_of(name)
    found: list[Any] = [] if type(None) in kinds else [None]
    kind = next(one for one in kinds if one is not type(None))
    if kind is bool:
        return [*found, 1, "yes"]
    if kind is int:
        return [*found, 1.5, "3", True, float("inf"), float("nan")]
    if kind is float:
        return [*found, "0.5", True, float("inf"), float("nan")]
    if kind is str:
        return [*found, "", 3]
    if get_origin(kind) is Literal:
        return [*found, "none of them", "", 3, ["x"]]
    return [*found, (), ("train", "train"), "train", (3,), ["train"]]


def test_every_number_has_a_range() -> None:
    numbers = {part.name for part in fields(CoMapTraining) if {int, float} & {*kinds_of(part.name)}}
    assert numbers == set(OUT_OF_RANGE)


@pytest.mark.parametrize("name", [part.name for part in fields(CoMapTraining)])
def test_what_cannot_be_is_refused_by_name(name: str) -> None:
    for value in (*wrong(name), *OUT_OF_RANGE.get(name, ())):
        with pytest.raises(OptionError, match=rf"^{name} must be .*, not "):
            CoMapTraining(**{name: value})


def test_what_is_at_the_edge_is_taken() -> None:
    CoMapTraining(rounds=0, evaluation_tasks=0, mu=1, tau_p=0, top_p=1, lora_dropout=0, beta2=0.0)
    CoMapTraining(save_steps=0, delta=None, topk=1, temperature=0, max_length=256, alpha=0)
    CoMapTraining(batch_rows=None, batch_tokens=1, policy_rate=1, seed=0, demonstrations=None)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"batch_tokens": 64}, "batch_rows or batch_tokens"),
        ({"batch_rows": None}, "batch_rows or batch_tokens"),
        ({"save_steps": 15}, "save_steps must be a multiple of logging_steps"),
        ({"wmsd": False, "real_ce": False}, "world_model_evolution=False"),
        ({"eta": 0.0, "real_ce": False}, "world_model_evolution=False"),
        ({"probe_transitions": True, "wm_target": "full_state"}, "wm_target='observation'"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        CoMapTraining(**settings)


def test_a_frozen_world_model_needs_nothing_to_learn_from() -> None:
    frozen = CoMapTraining(wmsd=False, real_ce=False, world_model_evolution=False)
    assert frozen.ablations() == ("Frozen WM", "w/o Real CE", "w/o WMSD")


def test_presets() -> None:
    assert preset("paper") == CoMapTraining()
    assert set(PRESETS) == {"paper", "authors_code", "tiny"}
    for name in PRESETS:
        assert preset(name, seed=3).seed == 3
        switched = set(preset(name).ablations())
        assert switched <= set(ABLATIONS.values())
    with pytest.raises(OptionError, match=r"no preset 'papre'.*paper"):
        preset("papre")
    with pytest.raises(OptionError, match=r"no setting 'round'.*rounds"):
        preset("paper", round=3)
    with pytest.raises(OptionError, match="rounds must be a whole number of at least 0"):
        preset("tiny", rounds=-1)


def test_table_5() -> None:
    """The hyperparameters of METHODS.md 1.11, as the paper's Table 5 gives them."""
    told = preset("paper")
    assert (told.max_length, told.schedule, told.warmup_ratio) == (2048, "cosine", 0.03)
    assert (told.lora_r, told.lora_alpha, told.lora_dropout) == (8, 16, 0.05)
    assert (told.policy_rate, told.world_model_rate) == (2e-5, 2e-5)
    assert (told.warmup_epochs, told.policy_epochs, told.world_model_epochs) == (3, 3, 3)
    assert (told.batch_rows, told.accumulate, told.weight_decay, told.clip) == (1, 16, 0.0, 1.0)
    assert (told.rounds, told.eta, told.mu, told.tau_wm) == (3, 0.5, 0.99, 0.6)
    assert (told.alpha, told.beta, told.tau_p, told.tau_q) == (1.0, 0.01, 0.5, 0.6)
    assert (told.draft_tokens, told.reflect_tokens) == (64, 128)
    assert (told.final_tokens, told.predict_tokens) == (16, 192)
    assert (told.temperature, told.top_p, told.rollout_temperature) == (0.7, 0.9, 1.0)
    assert (told.divergence, told.distill_temperature, told.topk) == ("forward_kl", 1.0, None)
    assert (told.suffixes, told.states_per_episode, told.head_rate) == (1, 4, 1e-3)
    assert (told.tasks_per_round, told.buffer, told.fresh_per) == (256, "last", "epoch")


def test_describe_is_json() -> None:
    told = preset("tiny").describe()
    assert told["evaluation_splits"] == ["valid_seen", "valid_unseen"]
    assert set(told) == {part.name for part in fields(CoMapTraining)}


def test_ranges_in_words() -> None:
    assert Range(0).told == "at least 0" and Range(0, above=True).told == "above 0"
    assert Range(0, 1).told == "at least 0 and at most 1"
    assert Range(0, 1, below=True).told == "at least 0 and below 1"
    assert not Range(0, 1, below=True).has(1) and Range(0, 1).has(1)
    assert not Range(0, above=True).has(0) and Range(0).has(0)
