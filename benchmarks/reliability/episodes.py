"""Whole episodes on servers of environments, compared with the same ones that are played here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

import gymnasium

from .hostile import hostile
from .served import Answer, Line

__all__ = [
    "IDLE",
    "LIMIT",
    "OPTIONS",
    "WORDS",
    "Guest",
    "Moment",
    "converse",
    "overfill",
    "scripts",
]

LIMIT = 150
"""How many environments a server may have open: fewer than there are clients at scale 1."""

IDLE = 15.0
"""Seconds after which a server closes an environment that nobody uses."""

ENVIRONMENT = "comap/ALFWorld-v0"
"""What is served."""

OPTIONS: dict[str, Any] = {"source": "generated", "max_episode_steps": 12}
"""With which the environment is made, here and there."""

WORDS = ("--env", ENVIRONMENT, "--limit", str(LIMIT), "--idle", f"{IDLE:g}") + tuple(
    word for name, value in OPTIONS.items() for word in ("--env-option", f"{name}={value}")
)
"""The words with which each server of environments is started."""

Moment = dict[str, Any]
"""What is told of a moment: the names of `_COMPARED`."""

_COMPARED = ("observation", "reward", "terminated", "truncated", "available_actions", "facts")
_SCRIPTS = 8
_HOSTILE, _WRONG, _ABANDONED = 0.3, 0.2, 0.1
_PATIENCE = 600.0
_CLEARED = 60.0


class Guest(Protocol):
    """A client's way to one environment of a server, in the words of the server's style.

    An answer's status is that of HTTP, or one like it where errors are told otherwise; its data is what
    is told of a moment.
    """

    def open(self) -> Answer:
        """Ask for an environment; 503 where there is none left."""

    def reset(self, seed: int) -> Answer:
        """Start the episode of a seed."""

    def step(self, action: str) -> Answer:
        """Take an action."""

    def wrong(self, rng: random.Random) -> Answer:
        """Ask something wrong that must be refused, and leaves the episode as it is."""

    def close(self) -> Answer:
        """Close the environment."""

    def leave(self) -> None:
        """Go away without a word."""


@cache
def scripts() -> tuple[tuple[tuple[str, Moment], ...], ...]:
    """Return episodes played here, by seed: actions, hostile ones among them, and what is told.

    Example:
        >>> all(script[0][0] == "" and len(script) > 2 for script in scripts())
        True
    """
    return tuple(tuple(_played(seed)) for seed in range(_SCRIPTS))


def _played(seed: int) -> list[tuple[str, Moment]]:
    env: Any = gymnasium.make(ENVIRONMENT, **OPTIONS)
    rng = random.Random(seed)
    observation, info = env.reset(seed=seed)
    told = [("", _moment(observation, 0.0, False, False, info))]
    over = False
    while not over:
        if rng.random() < _HOSTILE:  # halves of characters are for `server_clients`: JSON only
            action = hostile(rng)[:5000].encode("utf-8", "replace").decode()
        else:
            action = rng.choice(info["admissible_actions"])
        observation, reward, terminated, truncated, info = env.step(action)
        told.append((action, _moment(observation, reward, terminated, truncated, info)))
        over = terminated or truncated
    env.close()
    return told


def _moment(
    observation: str, reward: float, terminated: bool, truncated: bool, info: Mapping[str, Any]
) -> Moment:
    listed = info["admissible_actions"]
    values = (
        observation,
        float(reward),
        terminated,
        truncated,
        None if listed is None else list(listed),
        info["facts"].to_text(),
    )
    return dict(zip(_COMPARED, values, strict=True))


def converse(line: Line, guest: Guest) -> None:
    """Play an episode of a server, and compare each answer with what is right.

    One in ten is given up half-way, without a word; wrong requests come in between.

    Args:
        line: To the server.
        guest: The client's way to an environment.
    """
    if not _enter(line, guest):
        return
    rng, seed = line.rng, line.rng.randrange(_SCRIPTS)
    script = scripts()[seed]
    last = rng.randrange(len(script)) if rng.random() < _ABANDONED else None
    asked = time.monotonic()
    for place, (action, right) in enumerate(script):
        if place == last:
            line.found.count("episodes given up")
            guest.leave()
            return
        if rng.random() < _WRONG:
            line.check_refused("wrong requests", guest.wrong(rng).status)
        answer = guest.step(action) if place else guest.reset(seed)
        if not _check_moment(line, answer, right, place, time.monotonic() - asked):
            guest.leave()
            return
        asked = time.monotonic()
    line.check_refused("steps after the end", guest.step("look").status)
    line.found.count("episodes played")
    line.check(guest.close().status == 200, "an environment could not be closed")


def _check_moment(line: Line, answer: Answer, right: Moment, place: int, waited: float) -> bool:
    """Look at an answer; one that came too late for the server to have waited is told, not lost."""
    if answer.status == 404 and waited > 0.8 * IDLE:
        line.found.tell("closed as idle")
        return False
    line.found.count("well-formed requests")
    told = answer.told if isinstance(answer.told, Mapping) else {}
    other = [name for name in _COMPARED if told.get(name) != right[name]]
    if answer.status == 200 and not other:
        return True
    found = {name: told.get(name) for name in other} if answer.status == 200 else answer.told
    return line.check(False, f"status {answer.status} for step {place}: {found!r:.200}")


def _enter(line: Line, guest: Guest) -> bool:
    """Open an environment, and wait where as many as may be are open."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        status = guest.open().status
        if status == 200:
            return True
        if not line.check_refused("environments asked for when all were open", status):
            return False
        if status != 503:
            return line.check(False, f"status {status} for an environment")
        time.sleep(line.rng.uniform(0.05, 0.5))
    return line.check(False, f"no environment became free within {_PATIENCE:.0f} s")


def overfill(line: Line, make: Callable[[], Guest]) -> None:
    """Open environments until the server says that there are no more, and leave them all.

    It must say so, and must have room for as many again when they were idle for as long as it was told.

    Args:
        line: To the server.
        make: Returns another client's way to an environment.
    """
    guests = []
    for _ in range(LIMIT + 1):
        guests.append(make())
        status = guests[-1].open().status
        if status != 200:
            line.check(status == 503, f"status {status} for an environment too many")
            break
    else:
        line.check(False, f"more than {LIMIT} environments were opened")
    line.found.count("environments left open", len(guests) - 1)
    begun, others = time.monotonic(), list[Guest]()
    while len(others) < len(guests) - 1 and time.monotonic() < begun + IDLE + _CLEARED:
        guest = make()
        if guest.open().status == 200:
            others.append(guest)
        else:
            guest.leave()
            time.sleep(0.5)
    told = f"{len(others)} of {len(guests) - 1} idle environments made way"
    if line.check(len(others) == len(guests) - 1, told):
        line.found.note("room_again_after_seconds", round(time.monotonic() - begun, 1))
    for guest in others:
        guest.close()
    for guest in guests:
        guest.leave()
