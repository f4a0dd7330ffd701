"""Transcripts: what an environment said, as text that can be compared, here and in other processes.

An episode is played once, with a policy, and its actions are kept; whoever plays them again, in
this process or in a fresh one with another ``PYTHONHASHSEED``, must get the same records, byte for
byte. the tests of
`comap.envs.conformance` are built on this.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from ...errors import OptionError
from ...facts import Delta, State

__all__ = [
    "Env",
    "Episode",
    "Policy",
    "digest",
    "follow",
    "load",
    "make_env",
    "play",
    "record",
    "replay",
    "replay_in_child",
    "shown",
]

Env: TypeAlias = gymnasium.Env[str, str]
"""An environment of texts."""
Policy: TypeAlias = Callable[[str, dict[str, Any], random.Random], str]
"""Returns an action for an observation, an info and a generator."""

_CHILD = "from comap.envs.conformance.transcripts import _child; _child()"
_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Episode:
    """How an episode was started, what was done, and what came back.

    Attributes:
        seed: The seed of ``reset``.
        options: The options of ``reset``.
        actions: The actions, in order.
        records: One `record` for the reset and one for each action.
    """

    seed: int | None
    options: dict[str, Any] | None
    actions: tuple[str, ...] = ()
    records: tuple[str, ...] = ()


def make_env(env_id: str, kwargs: Mapping[str, Any] | None = None) -> Env:
    """Return ``gym.make(env_id, **kwargs)``."""
    env: Env = gymnasium.make(env_id, **(kwargs or {}))
    return env


def load(name: str) -> Any:
    """Return what ``"module:attribute"`` or ``"path/to/file.py:attribute"`` names.

    A file is run once and is then known under a name made from its path, the same in every process,
    so that objects of its classes can be pickled.

    Raises:
        OptionError: The name has not this form, or the file is not there.

    Example:
        >>> load("comap.facts:State")()
        State(facts=frozenset(), parsed=True)
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise OptionError(f"expected 'module:name' or 'path/to/file.py:name', found {name!r}")
    module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    return getattr(module, attribute)


def _load_file(path: Path) -> Any:
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise OptionError(f"expected a Python file, found nothing at {path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(*answer: Any) -> str:
    """Return what ``reset`` or ``step`` returned as one line of text.

    Equal answers have equal records, in any process: facts are sorted, and so are keys.

    Example:
        >>> record("A desk.", {"step": 0, "facts": State(frozenset({("lit", "desklamp 1")}))})
        '["A desk.", {"facts": "lit(desklamp 1)", "step": 0}]'
    """
    return json.dumps([_plain(part) for part in answer], sort_keys=True)


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it, in an order that does not depend on hashes."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, State | Delta):
        return value.to_text()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return repr(value)


def shown(line: str) -> str:
    """Return the record of the observation and info alone, from the record of a step.

    Example:
        >>> shown(record("A desk.", 0.0, False, False, {"step": 1}))
        '["A desk.", {"step": 1}]'
    """
    told = json.loads(line)
    return json.dumps([told[0], told[-1]], sort_keys=True)


def digest(records: Iterable[str]) -> str:
    """Return the SHA-256 of some records, in hexadecimal.

    Example:
        >>> digest([record("A desk.", {})])[:12]
        '98fd2198c3a3'
    """
    return hashlib.sha256("".join(f"{line}\n" for line in records).encode()).hexdigest()


def play(
    env: Env,
    policy: Policy,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    steps: int = 30,
) -> Episode:
    """Play one episode, up to `steps` actions, and return it.

    Args:
        env: Where.
        policy: Called with the observation, the info and a generator seeded with `seed`.
        seed: The seed of ``reset``.
        options: The options of ``reset``.
        steps: The greatest number of actions.
    """
    observation, info = env.reset(seed=seed, options=options)
    records, actions = [record(observation, info)], list[str]()
    generator, over = random.Random(seed), False
    while not over and len(actions) < steps:
        actions.append(policy(observation, info, generator))
        observation, reward, terminated, truncated, info = env.step(actions[-1])
        records.append(record(observation, reward, terminated, truncated, info))
        over = terminated or truncated
    return Episode(seed, options, tuple(actions), tuple(records))


def replay(env: Env, episode: Episode) -> tuple[str, ...]:
    """Play the actions of an episode again and return the records."""
    return (
        record(*env.reset(seed=episode.seed, options=episode.options)),
        *follow(env, episode.actions),
    )


def follow(env: Env, actions: Iterable[str]) -> tuple[str, ...]:
    """Take actions from where the environment is, until it ends, and return the records."""
    records = []
    for action in actions:
        answer = env.step(action)
        records.append(record(*answer))
        if answer[2] or answer[3]:
            break
    return tuple(records)


def replay_in_child(
    maker: str, arguments: Mapping[str, Any], episodes: Sequence[Episode], hash_seed: int
) -> list[tuple[str, ...]]:
    """Replay episodes in a fresh Python process and return their records.

    Args:
        maker: Name, for `load`, of the function that makes the environment.
        arguments: Its keyword arguments.
        episodes: What to play.
        hash_seed: ``PYTHONHASHSEED`` of that process.

    Raises:
        RuntimeError: The process failed; the message has the end of what it wrote.
    """
    told = pickle.dumps((maker, dict(arguments), list(episodes)))
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=told,
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path},
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode:
        end = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"expected {maker} to play in a fresh process, found:\n{end}")
    return [tuple(records) for records in json.loads(done.stdout.splitlines()[-1])]


def _child() -> None:
    """Play what standard input asks for and print the records: the other end of the above."""
    maker, arguments, episodes = pickle.load(sys.stdin.buffer)
    with load(maker)(**arguments) as env:
        print("\n" + json.dumps([replay(env, episode) for episode in episodes]))
