"""What plays rollouts on search QA otherwise: rewards by F1, and a simulated search engine (ZeroSearch).

Evaluations have the environment's own search engine, and count exact answers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from ....agents.base import Agent, Decision, Reply, Request, View
from ....agents.config import required_capabilities
from ....envs.registry import text_env_of
from ....envs.searchqa import SearchQAEnv
from ....envs.searchqa.protocol import read_move
from ....errors import LanguageModelError, OptionError
from ....lm import Completion, LanguageModel
from ....lm.base import BaseLanguageModel, LMRequest, answer
from ...setup import Environments
from ...stages import MakeEnv
from ..config import PaWTraining
from .simulator import PURPOSE, SimulatedEngine, SimulatedSearch


@dataclass(frozen=True, slots=True)
class NoiseCurriculum:
    """How often, and when, the simulated engine of a training gives noisy documents."""

    updates: int
    start: float
    end: float
    base: float = 4.0
    seed: int = 0

    @classmethod
    def of(cls, config: PaWTraining, updates: int) -> NoiseCurriculum:
        """Return the curriculum that the settings describe."""
        settings = config.zerosearch
        return cls(
            updates, settings.noise_start, settings.noise_end, settings.noise_base, config.seed
        )

    def probability(self, update: int) -> float:
        """Return ``p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s)`` at an update i, from 0."""
        progress = min(update / self.updates, 1.0)
        rise = math.log(self.base)
        share = math.expm1(rise * progress) / math.expm1(rise) if rise else progress
        return min(max(self.start + share * (self.end - self.start), 0.0), 1.0)

    def noisy(self, update: int, episode: int, turn: int) -> bool:
        """Return whether a search gets noisy documents."""
        generator = random.Random(f"noise\n{self.seed}\n{update}\n{episode}\n{turn}")
        return generator.random() < self.probability(update)


class SearchingAgent:
    """An agent whose searches are answered by a simulator before the environment sees them."""

    def __init__(
        self,
        agent: Agent,
        engine: SimulatedEngine,
        config: PaWTraining,
        curriculum: NoiseCurriculum,
        update: int,
        env: SearchQAEnv,
    ):
        self._agent = agent
        self._engine = engine
        self._config = config
        self._curriculum = curriculum
        self._update = update
        self._env = env

        settings = env.settings()
        self._form: Any = (settings["actions"], settings["style"])
        self._count = int(settings["topk"])
        self._golden: dict[str, tuple[str, ...]] = {}

        self.name = agent.name
        self.config = getattr(agent, "config", None)
        self.searches = 0
        self.noisy = 0

    def required_capabilities(self) -> frozenset[str]:
        """Return what the agent's language model must be able to do."""
        return required_capabilities(self._agent)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Let the agent decide, and where it searches have the documents written."""
        decision = yield from self._agent.decide(view)
        if decision.action is None:
            return decision
        move = read_move(decision.action, *self._form)
        if move.kind != "search":
            return decision

        # Episodes have seeds of their own, so that the draw is that of this search alone.
        noisy = self._curriculum.noisy(self._update, view.seed, view.step)
        draw = f"{self._curriculum.seed}\n{self._update}\n{view.seed}\n{view.step}"
        golden = self.golden(view.task)
        search = SimulatedSearch(view.goal, golden, move.text, noisy, self._count, draw)
        reply: Completion = yield search.request(self._config.zerosearch)
        self._engine.prepare(move.text, search.hits(reply.text))

        self.searches += 1
        self.noisy += noisy
        return replace(decision, notes={**decision.notes, "noisy": noisy})

    def golden(self, task: str) -> tuple[str, ...]:
        """Return the correct answers to a task's question, which no observation has."""
        if task not in self._golden:
            self._env.reset(options={"task": task})
            self._golden[task] = self._env.wanted.golden
        return self._golden[task]


class TwoModels(BaseLanguageModel):
    """A policy, and a simulator that answers the requests for documents."""

    def __init__(self, policy: LanguageModel, simulator: LanguageModel):
        self.policy = policy
        self.simulator = simulator
        self.name: str = policy.name
        self.capabilities: frozenset[str] = policy.capabilities
        self.usage = policy.usage

    def count_tokens(self, text: str) -> int:
        return self.policy.count_tokens(text)

    def config(self) -> dict[str, Any]:
        return self.policy.config() | {"simulator": self.simulator.config()}

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        simulated = [request for request in requests if request.purpose == PURPOSE]
        from_agent = [request for request in requests if request.purpose != PURPOSE]
        replies = iter(answer(self.policy, from_agent) if from_agent else [])
        try:
            documents = iter(answer(self.simulator, simulated) if simulated else [])
        except Exception as error:  # it ends the episodes that searched, and no others
            failed = LanguageModelError(f"the simulator failed: {type(error).__name__}: {error}")
            documents = iter([failed] * len(simulated))

        return [next(documents if request.purpose == PURPOSE else replies) for request in requests]


def check_search(config: PaWTraining, make_env: MakeEnv, simulator: object) -> None:
    """Refuse settings for search QA in other environments, and a simulated engine without a model."""
    settings = []
    if config.search_engine == "simulated":
        settings.append("search_engine='simulated'")
    if config.reward == "f1":
        settings.append("reward='f1'")

    if settings:
        env_id = _env_id_of(config, make_env)
        if text_env_of(env_id).reply_form.kind != "search":
            raise OptionError(
                f"{', '.join(settings)} is for search QA (comap/SearchQA-v0), found the environment "
                f"{env_id!r}; use another preset, or add --env comap/SearchQA-v0"
            )
    if (config.search_engine == "simulated") != (simulator is not None):
        raise OptionError(
            "search_engine='simulated' and a simulator go together, found "
            + ("no simulator" if simulator is None else f"search_engine={config.search_engine!r}")
            + "; add --simulator MODEL (a folder, a name on the hub, http://HOST:PORT/v1#NAME, or "
            "tiny) to the preset zerosearch, and leave it out elsewhere"
        )
    if settings and not isinstance(make_env, Environments):
        raise OptionError("reward='f1' and search_engine='simulated' need Environments as make_env")


def _env_id_of(config: PaWTraining, make_env: MakeEnv) -> str:
    """Return the id of the environment that a training is on."""
    if isinstance(make_env, Environments):
        return make_env.env_id
    with closing(make_env(config.train_split)) as env:
        return str(getattr(env.unwrapped, "env_id", ""))


def search_rollouts(
    config: PaWTraining, make_env: MakeEnv, updates: int, simulator: LanguageModel | None = None
) -> SearchRollouts | None:
    """Return the plug-in of trainings by F1 or with a simulated engine; None for all others."""
    if config.reward != "f1" and simulator is None:
        return None
    assert isinstance(make_env, Environments)  # `check_search` refuses all else
    return SearchRollouts(config, make_env, updates, simulator)


class SearchRollouts:
    """Makes the environments and agents of a training's rollouts: a `RolloutPlugin`."""

    def __init__(
        self,
        config: PaWTraining,
        environments: Environments,
        updates: int,
        simulator: LanguageModel | None = None,
    ):
        self._config = config
        self._simulator = simulator
        self._curriculum = NoiseCurriculum.of(config, updates)
        self._engine = None if simulator is None else SimulatedEngine(simulator.name)

        options: dict[str, Any] = {}
        if config.reward == "f1":
            options |= {"reward": "f1", "invalid_penalty": 0.0}  # penalties are the trainer's own
        if self._engine is not None:
            options["retriever"] = self._engine
        self._environments = replace(environments, options={**environments.options, **options})

        self._spare: gymnasium.Env[str, str] | None = None
        self._playing: SearchingAgent | None = None

    def make_env(self) -> gymnasium.Env[str, str]:
        """Return an environment on the training split, with the simulated engine if there is one."""
        return self._environments(self._config.train_split)

    def agent(self, agent: Agent, update: int) -> Agent:
        """Return the agent that plays the episodes of an update, counted from 0."""
        if self._engine is None:
            return agent

        if self._spare is None:  # an environment to look up the answers in
            self._spare = self.make_env()
        env = self._spare.unwrapped
        assert isinstance(env, SearchQAEnv)
        self._playing = SearchingAgent(
            agent, self._engine, self._config, self._curriculum, update, env
        )
        return self._playing

    def language_model(self, policy: LanguageModel) -> LanguageModel:
        """Return what answers that agent: the policy, and beside it the simulator."""
        return policy if self._simulator is None else TwoModels(policy, self._simulator)

    def sums(self) -> dict[str, float]:
        """Return counts of this process's searches in an update: nothing without a simulator."""
        if self._playing is None:
            return {}
        return {"searches": self._playing.searches, "noisy_searches": self._playing.noisy}

    def metrics(self, update: int) -> dict[str, float]:
        """Return an update's probability of noisy documents: nothing without a simulator."""
        return {} if self._engine is None else {"noise": self._curriculum.probability(update)}

    def close(self) -> None:
        """Close the environment that answers are looked up in."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None
