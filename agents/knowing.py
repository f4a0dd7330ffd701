"""Asking a knowledge model for WKM's two kinds of knowledge (METHODS.md 3)."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from ..lm import Completion, Generate, Message
from ..trajectory import Trajectory
from ..worldmodel import Query, transitions_of
from .acting import seed_for
from .asking import ask_apart
from .base import Reply, Request, View
from .knowledge import Knowledge, KnowledgeBase
from .prompting import instructions

if TYPE_CHECKING:
    from .wkm import WKMConfig

__all__ = ["gather_knowledge", "state_request", "task_request"]


def task_request(view: View, config: WKMConfig) -> Generate:
    """Return the question for task knowledge: what to know before the task is begun."""
    rules = instructions(view.env_id)
    messages = ask_apart(view, config, "wkm_task", config.task_tokens, instructions=rules)
    seed = seed_for(config, view, "task knowledge")
    return _request(messages, config, config.task_tokens, seed, "task knowledge")


def state_request(view: View, config: WKMConfig) -> Generate:
    """Return the question for state knowledge: the present in words that fit like states too."""
    messages = ask_apart(view, config, "wkm_state", config.state_tokens)
    seed = seed_for(config, view, "state knowledge")
    return _request(messages, config, config.state_tokens, seed, "state knowledge")


def _request(
    messages: tuple[Message, ...], config: WKMConfig, tokens: int, seed: int, purpose: str
) -> Generate:
    heat = config.knowledge_temperature
    sampling = config.sampling(tokens, ("\n---",), seed, temperature=heat, top_p=1.0)
    return Generate(messages, sampling, adapter=config.knowledge_adapter, purpose=purpose)


def gather_knowledge(
    trajectories: Iterable[Trajectory], config: WKMConfig
) -> Generator[Request, Reply, KnowledgeBase]:
    """Build a knowledge base in the knowledge model's words: one batch of requests an episode.

    Args:
        trajectories: Episodes worth imitating, such as an expert's.
        config: How the agent will ask for state knowledge.

    Example:
        >>> from comap.agents.wkm import WKMConfig
        >>> gathering = gather_knowledge([], WKMConfig())
        >>> try:
        ...     next(gathering)
        ... except StopIteration as stop:
        ...     len(stop.value)
        0
    """
    base = KnowledgeBase()
    for trajectory in trajectories:
        queries = [query for query, _ in transitions_of(trajectory)]
        if not queries:
            continue
        asked = [state_request(_view_of(query, trajectory.task), config) for query in queries]
        said: list[Completion] = yield asked
        for query, completion in zip(queries, said, strict=True):
            before = query.history[-1].action or ""
            base.add(Knowledge(completion.text.strip(), before, query.action))
    return base


def _view_of(query: Query, task: str) -> View:
    """Return what an agent saw when it took an action."""
    return View(
        query.env_id,
        task,
        query.goal,
        query.history,
        query.state,
        query.admissible_actions,
        len(query.history) - 1,
        lambda: None,
    )
