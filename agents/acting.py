"""Drafting an action: the step that every language agent shares."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ..lm import Completion, Generate, Message, Sampling, Score, Scores
from ..lm.prompts import OVERHEAD
from .base import Reply, Request, View
from .config import AgentConfig
from .parsing import clean_action, first_line, parse_action
from .prompting import ask_on

__all__ = ["Draft", "choose_action", "draft_action", "seed_for"]

STOP = ("\nObservation:", "\nTask:", "\n---")
"""Where a reply ends that goes on to tell what follows (METHODS.md 1.1)."""

_REMINDER = (
    "Your reply had no line that starts with 'Action:'. Answer again in the form\n"
    "Thought: <one short line>\nAction: <one action>"
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed action.

    Attributes:
        text: The reply, as it goes into the conversation.
        action: The action, or the whole reply where it could not be read: the environment will
            refuse that.
        parsed: Whether the reply could be read.
        decoding: How it was really decoded: ``"free"`` also where the action space is open.
        logprobs: Log-probability of each token of the reply, where known; with scored decoding of
            each token of the action.
    """

    text: str
    action: str
    parsed: bool
    decoding: str
    logprobs: tuple[float, ...] | None = None

    @property
    def thought(self) -> str | None:
        """The thought before the action, if there is one."""
        head = self.text.partition("Action:")[0].strip()
        return first_line(head.removeprefix("Thought:")) or None

    def notes(self) -> dict[str, Any]:
        """Return what a trajectory keeps of it, as JSON data."""
        return {"draft": self.action, "draft_parsed": self.parsed, "decoding": self.decoding}


def seed_for(config: AgentConfig, view: View, purpose: str = "") -> int:
    """Return the seed for one request: from the agent's seed, the task, the trial and the step.

    Example:
        >>> from comap.facts import State
        >>> view = View("id", "task", "goal", (), State(), None, 0, lambda: None)
        >>> seed_for(AgentConfig(), view) == seed_for(AgentConfig(), view)
        True
        >>> seed_for(AgentConfig(), view) == seed_for(AgentConfig(), view, "again")
        False
    """
    said = f"{config.seed}\n{view.task}\n{view.trial}\n{view.step}\n{purpose}"
    digest = hashlib.sha256(said.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:4], "big") >> 1  # servers take 31 bits


def draft_action(
    view: View, config: AgentConfig, messages: Sequence[Message], purpose: str = "draft"
) -> Generator[Request, Reply, Draft]:
    """Ask for one action, as the agent's decoding says.

    Free text without an ``Action:`` line is asked for once more, with a reminder of the form; if that
    fails as well, the text itself is the action, for the environment to refuse (METHODS.md 1.1).
    With masked and scored decoding the thought (standard prompts) is free, the action is one of the
    admissible ones.

    Args:
        view: What the agent sees.
        config: How to ask.
        messages: The conversation that asks.
        purpose: What it is for.
    """
    if config.decoding == "free" or not view.admissible_actions:
        return (yield from _free(view, config, tuple(messages), purpose))
    lead = ""
    if config.prompts == "standard":
        sampling = _sampling(config, view, purpose, ("Action:", *STOP))
        thought: Completion = yield Generate(
            tuple(messages), sampling, adapter=config.adapter, purpose=f"{purpose}: thought"
        )
        lead = thought.text.rstrip() + "\n" if thought.text.strip() else ""
    chosen = yield from choose_action(view, config, messages, f"{lead}Action:", purpose=purpose)
    action, logprobs = chosen
    return Draft(f"{lead}Action: {action}", action, True, config.decoding, logprobs)


def choose_action(
    view: View,
    config: AgentConfig,
    messages: Sequence[Message],
    prefix: str,
    *,
    actions: Sequence[str] | None = None,
    purpose: str = "draft",
) -> Generator[Request, Reply, tuple[str, tuple[float, ...]]]:
    """Let the model choose one of some actions, after a given beginning of its reply.

    Args:
        view: What the agent sees.
        config: ``decoding="scored"`` scores each; otherwise they are decoded over a trie.
        messages: The conversation.
        prefix: The beginning of the reply, up to ``Action:``.
        actions: The actions; None for the admissible ones.
        purpose: What it is for.

    Returns:
        The action, and the log-probability of each of its tokens, the end of the message included.
    """
    options = tuple(view.admissible_actions or () if actions is None else actions)
    texts = tuple(f" {action}" for action in options)
    if config.decoding == "scored":
        scores: Scores = yield Score(
            tuple(messages), texts, prefix, adapter=config.adapter, purpose=purpose
        )
        best = _pick(scores, config, seed_for(config, view, purpose))
        return options[best], scores.logprobs[best]
    longest = 8 + max(len(text.encode("utf-8", "replace")) for text in texts)
    sampling = config.sampling(longest, seed=seed_for(config, view, purpose))
    found: Completion = yield Generate(
        tuple(messages), sampling, prefix, texts, config.adapter, purpose
    )
    return found.text.strip(), found.logprobs or ()


def _pick(scores: Scores, config: AgentConfig, seed: int) -> int:
    """Return the best option, or with a temperature one drawn by its probability."""
    if config.temperature == 0:
        return scores.best
    import random

    totals = scores.totals
    highest = max(totals)
    weights = [math.exp((total - highest) / config.temperature) for total in totals]
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    kept, mass, whole = [], 0.0, math.fsum(weights)
    for index in order:
        kept.append(index)
        mass += weights[index]
        if mass >= config.top_p * whole:
            break
    return random.Random(seed).choices(kept, [weights[i] for i in kept])[0]


def _sampling(config: AgentConfig, view: View, purpose: str, stop: tuple[str, ...]) -> Sampling:
    return config.sampling(config.draft_tokens, stop, seed_for(config, view, purpose))


def _free(
    view: View, config: AgentConfig, messages: tuple[Message, ...], purpose: str
) -> Generator[Request, Reply, Draft]:
    sampling = _sampling(config, view, purpose, STOP)
    said: Completion = yield Generate(messages, sampling, adapter=config.adapter, purpose=purpose)
    action = parse_action(said.text)
    if action is None:
        retry = f"{purpose}: retry"
        again = _reminding(view, config, messages, said.text.strip() or "...")
        sampling = _sampling(config, view, retry, STOP)
        said = yield Generate(again, sampling, adapter=config.adapter, purpose=retry)
        action = parse_action(said.text)
    if action is None:
        raw = clean_action(said.text.strip()[:200]) or "..."
        return Draft(said.text.strip(), raw, False, "free", said.logprobs)
    return Draft(said.text.strip(), action, True, "free", said.logprobs)


def _reminding(
    view: View, config: AgentConfig, messages: tuple[Message, ...], said: str
) -> tuple[Message, ...]:
    """Return what reminds of the form: after the reply, or without it where that does not fit."""
    room = config.max_length - config.draft_tokens
    for before in ((*messages, Message("assistant", said)), messages):
        asked = ask_on(before, _REMINDER)
        if sum(view.count_tokens(message.content) + OVERHEAD for message in asked) <= room:
            return asked
    return messages  # asked once more as it was, with another seed
