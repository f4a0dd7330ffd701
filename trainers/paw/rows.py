"""Rows: what PaW's losses are computed from, one environment step each (METHODS.md 2.0)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...errors import LanguageModelError, OptionError
from ...lm import Generate, Message
from ...trajectory import Call, Step, Trajectory
from .serialize import (
    Following,
    TurnTokenizer,
    continued,
    fault_of,
    observed_text,
    reply_of,
)

__all__ = ["ADMISSIBLE", "PaWRow", "RewardFunction", "Serializer"]

ADMISSIBLE = "admissible_actions"
"""The note of a step that tells which actions were admissible before it."""

RewardFunction: TypeAlias = Callable[[Trajectory], Sequence[float]]
"""Returns the reward of each step of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaWRow:
    """One environment step in tokens (METHODS.md 2.0).

    The sequence that a model reads is prompt, response, header, observation and footer, one after the
    other. Response tokens carry the loss of reinforcement learning, observation tokens PaW's own;
    the others carry none (METHODS.md 2.3, "Serialization").

    Attributes:
        group: Number of the row's task group within the update, over all processes, from 0.
        trajectory: Number of its episode within the update, over all processes: the group's number
            times the group's size, and the number of the member.
        t: Number of the step within the episode, from 0.
        prompt_ids: What the model read: chat template, conversation, the given beginning of the
            reply.
        response_ids: What it wrote, as it was sampled; with the end token if that was sampled.
        header_ids: What the chat template puts between the reply and the observation; with the end
            token if the response lacks it.
        observation_ids: The text that followed; empty where there is none, as are header and footer.
        footer_ids: What ends the observation's message.
        sampled_logprobs: Log-probability of each token of the response as it was sampled, at
            temperature 1; None where the language model does not tell.
        reward: The step's own reward, scaled, without penalties.
        valid: Whether the reply had the right form (METHODS.md 2.6, "Validity").
        anchor: The observation before the action, as the environment said it.
        episode_return: Sum of the rewards of the episode, without penalties.
        episode_length: Number of steps of the episode.
        success: Whether the episode solved its task.

    Example:
        >>> row = PaWRow(group=0, trajectory=3, t=0, prompt_ids=(5, 6), response_ids=(7,))
        >>> row.observation_ids, row.valid
        ((), True)
    """

    group: int
    trajectory: int
    t: int
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    header_ids: tuple[int, ...] = ()
    observation_ids: tuple[int, ...] = ()
    footer_ids: tuple[int, ...] = ()
    sampled_logprobs: tuple[float, ...] | None = None
    reward: float = 0.0
    valid: bool = True
    anchor: str = ""
    episode_return: float = 0.0
    episode_length: int = 0
    success: bool = False


class Serializer:
    """Makes rows of episodes (METHODS.md 2.0, 2.3 "Serialization").

    Prompts are made by the code that generation uses, from the recorded conversation, and so have the
    very tokens that the model read; replies are the tokens that were sampled. Where a conversation
    goes on (`comap.agents.paw_context`), a row's prompt is the prompt of the row before it, its
    response, header, observation and footer, and what begins a reply. A step's row has the last
    of its drafts (`comap.trainers.paw.serialize.reply_of`): the second, after a reminder of the form.

    Args:
        tokenizer: The model's tokenizer, with a chat template.
        ends: Tokens that end generation, from the model's configuration.
        max_observation: The most tokens of an observation; the rest is cut off.
        include_admissible: Add the actions that are admissible then, but for the last observation.
            Episodes must tell them: see `comap.trainers.paw.rollouts.play_groups`.
        strip_score: Leave out the number on WebShop's last page (METHODS.md 2.3).

    Raises:
        LanguageModelError: The chat template is missing or cannot be used.
        OptionError: `max_observation` is not a whole number of at least 1.

    Example:
        >>> from comap.lm.tiny import tokenizer_of
        >>> serializer = Serializer(tokenizer_of(["It is dark."] * 2, 320))
        >>> serializer.observation((), "").observation
        ()
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        ends: Iterable[int] = (),
        max_observation: int = 512,
        include_admissible: bool = False,
        strip_score: bool = True,
    ) -> None:
        if type(max_observation) is not int or max_observation < 1:
            raise OptionError(
                f"max_observation must be a whole number of at least 1, not {max_observation!r}"
            )
        self._chat = TurnTokenizer(tokenizer, ends)
        self._longest = max_observation
        self._include_admissible, self._strip_score = include_admissible, strip_score

    def rows_of(
        self,
        trajectory: Trajectory,
        *,
        group: int,
        number: int,
        success_reward: float = 1.0,
        reward: RewardFunction | None = None,
    ) -> list[PaWRow]:
        """Return a row for each step of an episode; none if `fault_of` says that it has none.

        Args:
            trajectory: The episode, with the tokens kept (``keep="tokens"``).
            group: Number of its task group.
            number: Number of the episode within the update.
            success_reward: Reward of the last step where the task is solved, 10 or 1; all else is
                rewarded with 0 (METHODS.md 2.6).
            reward: Tells the rewards of all steps in place of that.

        Raises:
            OptionError: The episode was played without keeping tokens, by a language model that does
                not tell them, or without the admissible actions that are to be included; or `reward`
                has another number of rewards than there are steps.
            LanguageModelError: A conversation is none that the chat template takes, or there are not
                as many log-probabilities as tokens.
        """
        if fault_of(trajectory) is not None:
            return []
        calls = [reply_of(trajectory, step) for step in trajectory.steps]
        goes_on = continued(trajectory.steps, calls)
        prompts = self._prompts(calls, goes_on)
        rewards = _rewards(trajectory, success_reward, reward)
        total = sum(rewards)
        anchors = (trajectory.observation, *(step.observation for step in trajectory.steps))
        rows = []
        for t, (step, call) in enumerate(zip(trajectory.steps, calls, strict=True)):
            response = call.token_ids or ()
            told = calls[t + 1].messages if goes_on[t + 1] else None
            text = told[-1][1] if told else self._text(trajectory, t)
            following = self.observation(response, text)
            rows.append(
                PaWRow(
                    group=group,
                    trajectory=number,
                    t=t,
                    prompt_ids=prompts[t],
                    response_ids=response,
                    header_ids=following.header,
                    observation_ids=following.observation,
                    footer_ids=following.footer,
                    sampled_logprobs=call.logprobs,
                    reward=rewards[t],
                    valid=_is_valid(step),
                    anchor=anchors[t],
                    episode_return=total,
                    episode_length=len(trajectory.steps),
                    success=trajectory.success,
                )
            )
        return rows

    def observation(self, response_ids: Sequence[int], text: str) -> Following:
        """Return header, observation and footer, in tokens, of a text that follows a reply.

        Args:
            response_ids: The tokens of the reply.
            text: The observation, cleaned; all parts are empty where it is.
        """
        return self._chat.following(response_ids, text, self._longest)

    def _prompts(self, calls: Sequence[Call], goes_on: Sequence[bool]) -> list[tuple[int, ...]]:
        asked, ids = [], list[tuple[int, ...]]()
        for call, on in zip(calls, goes_on, strict=False):
            if not on:
                ids.clear()
            messages = tuple(Message(*said) for said in call.messages or ())
            asked.append(Generate(messages, prefix=call.prefix, reply_ids=tuple(ids)))
            ids.append(call.token_ids or ())
        found = []
        for prompt in self._chat.prompts(asked):
            if isinstance(prompt, LanguageModelError):
                raise prompt
            found.append(tuple(prompt))
        return found

    def _text(self, trajectory: Trajectory, t: int) -> str:
        """Return the observation that step `t` led to, as it is predicted."""
        step = trajectory.steps[t]
        text = observed_text(trajectory.env_id, step, strip_score=self._strip_score)
        if not (self._include_admissible and text and t + 1 < len(trajectory.steps)):
            return text
        notes = trajectory.steps[t + 1].notes
        if ADMISSIBLE not in notes:
            raise OptionError(
                f"expected the admissible actions in the notes of step {t + 2}, found none; play the "
                "episodes with include_admissible=True"
            )
        known = notes[ADMISSIBLE]
        return "\n".join([text, "Admissible actions:", *known]) if known else text


def _is_valid(step: Step) -> bool:
    """Return whether the agent says that the reply had the right form."""
    return bool(step.notes.get("valid", step.notes.get("draft_parsed", True)))


def _rewards(
    trajectory: Trajectory, success_reward: float, reward: RewardFunction | None
) -> list[float]:
    """Return the reward of each step."""
    steps = len(trajectory.steps)
    if reward is None:
        return [0.0] * (steps - 1) + [float(success_reward) if trajectory.success else 0.0]
    found = [float(value) for value in reward(trajectory)]
    if len(found) != steps:
        raise OptionError(f"expected {steps} rewards, one for each step, found {len(found)}")
    return found
