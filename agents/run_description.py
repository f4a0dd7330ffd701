"""What a run is, as plain data: written down, and compared when the run is gone on with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from ..checksums import unseal
from ..errors import DataCorrupt, OptionError
from ..lm import LanguageModel
from ..worldmodel import Configured, ImaginedEnv, WorldModel
from ..worldmodel.language import LanguageWorldModel
from .base import Agent
from .calls import Keep
from .runner import settings_of
from .stage import Stage

__all__ = ["FORMAT", "Run", "differences", "known_sessions", "read_run"]

FORMAT = "comap run 1"
"""What a ``run.json`` begins with."""

_NO_MATTER = {
    f"language_model.{name}"
    for name in ("concurrency", "timeout", "max_retries", "prices", "batch_tokens", "batch_rows")
}  # may change when a run is gone on with: answers do not depend on them


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Attributes:
        make_env: Makes an environment; see `stream_episodes`.
        agent: Who acts.
        tasks: The tasks' ids, each once.
        lm: See `stream_episodes`.
        world_model: See `stream_episodes`.
        seed: See `stream_episodes`.
        keep: See `stream_episodes`.
        config: What else makes this run the run it is, as plain data.

    Raises:
        OptionError: A task is there twice.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> run = Run(make_env=make_env, agent=ExpertAgent(), tasks=("a", "b"))
        >>> run.describe()["tasks"]["number"]
        2
    """

    make_env: Callable[[], gymnasium.Env[str, str]]
    agent: Agent
    tasks: Sequence[str]
    lm: LanguageModel | None = None
    world_model: WorldModel | str | Mapping[str, Any] | None = None
    seed: int | None = None
    keep: Keep = "replies"
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.tasks, str):
            raise OptionError(f"tasks must be a list of task ids, not the text {self.tasks!r:.80}")
        if len(set(self.tasks)) != len(self.tasks):
            raise OptionError("a run plays each task once, but some are listed twice; remove those")

    def describe(self) -> dict[str, Any]:
        """Return what this run is, as plain data: runs that agree in it play the same."""
        env = self.make_env()
        try:
            stage = Stage(env)
        finally:
            env.close()
        listed = "".join(f"{task}\n" for task in self.tasks).encode("utf-8", "replace")
        described = {
            "config": dict(self.config),
            "environment": dict(stage.fingerprint),
            "imagined": None if stage.layer is None else _imagination(stage.layer),
            "tasks": {"number": len(self.tasks), "sha256": hashlib.sha256(listed).hexdigest()},
            "agent": {"name": self.agent.name, **settings_of(self.agent)},
            "language_model": None if self.lm is None else _model(self.lm),
            "world_model": _config_of(self.world_model),
            "seed": self.seed,
            "keep": self.keep,
        }
        plain: dict[str, Any] = json.loads(json.dumps(described))
        return plain


def _model(lm: LanguageModel) -> dict[str, Any]:
    return {"name": lm.name, **lm.config()}


def _imagination(layer: ImaginedEnv) -> dict[str, Any]:
    """Return how an environment is imagined."""
    limits = {"horizon": layer.horizon, "real_every": layer.real_every}
    return {"world_model": _config_of(layer.world_model), **limits}


def _config_of(model: Any) -> Any:
    """Return what a world model was made from, without the folders of this machine."""
    if isinstance(model, str | Mapping) or model is None:
        return _without_folders(model)
    if isinstance(model, LanguageWorldModel):
        return {"id": "language", "lm": _model(model.lm), **model.options}
    made = model.config() if isinstance(model, Configured) else None
    return {"class": type(model).__name__} if made is None else _without_folders(made)


def _without_folders(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: Path(part).name if key == "path" else _without_folders(part)
        for key, part in value.items()
    }


def known_sessions(path: Path, described: Mapping[str, Any]) -> list[Any]:
    """Return what is known of earlier sessions of this run, none where it is new.

    Args:
        path: The run's ``run.json``; it may be missing.
        described: What `Run.describe` says now.

    Raises:
        OptionError: What is there is another run; the message tells what differs.
        DataCorrupt: What is there is no run.

    Example:
        >>> known_sessions(Path("nowhere", "run.json"), {})
        []
    """
    if not path.exists():
        return []
    known = read_run(path)
    _check_same(path, known, described)
    sessions: list[Any] = known["sessions"]
    return sessions


def read_run(path: Path) -> dict[str, Any]:
    """Return what a run's ``run.json`` says.

    Raises:
        DataCorrupt: It is not such a file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "run.json")
        ...     _ = path.write_text('{"format": "comap run 1", "sessions": []}')
        ...     read_run(path)["sessions"]
        []
    """
    try:
        known = unseal(path.read_bytes())
        if known["format"] != FORMAT or not isinstance(known["sessions"], list):
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected a run of comap in {path}, found something else ({error}); begin anew in "
            "another folder"
        ) from error
    found: dict[str, Any] = known
    return found


def _check_same(path: Path, known: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    told = differences({key: known.get(key) for key in described}, described, _NO_MATTER)
    if told:
        raise OptionError(
            f"expected to go on with the run in {path.parent}, found other settings ({told}); give "
            "the settings that are there, or begin anew in another folder"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any], no_matter: set[str]) -> str:
    """Return in words what differs between two nested settings; nothing where they agree.

    Args:
        before: What was written down.
        now: What is asked for.
        no_matter: Dotted names that may differ.

    Example:
        >>> differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 4}, {"c"})
        'a.b: 1 there, 3 now'
    """
    old, new = _flat(before), _flat(now)
    names = sorted(name for name in {*old, *new} if name not in no_matter)
    changed = [name for name in names if old.get(name) != new.get(name)]
    told = "; ".join(
        f"{name}: {_brief(old, name)} there, {_brief(new, name)} now" for name in changed[:6]
    )
    more = f"; and {len(changed) - 6} more" if len(changed) > 6 else ""
    return told + more


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested data with dotted names."""
    flat: dict[str, Any] = {}
    for key, part in value.items():
        if isinstance(part, Mapping):
            flat |= _flat(part, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = part
    return flat


def _brief(flat: Mapping[str, Any], key: str) -> str:
    return f"{flat[key]!r:.60}" if key in flat else "nothing"
