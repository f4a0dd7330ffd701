"""ITP's third stage: playing with a sampled depth, and what is learned of it (METHODS.md 3)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...agents.acting import seed_for
from ...agents.base import View
from ...agents.itp import ITPAgent, ITPConfig
from ...agents.k_head import KHead
from ...errors import DataCorrupt
from ...lm import Generate, Message
from ...lm.chat import ChatTokenizer
from ...trajectory import Call, Step, Trajectory
from .itp_samples import control_tokens

if TYPE_CHECKING:
    from .methods import ITPTraining

__all__ = [
    "OnlineITPAgent",
    "OnlineRow",
    "Played",
    "online_rows",
    "reward_of",
    "td_targets",
]


class OnlineITPAgent(ITPAgent):
    """Acts as ITP does, but draws the depth from the head, and notes what the value head says.

    Args:
        config: Settings.
        k_head: The depth head.
        value: The value head: a head with one output.

    Example:
        >>> agent = OnlineITPAgent(ITPConfig(), KHead([[0.0]], [0.0]), KHead([[2.0]], [0.5]))
        >>> agent.value.logits([1.0])
        (2.5,)
    """

    def __init__(self, config: ITPConfig, k_head: KHead, value: KHead):
        super().__init__(config, k_head)
        self.value = value

    def _read_depth(
        self, view: View, state: Sequence[float], most: int
    ) -> tuple[int, dict[str, Any]]:
        assert isinstance(self.k_head, KHead)
        logits = self.k_head.logits(state)[: most + 1]
        highest = max(logits)
        weights = [math.exp(value - highest) for value in logits]
        rng = random.Random(seed_for(self.config, view, "sampled depth"))
        k = rng.choices(range(len(weights)), weights)[0]
        return k, {"k": k, "value": self.value.logits(state)[0]}


@dataclass(frozen=True, slots=True)
class OnlineRow:
    """A step that was played, in tokens.

    Attributes:
        prompt: The tokens that asked for the action.
        answer: The tokens that were sampled.
        scored: Which of them count.
        control: The tokens of the control prompt.
        depth: The depth that was drawn.
        target: The TD(0) target of the value.
        advantage: The target less the value as it was.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    scored: tuple[bool, ...]
    control: tuple[int, ...]
    depth: int
    target: float
    advantage: float


@dataclass(frozen=True, slots=True)
class Played:
    """The episodes of an update.

    Attributes:
        rows: Their steps.
        episodes: How many.
        returned: The sum of their rewards.
        won: How many succeeded.
        errors: How many a fault ended; nothing is learned from these.
    """

    rows: tuple[OnlineRow, ...]
    episodes: int
    returned: float
    won: int
    errors: int


def reward_of(step: Step, config: ITPTraining) -> float:
    """Return the reward of a step (METHODS.md 3, ITP_R).

    The environment's, and a bonus for success, less what the depth, the step and a refusal cost.

    Args:
        step: The step; its notes have the depth.
        config: Says what these cost.
    """
    reward = step.reward + config.success_bonus * step.success - config.step_cost
    reward -= config.depth_cost * _noted(step, "k")
    return reward - config.invalid_cost * step.invalid_action


def td_targets(rewards: Sequence[float], values: Sequence[float], discount: float) -> list[float]:
    """Return the TD(0) targets ``r_t + discount V(s_{t+1})`` of an episode's steps.

    After the last step nothing follows, whatever ended the episode [D].

    Args:
        rewards: The reward of each step.
        values: The value of the state before each step.
        discount: Gamma.

    Example:
        >>> td_targets([0.0, 1.0], [0.5, 0.8], 0.5)
        [0.4, 1.0]
    """
    after = [*values[1:], 0.0][: len(rewards)]
    return [reward + discount * value for reward, value in zip(rewards, after, strict=True)]


def online_rows(episodes: Sequence[Trajectory], tokenizer: Any, config: ITPTraining) -> Played:
    """Return what is learned from episodes.

    Args:
        episodes: Episodes of `OnlineITPAgent`, with the tokens of its calls.
        tokenizer: The policy's tokenizer.
        config: Says what is rewarded.

    Raises:
        DataCorrupt: An episode does not tell what it must.

    Example:
        >>> from .methods import ITPTraining
        >>> online_rows([], None, ITPTraining()).rows
        ()
    """
    rows: list[OnlineRow] = []
    returned = 0.0
    sound = [one for one in episodes if one.error is None]
    for episode in sound:
        rewards = [reward_of(step, config) for step in episode.steps]
        values = [_noted(step, "value") for step in episode.steps]
        targets = td_targets(rewards, values, config.discount)
        returned += sum(rewards)
        for step, target, value in zip(episode.steps, targets, values, strict=True):
            rows.append(_row(step, tokenizer, target, target - value))
    won = sum(one.success for one in sound)
    return Played(tuple(rows), len(episodes), returned, won, len(episodes) - len(sound))


def _row(step: Step, tokenizer: Any, target: float, advantage: float) -> OnlineRow:
    act = _call(step, "act", "act: retry")
    depth = _call(step, "depth")
    chat = ChatTokenizer(tokenizer)
    (prompt,) = chat.prompts([Generate(_messages(act), prefix=act.prefix)])
    (control,) = control_tokens(tokenizer, depth.prefix, [_messages(depth)])
    if isinstance(prompt, Exception):
        raise prompt
    answer = act.token_ids
    if answer is None:  # it was scored, as one of several, with the end after it
        answer = (*chat.tokens([act.text])[0], chat.end)
    return OnlineRow(
        tuple(prompt),
        tuple(answer),
        (True,) * len(answer),
        control,
        int(_noted(step, "k")),
        target,
        advantage,
    )


def _call(step: Step, *purposes: str) -> Call:
    """Return the last call for one of some purposes."""
    for call in reversed(step.calls):
        if call.purpose in purposes:
            return call
    raise DataCorrupt(
        f"expected a call for {purposes[0]!r} in step {step.t} of an episode that was played to learn "
        f"from, found {[call.purpose for call in step.calls]}"
    )


def _messages(call: Call) -> tuple[Message, ...]:
    return tuple(Message(role, text) for role, text in call.messages or ())


def _noted(step: Step, name: str) -> float:
    value = step.notes.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataCorrupt(
            f"expected the note {name!r} of step {step.t} to be a number, found {value!r:.80}"
        )
    return float(value)
