"""The world model that expects nothing to happen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..envs.registry import idle_answer
from .base import Prediction, Query


class NullWorldModel:
    """Predicts that every action does nothing: the floor that any world model must beat.

    Args:
        text: What it predicts; None for what the environment answers then, or shows again.

    Example:
        >>> from comap.facts import State
        >>> NullWorldModel().predict([Query("id", "goal", (), State(), "look")])[0].observation
        'Nothing happens.'
    """

    name = "null"

    def __init__(self, text: str | None = None):
        self.text = text

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the same prediction for each query."""
        return [Prediction(self._answer(query), source="null") for query in queries]

    def _answer(self, query: Query) -> str:
        """Return the text that says that nothing happened."""
        if self.text is not None:
            return self.text

        # Not every environment says so in words: some show the same page again.
        present = ""
        if query.history:
            present = query.history[-1].observation
        return idle_answer(query.env_id, present)

    def config(self) -> dict[str, Any]:
        """Return what makes an equal model."""
        return {"id": "null", "text": self.text}
