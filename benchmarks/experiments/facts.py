"""What experiments tell without running anything: sizes of data sets, settings."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from ...errors import CoMapError, OptionError
from ...trainers.config import CoMapTraining, preset
from ...trainers.setup import Environments
from .jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["told"]

_SETTINGS: tuple[tuple[str, Callable[[CoMapTraining], object]], ...] = (
    ("Maximum length", lambda c: c.max_length),
    ("Optimizer", lambda c: f"AdamW, beta2 {c.beta2}, weight decay {c.weight_decay}"),
    ("Schedule, warm-up ratio", lambda c: f"{c.schedule}, {c.warmup_ratio}"),
    ("LoRA rank, alpha, dropout", lambda c: _lora(c)),
    (
        "Learning rate, policy and world model",
        lambda c: f"{c.policy_rate:g}, {c.world_model_rate:g}",
    ),
    ("Epochs, policy and world model", lambda c: f"{c.policy_epochs}, {c.world_model_epochs}"),
    ("Micro-batch, accumulation", lambda c: f"{_batch(c)}, {c.accumulate}"),
    ("Rounds", lambda c: c.rounds),
    ("eta, mu, tau_wm", lambda c: f"{c.eta:g}, {c.mu:g}, {c.tau_wm:g}"),
    ("alpha, beta", lambda c: f"{c.alpha:g}, {c.beta:g}"),
    ("tau_p, tau_q", lambda c: f"{c.tau_p:g}, {c.tau_q:g}"),
    ("New tokens: draft, reflection, final action, world model", lambda c: _tokens(c)),
    ("Temperature, top-p", lambda c: f"{c.temperature:g}, {c.top_p:g}"),
    ("Prompts, state", lambda c: f"{c.prompts}, {c.state_text}"),
)


def told(job: Job) -> list[dict[str, Any]]:
    """Return the fields of each `comap.benchmarks.experiments.measures.Measure` that a fact gives.

    Raises:
        OptionError: There is no such fact.
    """
    if job.recipe.fact == "statistics":
        return _statistics(job)
    if job.recipe.fact == "settings-comap":
        config = preset(job.preset, **{**job.settings, "seed": job.seed})
        return [
            {"metric": "setting", "unit": "", "method": name, "text": str(of(config))}
            for name, of in _SETTINGS
        ]
    raise OptionError(f"there is no fact {job.recipe.fact!r}")


def _statistics(job: Job) -> list[dict[str, Any]]:
    """Return how many tasks the splits have (CoMap, Table 4)."""
    assert job.place is not None
    make_env = Environments(job.place.env, job.place.options)
    splits = job.place.splits
    names = {"tasks.train": "train", "tasks.seen": splits[0], "tasks.unseen": splits[-1]}
    found = []
    for metric, split in names.items():
        if metric == "tasks.seen" and len(splits) == 1:
            continue  # the one that there is counts as unseen
        try:
            with closing(make_env(split)) as env:
                n = len(env.get_wrapper_attr("tasks").ids)
        except CoMapError:
            continue
        found.append({"metric": metric, "value": float(n), "unit": "count", "split": None})
    return found


def _lora(config: CoMapTraining) -> str:
    if config.weights == "full":
        return "none: all weights"
    return f"{config.lora_r}, {config.lora_alpha}, {config.lora_dropout:g}"


def _batch(config: CoMapTraining) -> str:
    if config.batch_rows is not None:
        return f"{config.batch_rows} rows"
    return f"{config.batch_tokens} tokens"


def _tokens(config: CoMapTraining) -> str:
    parts = (config.draft_tokens, config.reflect_tokens, config.final_tokens, config.predict_tokens)
    return ", ".join(map(str, parts))
