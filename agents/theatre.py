"""`Theatre`: the environments on which a runner plays many episodes at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from ..errors import OptionError
from ..worldmodel import WorldModel, create_world_model
from .stage import Stage, is_grounded

__all__ = ["Theatre"]


class Theatre:
    """The environments of a run: as many as episodes run at the same time, closed at its end.

    Args:
        make_env: Makes an environment.
        world_model: Who answers `Imagine`; see `Stage`. Of a `Grounded` model given by its id or
            config every environment gets one of its own; any other is shared.

    Raises:
        OptionError: (when entered) `make_env` gives one environment twice, or two that share a world
            model which knows one episode at a time.

    Example:
        >>> import gymnasium as gym, comap
        >>> with Theatre(lambda: gym.make("comap/ALFWorld-v0")) as theatre:
        ...     stage = theatre.enter()
        ...     theatre.leave(stage)
        ...     theatre.enter() is stage
        True
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[str, str]],
        world_model: WorldModel | str | Mapping[str, Any] | None = None,
    ):
        self._make_env, self._world_model = make_env, _shared(world_model)
        self._all: list[Stage] = []
        self._free: list[Stage] = []

    def __enter__(self) -> Theatre:
        return self

    def __exit__(self, *_: object) -> None:
        for stage in self._all:
            _close(stage)

    def enter(self) -> Stage:
        """Return an environment that nobody plays on."""
        return self._free.pop() if self._free else self._make()

    def leave(self, stage: Stage) -> None:
        """Take an environment back; one that broke is of no more use."""
        if stage.broken:
            self._all.remove(stage)
            _close(stage)
        else:
            self._free.append(stage)

    def _make(self) -> Stage:
        stage = Stage(self._make_env(), self._world_model)
        for other in self._all:
            if other.inner is stage.inner:
                raise OptionError("make_env must make a new environment each time, not return one")
            _check_apart(stage, other)
        self._all.append(stage)
        return stage


def _close(stage: Stage) -> None:
    try:
        stage.env.close()
    except Exception as error:  # what was played there is on record: nothing is lost
        warnings.warn(f"an environment could not be closed: {error}", RuntimeWarning, stacklevel=2)


def _check_apart(stage: Stage, other: Stage) -> None:
    """Refuse imagined environments that share a world model which knows one episode at a time."""
    if stage.layer is None or other.layer is None or not is_grounded(stage.layer.world_model):
        return
    if stage.layer.world_model is other.layer.world_model:
        name = type(stage.layer.world_model).__name__
        raise OptionError(
            f"make_env gives two environments one {name}, which knows one episode at a time; make "
            "one for each, or pass ImaginedEnv its id or config"
        )


def _shared(
    world_model: WorldModel | str | Mapping[str, Any] | None,
) -> WorldModel | str | Mapping[str, Any] | None:
    """Return a model to share in place of a config, unless every environment needs its own."""
    if not isinstance(world_model, str | Mapping):
        return world_model
    made = create_world_model(world_model)
    return world_model if is_grounded(made) else made
