"""The settings that the training of CoMap and those of its baselines share (METHODS.md 1.11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from .config_ranges import Range

__all__ = ["SHARED_RANGES", "Schedule", "SharedTraining", "Weights"]

Weights: TypeAlias = Literal["lora", "full"]
"""What is trained: adapters, or all weights."""
Schedule: TypeAlias = Literal[
    "cosine", "linear", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt"
]
"""How a learning rate changes over a stage."""

_FROM_0 = "seed save_steps evaluation_tasks weight_decay temperature evaluation_temperature"
_FROM_1 = (
    "lora_r lora_alpha draft_tokens live batch_rows batch_tokens accumulate logging_steps "
    "demonstrations evaluation_seeds"
)

SHARED_RANGES: Mapping[str, Range] = MappingProxyType(
    {
        **dict.fromkeys(_FROM_0.split(), Range(0)),
        **dict.fromkeys(_FROM_1.split(), Range(1)),
        **dict.fromkeys(("lora_dropout", "beta2"), Range(0, 1, below=True)),
        "warmup_ratio": Range(0, 1),
        "clip": Range(0, above=True),
        "top_p": Range(0, 1, above=True),
        "max_length": Range(256),
    }
)
"""The range of each shared setting that is a number."""


@dataclass(frozen=True, kw_only=True)
class SharedTraining:
    """What is the same for every training of language agents here; the defaults are the papers'.

    Example:
        >>> SharedTraining(seed=3).describe()["seed"]
        3
    """

    # -- models --
    weights: Weights = "lora"
    """lora (adapters of one frozen model) or full (a model each, for small ones)."""
    lora_r: int = 8
    """Rank of adapters (CoMap, Table 5)."""
    lora_alpha: int = 16
    """Scale of adapters (CoMap, Table 5)."""
    lora_dropout: float = 0.05
    """Dropout of adapters (CoMap, Table 5)."""
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """What the models compute with; auto is bfloat16 on a GPU and float32 on a CPU."""
    gradient_checkpointing: bool = True
    """Compute activations again on the way back, to save memory."""
    exact: bool = False
    """Answer in double precision (small models): results then do not depend on batches, so that a
    run that was killed ends as if it had not been."""
    seed: int = 0
    """Seed of everything that is drawn."""

    # -- prompts and decoding --
    prompts: Literal["standard", "brief"] = "standard"
    """standard, or brief for small models that are trained here from the beginning."""
    state_text: Literal["history", "belief"] = "history"
    """How the present is told: the turns so far, or the belief facts in words."""
    decoding: Literal["free", "masked", "scored"] = "free"
    """How actions are decoded where the policy plays, in rollouts and evaluation."""
    form: Literal["asked", "given"] = "asked"
    """Whether the first fixed word of a reply is the model's to write, or given (ours: small models
    mix up the forms of replies, such as drafts and reflections)."""
    max_length: int = 2048
    """Most tokens of prompt and reply (CoMap, Table 5)."""
    temperature: float = 0.7
    """Of the policy where it plays training tasks (CoMap, Table 5)."""
    top_p: float = 0.9
    """Nucleus of the policy where it plays training tasks (CoMap, Table 5)."""
    draft_tokens: int = 64
    """Most tokens of a draft (CoMap, Table 5)."""
    live: int = 32
    """Episodes that run at the same time."""

    # -- optimization --
    schedule: Schedule = "cosine"
    """How learning rates fall (CoMap, Table 5)."""
    warmup_ratio: float = 0.03
    """Share of a stage's updates over which they rise (CoMap, Table 5)."""
    beta2: float = 0.999
    """Second decay rate of AdamW."""
    weight_decay: float = 0.0
    """Of AdamW."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    batch_rows: int | None = 1
    """Rows of a micro-batch (CoMap, Table 5); None where batch_tokens counts."""
    batch_tokens: int | None = None
    """Most tokens of a micro-batch, rows of like lengths together; None where batch_rows counts."""
    accumulate: int = 16
    """Micro-batches of an update, over all processes (CoMap, Table 5)."""
    logging_steps: int = 10
    """Updates between two lines of the log."""
    save_steps: int = 100
    """Updates between two checkpoints; a multiple of logging_steps, 0 for none within a stage."""

    # -- data --
    train_split: str = "train"
    """Split to learn from."""
    demonstrations: int | None = None
    """Tasks that are demonstrated; None for all."""

    # -- evaluation --
    evaluation_splits: tuple[str, ...] = ("valid_seen", "valid_unseen")
    """Splits to evaluate on at the end."""
    evaluation_tasks: int | None = None
    """Tasks of each; None for all, 0 for none."""
    evaluation_temperature: float = 0.0
    """Temperature of the policy in evaluation; 0 is greedy."""
    evaluation_seeds: int = 1
    """How often each task is played."""

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
