"""Groups: several episodes of one task, which begin alike and are sampled apart (METHODS.md 2.1)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from ...agents.base import Agent, Decision, Reply, Request, Retrying, View
from ...agents.needs import needs_of
from ...agents.runner import run_episodes
from ...errors import EngineError, OptionError
from ...lm import LanguageModel
from ...trajectory import Trajectory
from .rows import ADMISSIBLE

__all__ = ["Group", "groups_of", "play_groups"]

_MEMBER_BITS = 16  # of an episode's seed; the others are those that its group resets with
_MOST_MEMBERS = 1 << _MEMBER_BITS


@dataclass(frozen=True, slots=True)
class Group:
    """Episodes of one task, which are compared with each other.

    Attributes:
        number: Number of the group within the update, over all processes, from 0.
        task: The task's id.
        members: How many episodes.

    Raises:
        OptionError: `number` is below 0, or `members` not from 1 to 65,536.

    Example:
        >>> Group(0, "toy/3", 8).members
        8
    """

    number: int
    task: str
    members: int

    def __post_init__(self) -> None:
        _check_number("number", self.number, 0)
        _check_number("members", self.members, 1)
        if self.members > _MOST_MEMBERS:
            raise OptionError(f"members must be at most {_MOST_MEMBERS:,}, not {self.members:,}")


def groups_of(
    tasks: Sequence[str], groups: int, members: int, seed: int, update: int
) -> list[Group]:
    """Return the groups of an update, whose tasks are all different.

    Updates walk through the tasks in one random order, again and again: after so many groups as there
    are tasks each was played once. (No source tells how the paper draws tasks; this is ours.)

    Args:
        tasks: The ids of the training tasks.
        groups: How many groups an update has, over all processes.
        members: Episodes of each.
        seed: Seed of the order.
        update: Number of the update, from 0.

    Raises:
        OptionError: There are fewer tasks than groups, a task is there twice, or a number is too small.

    Example:
        >>> [group.task for group in groups_of(["a", "b", "c"], 2, 8, seed=0, update=0)]
        ['a', 'c']
        >>> [group.task for group in groups_of(["a", "b", "c"], 2, 8, seed=0, update=1)]
        ['b', 'a']
    """
    _check_number("groups", groups, 1)
    _check_number("update", update, 0)
    if len(set(tasks)) != len(tasks):
        raise OptionError(
            f"expected tasks that are all different, found {len(tasks) - len(set(tasks))} again"
        )
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
    live: int = 32,
    seed: int = 0,
    update: int = 0,
    include_admissible: bool = False,
    on_done: Callable[[Trajectory], object] | None = None,
) -> list[list[Trajectory]]:
    """Play all episodes of some groups, many at once, and return them by group and member.

    The members of a group play one task, reset with one seed, so that they begin alike; each samples
    with a seed of its own. Seeds follow from `seed`, `update` and the group alone: neither from how
    many episodes run at once, nor from which groups a process plays. Tokens are kept.

    Args:
        make_env: Makes an environment of the training split.
        agent: Who acts.
        groups: What is played.
        lm: The policy.
        live: How many episodes run at the same time, at most.
        seed: Seed of the training.
        update: Number of the update.
        include_admissible: Note at each step which actions were admissible before it.
        on_done: Told of each episode as it ends.

    Raises:
        OptionError: The agent tries tasks again, or see `comap.agents.stream_episodes`.
        EngineError: The episodes of a group do not begin alike.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import RandomAgent
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> task = make_env().unwrapped.tasks.ids[0]
        >>> (played,) = play_groups(make_env, RandomAgent(), [Group(0, task, 2)], lm=None)
        >>> played[0].observation == played[1].observation, played[0].steps == played[1].steps
        (True, False)
    """
    if isinstance(agent, Retrying):
        raise OptionError(
            f"expected an agent that plays each episode once, found {agent.name!r}, which tries tasks "
            "again; use the agent 'paw' or 'react'"
        )
    members = [(group, member) for group in groups for member in range(group.members)]

    def tell(trials: list[Trajectory]) -> None:
        if on_done is not None:
            on_done(trials[-1])

    played = iter(
        run_episodes(
            lambda: _AlikeForGroups(make_env()),
            _Noting(agent) if include_admissible else agent,
            [group.task for group, _ in members],
            on_done=tell,
            lm=lm,
            live=live,
            seed=[_seed(seed, update, group, member) for group, member in members],
            keep="tokens",
        )
    )
    found = [[next(played) for _ in range(group.members)] for group in groups]
    for episodes in found:
        _check_alike(episodes)
    return found


class _AlikeForGroups(gymnasium.Wrapper[str, str, str, str]):
    """Resets all episodes of a group with one seed, whatever seeds they sample with."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        shared = None if seed is None else seed >> _MEMBER_BITS
        return self.env.reset(seed=shared, options=options)


class _Noting:
    """An agent whose decisions also note which actions were admissible."""

    def __init__(self, agent: Agent):
        self._agent = agent
        self.name = agent.name
        self.config = getattr(agent, "config", None)

    def needs(self) -> frozenset[str]:
        return needs_of(self._agent)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        decision = yield from self._agent.decide(view)
        known = list(view.admissible_actions or ())
        return replace(decision, notes={**decision.notes, ADMISSIBLE: known})


def _seed(seed: int, update: int, group: Group, member: int) -> int:
    """Return an episode's seed, never 0: the one its group resets with, and the member's number."""
    said = f"{seed}\n{update}\n{group.number}\n{group.task}".encode("utf-8", "replace")
    shared = int.from_bytes(hashlib.sha256(said).digest()[:4], "big") % (2**31 - 1) + 1
    return shared << _MEMBER_BITS | member


def _check_alike(episodes: Sequence[Trajectory]) -> None:
    """Refuse the episodes of a group that begin in different ways, where they begin at all."""
    texts = sorted({one.observation for one in episodes if one.observation or not one.error})
    if len(texts) > 1:
        raise EngineError(
            f"expected all episodes of task {episodes[0].task!r:.120} to begin alike, found "
            f"{texts[0]!r:.80} and {texts[1]!r:.80} after resets with one seed; the environment must "
            "draw whatever it draws from the generator that reset seeds"
        )


def _check_number(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, not {value!r}")
