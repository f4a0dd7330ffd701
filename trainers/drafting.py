"""Drafts in an expert's states: what the policy would have done there (METHODS.md 1.6, step 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from ..agents.acting import draft_action
from ..agents.base import Decision, Imagine, Reply, Request, View
from ..agents.config import AgentConfig
from ..agents.prompting import converse
from ..errors import OptionError
from ..worldmodel import Imagined

__all__ = ["DraftingAgent", "InitContext", "checked_context", "choose_steps", "drawn"]

InitContext: TypeAlias = Literal["env", "wm", "mixed", "none"]
"""Which future the reflection is shown in its first training: what the environment answers to the
draft, what the world model predicts of it, one of the two by a draw, or nothing (METHODS.md 1.6)."""


class DraftingAgent:
    """Follows an expert's plan; at chosen steps it first asks the policy what it would do there.

    Its trajectories are what `comap.trainers.reflection_data` makes its labels of. The conversation
    shows the plan's actions alone, without thoughts. A draft leads to nothing here: what follows it is
    found by suffix rollouts. Where the world model's prediction may be shown to the reflection, it is
    asked about each draft that can be read.

    Notes of each step: ``shown``; at chosen steps also ``draft_action``, ``draft_parsed``,
    ``draft_response`` and ``predicted_next_state`` (None where no world model was asked).

    Args:
        config: How the policy is asked: that of the agent that will reflect.
        plans: The expert's actions of each task.
        steps: The chosen steps of each task, by the number of actions before them.
        context: What the reflection will be shown.

    Raises:
        OptionError: `context` is none of those allowed.

    Example:
        >>> from comap.facts import State
        >>> agent = DraftingAgent(AgentConfig(), {"task": ("look",)}, {})
        >>> view = View("id", "task", "goal", (), State(), None, 0, lambda: None)
        >>> try:
        ...     next(agent.decide(view))
        ... except StopIteration as stop:
        ...     stop.value.action
        'look'
    """

    name = "comap-drafting"

    def __init__(
        self,
        config: AgentConfig,
        plans: Mapping[str, Sequence[str]],
        steps: Mapping[str, frozenset[int]],
        context: InitContext = "mixed",
    ):
        self.config, self.plans, self.steps = config, plans, steps
        self.context = checked_context(context)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft where that is wanted, and take the plan's action; give up where the plan ends."""
        plan = self.plans.get(view.task, ())
        if view.step >= len(plan):
            return Decision(None)
        action = plan[view.step]
        notes: dict[str, Any] = {"shown": f"Action: {action}"}
        if view.step in self.steps.get(view.task, ()):
            notes |= yield from self._draft(view)
        return Decision(action, notes=notes)

    def _draft(self, view: View) -> Generator[Request, Reply, dict[str, Any]]:
        """Ask for a draft, and where it is wanted for what would follow; return the notes of it."""
        draft = yield from draft_action(view, self.config, converse(view, self.config))
        predicted: str | None = None
        if draft.parsed and self.context in ("wm", "mixed"):
            imagined: Imagined = yield Imagine(draft.action)
            predicted = imagined.observation
        return {
            "draft_action": draft.action,
            "draft_parsed": draft.parsed,
            "draft_response": draft.text,
            "predicted_next_state": predicted,
        }


def choose_steps(
    plans: Mapping[str, Sequence[str]], states_per_episode: int | None = 4, seed: int = 0
) -> dict[str, frozenset[int]]:
    """Choose at which steps of an expert's plans to ask for drafts.

    Which steps of a task are chosen depends on nothing but the seed, the task and its plan's length.

    Args:
        plans: The expert's actions of each task.
        states_per_episode: How many steps of each task, at most; None for all (METHODS.md 1.6, 1.11).
        seed: Seed of the choice.

    Raises:
        OptionError: `states_per_episode` is no whole number of at least 1.

    Example:
        >>> chosen = choose_steps({"a": ("look",) * 9, "b": ("look",)}, 4)
        >>> len(chosen["a"]), sorted(chosen["b"])
        (4, [0])
    """
    limit = states_per_episode
    if limit is not None and (type(limit) is not int or limit < 1):
        raise OptionError(
            f"states_per_episode must be a whole number of at least 1, or None, not {limit!r}"
        )
    return {
        task: frozenset(_shuffled(len(plan), seed, task)[:limit]) for task, plan in plans.items()
    }


def _shuffled(number: int, seed: int, task: str) -> list[int]:
    """Return the steps of a plan in an order drawn for its task."""
    return sorted(range(number), key=lambda step: drawn(seed, task, step))


def drawn(seed: int, *parts: object) -> int:
    """Return a number drawn for these parts: the same in every process, for ranks and coins.

    Example:
        >>> drawn(0, "task", 3) == drawn(0, "task", 3) != drawn(1, "task", 3)
        True
    """
    said = "\n".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(said.encode("utf-8", "replace")).digest()[:8], "big")


def checked_context(context: str) -> InitContext:
    """Return `context` if it is an `InitContext`.

    Raises:
        OptionError: It is none.

    Example:
        >>> checked_context("wm")
        'wm'
    """
    for allowed in get_args(InitContext):
        if context == allowed:
            found: InitContext = allowed
            return found
    listed = ", ".join(repr(allowed) for allowed in get_args(InitContext))
    raise OptionError(f"init_context must be one of {listed}, not {context!r}")
