"""Making world models from plain data: for `ImaginedEnv` specs and for the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..envs.registry import own_class
from ..errors import CoMapError, OptionError, WorldModelError, described, suggest
from .base import WorldModel, checked

WORLD_MODELS = {
    "cached": "comap.worldmodel.cache:CachedWorldModel",
    "language": "comap.worldmodel.language:LanguageWorldModel",
    "noisy": "comap.worldmodel.noisy:NoisyWorldModel",
    "null": "comap.worldmodel.null:NullWorldModel",
    "oracle": "comap.worldmodel.oracle:OracleWorldModel",
    "retrieval": "comap.worldmodel.retrieval:RetrievalWorldModel",
}
"""The ids that `create_world_model` knows, and where their classes are."""


def create_world_model(config: str | Mapping[str, Any]) -> WorldModel:
    """Return the world model that `config` describes.

    Args:
        config: An id, or ``{"id": id, ...}`` with the constructor's arguments; an argument ``model``
            is itself a config. An id of the form ``"package.module:Class"`` names your own class:
            it is imported, so take configs only from where you take code.

    Raises:
        WorldModelError: There is no such model, or it cannot be made from these arguments.

    Example:
        >>> create_world_model({"id": "noisy", "error_rate": 0.2}).error_rate
        0.2
    """
    if not isinstance(config, str | Mapping):
        raise WorldModelError(
            f"expected a world model's id or config, found {config!r:.120}; "
            f"{suggest('', WORLD_MODELS)}"
        )
    arguments: dict[str, Any] = {"id": config} if isinstance(config, str) else dict(config)
    name = arguments.pop("id", None)

    # What is no id of ours is taken for a class of the user's own.
    target = ""
    if isinstance(name, str):
        target = WORLD_MODELS.get(name, name)
    if ":" not in target:
        raise WorldModelError(
            f"there is no world model {name!r}; {suggest(str(name), WORLD_MODELS)} "
            "(your own: 'package.module:Class')"
        )

    # The cached and the noisy model stand before another one, which has a config of its own.
    if isinstance(arguments.get("model"), str | Mapping):
        arguments["model"] = create_world_model(arguments["model"])
    try:
        cls = own_class(target)
    except OptionError as error:
        raise WorldModelError(str(error)) from error

    # Before one is made: a config may name any class, and making it may do anything.
    if not callable(getattr(cls, "predict", None)):
        raise WorldModelError(
            "expected a world model (an object with the method predict(queries)), found the class "
            f"{cls.__name__} without it; add the method"
        )

    # A constructor may be anybody's: its errors get the name of the model and its options, but ours
    # say already what to do.
    try:
        model = cls(**arguments)
    except CoMapError:
        raise
    except Exception as error:
        raise WorldModelError(
            f"cannot make the world model {name!r} from {arguments!r:.200}: "
            f"{described(error)}; its options: {', '.join(inspect.signature(cls).parameters)}"
        ) from error

    return checked(model)
