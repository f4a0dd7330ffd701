"""`RayVectorEnv`: environments of texts on Ray actors, as one vector environment.

It answers as Gymnasium's `SyncVectorEnv` on the same environments does. An actor holds several
environments, which share what their package loads; a lost actor is replaced.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ..errors import EngineError, InvalidAction, NoEpisode, OptionError
from ..facts import Delta
from .ray_cluster import cause_of, check_lost, connected

__all__ = ["RayVectorEnv"]

Answer: TypeAlias = "tuple[str, float, bool, bool, dict[str, Any]]"


@dataclass
class _Past:
    """What makes a member's present again: how its episode began, and what was done since.

    Attributes:
        source: The state of its random numbers before the episode.
        seed: The seed that the reset was given.
        options: The options that it was given.
        actions: The actions since.
        info: The last info.
    """

    source: Any = None
    seed: int | None = None
    options: dict[str, Any] | None = None
    actions: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)


class RayVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments on Ray actors, stepped at the same time.

    One step of all environments is in flight at a time. Where an actor is lost, another takes its
    place: with ``lost="retry"`` its environments are brought where they were, by the same seeds and
    actions, and nobody notices; with ``lost="record"`` their episodes end, ``truncated`` and with
    ``info["error"]``.

    Args:
        env_fns: Make the environments; they are sent to the actors.
        workers: How many actors there are; None for as many as the cluster has cores.
        address: See `comap.envs.ray_cluster.connected`.
        autoreset_mode: Gymnasium's: when a finished environment starts anew.
        lost: See above.
        retries: How often in a row actors are replaced until something works again.
        cpus: Cores that an actor takes.
        patience: Seconds that another actor may take to be where the lost one was.

    Attributes:
        restarts: How many actors were replaced.

    Raises:
        MissingExtra: Ray is not installed.
        OptionError: An option cannot be.

    Example:
        >>> import gymnasium as gym, comap
        >>> envs = gym.make_vec("comap/ALFWorld-v0", num_envs=4, ray=2)  # doctest: +SKIP
        >>> observations, infos = envs.reset(seed=7)  # doctest: +SKIP
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]],
        *,
        workers: int | None = None,
        address: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        lost: str = "retry",
        retries: int = 3,
        cpus: float = 1.0,
        patience: float = 120.0,
    ):
        check_lost(lost)
        if not env_fns or (workers is not None and (type(workers) is not int or workers < 1)):
            raise OptionError(
                f"expected environments and at least 1 worker, found {len(env_fns)} and {workers!r}"
            )
        self._lost, self._retries, self._cpus = lost, retries, cpus
        self._patience = patience
        self.num_envs = len(env_fns)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self._describe(env_fns[0])
        self._fns = list(env_fns)
        self._connection: Any = connected(address, workers)
        self._ray = self._connection.__enter__()
        self.restarts = 0
        try:
            self._open(workers)
        except BaseException:
            self.close_extras()
            raise

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all environments, or in those of ``options["reset_mask"]``.

        Args:
            seed: One for all (each environment gets one more than that before it), or one for each.
            options: Passed to each environment; see `text_vector`.

        Returns:
            The observations, and the infos as Gymnasium merges them.
        """
        seeds = self._seeds(seed)
        mask, options = self._mask(options)
        chosen = [place for place in range(self.num_envs) if mask[place]]
        calls = {place: ("reset", seeds[place], options) for place in chosen}
        infos: dict[str, Any] = {}
        for place, (observation, info, source) in self._ask(calls):
            self._begin(place, source, seeds[place], options, info)
            self._texts[place] = observation
            infos = self._add_info(infos, info, place)
        self._ended[mask] = False
        return tuple(self._texts), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take an action in each environment.

        Args:
            actions: A text for each.

        Returns:
            Observations, rewards, terminations, truncations and infos, as `SyncVectorEnv` has them.

        Raises:
            InvalidAction: There is not an action for each environment.
            NoEpisode: An environment has ended and does not start anew by itself.
        """
        given = list(actions) if not isinstance(actions, str) else []
        if len(given) != self.num_envs:
            raise InvalidAction(
                f"expected {self.num_envs} actions, one for each environment, found {actions!r:.120}"
            )
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise NoEpisode(
                f"expected a reset of the environments that ended, found steps: {self._ended=}; "
                "reset(options={'reset_mask': ...})"
            )
        anew = self._ended & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        calls: dict[int, tuple[Any, ...]] = {
            place: ("reset", None, None) if anew[place] else ("step", given[place])
            for place in range(self.num_envs)
        }
        return self._merged(calls, dict(self._ask(calls)))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return what a method, or an attribute, of each environment is.

        Args:
            name: Its name.
            *args: What the method is given.
            **kwargs: The same, by name.
        """
        calls = dict.fromkeys(range(self.num_envs), ("call", name, args, kwargs))
        found = dict(self._ask(calls))
        return tuple(found[place] for place in range(self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment."""
        return self.call(name)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment's random numbers."""
        return self.get_attr("np_random_seed")

    def close_extras(self, **kwargs: Any) -> None:
        """Let the actors go, and the connection, if it was made here."""
        for actor in getattr(self, "_actors", ()):
            self._ray.kill(actor, no_restart=True)
        self._actors: list[Any] = []
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.__exit__(None, None, None)

    # -- how it is done --------------------------------------------------------------------------

    def _describe(self, env_fn: Callable[[], gymnasium.Env[str, str]]) -> None:
        """Take over the spaces of an environment, which is not kept."""
        env = env_fn()
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = env.render_mode
        env.close()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def _open(self, workers: int | None) -> None:
        """Make the actors, each with its share of environments."""
        cores = int(self._ray.cluster_resources().get("CPU", 1) / max(self._cpus, 0.01))
        count = min(self.num_envs, workers or max(cores, 1))
        bounds = np.linspace(0, self.num_envs, count + 1).astype(int)
        self._shares = [range(*pair) for pair in itertools.pairwise(bounds)]
        options = {"num_cpus": self._cpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._kind = self._ray.remote(**options)(_Members)
        self._actors = [self._hire(share) for share in self._shares]
        self._texts = [""] * self.num_envs
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        self._pasts = [_Past() for _ in range(self.num_envs)]

    def _hire(self, share: range) -> Any:
        return self._kind.remote({place: self._fns[place] for place in share})

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None or isinstance(seed, int):
            return [None if seed is None else seed + place for place in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} seeds, found {len(seed)}")
        return list(seed)

    def _mask(self, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any] | None]:
        """Return which environments are reset, and the other options."""
        if not options or "reset_mask" not in options:
            return np.ones(self.num_envs, dtype=np.bool_), options
        mask = options["reset_mask"]
        good = isinstance(mask, np.ndarray) and mask.shape == (self.num_envs,)
        if not good or mask.dtype != np.bool_ or not mask.any():
            raise OptionError(
                f"expected options['reset_mask'] as an array of {self.num_envs} bool, at least one of "
                f"them true, found {mask!r:.120}"
            )
        return mask, {name: value for name, value in options.items() if name != "reset_mask"}

    def _begin(
        self, place: int, source: Any, seed: int | None, options: Any, info: dict[str, Any]
    ) -> None:
        self._pasts[place] = _Past(source, seed, copy.deepcopy(options), [], info)

    def _merged(
        self, calls: dict[int, tuple[Any, ...]], found: dict[int, Any]
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Return the answers to a step's calls as one."""
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        ends = np.zeros((2, self.num_envs), dtype=np.bool_)
        infos: dict[str, Any] = {}
        finished = []
        for place, call in calls.items():
            if call[0] == "reset":
                self._texts[place], info, source = found[place]
                self._begin(place, source, None, None, info)
            else:
                text, rewards[place], ends[0, place], ends[1, place], info = found[place]
                self._texts[place] = text
                self._pasts[place].actions.append(call[1])
                self._pasts[place].info = info
                if ends[:, place].any() and self.autoreset_mode is AutoresetMode.SAME_STEP:
                    finished.append(place)
                    infos = self._add_info(infos, {"final_obs": text, "final_info": info}, place)
                    continue
            infos = self._add_info(infos, info, place)
        again = dict.fromkeys(finished, ("reset", None, None))
        for place, (text, info, source) in self._ask(again):
            self._begin(place, source, None, None, info)
            self._texts[place] = text
            infos = self._add_info(infos, info, place)
        self._ended = np.logical_or(ends[0], ends[1])
        if finished:
            self._ended[finished] = False
        return tuple(self._texts), rewards, ends[0], ends[1], infos

    def _ask(self, calls: dict[int, tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Yield the answer to each environment's call, in their order, whatever becomes of actors."""
        asked = []
        for number, share in enumerate(self._shares):
            own = {place: calls[place] for place in share if place in calls}
            if own:
                asked.append((number, own, self._actors[number].answer.remote(own)))
        for number, own, sign in asked:
            try:
                answers = self._ray.get(sign)
            except Exception as error:
                cause = cause_of(error)
                if cause is not None:
                    raise cause from None
                answers = self._recover(number, own, error)
            yield from answers.items()

    def _recover(
        self, number: int, calls: dict[int, tuple[Any, ...]], error: Exception
    ) -> dict[int, Any]:
        """Replace a lost actor; return the answers that it would have given, or stand-ins for them."""
        for _ in range(self._retries):
            self.restarts += 1
            self._ray.kill(self._actors[number], no_restart=True)
            actor = self._actors[number] = self._hire(self._shares[number])
            given_up = {
                place
                for place, call in calls.items()
                if self._lost == "record" and call[0] == "step"
            }
            pasts = {place: self._pasts[place] for place in self._shares[number]}
            pasts |= {place: replace(pasts[place], actions=[]) for place in given_up}
            resumed = {place: call for place, call in calls.items() if place not in given_up}
            try:
                self._ray.get(actor.resume.remote(pasts), timeout=self._patience)
                answers: dict[int, Any] = self._ray.get(actor.answer.remote(resumed))
            except Exception as again:
                cause = cause_of(again)
                if cause is not None:
                    raise cause from None
                error = again
                continue
            answers |= {place: self._failed(place, error) for place in given_up}
            return {place: answers[place] for place in calls}
        raise EngineError(
            f"expected an actor to take the place of one that was lost, found {self._retries} lost in "
            f"a row, or no room in the Ray cluster ({type(error).__name__})"
        ) from error

    def _failed(self, place: int, error: Exception) -> Answer:
        """Return the answer of an environment whose episode was lost with its actor."""
        before = self._pasts[place].info
        told = f"WorkerLost: {type(error).__name__}"
        now = {"delta": Delta(), "invalid_action": False, "success": False, "error": told}
        return "", 0.0, False, True, before | now | {"step": before.get("step", 0) + 1}


class _Members:
    """What an actor is: some environments."""

    def __init__(self, makers: dict[int, Callable[[], gymnasium.Env[str, str]]]):
        self._envs = {place: make() for place, make in makers.items()}

    def answer(self, calls: dict[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Return what environments answer to their calls, in turn."""
        found: dict[int, Any] = {}
        for place, (kind, *given) in calls.items():
            env = self._envs[place]
            if kind == "reset":
                source = _random_state(env)
                found[place] = (*env.reset(seed=given[0], options=given[1]), source)
            elif kind == "step":
                found[place] = env.step(given[0])
            else:
                name, args, kwargs = given
                value = env.get_wrapper_attr(name)
                found[place] = value(*args, **kwargs) if callable(value) else value
        return found

    def resume(self, pasts: dict[int, _Past]) -> None:
        """Bring environments where they were."""
        for place, past in pasts.items():
            if past.source is not None:
                _begin_again(self._envs[place], past)
                for action in past.actions:
                    self._envs[place].step(action)


def _random_state(env: gymnasium.Env[str, str]) -> Any:
    return env.unwrapped.np_random.bit_generator.state


def _begin_again(env: gymnasium.Env[str, str], past: _Past) -> None:
    env.unwrapped.np_random.bit_generator.state = past.source
    env.reset(seed=past.seed, options=past.options)
