"""What `comap bench paw-overhead` trains on: rows of an update, as long as ALFWorld's are."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ..agents import Decision, RandomAgent, Reply, Request, View, run_episodes
from ..agents.paw import PaWConfig
from ..agents.paw_prompt import tagged_prompt
from ..errors import OptionError
from ..trainers.paw.rows import PaWRow

__all__ = ["RowShape", "episode_rows", "real_lengths"]

_ENV = "comap/ALFWorld-v0"
_STEPS = 50  # of an episode, which an aimless agent hardly ever ends earlier
_TASKS = 16
_FIRST = 5  # ids below are those of special tokens
_HEADER, _FOOTER = 4, 2  # tokens that a chat template puts around an observation
_WON = 0.4  # share of episodes that win, so that advantages are not all 0
_LONGEST_PROMPT, _LONGEST = 2048, 512
_SHAPE = 4.0  # of the gamma distribution of replies' lengths: they vary by half


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """How many rows there are, and how long they are on average, in tokens.

    Attributes:
        rows: Rows of the update.
        groups: Its tasks.
        members: Episodes of each.
        prompt: Mean length of prompts.
        response: Mean length of replies.
        observation: Mean length of the observations that follow.

    Raises:
        OptionError: A number is below 1, or there are fewer rows than episodes.

    Example:
        >>> RowShape(rows=3, groups=2, members=2, prompt=9, response=3, observation=5)
        Traceback (most recent call last):
        comap.errors.OptionError: expected a row for each of 4 episodes at least, found 3 rows
    """

    rows: int
    groups: int
    members: int
    prompt: int
    response: int
    observation: int

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.rows < self.groups * self.members:
            raise OptionError(
                f"expected a row for each of {self.groups * self.members} episodes at least, found "
                f"{self.rows} rows"
            )


class _Sizes:
    """Acts at random, and notes how long the prompt of PaW's agent would have been."""

    name = "sizes"

    def __init__(self, seed: int):
        self._random = RandomAgent(seed)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        decision = yield from self._random.decide(view)
        told = sum(len(message.content) for message in tagged_prompt(view, PaWConfig()))
        return replace(decision, notes={**decision.notes, "prompt": told})


def real_lengths(seed: int = 0, tasks: int = _TASKS) -> list[tuple[int, int]]:
    """Return how long prompts and the observations after them are, in letters, of some real steps.

    They are those of an aimless agent in generated ALFWorld tasks, and of the prompts that PaW's agent
    would have been given there.

    Args:
        seed: Seed of its actions.
        tasks: How many tasks are played.

    Example:
        >>> all(prompt > 100 and observed > 5 for prompt, observed in real_lengths(tasks=1))
        True
    """
    make = partial(
        gymnasium.make, _ENV, source="generated", split="train", max_episode_steps=_STEPS
    )
    env = make()
    ids: Sequence[str] = env.get_wrapper_attr("tasks").ids
    env.close()
    wanted = [ids[number * len(ids) // tasks] for number in range(tasks)]
    return [
        (int(step.notes["prompt"]), max(len(step.observation), 1))
        for episode in run_episodes(make, _Sizes(seed), wanted)
        for step in episode.steps
    ]


def episode_rows(shape: RowShape, vocabulary: int, seed: int = 0) -> list[PaWRow]:
    """Return the rows of an update: random tokens, with lengths that vary as in real episodes.

    Prompts and observations vary as those of `real_lengths`, replies by a gamma distribution, since a
    model with random weights says nothing of how long they would be.

    Args:
        shape: How many, and how long.
        vocabulary: Tokens are drawn below this.
        seed: Seed of everything that is drawn.

    Example:
        >>> shape = RowShape(rows=9, groups=2, members=2, prompt=60, response=12, observation=6)
        >>> rows = episode_rows(shape, 300)
        >>> [row.trajectory for row in rows], {row.group for row in rows}
        ([0, 0, 0, 1, 1, 2, 2, 3, 3], {0, 1})
    """
    draw = np.random.default_rng(seed)
    real = np.array(real_lengths(seed), dtype=np.float64)
    some = real[draw.integers(len(real), size=shape.rows)]
    prompts = _scaled(some[:, 0], shape.prompt, _LONGEST_PROMPT)
    observed = _scaled(some[:, 1], shape.observation, _LONGEST)
    replies = _scaled(draw.gamma(_SHAPE, size=shape.rows), shape.response, _LONGEST)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(draw.integers(_FIRST, vocabulary, size=length).tolist())

    episodes = shape.groups * shape.members
    won = draw.random(episodes) < _WON
    rows: list[PaWRow] = []
    for episode in range(episodes):
        length = shape.rows // episodes + (episode < shape.rows % episodes)
        for t in range(length):
            at, last = len(rows), t == length - 1
            response = ids(int(replies[at]))
            rows.append(
                PaWRow(
                    group=episode // shape.members,
                    trajectory=episode,
                    t=t,
                    prompt_ids=ids(int(prompts[at])),
                    response_ids=response,
                    header_ids=ids(_HEADER),
                    observation_ids=ids(int(observed[at])),
                    footer_ids=ids(_FOOTER),
                    sampled_logprobs=tuple(-draw.exponential(size=len(response))),
                    reward=10.0 * bool(won[episode]) * last,
                    anchor=f"observation {draw.integers(0, 40)}",
                    episode_return=10.0 * bool(won[episode]),
                    episode_length=length,
                    success=bool(won[episode]),
                )
            )
    return rows


def _scaled(lengths: NDArray[np.float64], mean: int, longest: int) -> NDArray[np.int64]:
    """Return lengths in tokens whose mean is about that."""
    scaled = np.rint(lengths * (mean / lengths.mean()))
    found: NDArray[np.int64] = np.clip(scaled, 1, longest).astype(np.int64)
    return found
