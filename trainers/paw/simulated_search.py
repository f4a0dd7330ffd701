"""Episodes whose searches a simulator answers (ZeroSearch, METHODS.md 3): engine, agent and models.

Searches of all episodes that run at once are answered together: the agent asks for the documents as
soon as it has decided to search, and the environment finds them at its retriever, which is a
`SimulatedEngine`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...agents.base import Agent, Decision, Reply, Request, View
from ...agents.needs import needs_of
from ...envs.searchqa.protocol import read_move
from ...envs.searchqa.retriever import Hit, check_queries
from ...errors import EngineError, LanguageModelError
from ...lm import (
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
)
from .curriculum import NoiseCurriculum
from .simulator import PURPOSE, SimulatedSearch, Simulator

__all__ = ["SearchingAgent", "SimulatedEngine", "TwoModels"]


class SimulatedEngine:
    """A retriever that finds what was written for the search that comes next.

    Args:
        name: The simulator's name, for results.

    Attributes:
        identity: What results call it.

    Example:
        >>> engine = SimulatedEngine("tiny")
        >>> engine.prepare("Emma", [Hit("1", "Emma", "A novel.", 1.0)])
        >>> engine.search(["Emma"])[0][0].text
        'A novel.'
    """

    def __init__(self, name: str):
        self.identity = f"simulated:{name}"
        self._next: tuple[str, list[Hit]] | None = None

    def prepare(self, query: str, hits: Sequence[Hit]) -> None:
        """Take the documents for the search that follows at once.

        Args:
            query: What will be searched for.
            hits: The documents.
        """
        self._next = query, list(hits)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return the documents that were prepared, at most `k`, once.

        Raises:
            EngineError: None were, or they are for another query.
        """
        check_queries(queries, k)
        prepared, self._next = self._next, None
        if prepared is None or [prepared[0]] != list(queries):
            raise EngineError(
                "expected a search for which the simulator has written documents, found "
                f"{queries!r:.120}"
            )
        return [prepared[1][:k]]


class SearchingAgent:
    """An agent whose searches are answered by a simulator before the environment sees them.

    Each search is noted as ``noisy`` or not; the call to the simulator is among the step's calls.

    Args:
        agent: Who acts.
        engine: The retriever of all environments.
        simulator: Asks for documents.
        curriculum: Says which searches are noisy.
        update: The update that the episodes are of.
        golden: Returns the right answers to a task's question.
        settings: What the environment says of actions: ``actions``, ``style`` and ``topk``.

    Attributes:
        name: The agent's.
        config: The agent's.
        searches: How many searches were answered.
        noisy: How many of them by noisy documents.
    """

    def __init__(
        self,
        agent: Agent,
        engine: SimulatedEngine,
        simulator: Simulator,
        curriculum: NoiseCurriculum,
        update: int,
        golden: Callable[[str], tuple[str, ...]],
        settings: Mapping[str, str],
    ):
        self._agent, self._engine, self._simulator = agent, engine, simulator
        self._curriculum, self._update, self._golden = curriculum, update, golden
        self._form: Any = (settings["actions"], settings["style"])
        self._count = int(settings["topk"])
        self.name, self.config = agent.name, getattr(agent, "config", None)
        self.searches = self.noisy = 0

    def needs(self) -> frozenset[str]:
        """Return what the agent's language model must be able to do."""
        return needs_of(self._agent)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Let the agent decide, and where it searches have the documents written."""
        decision = yield from self._agent.decide(view)
        if decision.action is None:
            return decision
        move = read_move(decision.action, *self._form)
        if move.kind != "search":
            return decision
        noisy = self._curriculum.noisy(self._update, view.seed, view.step)
        search = SimulatedSearch(
            view.goal,
            self._golden(view.task),
            move.text,
            noisy,
            self._count,
            f"{self._curriculum.seed}\n{self._update}\n{view.seed}\n{view.step}",
        )
        said: Completion = yield self._simulator.request(search)
        self._engine.prepare(move.text, self._simulator.hits(search, said))
        self.searches, self.noisy = self.searches + 1, self.noisy + noisy
        return replace(decision, notes={**decision.notes, "noisy": noisy})


class TwoModels:
    """A language model whose requests for documents go to another one; it obeys `LanguageModel`.

    Args:
        policy: Answers all other requests.
        simulator: Answers those with the purpose of a `Simulator`.

    Attributes:
        name: The policy's.
        capabilities: The policy's.
        usage: The policy's.
    """

    def __init__(self, policy: LanguageModel, simulator: LanguageModel):
        self.policy, self.simulator = policy, simulator
        self.name: str = policy.name
        self.capabilities: frozenset[str] = policy.capabilities

    @property
    def usage(self) -> Usage:
        """What the policy has done so far."""
        return self.policy.usage

    @usage.setter
    def usage(self, value: Usage) -> None:
        self.policy.usage = value

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Generate text; where the simulator fails as a whole, so does each request to it."""
        replies: list[Any] = [None] * len(requests)
        for model, played in ((self.policy, False), (self.simulator, True)):
            places = [n for n, one in enumerate(requests) if (one.purpose == PURPOSE) == played]
            if not places:
                continue
            asked = [requests[place] for place in places]
            found = _told_apart(model, asked) if played else model.generate(asked)
            for place, reply in zip(places, found, strict=True):
                replies[place] = reply
        return replies

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Have the policy score texts."""
        return self.policy.score(requests)

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Have the policy tell next-word probabilities."""
        return self.policy.words(requests)

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Have the policy tell hidden states."""
        return self.policy.encode(requests)

    def count_tokens(self, text: str) -> int:
        """Return the number of the policy's tokens of a text."""
        return self.policy.count_tokens(text)

    def config(self) -> dict[str, Any]:
        """Return how both were made."""
        return self.policy.config() | {"simulator": self.simulator.config()}


def _told_apart(model: LanguageModel, requests: Sequence[Generate]) -> list[Any]:
    """Return the simulator's replies; what it raises ends the episodes that asked, and no others."""
    try:
        return model.generate(requests)
    except Exception as error:
        failed = LanguageModelError(f"the simulator failed: {type(error).__name__}: {error}")
        return [failed] * len(requests)
