"""The folder of a training: what was asked, a folder for each stage, checkpoints, work done once.

Everything in it is written so that a process that is killed leaves the old state or the new one.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import __version__
from ..agents.run import differences, writing
from ..envs.storage import locked
from ..errors import DataCorrupt, DownloadError, OptionError
from ..jsonl import RecordedCalls, digests_of, read_json, write_json, wrong_file
from ..redaction import without_secrets
from .processes import gathered, is_first, rank, wait, world_size
from .roles import difference, fill
from .sharding import copies

if TYPE_CHECKING:
    from torch import Tensor


FORMAT = "comap training 2"

HEAD = "head"
"""The name of the refinement head among the weights of a stage."""

_DONE = "done.json"  # a stage's result: the stage has ended
_DIGESTS = "weights_files"  # the key of the weights' SHA-256 in it
_COMPLETE = "complete"  # a file that is written last: the checkpoint is whole
_WEIGHTS = "weights.safetensors"

# What may change when a training is resumed.
_MAY_CHANGE = {
    "config.concurrency",
    "config.live",
    "config.optimization.save_steps",
}


def _without_tasks(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training's description without its tasks' number and licenses, which may be missing.

    Earlier versions did not write them, and both follow from the tasks.
    """
    env = described.get("env")
    if not isinstance(env, Mapping):
        return dict(described)
    added = ("tasks", "licenses")
    env_without_tasks = {name: value for name, value in env.items() if name not in added}
    return {**described, "env": env_without_tasks}


@dataclass(frozen=True, slots=True)
class StageFolder:
    """A stage's folder."""

    path: Path
    name: str

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are kept until the stage ends."""
        return self.path / "checkpoints"

    def weights(self, role: str) -> Path:
        """Return the file of a role's weights, or of the head's, which may not be there."""
        return self.path / f"{role}.safetensors"

    def trained(self, roles: Collection[str]) -> dict[str, Path]:
        """Return the file of each role that the stage trained, or of the head; none before it has ended.

        Raises:
            DataCorrupt: The stage names weights of others than `roles`, or a file is not as it was left.
        """
        record = self._read() or {}
        file_names = record.get("weights", {})  # by role
        if not isinstance(file_names, Mapping) or not {*file_names} <= {*roles, HEAD}:
            raise DataCorrupt(
                f"expected weights of {', '.join((*roles, HEAD))} in {self.path / _DONE}, found "
                f"{file_names!r:.200}; remove that file to do the stage again"
            )

        problem = wrong_file(self.path, record.get(_DIGESTS, {}))
        if problem:
            raise DataCorrupt(
                f"{problem} in {self.path}, where {self.name} left it; restore it, or remove the folders "
                "of that stage and of all later ones to do them again"
            )
        return {role: self.weights(role) for role in file_names}

    def result(self) -> dict[str, Any] | None:
        """Return the result that the stage ended with; None while it has not."""
        record = self._read()
        if record is None:
            return None
        return {name: value for name, value in record.items() if name != _DIGESTS}

    def _read(self) -> dict[str, Any] | None:
        """Return what `finish` wrote, the SHA-256 of the weights included."""
        file = self.path / _DONE
        if not file.exists():
            return None
        try:
            record: dict[str, Any] = read_json(file)
            if record["stage"] != self.name:
                raise ValueError(f"it is of {record['stage']!r:.80}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataCorrupt(
                f"expected the result of stage {self.name} in {file}, found something else "
                f"({error}); remove that file to do the stage again"
            ) from error
        return record

    def finish(self, result: Mapping[str, Any], seconds: float) -> None:
        """Write down that the stage has ended, with the SHA-256 of its weights."""
        if is_first():
            record = {"stage": self.name, "seconds": round(seconds, 3), **result}
            with writing(self.path):
                if files := (record.get("weights") or {}).values():
                    record[_DIGESTS] = digests_of(self.path, files)
                write_json(self.path / _DONE, record)
        self.tidy()
        wait()

    def tidy(self) -> None:
        """Remove the checkpoints of a stage that has ended; before that they are needed."""
        if is_first() and (self.path / _DONE).exists():
            shutil.rmtree(self.checkpoints, ignore_errors=True)


class RunFolder:
    """The folder of a training."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @contextmanager
    def open(self, described: Mapping[str, Any], session: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Take the folder for this training; nobody else may write there meanwhile."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"cannot make the folder {self.path} for the training: {error.strerror}; give "
                "another --out"
            ) from error

        # The first process locks and describes the folder; the others begin when it has.
        if not is_first():
            wait()
            yield self
            return
        try:
            with locked(self.path / "lock", wait=0):
                with writing(self.path):
                    self._describe(described, session)
                wait()
                yield self
        except DownloadError as error:
            raise OptionError(f"cannot write a training into {self.path}: {error}") from error

    def stage(self, number: int, name: str) -> StageFolder:
        """Make and return the folder of a stage."""
        path = self.path / "stages" / f"{number:02d}-{name}"
        path.mkdir(parents=True, exist_ok=True)
        return StageFolder(path, name)

    def _describe(self, described: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        """Add a session to the folder's record; refuse a session of another training."""
        path = self.path / "run.json"
        sessions: list[Any] = []
        plain = without_secrets(json.loads(json.dumps(described)))
        if path.exists():
            try:
                record = read_json(path)
                if record["format"] != FORMAT:
                    raise ValueError("another format")
                sessions = [*record["sessions"]]
                described_before = _without_tasks(record["described"])
                differing = differences(described_before, _without_tasks(plain), _MAY_CHANGE)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DataCorrupt(
                    f"expected a training of comap in {path}, found something else ({error}); begin "
                    "anew in another folder"
                ) from error

            # Settings may change as long as nothing was done with them.
            file_names = {entry.name for entry in self.path.iterdir()}
            file_names -= {"lock", "journal.jsonl", "model"}
            if differing and file_names > {path.name}:
                raise OptionError(
                    f"expected to go on with the training in {self.path}, found other settings "
                    f"({differing}); give the settings that are there, or begin anew in another folder"
                )

        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        sessions.append({"started": started, "versions": {"comap": __version__}, **session})
        write_json(path, {"format": FORMAT, "described": plain, "sessions": sessions})


def write_weights(folder: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write named tensors into a checkpoint, each by the name of its part; the first process writes."""
    from safetensors.torch import save_file

    tensors = copies(_named(parts))
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / _WEIGHTS)


def read_weights(folder: Path, parts: Mapping[str, Mapping[str, Tensor]], role: str) -> None:
    """Fill tensors with the values that `write_weights` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors = _named(parts)
    try:
        saved = load_file(folder / _WEIGHTS)
        problem = difference(tensors, saved)
    except (OSError, SafetensorError) as error:
        problem = f"the file cannot be read ({error})"
    if problem:
        raise DataCorrupt(
            f"expected the weights of {role} in the checkpoint {folder}, found others: {problem:.400}; "
            "remove that folder to train this stage anew"
        )
    fill(tensors, saved)


def _named(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return all tensors of parts by the names that they have in a file."""
    tensors = {}
    for part, tensors_of_part in parts.items():
        for name, tensor in tensors_of_part.items():
            tensors[f"{part}/{name}"] = tensor
    return tensors


def mark_complete(folder: Path) -> None:
    """Mark a checkpoint as one that training can resume from; the last thing that is written."""
    (folder / _COMPLETE).touch()


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint in a folder, and remove those that are half written."""
    wait()
    checkpoints: dict[int, Path] = {}
    for path in sorted(folder.glob("checkpoint-*")):
        number = path.name.rpartition("-")[2]
        if (path / _COMPLETE).exists() and number.isdecimal():
            checkpoints[int(number)] = path
        elif is_first():
            shutil.rmtree(path, ignore_errors=True)
    wait()
    return str(checkpoints[max(checkpoints)]) if checkpoints else None


Done: TypeAlias = "tuple[str, Any]"
"""A key, and its result as JSON data."""


def each_once(
    folder: Path, keys: Sequence[str], work: Callable[[Sequence[str]], Iterable[Done]]
) -> dict[str, Any]:
    """Return the result of each key, in the order of the keys; recorded results are not computed again.

    Each process computes its share of the keys, and all processes get all results.
    """
    own_keys = list(keys)[rank() :: world_size()]
    path = folder / f"rank-{rank()}-of-{world_size()}.jsonl"
    with writing(folder):
        recorded = RecordedCalls(path, expected="what came of one thing")

    missing = [key for key in own_keys if key not in recorded]
    if missing:
        for key, value in work(missing):
            with writing(folder):
                recorded.add([{"key": key, "value": value}])

    wait()
    results = dict(gathered([(key, recorded.get(key)) for key in own_keys]))
    return {key: results[key] for key in keys}
