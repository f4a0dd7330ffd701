"""What a world model is: text in, predicted text out, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium

from ..envs import TextEnv
from ..envs.briefing import Briefing
from ..envs.registry import not_ours
from ..errors import WorldModelError
from ..facts import State
from ..trajectory import UNOBSERVED, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Query:
    """A question to a world model: what will be observed after this action?

    Attributes:
        env_id: The environment.
        goal: The task in words.
        history: The turns so far; the first has no action, the last is the present.
        state: The belief of the present.
        action: The action in question.
        admissible_actions: The actions that would do something now, or None.
        briefing: What a language model is told of this environment; None for what its class brings.
    """

    env_id: str
    goal: str
    history: tuple[Turn, ...]
    state: State
    action: str
    admissible_actions: tuple[str, ...] | None = None
    briefing: Briefing | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A world model's answer.

    Attributes:
        observation: The text that it expects next.
        confidence: How sure it is, 0 to 1, or None.
        reward: The reward that it expects, or None where it has no view.
        terminated: Whether it expects the episode to end here, or None where it has no view.
        source: Which world model said so.
        info: What else it knows of the next step, by keys of `comap.envs.Info`; these stand in for
            what would otherwise be worked out from the facts.
    """

    observation: str
    confidence: float | None = None
    reward: float | None = None
    terminated: bool | None = None
    source: str = ""
    info: Mapping[str, Any] | None = None


@runtime_checkable
class WorldModel(Protocol):
    """Anything that predicts the next observation of an action."""

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction for each query, in order."""
        ...


@runtime_checkable
class Grounded(Protocol):
    """A world model that wants to know the real episode that it is asked about.

    `ImaginedEnv` and `imagine` call it: after each reset and each real step.
    """

    def ground(self, env: gymnasium.Env[str, str]) -> None:
        """Take note that the real episode is where `env` is now."""
        ...


@runtime_checkable
class Configured(Protocol):
    """A world model that can be made again from plain data: see `comap.worldmodel.create`."""

    def config(self) -> dict[str, Any] | None:
        """Return JSON data from which `create` makes an equal model; None where there is none."""
        ...


def checked(model: object) -> WorldModel:
    """Return `model` if it is a world model."""
    # A class has the method as well, but nothing to call it on.
    if isinstance(model, WorldModel) and not isinstance(model, type):
        return model
    raise WorldModelError(
        "expected a world model (an object with the method predict(queries), an id or a config), found "
        f"{model if isinstance(model, type) else type(model).__name__!r}; add the method, or make an object"
    )


def text_env(env: gymnasium.Env[str, str]) -> TextEnv:
    """Return the environment of comap beneath an environment's wrappers."""
    inner = getattr(env, "unwrapped", env)
    if isinstance(inner, TextEnv):
        return inner
    raise WorldModelError(not_ours(type(inner).__name__, " to look ahead in"))


def ask(model: WorldModel, queries: Sequence[Query]) -> list[Prediction]:
    """Return a model's predictions, one for each query, or say what is wrong with them.

    Raises:
        WorldModelError: The model did not return one `Prediction` of text for each query.
    """
    # World models are anybody's code: what is wrong with an answer is said here, by the model's name,
    # and not somewhere in the loop that uses it.
    predictions = model.predict(queries)
    name = type(model).__name__
    if not isinstance(predictions, list | tuple) or len(predictions) != len(queries):
        raise WorldModelError(
            f"expected a list of {len(queries)} predictions, one for each query, from {name}.predict, "
            f"found {predictions!r:.80}; return Predictions"
        )
    for prediction in predictions:
        if not isinstance(prediction, Prediction) or not isinstance(prediction.observation, str):
            raise WorldModelError(
                f"expected Predictions whose observation is text from {name}.predict, "
                f"found {prediction!r:.120}"
            )
    return list(predictions)


class Transition(NamedTuple):
    """A question and what was really observed."""

    query: Query
    observation: str


def transitions_of(trajectory: Trajectory) -> Iterator[Transition]:
    """Yield the real transitions of a trajectory, as world models learn from them.

    A step that a fault cut short is none, nor is one whose answer nobody recorded.

    Example:
        >>> list(transitions_of(Trajectory("id", "task", "train", "goal", "agent", "Hello.", State())))
        []
    """
    turns = [Turn(None, trajectory.observation)]
    for before, step in trajectory.transitions():
        # Imagined steps are left out too: a model would learn its own errors.
        is_fault = trajectory.error is not None and step.truncated and not step.observation
        if not (step.imagined or is_fault or step.notes.get(UNOBSERVED)):
            query = Query(trajectory.env_id, trajectory.goal, tuple(turns), before, step.action)
            yield Transition(query, step.observation)

        # They are turns all the same: what the agent saw is the history of what came after.
        turns.append(Turn(step.action, step.observation))
