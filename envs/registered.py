"""What the class of a registered environment says of its splits, embedded tasks and experts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import gymnasium

from ..errors import OptionError
from .base import TextEnv
from .classes import class_of

__all__ = [
    "belief_expert",
    "embedded_tasks",
    "engines_kept",
    "evaluated_splits",
    "idle_answer",
    "is_slow",
    "listed_actions",
]

_MOST_KEPT = 8


def evaluated_splits(env_id: str) -> tuple[str, ...]:
    """Return the splits that an environment is evaluated on unless one says otherwise.

    Args:
        env_id: A registered id, or ``module:id``, which imports the module.

    Returns:
        Their names, the hardest last; none where the environment does not say.

    Raises:
        gymnasium.error.Error: There is no such environment.
        OptionError: There is no such module.

    Example:
        >>> import comap
        >>> evaluated_splits("comap/ALFWorld-v0")
        ('valid_seen', 'valid_unseen')
    """
    found: tuple[str, ...] = getattr(_known(env_id), "test_splits", ())
    return found


def embedded_tasks(env_id: str) -> dict[str, Any]:
    """Return the options with which an environment plays its embedded tasks, whatever data is here.

    Args:
        env_id: A registered id.

    Raises:
        gymnasium.error.Error: There is no such environment.

    Example:
        >>> import comap
        >>> embedded_tasks("comap/ALFWorld-v0")
        {'source': 'generated'}
    """
    found: Mapping[str, Any] = getattr(_known(env_id), "embedded", {})
    return dict(found)


def idle_answer(env_id: str, shown: str) -> str:
    """Return what an environment answers to an action that does nothing.

    Args:
        env_id: An id; of one that is not registered nothing is known.
        shown: What was last observed.

    Example:
        >>> import comap
        >>> idle_answer("comap/ALFWorld-v0", "You see a shelf 1.")
        'Nothing happens.'
        >>> idle_answer("comap/WebShop-v0", "WebShop [SEP] Instruction: ...")
        'WebShop [SEP] Instruction: ...'
    """
    answer: str | None = getattr(class_of(env_id), "nothing", TextEnv.nothing)
    return shown if answer is None else answer


def belief_expert(env_id: str) -> dict[str, Any]:
    """Return the option that chooses an expert which knows only what was observed, if there is one.

    Args:
        env_id: A registered id.

    Raises:
        gymnasium.error.Error: There is no such environment.

    Example:
        >>> import comap
        >>> belief_expert("comap/ALFWorld-v0"), belief_expert("CartPole-v1")
        ({'expert': 'explore'}, {})
    """
    return {"expert": "explore"} if _takes(env_id, "expert") else {}


def listed_actions(env_id: str) -> dict[str, Any]:
    """Return the option that makes an environment list admissible actions, where it does not of itself.

    Args:
        env_id: A registered id.

    Raises:
        gymnasium.error.Error: There is no such environment.

    Example:
        >>> import comap
        >>> listed_actions("comap/ALFWorld-v0"), listed_actions("comap/ScienceWorld-v0")
        ({}, {'admissible_actions': True})
    """
    return {"admissible_actions": True} if _takes(env_id, "admissible_actions") else {}


def is_slow(env_id: str) -> bool:
    """Return whether an episode takes seconds; of an id that is not registered, no.

    Example:
        >>> import comap
        >>> is_slow("comap/ALFWorld-v0"), is_slow("comap/ScienceWorld-v0")
        (False, True)
    """
    return bool(getattr(class_of(env_id), "slow", False))


@contextmanager
def engines_kept(env_id: str, number: int) -> Iterator[None]:
    """Let engines of closed environments wait for the next ones in the meantime.

    Args:
        env_id: An id; of one that is not registered nothing is kept.
        number: How many, at most 8 of which are kept: a Java machine takes some 300 MB.

    Example:
        >>> import comap
        >>> with engines_kept("comap/ScienceWorld-v0", 4):
        ...     pass
    """
    keep = getattr(class_of(env_id), "keep_engines", None)
    if keep is None:
        yield
        return
    before = keep(min(number, _MOST_KEPT))
    try:
        yield
    finally:
        keep(before)


def _takes(env_id: str, option: str) -> bool:
    """Return whether an environment has an option of this name."""
    made = _known(env_id)
    return made is not None and option in inspect.signature(made).parameters


def _known(env_id: str) -> type[Any] | None:
    """Return the class of an id, or say which ids there are.

    As for ``gymnasium.make``, an id may begin with a module that registers it, and a colon.
    """
    module, colon, name = env_id.rpartition(":")
    if colon:
        try:
            import_module(module)
        except ImportError as error:
            raise OptionError(
                f"expected a module that registers {env_id!r}, found none: {error}; put its folder on "
                "PYTHONPATH"
            ) from error
    gymnasium.spec(name)
    return class_of(env_id)
