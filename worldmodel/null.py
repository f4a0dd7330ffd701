"""The world model that expects nothing to happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import Prediction, Query

__all__ = ["NullWorldModel"]


class NullWorldModel:
    """Predicts the same text for every action: the floor that any world model must beat.

    Args:
        text: What it predicts.

    Example:
        >>> from comap.facts import State
        >>> NullWorldModel().predict([Query("id", "goal", (), State(), "look")])[0].observation
        'Nothing happens.'
    """

    def __init__(self, text: str = "Nothing happens."):
        self.text = text

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the same prediction for each query."""
        return [Prediction(self.text, source="null") for _ in queries]

    def config(self) -> dict[str, Any]:
        """Return what makes an equal model."""
        return {"id": "null", "text": self.text}
