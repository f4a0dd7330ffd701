"""Which samples the policy learns from, and how much each counts (METHODS.md 1.8)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from ..errors import OptionError

__all__ = ["EpisodeFilter", "OutcomeFilter", "PolicyOptions"]

EpisodeFilter: TypeAlias = Literal["none", "successful_or_all"]
"""All episodes; or, if any episode succeeded, only those that did [C]."""

OutcomeFilter: TypeAlias = Literal["none", "episode_success", "suffix"]
"""The model's own gate is the label; so it is, but of episodes that succeeded only; or the label is
what suffix rollouts found."""

_CHOICES = {"episode_filter": get_args(EpisodeFilter), "outcome_filter": get_args(OutcomeFilter)}
_WEIGHTS = ("alpha", "beta", "draft_distill", "own_anchor", "fallback", "self_distill")


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Settings of the policy's samples; the defaults are the preset ``paper``.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> PolicyOptions().alpha, PolicyOptions.authors_code().draft_distill
        (1.0, 0.25)
    """

    alpha: float = 1.0
    """Weight of reflections beside anchors (CoMap, eq. 8); 0 is "w/o Online Reflection"."""
    beta: float = 0.01
    """Weight of the refinement probability's cross-entropy, within alpha (CoMap, eq. 8)."""
    form_loss: bool | None = None
    """Whether the words of the reply's form carry loss; None for brief prompts only [D]."""
    episode_filter: EpisodeFilter = "successful_or_all"
    """none, or successful_or_all (the authors' code)."""
    outcome_filter: OutcomeFilter = "none"
    """none, episode_success or suffix."""
    require_success_for_hq: bool = True
    """Whether a high-quality reflection is of an episode that succeeded (the authors' code)."""
    min_agreement: float | None = None
    """The least agreement r of a high-quality reflection; None for any."""
    repeat_hq: bool = False
    """Whether a high-quality reflection counts as revise-positive as well (the authors' code)."""
    draft_distill: float = 0.0
    """Weight of the reflected action as the draft prompt's target, where the gate opened."""
    own_anchor: float = 0.0
    """Weight of the agent's own executed actions as the draft prompt's target."""
    fallback: float = 0.0
    """Weight of the executed action of steps without a reflection."""
    self_distill: float = 0.0
    """Weight of the draft's divergence from a teacher that sees the environment's feedback (SDPO)."""
    held_out: float = 0.0
    """Share of episodes that is not learned from: see `is_held_out`."""

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                listed = ", ".join(repr(value) for value in allowed)
                raise OptionError(f"{name} must be one of {listed}, not {getattr(self, name)!r}")
        for name in _WEIGHTS:
            if not _within(getattr(self, name), math.inf):
                raise OptionError(f"{name} must be at least 0, not {getattr(self, name)!r}")
        shares = [("held_out", self.held_out)]
        if self.min_agreement is not None:
            shares.append(("min_agreement", self.min_agreement))
        for name, value in shares:
            if not _within(value, 1):
                raise OptionError(f"{name} must be a number from 0 to 1, not {value!r}")

    @classmethod
    def authors_code(cls, **changes: Any) -> PolicyOptions:
        """Return the settings of the authors' code (METHODS.md 1.8 [C]).

        Args:
            **changes: Settings that differ from theirs.

        Raises:
            OptionError: There is no such setting, or a value is wrong.

        Example:
            >>> PolicyOptions.authors_code(held_out=0.0).fallback
            0.1
        """
        theirs: dict[str, Any] = {
            "repeat_hq": True,
            "draft_distill": 0.25,
            "own_anchor": 0.5,
            "fallback": 0.1,
            "self_distill": 1.0,
            "held_out": 0.1,
        }
        known = {part.name for part in fields(cls)}
        for name in changes:
            if name not in known:
                raise OptionError(
                    f"there is no setting {name!r}; known: {', '.join(sorted(known))}"
                )
        return cls(**{**theirs, **changes})


def _within(value: object, most: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(float(value)) and 0 <= float(value) <= most  # type: ignore[arg-type]
