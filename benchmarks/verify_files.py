"""What `comap verify` finds below a folder: files of trajectories, and how each was played."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from ..agents.run import RUN, SUMMARY, TRAJECTORIES
from ..checksums import unseal
from ..envs import TextEnv
from ..envs.classes import class_of
from ..errors import DataCorrupt, DataNotFound, OptionError
from ..trajectory import Trajectory

__all__ = ["Recorded", "Room", "find_files", "guessed_options", "known_class", "open_record"]

_RUN, _TRAINING = "comap run 1", "comap training 1"
_MOST = 64 * 2**20  # bytes of a file that describes a run


@dataclass(frozen=True, slots=True)
class Recorded:
    """A file of trajectories, and what lies beside it.

    Attributes:
        path: The file.
        run: What its ``run.json`` says; None where there is none.
        summary: What its ``summary.json`` says; None where there is none.
        env_id: The environment that the run, or the training above it, names; None if none does.
        options: The environment's options there; None where nobody wrote them down.
        split: The split there.
        data: The last name of the folder of official data, if one was given then.
        horizon: Of imagined episodes: the step that ends them.
    """

    path: Path
    run: Mapping[str, Any] | None = None
    summary: Mapping[str, Any] | None = None
    env_id: str | None = None
    options: Mapping[str, Any] | None = None
    split: str | None = None
    data: str | None = None
    horizon: int | None = None


def find_files(results: Path) -> list[Path]:
    """Return the files of trajectories of a run, a training, or anything that holds such folders.

    Args:
        results: A folder, or a file of trajectories itself.

    Raises:
        DataNotFound: There is no such file or folder, or it holds no trajectories.

    Example:
        >>> find_files(Path("nowhere"))
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected results at nowhere, found nothing there
    """
    if results.is_file():
        return [results]
    if not results.is_dir():
        raise DataNotFound(f"expected results at {results}, found nothing there")
    found = sorted(path for path in results.rglob(TRAJECTORIES) if path.is_file())
    if not found:
        raise DataNotFound(
            f"expected {TRAJECTORIES} in {results} or below, found none; name a folder of comap run or "
            "comap train, or a file of trajectories"
        )
    return found


def open_record(path: Path, results: Path) -> Recorded:
    """Return what is known of a file of trajectories.

    Args:
        path: The file.
        results: What is verified: nothing above it is looked at.

    Raises:
        DataCorrupt: A file beside it, or the training's above it, is not what it should be.
    """
    run = _json(path.parent / RUN, _RUN)
    summary = _json(path.parent / SUMMARY)
    if run is None:
        return Recorded(path, summary=summary)
    config = _mapping(run.get("config"))
    imagined = _mapping(run.get("imagined"))
    horizon = imagined.get("horizon")
    known: dict[str, Any] = {
        "split": _text(config.get("split")),
        "horizon": horizon if type(horizon) is int else None,
    }
    if "env" in config:
        known |= {"env_id": _text(config["env"]), "options": _mapping(config.get("env_options"))}
        sessions = run.get("sessions")
        last = _mapping(sessions[-1] if isinstance(sessions, list) and sessions else None)
        data = _text(last.get("data_dir"))
        known["data"] = None if data is None else Path(data).name
    else:
        known |= _of_training(path, results)
    return Recorded(path, run, summary, **known)


def _of_training(path: Path, results: Path) -> dict[str, Any]:
    """Return the environment of the training whose folder a run lies in."""
    top = results if results.is_dir() else results.parent
    for folder in path.parent.parents:
        said = _json(folder / RUN)
        if said is not None and said.get("format") == _TRAINING:
            env = _mapping(_mapping(said.get("described")).get("env"))
            if "id" in env:
                return {"env_id": _text(env["id"]), "options": _mapping(env.get("options"))}
            return {}
        if folder == top:
            break
    return {}


class Room:
    """Makes the environments in which records are replayed, one at a time.

    Nothing that a record says becomes a path, a program, a server or an import: such options are left
    out (`TextEnv.offline`), and only registered environments of comap are made.

    Args:
        data: Folder of official data for each environment's id; that of ``""`` is for all others.
        options: Further options, of the one who verifies.

    Example:
        >>> Room().env("os:system", {}, "train", False)
        Traceback (most recent call last):
        comap.errors.DataNotFound: there is no environment 'os:system' here; import what registers it
    """

    def __init__(
        self, data: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None
    ):
        self._data, self._options = dict(data or {}), dict(options or {})
        self._key: object = None
        self._env: gymnasium.Env[str, str] | None = None

    def env(
        self, env_id: str, options: Mapping[str, Any], split: str, generated: bool
    ) -> gymnasium.Env[str, str]:
        """Return an environment, the last one again where it is the same.

        Args:
            env_id: Its id.
            options: Its options, as they were recorded.
            split: Its split.
            generated: Whether its embedded tasks are wanted, whatever data is here.

        Raises:
            CoMapError: It cannot be made here.
        """
        chosen = self._chosen(env_id, options, split, generated)
        key = json.dumps([env_id, chosen], sort_keys=True, default=repr)
        if self._env is None or key != self._key:
            self.close()
            try:
                made: gymnasium.Env[str, str] = gymnasium.make(env_id, **chosen)
            except (TypeError, gymnasium.error.Error) as error:
                raise OptionError(f"the recorded options do not fit {env_id}: {error}") from None
            self._env, self._key = made, key
        return self._env

    def close(self) -> None:
        """Close what is open."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def _chosen(
        self, env_id: str, options: Mapping[str, Any], split: str, generated: bool
    ) -> dict[str, Any]:
        made = known_class(env_id)
        chosen = made.offline(options) | {"split": split}
        data = self._data.get(env_id, self._data.get(""))
        if generated:
            chosen = dict(made.embedded) | chosen
        elif data is not None:
            chosen["data_dir"] = data
        return chosen | self._options


def known_class(env_id: str) -> type[TextEnv]:
    """Return the class of a registered environment of comap.

    Raises:
        DataNotFound: There is none of this id.
    """
    made = class_of(env_id) if isinstance(env_id, str) else None
    if made is None or not issubclass(made, TextEnv):
        raise DataNotFound(f"there is no environment {env_id!r:.80} here; import what registers it")
    return made


def guessed_options(trajectory: Trajectory) -> dict[str, Any]:
    """Return the options that a trajectory's fingerprint tells, where nobody wrote them down."""
    made = known_class(trajectory.env_id)
    found = {}
    for name, default in _defaults(made):
        if name in trajectory.fingerprint and name not in made.places and name != "split":
            value = _read(str(trajectory.fingerprint[name]), default)
            if value is not None:
                found[name] = value
    return found


def _defaults(made: type[TextEnv]) -> Iterator[tuple[str, Any]]:
    for parameter in inspect.signature(made.__init__).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            yield parameter.name, parameter.default


def _read(text: str, default: object) -> Any:
    """Return a setting as a value of the option's own type; None where it has another form."""
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text)
    try:
        return type(default)(text) if isinstance(default, int | float | str) else None
    except ValueError:
        return None


def _json(path: Path, wanted: str | None = None) -> dict[str, Any] | None:
    """Return what a file says; None where there is none."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MOST:
            raise ValueError("too large")
        said = unseal(path.read_bytes())
        if not isinstance(said, dict) or (wanted is not None and said.get("format") != wanted):
            raise ValueError("another format")
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(
            f"expected JSON of comap in {path}, found something else ({error})"
        ) from error
    return said


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
