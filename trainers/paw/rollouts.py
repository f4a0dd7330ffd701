"""Rollouts: the rows of an update, from the groups that a process plays (METHODS.md 2.1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from ...agents.base import Agent
from .groups import Group, groups_of, play_groups
from .rows import PaWRow, RewardFunction, Serializer
from .serialize import fault_of

__all__ = ["Group", "RolloutStats", "Rollouts", "groups_of", "play_groups", "roll_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStats:
    """What came of the episodes of an update.

    Attributes:
        episodes: Episodes that have rows.
        dropped: Episodes that have none, since a fault ended them.
        success: Share of `episodes` that solved their task.
        mean_return: Their mean return, without penalties.
        steps: Their steps, all together: the number of rows.
        invalid: Share of replies without the right form.
        prompt_tokens: Tokens of all prompts.
        response_tokens: Tokens of all replies.
        observation_tokens: Tokens of all observations that may be predicted.
        seconds: How long it took.

    Example:
        >>> row = PaWRow(group=0, trajectory=0, t=0, prompt_ids=(5, 6), response_ids=(7,), valid=False)
        >>> RolloutStats.of([row]).metrics()["invalid"]
        1.0
    """

    episodes: int
    dropped: int
    success: float
    mean_return: float
    steps: int
    invalid: float
    prompt_tokens: int
    response_tokens: int
    observation_tokens: int
    seconds: float

    @classmethod
    def of(cls, rows: Sequence[PaWRow], *, dropped: int = 0, seconds: float = 0.0) -> RolloutStats:
        """Return what rows tell: those of one process, or of all; shares of nothing are 0.

        Args:
            rows: All rows of the episodes.
            dropped: How many episodes have none.
            seconds: How long it took.
        """
        episodes = list({row.trajectory: row for row in rows}.values())
        return cls(
            episodes=len(episodes),
            dropped=dropped,
            success=_mean([row.success for row in episodes]),
            mean_return=_mean([row.episode_return for row in episodes]),
            steps=len(rows),
            invalid=_mean([not row.valid for row in rows]),
            prompt_tokens=sum(len(row.prompt_ids) for row in rows),
            response_tokens=sum(len(row.response_ids) for row in rows),
            observation_tokens=sum(len(row.observation_ids) for row in rows),
            seconds=seconds,
        )

    @classmethod
    def together(cls, parts: Sequence[RolloutStats]) -> RolloutStats:
        """Return what several processes' episodes come to, all together.

        Args:
            parts: What came of each process's own episodes.

        Example:
            >>> one = PaWRow(group=0, trajectory=0, t=0, prompt_ids=(), response_ids=(), success=True)
            >>> RolloutStats.together([RolloutStats.of([one]), RolloutStats.of([])]).success
            1.0
        """
        episodes = sum(part.episodes for part in parts)
        steps = sum(part.steps for part in parts)

        def mean(name: str, counted: str, total: int) -> float:
            weighted = (getattr(part, name) * getattr(part, counted) for part in parts)
            return float(sum(weighted)) / max(total, 1)

        return cls(
            episodes=episodes,
            dropped=sum(part.dropped for part in parts),
            success=mean("success", "episodes", episodes),
            mean_return=mean("mean_return", "episodes", episodes),
            steps=steps,
            invalid=mean("invalid", "steps", steps),
            prompt_tokens=sum(part.prompt_tokens for part in parts),
            response_tokens=sum(part.response_tokens for part in parts),
            observation_tokens=sum(part.observation_tokens for part in parts),
            seconds=max(part.seconds for part in parts),
        )

    def metrics(self) -> dict[str, float]:
        """Return it by the names that a training's ``metrics.jsonl`` has; ``steps`` per episode."""
        return {
            "episodes": self.episodes,
            "dropped": self.dropped,
            "success": self.success,
            "return": self.mean_return,
            "rows": self.steps,
            "steps": self.steps / max(self.episodes, 1),
            "invalid": self.invalid,
            "prompt_tokens": self.prompt_tokens,
            "response_tokens": self.response_tokens,
            "observation_tokens": self.observation_tokens,
            "seconds_rollout": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What an update learns from.

    Attributes:
        rows: The rows, by group, member and step.
        dropped: Of each episode without rows, its number within the update and why.
        seconds: How long playing took.
    """

    rows: list[PaWRow]
    dropped: Mapping[int, str]
    seconds: float

    def stats(self) -> RolloutStats:
        """Return what came of the episodes."""
        return RolloutStats.of(self.rows, dropped=len(self.dropped), seconds=self.seconds)


def roll_out(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    groups: Sequence[Group],
    serializer: Serializer,
    *,
    success_reward: float = 1.0,
    reward: RewardFunction | None = None,
    **options: Any,
) -> Rollouts:
    """Play some groups and return their rows.

    An episode that a fault ended, at its start or later, has no rows (`fault_of`).

    Args:
        make_env: Makes an environment of the training split.
        agent: Who acts.
        groups: What is played. An episode's number is its group's number times the group's size, and
            the number of the member.
        serializer: Makes rows.
        success_reward: See `Serializer.rows_of`.
        reward: See `Serializer.rows_of`.
        **options: See `play_groups`.

    Raises:
        OptionError: See `play_groups` and `Serializer.rows_of`.
        EngineError: See `play_groups`.
    """
    begun = time.perf_counter()
    played = play_groups(make_env, agent, groups, **options)
    rows: list[PaWRow] = []
    dropped: dict[int, str] = {}
    for group, episodes in zip(groups, played, strict=True):
        for member, episode in enumerate(episodes):
            number = group.number * group.members + member
            fault = fault_of(episode)
            if fault is not None:
                dropped[number] = fault
            rows += serializer.rows_of(
                episode,
                group=group.number,
                number=number,
                success_reward=success_reward,
                reward=reward,
            )
    return Rollouts(rows, dropped, time.perf_counter() - begun)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
