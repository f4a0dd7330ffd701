"""What a registered environment id stands for: its class, that class's options, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

import gymnasium

from ..errors import OptionError
from ..facts import State
from ..trajectory import Turn
from .base import TextEnv
from .canon import Canonicalizer, collapse, plain_state_text


@lru_cache(maxsize=64)
def class_of(env_id: str) -> type[Any] | None:
    """Return the class of the environment with this id; None where there is none of it."""
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    if spec is None or spec.entry_point is None:
        return None
    entry: Any = spec.entry_point
    if isinstance(entry, str):
        entry = gymnasium.envs.registration.load_env_creator(entry)
    return entry if isinstance(entry, type) else None


def env_class(env_id: str) -> type[TextEnv]:
    """Return the class of a registered environment; `TextEnv` itself for one that is none.

    Its attributes say what the environment has: `TextEnv.test_splits`, `TextEnv.slow` and so on. Ask
    once, where an id comes in, and hand the class on. ``module:id`` imports the module first.
    """
    module, colon, name = env_id.rpartition(":")
    if colon:
        try:
            import_module(module)
        except (ImportError, TypeError, ValueError) as error:  # or the name of none: ../x
            raise OptionError(
                f"expected a module that registers {env_id!r}, found none: {error}; put its folder on "
                "PYTHONPATH"
            ) from error
    gymnasium.spec(name)
    cls = class_of(env_id)
    return cls if cls is not None and issubclass(cls, TextEnv) else TextEnv


def idle_answer(env_id: str, shown: str) -> str:
    """Return what an environment answers to an action that does nothing, given what it showed last."""
    answer: str | None = getattr(class_of(env_id), "idle_answer", TextEnv.idle_answer)
    return shown if answer is None else answer


def canonical_action(env_id: str, text: str) -> str:
    """Return the canonical form of an action, ``Canon(a)``, for comparing actions.

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


def state_text(
    env_id: str, goal: str, history: Sequence[Turn], state: State, action: str | None = None
) -> str:
    """Return a belief as text for a prompt, as its environment words it.

    Args:
        env_id: The environment; one that is not registered gets `plain_state_text`.
        goal: The task in words.
        history: The turns so far.
        state: The belief of the present.
        action: If given, the text is for predicting what follows this action, and tells what matters
            for that; else it is for choosing an action.

    Example:
        >>> import comap
        >>> state = State(frozenset({("at", "agent", "desk 1"), ("exists", "desk 1"),
        ...                          ("exists", "bed 2"), ("seen", "desk 1")}))
        >>> print(state_text("comap/ALFWorld-v0", "put a pen in desk.", (), state))
        goal: put a pen in desk.
        held: nothing
        here: desk 1
        known: desk 1 has nothing
        new: bed 2
    """
    text: str = getattr(class_of(env_id), "state_text", plain_state_text)(
        goal, history, state, action
    )
    return text
