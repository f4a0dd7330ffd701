"""The settings that all trained baselines share (METHODS.md 1.11 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ..config import CoMapTraining
from ..config_ranges import Range, check_fields
from ..config_shared import SHARED_RANGES, SharedTraining

__all__ = ["BaselineTraining"]

_RANGES: Mapping[str, Range] = {
    **SHARED_RANGES,
    "learning_rate": Range(0, above=True),
    "epochs": Range(1),
}


@dataclass(frozen=True, kw_only=True)
class BaselineTraining(SharedTraining):
    """How a baseline is trained; the defaults are those of the preset ``paper``.

    Beside its own settings it has those of `SharedTraining`, as CoMap's training has them.

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

    # -- optimization --
    learning_rate: float = 2e-5
    """Highest learning rate (METHODS.md 1.5)."""
    epochs: int = 3
    """Epochs of learning from demonstrations (METHODS.md 3)."""

    def __post_init__(self) -> None:
        check_fields(self, {**_RANGES, **self.ranges})
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
