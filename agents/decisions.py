"""Reading an agent's decision: whatever an agent returns, a step's record is made of sound data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidAction
from ..trajectory import Predicted
from ..worldmodel import Imagined
from .base import Decision

__all__ = ["json_notes", "read_decision"]


def read_decision(decision: object) -> tuple[str | None, Predicted | None, Mapping[str, Any]]:
    """Return the action of a decision, what was predicted of it, and its notes as JSON data.

    Args:
        decision: What `Agent.decide` returned.

    Raises:
        InvalidAction: It is no decision, or has something in it that is not what it should be.

    Example:
        >>> read_decision(Decision("look", notes={"why": ("to see",)}))
        ('look', None, {'why': ['to see']})
    """
    if not isinstance(decision, Decision):
        raise InvalidAction(f"expected a Decision from agent.decide, found {decision!r:.80}")
    action, imagined = decision.action, decision.imagined
    if not isinstance(action, str | None):
        raise InvalidAction(
            f"a decision is for an action, which is text (str), or None; found {action!r:.80}"
        )
    if not isinstance(imagined, Imagined | None):
        raise InvalidAction(
            f"a decision's `imagined` is the reply to Imagine, or None; found {imagined!r:.80}"
        )
    return action, _predicted(imagined), json_notes(decision.notes)


def json_notes(notes: Any) -> dict[str, Any]:
    """Return a copy of notes as they come back from a file.

    Raises:
        InvalidAction: They are no JSON data with names.

    Example:
        >>> json_notes({"why": ("to see",)})
        {'why': ['to see']}
    """
    if not notes:
        return {}
    try:
        copy = json.loads(json.dumps(notes, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidAction(f"a decision's notes are JSON data, found: {error}") from error
    if not isinstance(copy, dict):
        raise InvalidAction(f"a decision's notes have names, found {notes!r:.80}")
    return copy


def _predicted(imagined: Imagined | None) -> Predicted | None:
    if imagined is None:
        return None
    said = imagined.prediction
    return Predicted(
        imagined.observation, imagined.facts, imagined.delta, said.source, said.confidence
    )
