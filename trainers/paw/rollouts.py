"""Rollouts: the rows of an update, from the groups that a process plays."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from ...agents.base import Agent
from ...agents.requests import OnWork
from ...agents.runner import run_episodes
from ...errors import EngineError, OptionError
from ...lm import LanguageModel
from ...trajectory import Trajectory
from .rows import PaWRow, RewardFunction, Serializer, fault_of

_MEMBER_BITS = 16  # of an episode's seed; the others are those that its group resets with


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
    first = update * groups
    return [
        Group(number, order[(first + number) % len(order)], members) for number in range(groups)
    ]


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
    members = [(group, member) for group in groups for member in range(group.members)]
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
    found = [[next(episodes) for _ in range(group.members)] for group in groups]
    for group in found:
        texts = sorted({one.observation for one in group if one.observation or not one.error})
        if len(texts) > 1:
            raise EngineError(
                f"expected all episodes of task {group[0].task!r:.120} to begin alike, found "
                f"{texts[0]!r:.80} and {texts[1]!r:.80} after resets with one seed; the environment "
                "must draw whatever it draws from the generator that reset seeds"
            )
    return found


class _AlikeForGroups(gymnasium.Wrapper[str, str, str, str]):
    """Resets all episodes of a group with one seed, whatever seeds they sample with."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
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
        rows, episodes = self.rows, {row.trajectory: row for row in self.rows}.values()
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
    found = [*rows]
    places = [number for number, row in enumerate(rows) if row.observation_ids]
    others = random.Random(f"{seed}\n{update}\nplacebo").sample(places, len(places))
    for place, other in zip(places, others, strict=True):
        found[place] = replace(rows[place], observation_ids=rows[other].observation_ids)
    return found


def rollout_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return an update's metrics from the sums of all processes; shares of nothing are 0."""
    found = {name: sum(part[name] for part in parts) for name in parts[0]}
    for name in ("success", "return", "steps"):
        found[name] /= max(found["episodes"], 1)
    found["invalid"] /= max(found["rows"], 1)
    found["solved"] /= max(found.pop("groups"), 1)
    return found | {"seconds_rollout": max(part["seconds_rollout"] for part in parts)}


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
    begun = time.perf_counter()
    rewards: dict[str, Any] = {"success_reward": success_reward, "reward": reward}
    rows: list[PaWRow] = []
    dropped: dict[int, str] = {}
    played = play_groups(make_env, agent, groups, **options)
    for group, episodes in zip(groups, played, strict=True):
        for number, episode in enumerate(episodes, group.number * group.members):
            if (fault := fault_of(episode)) is not None:
                dropped[number] = fault
            rows += serializer.rows_of(episode, group=group.number, number=number, **rewards)
    return Rollouts(rows, dropped, time.perf_counter() - begun)
