"""`canonical_action`: one form for all ways to write an action, known by the environment's id."""

from __future__ import annotations

from .canon import Canonicalizer, collapse
from .classes import class_of

__all__ = ["canonical_action"]


def canonical_action(env_id: str, text: str) -> str:
    """Return the canonical form of an action, ``Canon(a)``, for comparing actions (METHODS.md 1.3).

    Args:
        env_id: The environment; where it is not registered, or its class has no canonicalizer, only
            case, blanks and the final period are evened out.
        text: The action.

    Example:
        >>> import comap
        >>> canonical_action("comap/ALFWorld-v0", "Walk to the fridge 1.")
        'go to fridge 1'
        >>> canonical_action("another/World-v0", "Walk to the fridge 1.")
        'walk to the fridge 1'
    """
    canonicalizer = getattr(class_of(env_id), "canonicalizer", None)
    if isinstance(canonicalizer, Canonicalizer):
        return canonicalizer.action(text)
    return collapse(text)
