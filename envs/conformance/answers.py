"""What comes back: infos, facts, and the answers to actions of all kinds."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...errors import InvalidAction
from ...facts import Delta, State, diff
from ..base import Info
from ..moments import restore, snapshot
from .suite import Suite, expect, refused

__all__ = ["NONSENSE", "Answers", "check_info"]

NONSENSE: Mapping[str, str] = {
    "20,000 characters": "go to nowhere, " * 1333 + "stop.",
    "emoji": "\N{PILE OF POO} \N{WAVING HAND SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}",
    "control characters": "\x01\x07\x08\x1b[31m\r\n\t\x7f\x85\u2028",
    "a NUL character": "zzz\x00zzz",
    "a lone surrogate": "zzz \ud83d",
    "empty text": "",
}
"""Texts that are no action anywhere, by name."""

_NOT_TEXT: tuple[Any, ...] = (3, None, 1.5, b"look", ["look"], ("look",), np.array(["look"]))
_TYPES: Mapping[str, tuple[type, ...]] = {
    "task": (str,),
    "split": (str,),
    "goal": (str,),
    "admissible_actions": (tuple, type(None)),
    "facts": (State,),
    "delta": (Delta,),
    "score": (float, int),
    "success": (bool,),
    "invalid_action": (bool,),
    "step": (int,),
    "imagined": (bool,),
}


class Answers(Suite):
    """Infos are documented, small and consistent; every text is answered, nothing else is."""

    def test_info_has_the_documented_keys(self) -> None:
        """Infos have the keys of `Info` and of `info_extras`, of its types, small, picklable."""
        with self.make() as env:
            extras = env.get_wrapper_attr("info_extras")
            kept = env.get_wrapper_attr("info_kept")
            expect(set(kept) <= set(extras), "info_kept must be keys of info_extras", kept)
            for seed in self.seeds:
                for number, (_, info) in enumerate(self._steps(env, seed)):
                    check_info(info, number, extras, self.max_info_bytes)

    def test_facts_and_delta_agree(self) -> None:
        """``info["delta"]`` leads from the facts before to ``info["facts"]``; facts are texts."""
        with self.make() as env:
            for seed in self.seeds:
                before = State()
                for _, info in self._steps(env, seed):
                    after, delta = info["facts"], info["delta"]
                    expect(diff(before, after) == delta, "delta must be the difference", delta)
                    expect(
                        all(_is_fact(fact) for fact in after.facts),
                        "facts must be tuples of lower-case text",
                        after,
                    )
                    told = State.from_text(after.to_text())
                    expect(told == after, "facts must come back from their text", after)
                    now = env.get_wrapper_attr("state_facts")()
                    expect(now == after, "state_facts() must be info['facts']", now)
                    before = after

    def test_admissible_actions_are_accepted(self) -> None:
        """What ``info["admissible_actions"]`` lists is not refused."""
        rng = random.Random(0)
        with self.make() as env:
            for seed in self.seeds:
                for _, info in self._steps(env, seed, min(self.steps, 5)):
                    actions = info["admissible_actions"]
                    if actions is None or info["imagined"]:
                        continue
                    here = snapshot(env)
                    for action in rng.sample(actions, min(4, len(actions))):
                        answer = env.step(action)
                        expect(
                            not answer[-1]["invalid_action"] and "error" not in answer[-1],
                            f"the admissible action {action!r} must be accepted",
                            answer,
                        )
                        restore(env, here)

    def test_any_text_is_answered(self) -> None:
        """No text breaks the environment; nonsense is reported as an invalid action."""
        with self.make() as env:
            for name, text in NONSENSE.items():
                env.reset(seed=self.seeds[0])
                observation, _, terminated, truncated, info = env.step(text)
                said = f"an action of {name}"
                expect("error" not in info, f"{said} must be answered", info.get("error"))
                expect(not truncated, f"{said} must not cut the episode", truncated)
                expect(
                    observation in env.observation_space,
                    f"the answer to {said} must be in the observation space",
                    observation,
                )
                if self.refuses_nonsense:
                    expect(info["invalid_action"], f"{said} must be an invalid action", info)
                pickle.dumps(info)
                if not terminated:
                    env.step("look")

    def test_other_types_are_refused(self) -> None:
        """An action that is no text raises `InvalidAction`, which names its type."""
        with self.make() as env:
            _, before = env.reset(seed=self.seeds[0])
            for action in _NOT_TEXT:
                name = type(action).__name__
                error = refused(partial(env.step, action), InvalidAction, f"an action of {name}")
                expect(name in str(error), f"the message must name {name}", str(error))
            info = env.step("look")[-1]
            expect(info["step"] == before["step"] + 1, "refused actions must not count", info)


def check_info(
    info: Mapping[str, Any], number: int, extras: Iterable[str] = (), most_bytes: int = 200_000
) -> None:
    """Do nothing, if an `Info` keeps its contract.

    Args:
        info: What ``reset`` or ``step`` told, no fault.
        number: How many actions were taken.
        extras: The environment's ``info_extras``.
        most_bytes: The greatest size of it, pickled.

    Raises:
        AssertionError: It does not; the message says why.

    Example:
        >>> check_info({}, 0)
        Traceback (most recent call last):
        ...
        AssertionError: info must have the keys [...
    """
    keys = sorted({*Info.__required_keys__, *extras})
    found = sorted(info)
    expect(found == keys, f"info must have the keys {keys}", sorted(info))
    for key, types in _TYPES.items():
        kind = type(info[key])
        expect(kind in types, f"info[{key!r}] must be of {types}", (kind, info[key]))
    expect(info["step"] == number, f"info['step'] must be {number}", info["step"])
    expect(0 <= info["score"] <= 1, "info['score'] must be in 0..1", info["score"])
    expect(info["task"] and info["goal"], "info must name task and goal", info)
    size = len(pickle.dumps(info))
    expect(size <= most_bytes, f"info must be <= {most_bytes} bytes", size)
    expect(pickle.loads(pickle.dumps(info)) == info, "info must survive pickling", info)
    actions = info["admissible_actions"]
    expect(
        actions is None
        or (all(type(item) is str for item in actions) and len(set(actions)) == len(actions)),
        "info['admissible_actions'] must be unique texts",
        actions,
    )


def _is_fact(fact: Any) -> bool:
    return (
        type(fact) is tuple
        and bool(fact)
        and all(type(part) is str and part == part.lower() for part in fact)
    )
