"""What all conformance tests share: how an environment is made and played, how a test fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, ClassVar

import gymnasium

from .transcripts import Env, Episode, digest, load, play

__all__ = ["Suite", "expect", "refused", "same"]

_WORDS = ("look", "help", "search for a red shoe", "go north", "finish")


class Suite:
    """What the conformance tests of one environment can be told.

    Attributes:
        env_id: The registered id; empty where only `maker` makes the environment.
        kwargs: What ``gym.make`` gets beside the id.
        maker: Name of the function that makes the environment, ``"module:name"`` or
            ``"file.py:name"``; it must not depend on anything but its arguments.
        maker_args: Keyword arguments of `maker`; None for `env_id` and `kwargs`.
        seeds: Seeds of the episodes that are played.
        steps: The greatest number of actions in one of them.
        hash_seeds: ``PYTHONHASHSEED`` of each fresh process that plays them again.
        expert_steps: The greatest number of actions that an expert may need.
        refuses_nonsense: Whether `NONSENSE` must be reported as ``info["invalid_action"]``.
        memory_episodes: Episodes of the memory test.
        memory_steps: Actions in each of them.
        max_growth_mb: How much the process may grow after the first quarter of them.
        max_info_bytes: The greatest size of a pickled info.

    Example:
        >>> class TestMyEnv(Suite):
        ...     env_id = "comap/ALFWorld-v0"
        ...     kwargs = {"split": "valid_seen"}
        >>> TestMyEnv().seeds
        (0, 1, 2)
    """

    env_id: ClassVar[str] = ""
    kwargs: ClassVar[Mapping[str, Any]] = {}
    maker: ClassVar[str] = "comap.envs.conformance.transcripts:make_env"
    maker_args: ClassVar[Mapping[str, Any] | None] = None
    seeds: ClassVar[Sequence[int]] = (0, 1, 2)
    steps: ClassVar[int] = 25
    hash_seeds: ClassVar[Sequence[int]] = (0, 1)
    expert_steps: ClassVar[int] = 200
    refuses_nonsense: ClassVar[bool] = True
    memory_episodes: ClassVar[int] = 500
    memory_steps: ClassVar[int] = 3
    max_growth_mb: ClassVar[float] = 4.0
    max_info_bytes: ClassVar[int] = 200_000

    # What a subclass may replace.

    def make(self) -> Env:
        """Return a fresh environment; `maker` does it, so that other processes can, too."""
        env: Env = load(self.maker)(**self._arguments())
        return env

    def policy(self, observation: str, info: dict[str, Any], rng: random.Random) -> str:
        """Return the next action: by default a random admissible one, else a few words."""
        choices: Sequence[str] = info["admissible_actions"] or _WORDS
        return rng.choice(choices)

    def check_target(self, env: Env) -> gymnasium.Env[Any, Any]:
        """Return the layer that Gymnasium's ``check_env`` looks at."""
        return env.unwrapped

    def _arguments(self) -> Mapping[str, Any]:
        if self.maker_args is not None:
            return self.maker_args
        return {"env_id": self.env_id, "kwargs": dict(self.kwargs)}

    def _play(self, env: Env, seed: int, options: dict[str, Any] | None = None) -> Episode:
        return play(env, self.policy, seed=seed, options=options, steps=self.steps)

    def _tasks(self, env: Env) -> tuple[str, ...]:
        """Return the ids of at most three tasks: the first, one in the middle, the last."""
        ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
        return tuple(dict.fromkeys((ids[0], ids[len(ids) // 2], ids[-1])))

    def _steps(
        self, env: Env, seed: int, steps: int | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the answers (observation, info) of an episode while it is played."""
        observation, info = env.reset(seed=seed)
        rng, count, over = random.Random(seed), 0, False
        yield observation, info
        while not over and count < (steps or self.steps):
            answer = env.step(self.policy(observation, info, rng))
            observation, reward, terminated, truncated, info = answer
            flags = (type(reward), type(terminated), type(truncated))
            expect(flags == (float, bool, bool), "step must return float, bool, bool", flags)
            over, count = terminated or truncated, count + 1
            yield observation, info


def expect(condition: Any, contract: str, found: Any) -> None:
    """Raise an AssertionError that says what the contract is and what was found."""
    if not condition:
        raise AssertionError(f"{contract}; found {found!r:.1000}")


def refused(call: Callable[[], Any], expected: type[Exception], what: str) -> Exception:
    """Return the error of type `expected` that `call` must raise."""
    try:
        answer = call()
    except expected as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"{what} must raise {expected.__name__}; found {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"{what} must raise {expected.__name__}; found {answer!r:.300}")


def same(expected: Sequence[str], found: Sequence[str], contract: str) -> None:
    """Compare records; an AssertionError says where they part."""
    if digest(expected) == digest(found):
        return
    for number, (one, two) in enumerate(zip(expected, found, strict=False)):
        if one != two:
            pairs = zip(one, two, strict=False)
            at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            told = [line[max(0, at - 60) : at + 200] for line in (one, two)]
            raise AssertionError(
                f"{contract}; record {number} differs at character {at}: expected ...{told[0]!r}, "
                f"found ...{told[1]!r}"
            )
    raise AssertionError(f"{contract}; expected {len(expected)} records, found {len(found)}")
