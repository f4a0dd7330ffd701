"""`Stage`: an environment on which a runner plays one episode after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import gymnasium

from ..envs import Snapshot, TextEnv, restore, snapshot
from ..errors import CoMapError, EngineError, InvalidAction, OptionError
from ..worldmodel import (
    CachedWorldModel,
    Grounded,
    Query,
    WorldModel,
    asked_model,
    query_about,
)
from ..worldmodel.lookahead import imagined_layer
from .base import Imagine, Probed

__all__ = ["Foresight", "Probing", "Stage", "is_grounded"]

_Answer: TypeAlias = "tuple[str, Any, bool, bool, dict[str, Any]]"

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


class Probing(NamedTuple):
    """A question to the real environment of an episode: what does it answer to an action?

    Attributes:
        stage: Where the episode is.
        action: The action.
    """

    stage: Stage
    action: str


class Stage:
    """An environment, and what a runner knows of it.

    After a probe the environment stays where the probed action led, until something else needs it: if
    the episode takes that very action, there is nothing more to do; before all else it is brought back
    to the present (METHODS.md 1.2, step 7). A wrapper with a memory of its own must follow
    `comap.envs.restore` for that, as Gymnasium's do that ``gym.make`` adds.

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
        probes: How many actions were taken in probes, since this object was made.
        restores: How many times the environment was brought back after one.
        kept: How many steps had been taken in a probe already.

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
        self.moment = object()
        self.broken = False
        self.probes = self.restores = self.kept = 0
        self._before: Snapshot | None = None  # the present, where a probe has left it
        self._probed: tuple[str, _Answer] | None = None
        self._batched = None
        if self.layer is not None and not is_grounded(self.layer.world_model):
            self._batched = self.layer

    def reset(self, task: str | None, seed: int | None) -> tuple[str, dict[str, Any]]:
        """Start an episode, as ``env.reset`` does."""
        self.moment = object()
        self._before = self._probed = None
        with self._noting():
            answer = self.env.reset(seed=seed, options=None if task is None else {"task": task})
            missing = _KEYS - answer[1].keys()
        if missing:
            raise EngineError(
                f"expected an info as of comap.envs.Info from env.reset, found one without "
                f"{', '.join(sorted(missing))}; a wrapper must pass it on"
            )
        if task is not None and answer[1]["task"] != task:
            raise EngineError(f"expected task {task!r} to start, found {answer[1]['task']!r:.120}")
        return answer

    def step(self, action: str) -> _Answer:
        """Take an action, as ``env.step`` does."""
        self.moment = object()
        if self._probed is not None and self._probed[0] == action:
            answer = self._probed[1]
            self._before = self._probed = None
            self.kept += 1
            return answer
        self.settle()
        with self._noting():
            return self.env.step(action)

    def probe(self, action: str) -> Probed:
        """Return what the real environment answers to an action; the episode stays before it.

        Raises:
            OptionError: The environment is imagined.
            InvalidAction: `action` is not a ``str``.
            EngineError: The engine broke.
        """
        if self.layer is not None:
            raise OptionError(
                "a probe needs the real environment, found an imagined one; play this agent without "
                "ImaginedEnv"
            )
        if not isinstance(action, str):
            raise InvalidAction(
                f"an action is text (str), found {type(action).__name__}: {action!r:.80}"
            )
        if self._probed is None or self._probed[0] != action:
            self._try(action)
        assert self._probed is not None and self._before is not None
        reads = partial(self.inner.canonicalizer.update, self._before.facts, action)
        return Probed.of(self._probed[1], reads)

    def settle(self) -> None:
        """Bring the environment back to the present, if a probe has led away from it.

        Raises:
            SnapshotError: The engine does not arrive there.
        """
        if self._before is None:
            return
        with self._noting():
            restore(self.env, self._before)
        self._before = self._probed = None
        self.restores += 1

    def expert_action(self) -> str | None:
        """Return what the environment's expert would do in the present."""
        self.settle()
        action: str | None = self.env.get_wrapper_attr("expert_action")()
        return action

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
        self.settle()
        return Foresight(self.model, query_about(self.env, request.action, request.after), self)

    def ground(self, model: WorldModel) -> None:
        """Tell a world model where the episode is, unless the imagined environment does so."""
        self.settle()
        own = self.layer is not None and model is self.layer.world_model
        if isinstance(model, Grounded) and not own:
            model.ground(self.env)

    def model_name(self, asked: bool) -> str | None:
        """Return which world model an episode's record names: the one asked, or that imagines."""
        if asked:
            return type(self.model).__name__
        return None if self.layer is None else type(self.layer.world_model).__name__

    def _try(self, action: str) -> None:
        """Take an action from the present, and remember the present and the answer."""
        self.settle()
        with self._noting():
            self._before = snapshot(self.env)
            self.probes += 1
            answer = self.env.step(action)
        if "error" in answer[4]:
            raise EngineError(
                f"expected an answer to the probed action {action!r:.80}, found "
                f"{answer[4]['error']}"
            )
        self._probed = (action, answer)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Let nobody play here again after a fault that the environment did not foresee."""
        try:
            yield
        except Exception as fault:
            self.broken = self.broken or not isinstance(fault, CoMapError)
            raise
