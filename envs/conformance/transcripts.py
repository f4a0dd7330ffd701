"""Transcripts: what an environment said, as text that can be compared, here and in other processes."""

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

Env: TypeAlias = gymnasium.Env[str, str]
Policy: TypeAlias = Callable[[str, dict[str, Any], random.Random], str]
"""Returns an action for an observation, an info and a generator."""

_CHILD = "from comap.envs.conformance.transcripts import _child; _child()"
_TIMEOUT = 300.0  # seconds; a fresh process imports and loads everything anew


@dataclass(frozen=True, slots=True)
class Episode:
    """How an episode was started, what was done, and what came back."""

    seed: int | None
    options: dict[str, Any] | None
    actions: tuple[str, ...] = ()
    records: tuple[str, ...] = ()


def make_env(env_id: str, kwargs: Mapping[str, Any] | None = None) -> Env:
    """Return ``gym.make(env_id, **kwargs)``."""
    env: Env = gymnasium.make(env_id, **(kwargs or {}))
    return env


def load(name: str) -> Any:
    """Return what ``module:name`` or ``path/to/file.py:name`` names."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise OptionError(f"expected 'module:name' or 'path/to/file.py:name', found {name!r}")

    if module_name.endswith(".py"):
        module = _load_file(Path(module_name))
    else:
        module = importlib.import_module(module_name)
    return getattr(module, attribute)


def _load_file(path: Path) -> Any:
    """Import a file as a module of its own, once in a process."""
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]

    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise OptionError(f"expected a Python file, found nothing at {path}")

    # Known before it runs: pickles of its classes look it up by name.
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def record(*answer: Any) -> str:
    """Return what ``reset`` or ``step`` returned as one line of text."""
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
        # As texts: elements of several types cannot be compared.
        return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return repr(value)


def shown(line: str) -> str:
    """Return the record of the observation and info alone, from the record of a step."""
    # What `restore` returns has neither reward nor end.
    parts = json.loads(line)
    return json.dumps([parts[0], parts[-1]], sort_keys=True)


def digest(records: Iterable[str]) -> str:
    """Return the SHA-256 of records, one a line."""
    return hashlib.sha256("".join(f"{line}\n" for line in records).encode()).hexdigest()


def play(
    env: Env,
    policy: Policy,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    steps: int = 30,
) -> Episode:
    """Play one episode, up to `steps` actions, and return it."""
    generator = random.Random(seed)
    actions = list[str]()
    observation, info = env.reset(seed=seed, options=options)
    records = [record(observation, info)]

    over = False
    while not over and len(actions) < steps:
        action = policy(observation, info, generator)
        observation, reward, terminated, truncated, info = env.step(action)
        actions.append(action)
        records.append(record(observation, reward, terminated, truncated, info))
        over = terminated or truncated
    return Episode(seed, options, tuple(actions), tuple(records))


def replay(env: Env, episode: Episode) -> tuple[str, ...]:
    """Play the actions of an episode again and return the records."""
    first = record(*env.reset(seed=episode.seed, options=episode.options))
    return first, *follow(env, episode.actions)


def follow(env: Env, actions: Iterable[str]) -> tuple[str, ...]:
    """Take actions from where the environment is, until it ends, and return the records."""
    records = []
    for action in actions:
        answer = env.step(action)
        records.append(record(*answer))
        _, _, terminated, truncated, _ = answer
        if terminated or truncated:
            break
    return tuple(records)


def replay_in_child(
    maker: str, arguments: Mapping[str, Any], episodes: Sequence[Episode], hash_seed: int
) -> list[tuple[str, ...]]:
    """Replay episodes in a fresh Python process and return their records."""
    # What this process can import the child can, a test's own folder included.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    child = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=pickle.dumps((maker, dict(arguments), list(episodes))),
        capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path},
        timeout=_TIMEOUT,
        check=False,
    )
    if child.returncode:
        end = child.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"expected {maker} to play in a fresh process, found:\n{end}")

    # The environment itself may print; the records are the last line.
    return [tuple(records) for records in json.loads(child.stdout.splitlines()[-1])]


def _child() -> None:
    """Play what standard input asks for and print the records: the other end of the above."""
    maker, arguments, episodes = pickle.load(sys.stdin.buffer)
    with load(maker)(**arguments) as env:
        # On a line of its own, whatever an environment has printed before.
        print("\n" + json.dumps([replay(env, episode) for episode in episodes]))
