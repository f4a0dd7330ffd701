"""What both papers print of their settings, beside what a training at the scale paper resolves to."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from comap.agents.create import create_agent
from comap.benchmarks.experiments.definition import experiment, scale_named
from comap.benchmarks.experiments.plan import plan
from comap.envs.searchqa.index import DEFAULT_MODEL
from comap.trainers import paw_preset, preset

READ = Path(__file__).parents[4] / "shared" / "data" / "papers" / "hyperparameters.md"
GPUS = 4  # CoMap, appendix C
ALFWORLD, WEBSHOP, SEARCH = (f"comap/{name}-v0" for name in ("ALFWorld", "WebShop", "SearchQA"))


class Printed(NamedTuple):
    """A setting as a paper prints it."""

    name: str
    value: Any
    """with PaW one for each of ALFWorld, WebShop and search QA, None where there is none"""
    place: str
    ours: str | Callable[[Any], Any]
    """the path of our setting, or what reads it"""

    def of(self, config: Any) -> Any:
        return (
            self.ours(config)
            if callable(self.ours)
            else reduce(getattr, self.ours.split("."), config)
        )


T5, A1 = "Table 5", "A.1"
COMAP = [
    Printed("maximum sequence length", 2048, T5, "agent.max_length"),
    Printed("learning-rate schedule", "cosine", T5, "optimization.schedule"),
    Printed("warm-up ratio", 0.03, T5, "optimization.warmup_ratio"),
    Printed("LoRA rank", 8, T5, "lora.r"),
    Printed("LoRA scaling", 16, T5, "lora.alpha"),
    Printed("LoRA dropout", 0.05, T5, "lora.dropout"),
    Printed("world model: training epochs", 3, T5, "world_model_epochs"),
    Printed("world model: per-device batch size", 1, T5, "optimization.batch_rows"),
    Printed(
        *("world model: gradient accumulation", 16, T5),
        lambda c: c.optimization.accumulate / GPUS,
    ),
    Printed("world model: co-evolving rounds", 3, T5, "rounds"),
    Printed("WMSD weight (eta)", 0.5, T5, "distillation.eta"),
    Printed("EMA momentum (mu)", 0.99, T5, "distillation.mu"),
    Printed("world-state threshold (tau_wm)", 0.6, T5, "tau_wm"),
    Printed("world model: maximum new tokens", 192, T5, "predict_tokens"),
    Printed("policy: training epochs", 3, T5, "policy_epochs"),
    Printed("policy: training epochs", 3, T5, "warmup_epochs"),
    Printed("policy: per-device batch size", 1, T5, "optimization.batch_rows"),
    Printed("policy: co-evolving rounds", 3, T5, "rounds"),
    Printed("online reflection weight (alpha)", 1.0, T5, "alpha"),
    Printed("BCE weight (beta)", 0.01, T5, "beta"),
    Printed("revise-probability threshold (tau_p)", 0.5, T5, "agent.tau_p"),
    Printed("reflection-confidence threshold (tau_q)", 0.6, T5, "agent.tau_q"),
    Printed("draft action: maximum new tokens", 64, T5, "agent.draft_tokens"),
    Printed("reflection: maximum new tokens", 128, T5, "agent.reflect_tokens"),
    Printed("final action: maximum new tokens", 16, T5, "agent.final_tokens"),
    Printed("temperature", 0.7, T5, "agent.temperature"),
    Printed("temperature", 0.7, T5, "evaluation_temperature"),
    Printed("top-p", 0.9, T5, "agent.top_p"),
]
PAW = [
    Printed(
        *("maximum prompt length", (2048, 4096, 4096), A1),
        lambda c: c.agent.max_length - c.agent.draft_tokens,
    ),
    Printed("maximum response length", (512,) * 3, A1, "agent.draft_tokens"),
    Printed("environment steps (turns)", (50, 15, 4), A1, "max_episode_steps"),
    Printed("learning rate, actor", (1e-6,) * 3, A1, "optimization.learning_rate"),
    Printed("learning rate, critic (PPO)", (1e-5, 1e-5, None), A1, "advantages.critic_rate"),
    Printed("reward of success / failure", (10, 10, 1), A1, "success_reward"),
    Printed("R_max", (10, 10, 1), A1, "highest_return"),
    Printed(
        *("penalty of an invalid action", (-0.1, -0.1, -0.01), A1), lambda c: -c.invalid_penalty
    ),
    Printed("group size", (8, 8, 5), A1, "members"),
    Printed("groups an update", (16, 16, 256), A1, "groups"),
    Printed("GiGPO: omega", (1,) * 3, A1, "advantages.gigpo_omega"),
    Printed("GiGPO: gamma", (0.95,) * 3, A1, "advantages.gigpo_gamma"),
    Printed(*("GiGPO: similarity threshold", (None, None, 0.9), A1), "advantages.gigpo_similarity"),
    Printed("temperature of rollouts", (1.0,) * 3, A1, "agent.temperature"),
    Printed("temperature of validation", (0.4, 0.4, 0.0), A1, "evaluation_temperature"),
    Printed("mini-batch size", (256, 64, 512), A1, "optimization.mini_batch_rows"),
    Printed("history in the prompt", (2, 2, None), A1, "agent.history_turns"),
    Printed("alpha, entropy selection ratio", (0.75,) * 3, "4.1", "loss.alpha"),
    Printed("rho, clipping threshold", (0.2,) * 3, "4.1", "loss.rho"),
]


@cache
def jobs(name: str, recipe: str) -> dict[str | None, Any]:
    """The jobs of a recipe in an experiment at the scale paper, by environment."""
    planned_jobs = plan([experiment(name)], scale_named("paper"), [0]).jobs.values()
    return {job.setup and job.setup.env: job for job in planned_jobs if job.recipe.name == recipe}


@pytest.mark.parametrize(
    "setting", COMAP, ids=lambda setting: f"{setting.name}: {setting.ours}"[:60]
)
def test_comap_is_trained_as_its_paper_says(setting):
    for job in jobs("comap-t1", "comap").values():
        assert setting.of(preset(job.preset, **job.settings)) == setting.value, setting.place


@pytest.mark.parametrize("setting", PAW, ids=lambda setting: setting.name)
def test_paw_is_trained_as_its_paper_says(setting):
    on = jobs("paw-t1", "gigpo+paw") | jobs("paw-t2", "gigpo+paw")
    for env, value in zip((ALFWORLD, WEBSHOP, SEARCH), setting.value, strict=True):
        config = paw_preset(on[env].preset, **on[env].settings)
        assert value is None or setting.of(config) == value, (env, setting.place)


def test_what_the_papers_say_in_words():
    paw = paw_preset("alfworld", algorithm="gigpo")
    assert paw.advantages.gigpo_mode == "mean_std_norm"  # PaW, A.1: the normalized version
    assert (paw.loss.wm_loss, paw.loss.adaptive) == ("cmae", True)  # eq. 8 and 10
    assert (paw.loss.entropy_mode, paw.loss.wm_coef) == ("sampled_plogp", 1)  # 3.1, eq. 11
    memory = paw_preset("search").agent.memory_turns  # A.3: the complete history of 4 turns
    assert memory is None or memory >= 4
    for name in ("alfworld", "webshop"):  # A.1: 128 separate environments
        ppo = paw_preset(name, algorithm="ppo")
        assert (ppo.groups, ppo.members) == (128, 1)
    distillation = preset("paper").distillation  # CoMap, eq. 6: KL of teacher and student
    assert (distillation.divergence, preset("paper").weights) == ("forward_kl", "lora")


def test_the_scale_paper_has_models_seeds_and_retriever_of_the_papers():
    scale = scale_named("paper")
    names = {
        (paper, slot): backbone.name
        for paper, slots in scale.backbones.items()
        for slot, backbone in slots.items()
    }
    api = ["GPT-5.4", "DeepSeek-V4-Flash", "DeepSeek-V4-Pro"]  # CoMap, C.4
    assert [names["CoMap", f"api-{i}"] for i in (1, 2, 3)] == api
    sizes = [names["CoMap", slot] for slot in ("small", "medium", "large")]
    assert sizes == ["Qwen3-4B", "Qwen3-8B", "Qwen3-30B-A3B"]  # 4.1, appendix B
    assert [names["PaW", f"api-{i}"] for i in (1, 2)] == ["GPT-4o", "Gemini-2.5-Pro"]  # Table 1
    for slot, size in (("small", "1.5B"), ("medium", "7B"), ("other-3", "14B")):  # 4.1, Table 3
        assert names["PaW", slot] == f"Qwen2.5-{size}-Instruct"
    assert names["PaW", "search-small"] == "Qwen2.5-3B-Instruct"
    assert names["PaW", "search-medium"] == "Qwen2.5-7B-Instruct"
    assert names["PaW", "other-1"] == "Qwen3-1.7B"
    assert names["PaW", "other-2"] == "Llama3.2-3B-Instruct"
    assert len(scale.seeds) == 3  # PaW, 4.1
    assert scale.environments[SEARCH].options["retriever"] == "dense"  # PaW, 4.1: E5
    assert "/e5-" in DEFAULT_MODEL
    assert scale.kinds["noise"]["set"]["transitions"] == 100  # PaW, A.4


@pytest.mark.parametrize("agent", ["prompt", "react", "reflexion"])
def test_paws_prompted_agents_have_the_lengths_and_temperature_of_its_trainings(agent):
    name = {"prompt": "paw"}.get(agent, agent)
    for env, prompt, steps in ((ALFWORLD, 2048, 50), (WEBSHOP, 4096, 15)):  # PaW, A.1
        job = jobs("paw-t1", f"play-paw-{agent}")[env]
        options = {key: value for key, value in job.settings.items() if key != "live"}
        config = create_agent(name, **options).config
        assert config.max_length - config.draft_tokens == prompt and config.draft_tokens == 512
        assert config.temperature == 0.4 and job.setup.options["max_episode_steps"] == steps


def test_comaps_agents_play_as_table_5_says():
    for recipe, job in (("play-react", "react"), ("play-comap", "comap")):
        settings = jobs("comap-t1", recipe)[ALFWORLD].settings
        config = create_agent(job, **{k: v for k, v in settings.items() if k != "live"}).config
        assert (config.temperature, config.top_p) == (0.7, 0.9)
        assert (config.draft_tokens, config.max_length) == (64, 2048)


@pytest.mark.skipif(not READ.is_file(), reason=f"no list of the papers' settings at {READ}")
@pytest.mark.parametrize("setting", [*COMAP, *PAW], ids=lambda setting: setting.name)
def test_these_values_are_those_that_were_read_in_the_papers(setting):
    lines = (line.replace(r"\|", "/") for line in READ.read_text("utf-8").splitlines())
    table = {
        cells[0]: cells[1:]
        for cells in ([c.strip() for c in line.split("|")[1:-1]] for line in lines)
        if cells
    }
    cells = table[setting.name]
    values = setting.value if isinstance(setting.value, tuple) else (setting.value,)
    assert setting.place in cells[len(values)]
    for value, cell in zip(values, cells, strict=False):
        if isinstance(value, str):
            assert value in cell
        elif value is not None:
            numbers = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", cell)
            assert float(value) in map(float, numbers)
