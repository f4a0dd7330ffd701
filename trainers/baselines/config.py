"""The settings that all trained baselines share (METHODS.md 1.11 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from ..config import CoMapTraining, Schedule, Weights
from ..config_ranges import Range, check_fields

__all__ = ["SHARED_RANGES", "BaselineTraining"]

_FROM_1 = (
    "lora_r lora_alpha draft_tokens live batch_rows batch_tokens accumulate epochs logging_steps "
    "demonstrations evaluation_seeds"
)

SHARED_RANGES: Mapping[str, Range] = {
    **dict.fromkeys(
        ("seed", "save_steps", "evaluation_tasks", "weight_decay", "temperature"), Range(0)
    ),
    **dict.fromkeys(_FROM_1.split(), Range(1)),
    **dict.fromkeys(("learning_rate", "clip"), Range(0, above=True)),
    **dict.fromkeys(("lora_dropout", "beta2"), Range(0, 1, below=True)),
    "warmup_ratio": Range(0, 1),
    "evaluation_temperature": Range(0),
    "top_p": Range(0, 1, above=True),
    "max_length": Range(256),
}
"""The range of each shared setting that is a number."""


@dataclass(frozen=True, kw_only=True)
class BaselineTraining:
    """How a baseline is trained; the defaults are those of the preset ``paper``.

    Settings of the same name mean the same as in `CoMapTraining`, and have its values.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> BaselineTraining(learning_rate=1e-4).shared(live=4).live
        4
    """

    method: ClassVar[str] = ""
    """What `comap train` calls it."""
    ranges: ClassVar[Mapping[str, Range]] = {}
    """The ranges of its own settings that are numbers."""

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
    """How actions are decoded where the policy plays."""
    form: Literal["asked", "given"] = "asked"
    """Whether the first fixed word of a reply is the model's to write, or given (ours)."""
    max_length: int = 2048
    """Most tokens of prompt and reply (CoMap, Table 5)."""
    temperature: float = 0.7
    """Of the policy where it plays training tasks (CoMap, Table 5)."""
    top_p: float = 0.9
    """Nucleus of the policy (CoMap, Table 5)."""
    draft_tokens: int = 64
    """Most tokens of a draft (CoMap, Table 5)."""
    live: int = 32
    """Episodes that run at the same time."""

    # -- optimization --
    learning_rate: float = 2e-5
    """Highest learning rate (METHODS.md 1.5)."""
    schedule: Schedule = "cosine"
    """How learning rates fall (CoMap, Table 5)."""
    warmup_ratio: float = 0.03
    """Share of a stage's updates in which the rate rises (CoMap, Table 5)."""
    weight_decay: float = 0.0
    """Of AdamW."""
    beta2: float = 0.999
    """Of AdamW."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    batch_rows: int | None = 1
    """Rows of a micro-batch (CoMap, Table 5); None where batch_tokens counts."""
    batch_tokens: int | None = None
    """Most tokens of a micro-batch, rows of like lengths together; None where batch_rows counts."""
    accumulate: int = 16
    """Micro-batches of an update, over all processes (CoMap, Table 5)."""
    epochs: int = 3
    """Epochs of learning from demonstrations (METHODS.md 3)."""
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
    """Tasks of each; None for all, 0 for no evaluation."""
    evaluation_temperature: float = 0.0
    """Temperature of the policy in evaluation; 0 is greedy."""
    evaluation_seeds: int = 1
    """How often each task is played."""

    def __post_init__(self) -> None:
        check_fields(self, {**SHARED_RANGES, **self.ranges})
        self.shared()  # refuses what no training can be

    def shared(self, **changed: Any) -> CoMapTraining:
        """Return the settings that stages, models and prompts share with CoMap's training.

        Args:
            **changed: Other settings of `CoMapTraining`.
        """
        known = {part.name for part in fields(CoMapTraining)}
        own = {part.name: getattr(self, part.name) for part in fields(self) if part.name in known}
        own |= {"policy_rate": self.learning_rate, "world_model_rate": self.learning_rate}
        return CoMapTraining(**{**own, "warmup_epochs": self.epochs, **changed})

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON data."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
