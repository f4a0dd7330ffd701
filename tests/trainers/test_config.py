"""Settings: what they can be, that an error names the one that cannot, and how they change."""

from __future__ import annotations

import pytest

from comap.agents import CoMapConfig
from comap.errors import OptionError
from comap.trainers import CoMapTraining, LoRA, Optimization, baseline_preset, preset
from comap.trainers.comap.config import ABLATIONS, PRESETS, Distillation


@pytest.mark.parametrize(
    ("config_type", "settings", "message"),
    [
        (CoMapTraining, {"rounds": -1}, "rounds must be a whole number of at least 0, not -1"),
        (CoMapTraining, {"rounds": 1.5}, "rounds must be a whole number"),
        (CoMapTraining, {"tau_wm": 1.1}, "tau_wm must be a number from 0 to 1"),
        (CoMapTraining, {"policy_rate": 0.0}, "policy_rate must be a number above 0"),
        (CoMapTraining, {"weights": "half"}, "weights cannot be 'half'; known: 'lora', 'full'"),
        (CoMapTraining, {"wmsd": 1}, "wmsd must be True or False"),
        (CoMapTraining, {"evaluation_splits": ()}, "must be a tuple of different texts"),
        (CoMapTraining, {"train_split": ""}, "train_split must be a text"),
        (CoMapTraining, {"alpha": float("nan")}, "alpha must be"),
        (CoMapTraining, {"agent": LoRA()}, "agent must be a CoMapConfig"),
        (CoMapTraining, {"wmsd": False, "real_ce": False}, "world_model_evolution=False"),
        (Optimization, {"batch_tokens": 64}, "batch_rows or batch_tokens"),
        (
            Optimization,
            {"batch_rows": None, "batch_tokens": 64, "micro_batch_tokens": 32},
            "expected micro_batch_tokens with batch_rows alone",
        ),
        (Optimization, {"save_steps": 15}, "save_steps must be a multiple of logging_steps"),
        (Optimization, {"beta2": 1.0}, "optimization.beta2 must be"),
        (Distillation, {"topk": 0}, "distillation.topk must be"),
        (Distillation, {"jsd_alpha": 1.0}, "distillation.jsd_alpha must be"),
        (LoRA, {"r": 0}, "lora.r must be"),
        (LoRA, {"dropout": 1.0}, "lora.dropout must be"),
    ],
)
def test_what_cannot_be_is_refused_by_name(config_type, settings, message):
    with pytest.raises(OptionError, match=message):
        config_type(**settings)


def test_what_is_at_the_edge_is_accepted():
    preset("paper", rounds=0, mu=1, tau_p=0, temperature=0, eta=0.0, save_steps=0, delta=None)
    frozen = CoMapTraining(wmsd=False, real_ce=False, world_model_evolution=False)
    assert frozen.ablations() == ("Frozen WM", "w/o Real CE", "w/o WMSD")


def test_settings_are_given_by_name_or_by_their_config():
    agent = preset("paper", agent=CoMapConfig(prompts="brief")).agent
    assert (agent.p_source, agent.q_source) == ("head", "token_geo_mean"), "it trains a head"
    by_name = preset("tiny", tau_p=0.3, accumulate=4, rounds=1)
    nested = preset("tiny", agent={"tau_p": 0.3}, optimization={"accumulate": 4}, rounds=1)
    assert by_name == nested and by_name.agent.decoding == "masked"
    assert preset("tiny", seed=3).seed == 3 and preset("tiny", seed=3).agent.seed == 0
    assert set(PRESETS) == {"paper", "executed", "tiny"} and preset("paper") == CoMapTraining()
    assert preset("executed") == CoMapTraining(anchors="executed")
    with pytest.raises(OptionError, match=r"no preset 'papre'.*paper"):
        preset("papre")
    with pytest.raises(OptionError, match=r"no setting 'round'.*rounds"):
        preset("paper", round=3)


def test_each_ablation_is_one_switch():
    assert len(ABLATIONS) == 10
    for name, label in ABLATIONS.items():
        assert preset("tiny", **{name.split(".")[-1]: False}).ablations() == (label,)


def test_table_5():
    """The hyperparameters of the paper's Table 5."""
    paper = preset("paper")
    agent, optimization = paper.agent, paper.optimization
    assert (agent.max_length, optimization.schedule) == (2048, "cosine")
    assert optimization.warmup_ratio == 0.03
    assert (paper.lora.r, paper.lora.alpha, paper.lora.dropout) == (8, 16, 0.05)
    assert (paper.policy_rate, paper.world_model_rate) == (2e-5, 2e-5)
    assert (paper.warmup_epochs, paper.policy_epochs, paper.world_model_epochs) == (3, 3, 3)
    assert (optimization.batch_rows, optimization.accumulate, optimization.clip) == (1, 64, 1.0)
    assert optimization.gradient_checkpointing is None, "where memory asks for it"
    assert (paper.rounds, paper.distillation.eta, paper.distillation.mu) == (3, 0.5, 0.99)
    assert (paper.alpha, paper.beta, agent.tau_p, agent.tau_q) == (1.0, 0.01, 0.5, 0.6)
    assert (agent.draft_tokens, agent.reflect_tokens, agent.final_tokens) == (64, 128, 16)
    assert (paper.predict_tokens, agent.temperature, agent.top_p) == (192, 0.7, 0.9)


def test_baselines():
    assert baseline_preset("sft", "paper").roles() == ("agent",)
    assert baseline_preset("sft", "paper", train_world_model=True).roles() == ("agent", "wm")
    assert baseline_preset("iwm", "tiny").roles() == ("agent", "explorer")
    assert baseline_preset("iwm", "tiny").roles({"agent"}) == ("agent",)
    assert baseline_preset("wkm", "paper").roles() == ("agent", "knowledge")
    assert baseline_preset("wkm", "paper").agent.encoder is not None
    assert baseline_preset("wkm", "tiny").agent.encoder is None
    assert baseline_preset("sft", "pretrained").agent.prompts == "brief"
    with pytest.raises(OptionError, match="no preset 'pretrained' of iwm"):
        baseline_preset("iwm", "pretrained")
    assert baseline_preset("itp", "tiny", slow=True).describe()["episodes"] == 4
    with pytest.raises(OptionError, match="a knowledge model is an adapter"):
        baseline_preset("wkm", "paper", weights="full")
    with pytest.raises(OptionError, match="k_source must be 'head'"):
        baseline_preset("itp", "paper", k_source="lm")
    with pytest.raises(OptionError, match="no baseline 'stf'; did you mean 'sft'"):
        baseline_preset("stf", "paper")


def test_copied_side_steps_need_some():
    assert CoMapTraining(side_steps=0.5, copy_side_steps=True).copy_side_steps
    with pytest.raises(OptionError, match="copy_side_steps needs side_steps above 0"):
        CoMapTraining(copy_side_steps=True)
