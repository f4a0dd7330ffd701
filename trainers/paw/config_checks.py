"""What the settings of PaW's training can be, and which do not go together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import OptionError
from ..config_ranges import Range

if TYPE_CHECKING:
    from .config import PaWTraining

__all__ = ["RANGES", "check_conflicts"]

_FROM_0 = (
    "gigpo_omega kl entropy_bonus wm_coef invalid_penalty temperature history_turns weight_decay "
    "seed save_updates warmup_tokens evaluation_tasks evaluation_every evaluation_temperature "
    "simulator_temperature"
)
_FROM_1 = (
    "groups members max_episode_steps live prompt_tokens response_tokens observation_tokens "
    "updates max_updates mini_batch_rows micro_batch_rows micro_batch_tokens lora_r lora_alpha "
    "warmup_batch_tokens demonstrations evaluation_seeds noise_base "
    "simulator_tokens simulator_warmup_tokens"
)
_ABOVE_0 = "critic_rate learning_rate warmup_rate clip clip_high value_clip success_reward r_max"
_SHARES = "gigpo_gamma gamma_gae lambda_gae rho warmup_ratio noise_start noise_end"
_SHARES_ABOVE_0 = "alpha top_p gigpo_similarity clip_low"

RANGES: dict[str, Range] = {
    **dict.fromkeys(_FROM_0.split(), Range(0)),
    **dict.fromkeys(_FROM_1.split(), Range(1)),
    **dict.fromkeys(_ABOVE_0.split(), Range(0, above=True)),
    **dict.fromkeys(_SHARES.split(), Range(0, 1)),
    **dict.fromkeys(_SHARES_ABOVE_0.split(), Range(0, 1, above=True)),
    **dict.fromkeys(("lora_dropout", "beta2"), Range(0, 1, below=True)),
    "dual_clip": Range(1, above=True),
}
"""The range of each setting of `PaWTraining` that is a number."""


def check_conflicts(config: PaWTraining) -> None:
    """Refuse settings that do not go together.

    Raises:
        OptionError: Some do not; the message names them.

    Example:
        >>> from .config import PaWTraining
        >>> PaWTraining(algorithm="rloo", members=1)
        Traceback (most recent call last):
        comap.errors.OptionError: algorithm='rloo' compares the episodes of a task: members must be \
at least 2, not 1
    """
    for told in (*_of_batches(config), *_of_prompts(config)):
        raise OptionError(told)


def _of_batches(config: PaWTraining) -> Iterator[str]:
    rows, mini = config.micro_batch_rows, config.mini_batch_rows
    if (rows is None) == (config.micro_batch_tokens is None):
        yield "give either micro_batch_rows or micro_batch_tokens, and None for the other"
    if rows is not None and mini is not None and rows > mini:
        yield f"micro_batch_rows must be at most mini_batch_rows ({mini}), not {rows}"
    if config.algorithm == "rloo" and config.members < 2:
        yield (
            "algorithm='rloo' compares the episodes of a task: members must be at least 2, not "
            f"{config.members}"
        )
    if config.schedule == "constant" and config.warmup_ratio > 0:
        yield (
            f"schedule='constant' has no warm-up, found warmup_ratio={config.warmup_ratio:g}; say "
            "schedule='constant_with_warmup'"
        )


def _of_prompts(config: PaWTraining) -> Iterator[str]:
    if config.prompts == "tags":
        if (config.state_text, config.form) != ("history", "asked"):
            yield (
                "prompts='tags' goes with state_text='history' and form='asked', found "
                f"{config.state_text!r} and {config.form!r}; say prompts='brief' for these"
            )
        return
    if config.context == "concat":
        yield f"context='concat' goes with prompts='tags' alone, not {config.prompts!r}"
    if config.entropy_span == "action_tag":
        yield f"entropy_span='action_tag' needs the tags of prompts='tags', not {config.prompts!r}"
