"""What a training on search QA may do otherwise: rewards by F1, a simulated engine (METHODS.md 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import gymnasium

from ...agents.base import Agent
from ...agents.tags import env_name
from ...envs.searchqa import SearchQAEnv
from ...errors import OptionError
from ...lm import LanguageModel
from ...trajectory import Trajectory
from ..setup import Environments
from .config import PaWTraining
from .curriculum import NoiseCurriculum
from .simulated_search import SearchingAgent, SimulatedEngine, TwoModels
from .simulator import Simulator

__all__ = ["SearchTraining", "check_search", "together"]


def check_search(
    config: PaWTraining, make_env: Callable[[str], gymnasium.Env[str, str]], simulator: object
) -> None:
    """Refuse settings for search QA in other environments, and a simulated engine without a model.

    Args:
        config: The settings.
        make_env: Makes environments.
        simulator: What shall play the engine, or None.

    Raises:
        OptionError: See above.

    Example:
        >>> check_search(PaWTraining(), Environments("comap/ALFWorld-v0"), None)
    """
    wanted = {
        "engine='simulated'": config.engine == "simulated",
        "reward='f1'": config.reward == "f1",
        "context='concat'": config.context == "concat",
    }
    asked = [name for name, is_wanted in wanted.items() if is_wanted]
    if asked:
        name = _env_of(make_env, config.train_split)
        if env_name(name) != "searchqa":
            raise OptionError(
                f"{', '.join(asked)} is for search QA (comap/SearchQA-v0), found the environment "
                f"{name!r}; use another preset, or add --env comap/SearchQA-v0"
            )
    if (config.engine == "simulated") != (simulator is not None):
        raise OptionError(
            "engine='simulated' and a simulator go together, found "
            + ("no simulator" if simulator is None else f"engine={config.engine!r}")
            + "; add --simulator MODEL (a folder, a name on the hub, http://HOST:PORT/v1#NAME, or "
            "tiny) to the preset zerosearch, and leave it out elsewhere"
        )
    if (config.engine, config.reward) != ("environment", "success") and not isinstance(
        make_env, Environments
    ):
        raise OptionError("reward='f1' and engine='simulated' need Environments as make_env")


class SearchTraining:
    """Makes the environments, agents and rewards of a training's rollouts; evaluations have their own.

    Without F1 and without a simulated engine all is as it was given.

    Args:
        config: The settings.
        make_env: Makes environments.
        updates: The updates of the whole training.
        simulator: Plays the engine, where `config` says that it is simulated.

    Example:
        >>> plain = SearchTraining(PaWTraining(), Environments("comap/ALFWorld-v0"), 1)
        >>> plain.reward is None, plain.measures(0)
        (True, {})
    """

    def __init__(
        self,
        config: PaWTraining,
        make_env: Callable[[str], gymnasium.Env[str, str]],
        updates: int,
        simulator: LanguageModel | None = None,
    ):
        self._config, self._simulator = config, simulator
        self._curriculum = NoiseCurriculum.of(config, updates)
        self._engine = None if simulator is None else SimulatedEngine(simulator.name)
        options: dict[str, Any] = {}
        if config.reward == "f1":
            options |= {"reward": "f1", "invalid_penalty": 0.0}  # penalties are the trainer's own
        if self._engine is not None:
            options["retriever"] = self._engine
        if options:
            assert isinstance(make_env, Environments)
            make_env = replace(make_env, options={**make_env.options, **options})
        self._make_env = make_env
        self._spare: gymnasium.Env[str, str] | None = None
        self._golden: dict[str, tuple[str, ...]] = {}
        self._playing: SearchingAgent | None = None

    @property
    def reward(self) -> Callable[[Trajectory], Sequence[float]] | None:
        """Tells the rewards of an episode's steps; None where success alone is rewarded."""
        return self._f1 if self._config.reward == "f1" else None

    def make_env(self) -> gymnasium.Env[str, str]:
        """Return an environment of the training split."""
        return self._make_env(self._config.train_split)

    def agent(self, agent: Agent, update: int) -> Agent:
        """Return the agent that plays the episodes of an update.

        Args:
            agent: The agent that acts with the policy.
            update: The update, from 0.
        """
        if self._engine is None:
            return agent
        config = self._config
        simulator = Simulator(config.simulator_temperature, config.simulator_tokens)
        settings = self._inner().settings()
        self._playing = SearchingAgent(
            agent, self._engine, simulator, self._curriculum, update, self._answers, settings
        )
        return self._playing

    def language_model(self, policy: LanguageModel) -> LanguageModel:
        """Return what answers that agent: the policy, and beside it the simulator.

        Args:
            policy: The policy.
        """
        return policy if self._simulator is None else TwoModels(policy, self._simulator)

    def measures(self, update: int) -> dict[str, float]:
        """Return what this process's searches of an update were: nothing without a simulator.

        Args:
            update: The update, from 0.
        """
        if self._playing is None:
            return {}
        counts = {"searches": self._playing.searches, "noisy_searches": self._playing.noisy}
        return {"noise": self._curriculum.probability(update), **counts}

    def close(self) -> None:
        """Close what is open."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _f1(self, trajectory: Trajectory) -> list[float]:
        scale = self._config.success_reward
        return [scale * step.reward + 0.0 for step in trajectory.steps]  # there is no -0.0 then

    def _answers(self, task: str) -> tuple[str, ...]:
        """Return the right answers to a task's question, which no observation tells."""
        if task not in self._golden:
            inner = self._inner()
            inner.reset(options={"task": task})
            self._golden[task] = inner.wanted.golden
        return self._golden[task]

    def _inner(self) -> SearchQAEnv:
        if self._spare is None:
            self._spare = self.make_env()
        inner = self._spare.unwrapped
        assert isinstance(inner, SearchQAEnv)
        return inner


def together(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what the searches of all processes were: see `SearchTraining.measures`.

    Args:
        parts: What those of each process were.

    Example:
        >>> together([{"noise": 0.5, "searches": 3}, {"noise": 0.5, "searches": 1}])
        {'noise': 0.5, 'searches': 4}
    """
    told = dict(parts[0]) if parts else {}
    for part in parts[1:]:
        told |= {name: told[name] + value for name, value in part.items() if name != "noise"}
    return told


def _env_of(make_env: Callable[[str], gymnasium.Env[str, str]], split: str) -> str:
    """Return the id of the environments."""
    if isinstance(make_env, Environments):
        return make_env.env_id
    with closing(make_env(split)) as env:
        return str(getattr(env.unwrapped, "env_id", ""))
