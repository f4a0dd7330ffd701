"""`ImaginedEnv`: any environment, imagined by a world model, behind the same API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from ..envs import Snapshot, TextEnv
from ..envs import restore as restore_env
from ..envs.base import Outcome
from ..envs.registry import not_ours
from ..errors import (
    FAULTS,
    InvalidAction,
    NoEpisode,
    SnapshotError,
    WorldModelError,
    check_number,
    described,
)
from ..facts import Delta, State, diff
from ..spaces import Unicode
from ..trajectory import Turn
from .base import Configured, Grounded, Prediction, Query, WorldModel, ask, checked
from .create import create_world_model


@dataclass(frozen=True, slots=True)
class ImaginedSnapshot:
    """One moment of an imagined episode: the real one under it, and what was imagined since."""

    real: Snapshot
    moment: _Moment
    history: tuple[Turn, ...]
    pending: tuple[str, ...]


START = "start"
"""The action that a world model is asked about for an episode's first observation."""


def start_query(env_id: str, goal: str) -> Query:
    """Return the question for an episode's first observation."""
    return Query(env_id, goal, (), State(), START)


class _Moment(NamedTuple):
    """What an episode shows at one moment."""

    outcome: Outcome
    facts: State
    delta: Delta
    step: int
    imagined: bool
    running: bool


_NO_MOMENT = _Moment(Outcome(""), State(), Delta(), 0, False, False)


class ImaginedEnv(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Steps are predicted by a world model; spaces, info keys and facts are those of `env`.

    `reset` is real. A step asks the world model for the next observation, folds it into the belief
    with the environment's own canonicalizer, and works out everything else from that belief: an
    imagined episode ends when the facts say that the goal is reached (success), when the prediction
    itself says so, or at the horizon. The real environment does not move; it catches up where
    `real_every` asks for a real step: then the actions imagined since are really taken first, and
    observation, facts and everything else are the real ones again. A world model that fails ends the
    episode with ``info["error"]``.

    Args:
        env: An environment of comap, wrapped or not.
        world_model: A world model, its id, or its config (see `create_world_model`). A model that
            has a config, and any config, makes ``env.spec`` rebuildable and JSON-able.
        horizon: Steps after which the episode is truncated; None for the environment's own limit.
        real_every: Take every so many-th step for real: 1 for all, None for none.
        imagined_start: Whether the first observation is imagined too, from the goal alone (WebEvolver's
            synthetic episodes); the world model is asked with `START`.

    Raises:
        OptionError: `horizon` or `real_every` is less than 1.
        WorldModelError: There is no such world model, or `env` is not one of comap's or is
            imagined already.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = ImaginedEnv(gym.make("comap/ALFWorld-v0"), "null")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step("look")
        >>> observation, info["imagined"]
        ('Nothing happens.', True)
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        world_model: WorldModel | str | Mapping[str, Any],
        horizon: int | None = None,
        real_every: int | None = None,
        imagined_start: bool = False,
    ):
        for name, value in (("horizon", horizon), ("real_every", real_every)):
            if value is not None:
                check_number(name, value)

        self._inner = _real_env(env)
        if isinstance(world_model, str | Mapping):
            self.world_model = create_world_model(world_model)
            recorded = deepcopy(world_model)
        else:
            self.world_model = checked(world_model)
            recorded = _config_of(self.world_model)

        # A live model is not copied: it may be large.
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,
            world_model=recorded,
            horizon=horizon,
            real_every=real_every,
            imagined_start=imagined_start,
        )
        gymnasium.Wrapper.__init__(self, env)

        # The real environment does not move, so its own limits never count imagined steps: neither that
        # of `TextEnv` nor Gymnasium's TimeLimit.
        limits = [self._inner._limit]
        if env.spec is not None:
            limits.append(env.spec.max_episode_steps)
        limit = min((limit for limit in limits if limit is not None), default=None)
        self.horizon = horizon if horizon is not None else limit
        self.real_every = real_every
        self.imagined_start = imagined_start

        self._started = False
        self._moment = _NO_MOMENT
        self._history: list[Turn] = []
        self._pending: list[str] = []
        self._real: Snapshot | None = None
        self._prepared: tuple[str, Prediction | Exception] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a real episode; what follows is imagined. See `TextEnv.reset`."""
        self._forget()

        observation, info = self.env.reset(seed=seed, options=options)
        self._take_stock()
        self._history = list(self._inner.history())
        self._started = True
        return self._imagine_start() if self.imagined_start else (observation, info)

    def _imagine_start(self) -> tuple[str, dict[str, Any]]:
        """Put an imagined first observation in the place of the real one."""
        inner = self._inner
        real = self._moment

        # A fault is raised here, not recorded: there is no episode yet that could end with it.
        (prediction,) = ask(self.world_model, [start_query(inner.env_id, inner.goal)])
        text = prediction.observation
        facts = inner.canonicalizer.initial(inner.goal, text)
        admissible = inner.admissible_of(facts)

        outcome = real.outcome._replace(observation=text, admissible=admissible)
        self._moment = real._replace(outcome=outcome, facts=facts, delta=Delta(), imagined=True)
        self._history = [Turn(None, text)]
        return text, self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Imagine what follows `action`, or really take it where `real_every` says so.

        Raises:
            InvalidAction: `action` is not a ``str``.
            NoEpisode: No episode is running.
        """
        if not isinstance(action, str):
            raise InvalidAction(
                f"an action is text (str), found {type(action).__name__}: {action!r:.80}"
            )
        if not (self._started and self._moment.running):
            raise NoEpisode("expected a running episode, found none; call env.reset() first")

        # A prepared answer is of this very moment: whatever happens next, it must not be used later.
        action = self._inner.bounded(action)
        prepared = self._prepared
        self._prepared = None
        if self._is_real_next():
            return self._step_really(action)

        # World models are anybody's code. What they raise is data, as an engine's fault is: the episode
        # ends and says so, and a run of a thousand goes on.
        try:
            prediction = self._predict(action, prepared)
            facts = self._fold(action, prediction)
            outcome = self._outcome(prediction, facts)
        except Exception as error:
            return self._fault(error)

        self._pending.append(action)
        self._history.append(Turn(action, prediction.observation))
        return self._arrive(outcome, facts, imagined=True)

    def next_query(self, action: str) -> Query | None:
        """Return what ``step(action)`` will ask the world model; None where it will not ask.

        Together with `prepare` it lets many environments step with one batch of questions.
        """
        if not (self._started and self._moment.running) or self._is_real_next():
            return None
        return self.query(action)

    def prepare(self, action: str, prediction: Prediction | Exception) -> None:
        """Hand over what the world model said to `next_query`, or the error that it raised.

        The next ``step(action)`` takes that for the model's answer instead of asking; everything
        else is as without it. Any other step, `reset` and `restore` forget it.

        Example:
            >>> import gymnasium as gym, comap
            >>> env = ImaginedEnv(gym.make("comap/ALFWorld-v0"), "null")
            >>> observation, info = env.reset(seed=0)
            >>> env.prepare("look", Prediction("You look."))
            >>> env.step("look")[0], env.step("look")[0]
            ('You look.', 'Nothing happens.')
        """
        self._prepared = (self._inner.bounded(action), prediction)

    def query(self, action: str) -> Query:
        """Return what the world model is asked about `action` now.

        Raises:
            NoEpisode: There was no `reset` yet.
        """
        if not self._started:
            raise NoEpisode("expected an episode, found none; call env.reset() first")
        return Query(
            env_id=self._inner.env_id,
            goal=self._inner.goal,
            history=tuple(self._history),
            state=self._moment.facts,
            action=self._inner.bounded(action),
            admissible_actions=self._moment.outcome.admissible,
            briefing=self._inner.briefing,
        )

    def history(self) -> tuple[Turn, ...]:
        """Return the turns of the episode so far, real and imagined."""
        return tuple(self._history)

    def state_facts(self) -> State:
        """Return the belief of this moment."""
        return self._moment.facts

    def expert_action(self) -> str | None:
        """Return the next action of an expert that knows only the (imagined) belief."""
        return self._inner.expert_from(self._moment.facts, self._moment.outcome.admissible)

    def snapshot(self) -> ImaginedSnapshot:
        """Return this moment of the imagined episode, for `restore`."""
        if not self._started or self._real is None:
            raise NoEpisode("expected an episode, found none; call env.reset() first")
        return ImaginedSnapshot(
            self._real, self._moment, tuple(self._history), tuple(self._pending)
        )

    def restore(self, snapshot: ImaginedSnapshot | Snapshot) -> tuple[str, dict[str, Any]]:
        """Go back to a moment of an imagined episode, the real one under it included.

        A snapshot of a real episode is welcome too: imagination then starts from there.

        Raises:
            SnapshotError: It is no such moment, or of other settings.
        """
        if not isinstance(snapshot, Snapshot | ImaginedSnapshot):
            raise SnapshotError(
                f"expected a snapshot of an imagined episode, found {type(snapshot).__name__}"
            )
        self._forget()

        if isinstance(snapshot, Snapshot):
            observation, info = restore_env(self.env, snapshot)
            self._take_stock()
            self._history = list(snapshot.history)
            self._started = True
            return observation, info

        restore_env(self.env, snapshot.real)
        self._take_stock()
        self._moment = snapshot.moment
        self._history = list(snapshot.history)
        self._pending = list(snapshot.pending)
        self._started = True
        return self._moment.outcome.observation, self._info()

    def render(self) -> str | None:
        """Return the last action and observation as text, in render mode ``"ansi"``."""
        if self.render_mode is None:
            return None
        if not self._history:
            return ""
        action, observation = self._history[-1]
        if action is None:
            return f"{observation}\n".lstrip("\n")
        return f"> {action}\n{observation}\n"

    def _forget(self) -> None:
        """Leave the episode: a `reset` or `restore` that fails must not leave the old one running."""
        self._prepared = None
        self._started = False
        self._moment = _NO_MOMENT
        self._history = []

    def _take_stock(self) -> None:
        """Take the real episode's moment as the present, and tell the world model."""
        # The snapshot is where `restore` and the next real step begin: imagined steps leave it alone.
        real = self._inner.snapshot()
        self._real = real
        self._pending = []
        self._moment = _Moment(real.outcome, real.facts, real.delta, real.step, False, real.running)
        if isinstance(self.world_model, Grounded):
            self.world_model.ground(self.env)

    def _is_real_next(self) -> bool:
        """Return whether `real_every` takes the next step for real."""
        return self.real_every is not None and (self._moment.step + 1) % self.real_every == 0

    def _predict(
        self, action: str, prepared: tuple[str, Prediction | Exception] | None
    ) -> Prediction:
        """Return what the world model says of `action`: what was prepared, or else ask."""
        prepared_action, answer = prepared or (None, None)
        if answer is None or prepared_action != action:
            (prediction,) = ask(self.world_model, [self.query(action)])
            return prediction

        if isinstance(answer, Exception):
            raise answer
        return answer

    def _fold(self, action: str, prediction: Prediction) -> State:
        """Return the belief after the predicted observation."""
        space = self._inner.observation_space
        if isinstance(space, Unicode) and prediction.observation not in space:
            raise space.too_long(prediction.observation)

        # The environment's own canonicalizer reads it, so that facts of imagined and real steps compare.
        canonicalizer = self._inner.canonicalizer
        return canonicalizer.update(self._moment.facts, action, prediction.observation)

    def _outcome(self, prediction: Prediction, facts: State) -> Outcome:
        """Work out the rest of the step from the predicted belief."""
        inner = self._inner
        info = prediction.info or {}  # what the model knows stands in for what facts say
        success = bool(info.get("success", inner.goal_reached(facts)))
        score = info.get("score", inner.score_of(facts))
        if "admissible_actions" in info:
            admissible = info["admissible_actions"]
        else:
            admissible = inner.admissible_of(facts)

        # Where neither model nor facts have a view, success alone is worth something.
        reward = float(success) if prediction.reward is None else float(prediction.reward)
        if score is None:
            score = success
        invalid = info.get("invalid_action", inner.refused(prediction.observation))
        return Outcome(
            observation=prediction.observation,
            reward=reward,
            score=min(max(float(score), 0.0), 1.0),
            success=success,
            terminated=success or bool(prediction.terminated) or inner.ended(facts),
            invalid=bool(invalid),
            admissible=None if admissible is None else tuple(admissible),
        )

    def _arrive(
        self, outcome: Outcome, facts: State, imagined: bool, cut: bool = False
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make an outcome the present moment, and return it as `step` does; `cut` truncates it."""
        step = self._moment.step + 1
        cut = cut or (self.horizon is not None and step >= self.horizon)
        truncated = cut and not outcome.terminated
        running = not (outcome.terminated or truncated)
        delta = diff(self._moment.facts, facts)
        self._moment = _Moment(outcome, facts, delta, step, imagined, running)
        return outcome.observation, outcome.reward, outcome.terminated, truncated, self._info()

    def _step_really(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the actions imagined since the last real moment, and then `action`, for real."""
        # The real episode may end on the way, though the imagined one went on: then it ends here too.
        before = self._moment
        for pending_action in [*self._pending, action]:
            observation, _, terminated, truncated, real_info = self.env.step(pending_action)
            if terminated or truncated:
                break
        self._take_stock()
        self._history.append(Turn(action, observation))

        # The delta and the step number count from the imagined moment before, not from the real one.
        real = self._moment
        self._moment = before
        is_cut = truncated and not real.outcome.terminated
        arrival = self._arrive(real.outcome, real.facts, imagined=False, cut=is_cut)

        # A fault of the engine ends the episode as one of the world model does: see `_fault`.
        if "error" in real_info:
            *_, info = arrival
            return "", 0.0, False, True, info | {"error": real_info["error"]}
        return arrival

    def _fault(self, error: Exception) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """End the episode after a fault of the world model, and say so in `info`."""
        # Facts and score stay those of the last good moment, as after a fault of a real engine.
        moment = self._moment
        outcome = moment.outcome._replace(observation="", reward=0.0, invalid=False)
        self._moment = _Moment(outcome, moment.facts, Delta(), moment.step + 1, True, False)
        logging.getLogger(FAULTS).debug("a world model failed", exc_info=error)
        fault = {"error": described(error)}
        return "", 0.0, False, True, self._info() | fault

    def _info(self) -> dict[str, Any]:
        """Return the info of this moment, with the keys of a real step."""
        outcome, facts, delta, step, imagined, _ = self._moment
        return self._inner.frame() | {
            "admissible_actions": outcome.admissible,
            "facts": facts,
            "delta": delta,
            "score": outcome.score,
            "success": outcome.success,
            "invalid_action": outcome.invalid,
            "step": step,
            "imagined": imagined,
            **self._inner.extras(outcome.observation),
        }


def _real_env(env: gymnasium.Env[str, str]) -> TextEnv:
    """Return the environment to be imagined, without its wrappers, or say what is wrong with it."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper) and not isinstance(layer, ImaginedEnv):
        layer = layer.env
    if isinstance(layer, TextEnv):
        return layer
    raise WorldModelError(not_ours(type(layer).__name__, " that is not imagined yet"))


def _config_of(model: WorldModel) -> Any:
    """Return a model's config where it has one, else the model itself."""
    config = model.config() if isinstance(model, Configured) else None
    return model if config is None else config
