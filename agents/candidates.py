"""Candidate actions of a state in RAP's tree, with their log-probabilities."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..envs.actions import canonical_action
from ..lm import Completion, Generate, Message, Sampling, Score, Scores
from .acting import seed_for
from .base import Reply, Request, View
from .foresight import listed_actions
from .parsing import clean_action, first_line, parse_action
from .prompting import ask_on, converse, fill

if TYPE_CHECKING:
    from .rap import RAPConfig

__all__ = ["Candidate", "mean_log_prob", "propose_candidates"]

_LEAST = -100.0  # an action that the model finds impossible
_PREFIX = "Action:"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An action worth trying; `log_prob` is the mean over its tokens, None where it is not known."""

    action: str
    log_prob: float | None = None


def mean_log_prob(logprobs: Sequence[float] | None) -> float | None:
    """Return the mean log-probability of an action's tokens, from -100 to 0; None if unknown.

    Example:
        >>> mean_log_prob((-1.0, -0.5)), mean_log_prob((float("-inf"),)), mean_log_prob(())
        (-0.75, -100.0, None)
    """
    if not logprobs:
        return None
    if any(math.isnan(value) for value in logprobs):
        return _LEAST
    return math.fsum(min(max(value, _LEAST), 0.0) for value in logprobs) / len(logprobs)


def propose_candidates(
    view: View, config: RAPConfig, replies: dict[int, str], purpose: str
) -> Generator[Request, Reply, list[Candidate]]:
    """Ask for up to ``config.candidates`` different actions, as the agent's decoding says.

    Free and masked decoding sample, all lacking ones in one batch, in a few rounds; what is not
    admissible is dropped, and what is still lacking is drawn from the admissible actions. Scored
    decoding takes the most probable admissible actions.

    Args:
        view: The (imagined) present.
        config: RAP's settings.
        replies: What the agent said in earlier turns.
        purpose: What it is for; candidates for different purposes are drawn independently.
    """
    messages = _messages(view, config, replies)
    if config.decoding == "scored" and view.admissible_actions:
        actions = tuple(dict.fromkeys(view.admissible_actions))
        scored = yield from _scored(messages, actions, config, purpose)
        order = sorted(range(len(actions)), key=lambda i: (-scored.totals[i], i))
        kept = order[: config.candidates]
        return [Candidate(actions[i], mean_log_prob(scored.logprobs[i])) for i in kept]
    sampled = _Sampled(view, config)
    for number in range(config.candidate_rounds):
        lacking = config.candidates - len(sampled.found)
        if lacking <= 0:
            break
        asked = sampled.requests(messages, lacking, f"{purpose}, round {number + 1}")
        completions: list[Completion] = yield asked
        for completion in completions:
            sampled.take(completion)
    if not sampled.found and not view.admissible_actions:
        return []
    return (yield from _with_log_probs(sampled, messages, purpose))


def _messages(view: View, config: RAPConfig, replies: dict[int, str]) -> tuple[Message, ...]:
    """Return the agent's usual conversation; in standard prompts the admissible actions follow."""
    listed = listed_actions(view, config.max_length // 4)
    room = max(config.action_tokens - config.draft_tokens, 0)
    if config.prompts == "brief" or not listed:
        return converse(view, config, replies, reserve=room)
    question = fill("standard", "rap_act", actions=listed)[-1].content
    room += view.count_tokens(question)
    return ask_on(converse(view, config, replies, reserve=room), question)


def _scored(
    messages: tuple[Message, ...], actions: Sequence[str], config: RAPConfig, purpose: str
) -> Generator[Request, Reply, Scores]:
    texts = tuple(f" {action}" for action in actions)
    asked = Score(messages, texts, _PREFIX, adapter=config.adapter, purpose=f"{purpose}: score")
    found: Scores = yield asked
    return found


@dataclass(slots=True)
class _Sampled:
    """Candidates found so far, by their plain text."""

    view: View
    config: RAPConfig
    admissible: dict[str, str] = field(default_factory=dict)
    found: dict[str, Candidate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in self.view.admissible_actions or ():
            self.admissible.setdefault(canonical_action(self.view.env_id, text), text)

    def requests(self, messages: tuple[Message, ...], count: int, purpose: str) -> list[Generate]:
        """Return requests that differ in their seeds alone."""
        config = self.config
        choices: tuple[str, ...] | None = None
        tokens = config.action_tokens
        if config.decoding == "masked" and self.view.admissible_actions:
            choices = tuple(f" {text}" for text in self.view.admissible_actions)
            tokens = 8 + max(len(text.encode("utf-8", "replace")) for text in choices)
        sampling = Sampling(
            tokens, config.candidate_temperature, config.candidate_top_p, () if choices else ("\n",)
        )
        return [
            Generate(
                messages,
                replace(sampling, seed=seed_for(config, self.view, f"{purpose}, {number}")),
                _PREFIX,
                choices,
                config.adapter,
                f"{purpose}: candidate",
            )
            for number in range(count)
        ]

    def take(self, completion: Completion) -> None:
        """Keep what was sampled, if it is an action, new and not known to be of no use."""
        said = parse_action(completion.text) or clean_action(first_line(completion.text))
        if said is None:
            return
        plain = canonical_action(self.view.env_id, said)
        if plain in self.found or (self.admissible and plain not in self.admissible):
            return
        action = self.admissible.get(plain, said)
        self.found[plain] = Candidate(action, mean_log_prob(completion.logprobs))

    def filled(self, purpose: str) -> list[Candidate]:
        """Return what was found, filled up with admissible actions in random order."""
        rest = [text for plain, text in self.admissible.items() if plain not in self.found]
        seed = seed_for(self.config, self.view, f"{purpose}: fill")
        random.Random(seed).shuffle(rest)
        lacking = max(self.config.candidates - len(self.found), 0)
        return [*self.found.values(), *(Candidate(text) for text in rest[:lacking])]


def _with_log_probs(
    sampled: _Sampled, messages: tuple[Message, ...], purpose: str
) -> Generator[Request, Reply, list[Candidate]]:
    """Return the candidates with the log-probabilities that can be known.

    A filled-in action was not sampled, so it counts as the least probable of those that were.
    """
    candidates = sampled.filled(purpose)
    if sampled.config.log_probs == "scored":
        actions = [candidate.action for candidate in candidates]
        scored = yield from _scored(messages, actions, sampled.config, purpose)
        return [
            Candidate(action, mean_log_prob(tokens))
            for action, tokens in zip(actions, scored.logprobs, strict=True)
        ]
    known = [c.log_prob for c in candidates if c.log_prob is not None]
    if not known:
        return candidates
    least = min(known)
    return [c if c.log_prob is not None else replace(c, log_prob=least) for c in candidates]
