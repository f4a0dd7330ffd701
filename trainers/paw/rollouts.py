"""Rollouts: the rows of an update, from the groups that a process plays."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gymnasium

from ...agents.base import Agent
from ...agents.requests import OnWork
from ...agents.runner import run_episodes
from ...errors import EngineError, OptionError
from ...lm import LanguageModel
from ...trajectory import Trajectory
from .rewards import RewardFunction
from .rows import PaWRow, Serializer, fault_of

_MEMBER_BITS = 16  # of an episode's seed; the others are those that its group resets with


class RolloutPlugin(Protocol):
    """What plays a training's rollouts in another way than its evaluations, such as a simulated engine.

    Most trainings have none.
    """

    def make_env(self) -> gymnasium.Env[str, str]:
        """Return an environment on the training split."""

    def agent(self, agent: Agent, update: int) -> Agent:
        """Return the agent that plays the episodes of an update, counted from 0, for the policy's."""

    def language_model(self, policy: LanguageModel) -> LanguageModel:
        """Return what answers that agent, for the policy."""

    def sums(self) -> dict[str, float]:
        """Return counts of this process in the update; `rollout_metrics` adds those of all processes."""

    def metrics(self, update: int) -> dict[str, float]:
        """Return an update's metrics that all processes know."""

    def close(self) -> None:
        """Close what the plug-in has opened."""


@dataclass(frozen=True, slots=True)
class Group:
    """Episodes of one task, which are compared with each other."""

    number: int
    task: str
    members: int


def groups_of(
    tasks: Sequence[str], groups: int, members: int, seed: int, update: int
) -> list[Group]:
    """Return the groups of an update, whose tasks are all different.

    Updates walk through the tasks in one random order, again and again: after so many groups as there
    are tasks each was played once. (No source says how the paper draws tasks; this is ours.)
    """
    if len(tasks) < groups:
        raise OptionError(
            f"groups must be at most the number of training tasks, {len(tasks)}, not {groups}"
        )

    order = list(tasks)
    random.Random(f"groups {seed}").shuffle(order)  # a text: the seed of no other draw
    groups_before = update * groups
    update_groups = []
    for number in range(groups):
        task = order[(groups_before + number) % len(order)]
        update_groups.append(Group(number, task, members))
    return update_groups


def play_groups(
    make_env: Callable[[], gymnasium.Env[str, str]],
    agent: Agent,
    groups: Sequence[Group],
    *,
    lm: LanguageModel | None,
    concurrency: int = 32,
    seed: int = 0,
    update: int = 0,
    include_admissible: bool = False,
    on_done: Callable[[Trajectory], object] = lambda episode: None,
    on_work: OnWork | None = None,
) -> list[list[Trajectory]]:
    """Play all episodes of some groups, many at once, and return them by group and member."""
    # All groups in one call: episodes of any group fill up a batch.
    members = []
    for group in groups:
        members += [(group, member) for member in range(group.members)]

    episodes = iter(
        run_episodes(
            lambda: _AlikeForGroups(make_env()),
            agent,
            [group.task for group, _ in members],
            on_done=lambda trials: on_done(trials[-1]),
            lm=lm,
            concurrency=concurrency,
            seed=[_seed(seed, update, group, member) for group, member in members],
            keep="tokens",
            on_work=on_work,
            note_actions=include_admissible,
        )
    )
    episodes_by_group = [[next(episodes) for _ in range(group.members)] for group in groups]
    for group_episodes in episodes_by_group:
        _check_alike(group_episodes)
    return episodes_by_group


def _check_alike(episodes: Sequence[Trajectory]) -> None:
    """Raise an error where episodes of a group begin differently: they could not be compared."""
    # An episode whose reset failed began with nothing, and is dropped later.
    reset_episodes = [episode for episode in episodes if episode.observation or not episode.error]
    texts = sorted({episode.observation for episode in reset_episodes})
    if len(texts) > 1:
        raise EngineError(
            f"expected all episodes of task {episodes[0].task!r:.120} to begin alike, found "
            f"{texts[0]!r:.80} and {texts[1]!r:.80} after resets with one seed; the environment "
            "must draw whatever it draws from the generator that reset seeds"
        )


class _AlikeForGroups(gymnasium.Wrapper[str, str, str, str]):
    """Resets all episodes of a group with one seed, whatever seeds they sample with."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        # One start for all members, as GRPO and GiGPO compare them; their samples differ by the whole seed.
        shared = None if seed is None else seed >> _MEMBER_BITS
        return self.env.reset(seed=shared, options=options)


def _seed(seed: int, update: int, group: Group, member: int) -> int:
    """Return an episode's seed, never 0: the one its group resets with, and the member's number."""
    text = f"{seed}\n{update}\n{group.number}\n{group.task}".encode("utf-8", "replace")
    shared = int.from_bytes(hashlib.sha256(text).digest()[:4], "big") % (2**31 - 1) + 1
    return shared << _MEMBER_BITS | member


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The rows of an update on this process, why the numbered episodes were dropped, and the time."""

    rows: list[PaWRow]
    dropped: Mapping[int, str]
    seconds: float

    def sums(self) -> dict[str, float]:
        """Return sums over this process's episodes and rows, for `rollout_metrics`."""
        rows = self.rows
        episodes = {row.trajectory: row for row in rows}.values()  # a row of each
        return {
            "episodes": len(episodes),
            "dropped": len(self.dropped),
            "success": sum(row.success for row in episodes),
            "solved": len({row.group for row in episodes if row.success}),
            "groups": len({row.group for row in episodes}),
            "return": sum(row.episode_return for row in episodes),
            "rows": len(rows),
            "steps": len(rows),
            "invalid": sum(not row.valid for row in rows),
            "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
            "response_tokens": sum(len(row.response_ids) for row in rows),
            "observation_tokens": sum(len(row.observation_ids) for row in rows),
            "seconds_rollout": self.seconds,
        }


def shuffled(rows: Sequence[PaWRow], seed: int, update: int) -> list[PaWRow]:
    """Return rows whose observations have changed places at random."""
    # Only among rows that have one: as many observation tokens are learned as without the shuffle.
    indices = [index for index, row in enumerate(rows) if row.observation_ids]
    generator = random.Random(f"{seed}\n{update}\nplacebo")
    sources = generator.sample(indices, len(indices))

    shuffled_rows = list(rows)
    for index, source in zip(indices, sources, strict=True):
        observation_ids = rows[source].observation_ids
        shuffled_rows[index] = replace(rows[index], observation_ids=observation_ids)
    return shuffled_rows


def rollout_metrics(process_sums: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return an update's metrics from the `Rollouts.sums` of all processes; shares of nothing are 0."""
    metrics = {name: sum(sums[name] for sums in process_sums) for name in process_sums[0]}
    for name in ("success", "return", "steps"):
        metrics[name] /= max(metrics["episodes"], 1)
    metrics["invalid"] /= max(metrics["rows"], 1)
    metrics["solved"] /= max(metrics.pop("groups"), 1)

    # Processes play at the same time: the slowest one says how long it took.
    metrics["seconds_rollout"] = max(sums["seconds_rollout"] for sums in process_sums)
    return metrics


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
    """Play groups of episodes, and return their rows; `options` are those of `play_groups`."""
    start = time.perf_counter()
    rows: list[PaWRow] = []
    dropped: dict[int, str] = {}
    episodes_by_group = play_groups(make_env, agent, groups, **options)

    for group, episodes in zip(groups, episodes_by_group, strict=True):
        for number, episode in enumerate(episodes, group.number * group.members):
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
    return Rollouts(rows, dropped, time.perf_counter() - start)
