"""Warmed-up small models for the co-evolution results: policy and world model, plain fine-tuning."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from ..agents.config import AgentConfig
from ..envs.panel import evenly
from ..envs.registered import embedded_tasks
from ..errors import OptionError
from ..lm.sft import Row, SFTConfig, fine_tune
from ..lm.tiny import build_tiny
from ..trainers.demonstrations import (
    demonstrations,
    expert_demonstrations,
    read_demonstrations,
)
from ..trainers.policy_samples import is_shown
from ..trainers.samples import Sample
from ..trainers.world_model_samples import reading_samples
from ..trajectory import Trajectory
from .record import circumstances, write_result
from .small_data import policy_rows, side_steps, world_model_rows
from .small_training import (
    PACKAGES,
    agent_settings,
    corpus_of,
    progress,
    prompt_maker,
)

__all__ = ["PARTS", "WarmUp", "recoveries", "shown_by_experts", "warm_up"]

_FORM = "Reflection: Decision: KEEP\nDecision: REVISE\nFinal Action: go"

PARTS = ("policy", "wm")
"""What is warmed up."""


@dataclass(frozen=True)
class WarmUp:
    """What to warm up on, and how long."""

    out: str
    """Folder for the models."""
    data_dir: str | None = None
    """Folder with official data; None for embedded tasks."""
    demos: str | None = None
    """File of demonstrations of official tasks; None lets the expert play."""
    tasks: int = 3500
    """How many tasks the expert plays."""
    parameters: int = 500_000
    """About how many parameters each model has."""
    vocabulary: int = 1024
    """Most tokens of the tokenizer."""
    policy_tokens: int = 8_000_000
    """Tokens to train the policy on."""
    world_model_tokens: int = 7_500_000
    """Tokens to train the world model on."""
    reading_share: float = 0.4
    """Share of transitions on which the world model also learns to read the privileged prompt."""
    max_episode_steps: int | None = None
    """Step limit of episodes; None for the environment's."""
    side_tasks: int = 200
    """Tasks in which an expert and random actions take turns: texts to read, and nothing more."""
    recoveries: int = 800
    """Tasks in which the policy is shown how the expert goes on after random actions. Without them a
    small policy has never read that an action was refused, and has no idea what to do then."""
    aside: float = 0.3
    """Share of random actions there."""
    env_id: str = "comap/ALFWorld-v0"
    """The environment."""
    expert: str | None = "explore"
    """Which expert plays, such as one that knows what was seen alone; None for the usual one."""
    prompt_share: float = 0.0
    """Share of the policy's tokens, the first ones, on which prompts carry loss as well."""
    split: str = "train"
    """The split whose tasks experts play."""

    def env(self, split: str | None = None, **options: Any) -> gymnasium.Env[str, str]:
        """Return an environment of these tasks; of those that experts play unless a split is named."""
        told: dict[str, Any] = dict(embedded_tasks(self.env_id))
        if self.data_dir is not None:
            told = {"source": "official", "data_dir": self.data_dir}
        if self.max_episode_steps is not None:
            told["max_episode_steps"] = self.max_episode_steps
        return gymnasium.make(self.env_id, split=split or self.split, **{**told, **options})

    def shown(self, steps: int) -> gymnasium.Env[str, str]:
        """Return an environment whose expert is to be watched, with room for so many steps."""
        told = {} if self.expert is None else {"expert": self.expert}
        return self.env(max_episode_steps=steps, **told)


def shown_by_experts(config: WarmUp) -> list[Trajectory]:
    """Return the demonstrations, recorded ones or the expert's, and `recoveries` after them.

    Raises:
        OptionError: A recorded demonstration does not win.
    """
    env = config.shown(200)
    if config.demos is None:
        ids = env.get_wrapper_attr("tasks").ids
        played = expert_demonstrations(
            env, ids[:: max(len(ids) // config.tasks, 1)][: config.tasks]
        )
        return [*played, *recoveries(config)]
    shown = list(demonstrations(env, read_demonstrations(Path(config.demos))))
    lost = [t.task for t in shown if t.error or not t.success]
    if lost:
        raise OptionError(f"{len(lost)} demonstrations do not win, the first is {lost[0]}")
    return [*shown, *recoveries(config)]


def recoveries(config: WarmUp) -> list[Trajectory]:
    """Return episodes of an expert that now and then takes a random action, often a refused one.

    Each has one at least, which tells it from a demonstration.
    """
    if not config.recoveries:
        return []
    env = config.shown(60)
    tasks = evenly(env.get_wrapper_attr("tasks").ids, config.recoveries)
    played = side_steps(env, tasks, 0, config.aside)
    return [one for one in played if not all(map(is_shown, one.steps))]


def warm_up(
    part: str, seed: int, config: WarmUp, shown: Sequence[Trajectory] | None = None
) -> Path:
    """Train one model, unless it is there, and return its folder.

    The policy learns the expert's actions from belief prompts. The world model learns the expert's
    transitions alone, so that what it lacks off the expert's way is left to co-evolution; for a share
    of them it also sees the privileged prompt, or it could not read that later. Half of what it reads
    there are other texts, refusals among them, which only reading can find.

    Args:
        part: One of `PARTS`.
        seed: Seed of weights and order.
        config: The rest.
        shown: The demonstrations; None plays them.

    Raises:
        OptionError: There is no such part.
    """
    if part not in PARTS:
        raise OptionError(f"expected one of {', '.join(PARTS)}, found {part!r}")
    out = Path(config.out) / f"{part}-{seed}"
    if (out / "training.json").is_file():
        return out
    start = time.process_time()
    shown = shown_by_experts(config) if shown is None else shown
    base = Path(config.out) / f"untrained-{part}-{seed}"
    build_tiny(
        base,
        _texts(shown),
        parameters=config.parameters,
        seed=seed,
        vocabulary=config.vocabulary,
    )
    rows, tokens = _rows(part, seed, config, shown)
    prepared = time.process_time()
    share = config.prompt_share if part == "policy" else 0.0
    settings = SFTConfig(tokens=tokens, seed=seed, prompt_share=share)
    report = fine_tune(base, out, rows, settings, progress(part, seed))
    seconds = {
        "prepare": round(prepared - start, 1),
        "train": round(time.process_time() - prepared, 1),
    }
    result = {"part": part, "cpu_seconds": seconds, **report, **circumstances(PACKAGES)}
    write_result(out / "training.json", result)
    return out


def _rows(
    part: str, seed: int, config: WarmUp, shown: Sequence[Trajectory]
) -> tuple[list[Row], int]:
    if part == "policy":
        settings = AgentConfig(**agent_settings("belief"))
        return list(policy_rows(shown, settings)), config.policy_tokens
    shown = [one for one in shown if all(map(is_shown, one.steps))]  # it shall not know refusals
    reading = reading_samples(
        shown, prompt_maker(), share=config.reading_share, seed=seed, others=_others(config, seed)
    )
    rows = [*world_model_rows(shown, prompt_maker()), *_as_rows(reading)]
    return rows, config.world_model_tokens


def _others(config: WarmUp, seed: int) -> list[str]:
    """Return texts that experts do not see, such as refusals: the world model shall read them too.

    It learns nothing of when they are observed.
    """
    env = config.shown(24)
    tasks = evenly(env.get_wrapper_attr("tasks").ids, config.side_tasks)
    played = side_steps(env, tasks, seed)
    return [step.observation for shown in played for step in shown.steps]


def _as_rows(samples: Iterable[Sample]) -> Iterator[Row]:
    for sample in samples:
        yield Row(sample.messages, sample.text)


def _texts(shown: Sequence[Trajectory]) -> list[str]:
    """Return the text that the tokenizer's words come from: the same for both parts and all seeds."""
    shown = [one for one in shown if all(map(is_shown, one.steps))]
    texts = list(corpus_of(shown))
    for sample in reading_samples(shown[::50], prompt_maker(), share=1.0):
        texts += [message.content for message in sample.messages]
    return texts + [_FORM] * 2
