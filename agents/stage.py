"""`Stage`: an environment on which a runner plays one episode after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium

from ..envs import TextEnv
from ..errors import CoMapError, EngineError, OptionError
from ..worldmodel import (
    CachedWorldModel,
    Grounded,
    Query,
    WorldModel,
    asked_model,
    query_about,
)
from ..worldmodel.lookahead import imagined_layer
from .base import Imagine

__all__ = ["Foresight", "Stage", "is_grounded"]

_KEYS = {"task", "split", "goal", "facts", "admissible_actions", "step"}


def is_grounded(model: object) -> bool:
    """Return whether a world model belongs to one episode at a time.

    Example:
        >>> from comap.worldmodel import NullWorldModel, OracleWorldModel
        >>> is_grounded(OracleWorldModel()), is_grounded(CachedWorldModel(NullWorldModel()))
        (True, False)
    """
    if isinstance(model, CachedWorldModel):  # passes on what it is told, and needs none of it
        return is_grounded(model.model)
    return isinstance(model, Grounded)


class Foresight(NamedTuple):
    """A question to a world model, from the episode on a stage.

    Attributes:
        model: Whom to ask.
        query: What.
        stage: Where the episode is: models that are `Grounded` are told.
    """

    model: WorldModel
    query: Query
    stage: Stage


class Stage:
    """An environment, and what a runner knows of it.

    Args:
        env: An environment of comap, wrapped or not.
        world_model: Who answers `Imagine`: a model, its id or its config; None for the imagined
            environment's own model or else the oracle.

    Attributes:
        env: The environment.
        inner: The environment without its wrappers.
        layer: The `ImaginedEnv` among the wrappers, or None.
        moment: Another object whenever the episode has moved.
        broken: Whether the environment may not be used for another episode.

    Raises:
        OptionError: `env` is not one of comap's.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        world_model: WorldModel | str | Mapping[str, Any] | None = None,
    ):
        inner = env.unwrapped
        if not isinstance(inner, TextEnv):
            raise OptionError(
                "the runner needs an environment of comap (comap.envs.TextEnv), found "
                f"{type(inner).__name__}"
            )
        self.env, self.inner = env, inner
        self.layer = imagined_layer(env)
        self.model = asked_model(env, world_model)
        self.fingerprint = inner.fingerprint()
        self.expert_action = env.get_wrapper_attr("expert_action")
        self.moment = object()
        self.broken = False
        self._batched = None
        if self.layer is not None and not is_grounded(self.layer.world_model):
            self._batched = self.layer

    def reset(self, task: str | None, seed: int | None) -> tuple[str, dict[str, Any]]:
        """Start an episode, as ``env.reset`` does."""
        self.moment = object()
        try:
            answer = self.env.reset(seed=seed, options=None if task is None else {"task": task})
            missing = _KEYS - answer[1].keys()
        except Exception as fault:
            self._note(fault)
            raise
        if missing:
            raise EngineError(
                f"expected an info as of comap.envs.Info from env.reset, found one without "
                f"{', '.join(sorted(missing))}; a wrapper must pass it on"
            )
        if task is not None and answer[1]["task"] != task:
            raise EngineError(f"expected task {task!r} to start, found {answer[1]['task']!r:.120}")
        return answer

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take an action, as ``env.step`` does."""
        self.moment = object()
        try:
            return self.env.step(action)
        except Exception as fault:
            self._note(fault)
            raise

    def question_of_step(self, action: str) -> Foresight | None:
        """Return what an imagined step will ask, if it can be asked with others in a batch."""
        layer = self._batched
        query = None if layer is None else layer.next_query(action)
        if layer is None or query is None:
            return None
        return Foresight(layer.world_model, query, self)

    def prepare_step(self, action: str, answer: Any) -> None:
        """Hand the answer to `question_of_step` over to the imagined environment."""
        if self._batched is not None:
            self._batched.prepare(action, answer)

    def foresee(self, request: Imagine) -> Foresight:
        """Return the question that an agent's request comes to."""
        return Foresight(self.model, query_about(self.env, request.action, request.after), self)

    def ground(self, model: WorldModel) -> None:
        """Tell a world model where the episode is, unless the imagined environment does so."""
        own = self.layer is not None and model is self.layer.world_model
        if isinstance(model, Grounded) and not own:
            model.ground(self.env)

    def model_name(self, asked: bool) -> str | None:
        """Return which world model an episode's record names: the one asked, or that imagines."""
        if asked:
            return type(self.model).__name__
        return None if self.layer is None else type(self.layer.world_model).__name__

    def _note(self, fault: Exception) -> None:
        """Let nobody play here again after a fault that the environment did not foresee."""
        self.broken = self.broken or not isinstance(fault, CoMapError)
