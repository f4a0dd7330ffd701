"""Rounds: anything that asks questions can be played, many at once."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents.answers import Answers
from comap.agents.rounds import play_rounds
from comap.agents.stage import Stage
from comap.agents.theatre import Theatre
from comap.envs.conformance.transcripts import load
from comap.lm import Generate, Message, Sampling

HERE = Path(__file__).with_name("scripted.py")
HashedModel = load(f"{HERE}:HashedModel")


class Made:
    """Makes environments, and remembers them."""

    def __init__(self) -> None:
        self.envs: list[Closing] = []

    def __call__(self) -> gym.Env[str, str]:
        self.envs.append(Closing(gym.make("comap/ALFWorld-v0", source="generated")))
        return self.envs[-1]


class Closing(gym.Wrapper[str, str, str, str]):
    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


def countdown(stage: Stage, item: tuple[str, int]) -> Generator[Any, Any, tuple[str, list[str]]]:
    """Ask so many questions, one after another, each about the last answer; break the stage by name."""
    name, rounds = item
    said: list[str] = []
    for _ in range(rounds):
        told = (Message("user", f"{name} {said}"),)
        (reply,) = yield [Generate(told, Sampling(8))]
        said.append(reply.text)
    if name == "breaks":
        stage.broken = True
    if name == "raises":
        raise RuntimeError("this is the end")
    return name, said


ITEMS = [("a", 3), ("b", 0), ("c", 5), ("d", 1), ("e", 0), ("f", 2)]


def play(items: Any, live: int, lm: Any = None, made: Any = None) -> dict[int, Any]:
    theatre = Theatre(made or Made())
    return dict(play_rounds(theatre, Answers(lm or HashedModel()), items, live, countdown))


def test_nothing_depends_on_how_many_are_live() -> None:
    alone = play(ITEMS, 1)
    assert {number: found[0] for number, found in alone.items()} == dict(enumerate("abcdef"))
    assert [len(alone[number][1]) for number in range(6)] == [3, 0, 5, 1, 0, 2]
    for live in (2, 3, 32):
        assert play(ITEMS, live) == alone


def test_questions_of_a_round_are_one_batch_and_places_are_used_again() -> None:
    class Sizes(HashedModel):  # type: ignore[misc, valid-type]
        sizes: list[int]

        def generate(self, requests: Any) -> Any:
            self.sizes.append(len(requests))
            return super().generate(requests)

    lm, made = Sizes(), Made()
    lm.sizes = []
    play(ITEMS, 3, lm, made)
    # a, c and d run first; f has d's place from the second round on; then c is alone
    assert lm.sizes == [3, 3, 3, 1, 1]
    assert len(made.envs) == 3 and all(env.closed for env in made.envs)


def test_a_broken_environment_is_replaced() -> None:
    made = Made()
    assert len(play([("breaks", 1), ("a", 1), ("b", 1)], 1, made=made)) == 3
    assert len(made.envs) == 2 and all(env.closed for env in made.envs)


def test_what_a_play_raises_ends_everything() -> None:
    made = Made()
    with pytest.raises(RuntimeError, match="this is the end"):
        play([("a", 9), ("raises", 1)], 2, made=made)
    assert all(env.closed for env in made.envs)


def test_stopping_early_closes_the_environments() -> None:
    made = Made()
    rounds = play_rounds(Theatre(made), Answers(HashedModel()), ITEMS, 2, countdown)
    assert next(rounds)[0] == 1
    rounds.close()
    assert made.envs and all(env.closed for env in made.envs)
