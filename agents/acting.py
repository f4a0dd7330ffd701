"""Drafting an action: the step that every language agent shares."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LanguageModelError
from ..lm import Completion, Generate, Message, Sampling, Score, Scores
from ..lm.prompts import OVERHEAD, cut_text
from .base import Reply, Request, View
from .config import AgentConfig
from .parsing import clean_action, first_line, parse_action
from .prompting import ask_on, fill

__all__ = ["Draft", "choose_action", "draft_action", "seed_for"]

STOP = ("\nObservation:", "\nTask:", "\n---")
"""Where a reply ends that goes on to tell what follows (METHODS.md 1.1)."""

_LEADS = {"standard": "Thought:", "brief": "Action:"}  # what replies begin with

_LONGEST_RAW = 200  # characters of a reply that is an action only for the environment to refuse


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed action.

    Attributes:
        text: The reply, as it goes into the conversation.
        action: The action, or the beginning of the reply where it could not be read: the environment
            will refuse that.
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

    An episode's own seed counts as well, unless it is 0.

    Example:
        >>> from comap.facts import State
        >>> view = View("id", "task", "goal", (), State(), None, 0, lambda: None)
        >>> seed_for(AgentConfig(), view) == seed_for(AgentConfig(), view)
        True
        >>> seed_for(AgentConfig(), view) == seed_for(AgentConfig(), view, "again")
        False
    """
    said = f"{config.seed}\n{view.task}\n{view.trial}\n{view.step}\n{purpose}"
    if view.seed:
        said += f"\n{view.seed}"
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

    Raises:
        LanguageModelError: The model failed, or cannot do what the decoding needs.
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
    ended: bool = True,
) -> Generator[Request, Reply, tuple[str, tuple[float, ...]]]:
    """Let the model choose one of some actions, after a given beginning of its reply.

    Args:
        view: What the agent sees.
        config: ``decoding="scored"`` scores each; otherwise they are decoded over a trie.
        messages: The conversation.
        prefix: The beginning of the reply, up to ``Action:``.
        actions: The actions; None for the admissible ones.
        purpose: What it is for.
        ended: Whether the reply ends with the action; with scored decoding its end counts then.

    Returns:
        The action, and the log-probability of each of its tokens and of the end of the message.

    Raises:
        LanguageModelError: The model failed, cannot do this, or answered with none of the actions.
    """
    options = tuple(view.admissible_actions or () if actions is None else actions)
    texts = tuple(f" {action}" for action in options)
    if config.decoding == "scored":
        asked = Score(tuple(messages), texts, prefix, ended, config.adapter, purpose)
        scores: Scores = yield asked
        best = _pick(scores, config, seed_for(config, view, purpose))
        return options[best], scores.logprobs[best]
    longest = 8 + max(len(text.encode("utf-8", "replace")) for text in texts)
    sampling = config.sampling(longest, seed=seed_for(config, view, purpose))
    choosing = Generate(tuple(messages), sampling, prefix, texts, config.adapter, purpose)
    found: Completion = yield choosing
    for option, text in zip(options, texts, strict=True):
        if found.text.strip() == text.strip():
            return option, found.logprobs or ()
    raise LanguageModelError(
        f"expected one of the {len(texts)} given actions, found {found.text!r:.80}; the model does not "
        "keep to choices: use decoding='free'"
    )


def _pick(scores: Scores, config: AgentConfig, seed: int) -> int:
    """Return the best option, or with a temperature one drawn by its probability."""
    if not all(value < math.inf for tokens in scores.logprobs for value in tokens):
        raise LanguageModelError("expected log-probabilities of given actions, found inf or nan")
    if config.temperature == 0 or scores.totals[scores.best] == -math.inf:
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
    lead = _LEADS[config.prompts] if config.form == "given" else ""
    said: Completion = yield Generate(
        messages,
        _sampling(config, view, purpose, STOP),
        lead,
        adapter=config.adapter,
        purpose=purpose,
    )
    text = f"{lead}{said.text}"
    action = parse_action(text)
    if action is None:
        retry = f"{purpose}: retry"
        again = _reminding(view, config, messages, text.strip() or "...")
        sampling = _sampling(config, view, retry, STOP)
        said = yield Generate(again, sampling, lead, adapter=config.adapter, purpose=retry)
        text = f"{lead}{said.text}"
        action = parse_action(text)
    if action is None:
        raw = clean_action(text.strip()[:_LONGEST_RAW]) or "..."
        return Draft(text.strip(), raw, False, "free", said.logprobs)
    return Draft(text.strip(), action, True, "free", said.logprobs)


def _reminding(
    view: View, config: AgentConfig, messages: tuple[Message, ...], said: str
) -> tuple[Message, ...]:
    """Return what reminds of the form: after the reply, or without it where that does not fit."""
    room = config.max_length - config.draft_tokens
    quoted = cut_text(said, config.max_length // 8, view.count_tokens)
    (reminder,) = fill("reminder", config.prompts)
    for before in ((*messages, Message("assistant", quoted)), messages):
        asked = ask_on(before, reminder.content)
        if sum(view.count_tokens(message.content) + OVERHEAD for message in asked) <= room:
            return asked
    return messages  # asked once more as it was, with another seed
