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

if TYPE_CHECKING:
    from torch import Tensor


FORMAT = "comap training 2"

HEAD = "head"
"""What the refinement head is called among the weights of a stage."""

_DONE, _SUMS = "done.json", "weights_files"
_COMPLETE, _WEIGHTS = "complete", "weights.safetensors"
_MAY_CHANGE = {
    "config.concurrency",
    "config.live",
    "config.optimization.save_steps",
}  # when a training is resumed


def _without_tasks(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a training is but for how many tasks it has: earlier versions did not write that."""
    env = described.get("env")
    if not isinstance(env, Mapping):
        return dict(described)
    return {**described, "env": {name: part for name, part in env.items() if name != "tasks"}}


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
        """Return the files of what the stage trained, once it has ended."""
        result = self._read() or {}
        trained = result.get("weights", {})
        if not isinstance(trained, Mapping) or not {*trained} <= {*roles, HEAD}:
            raise DataCorrupt(
                f"expected weights of {', '.join((*roles, HEAD))} in {self.path / _DONE}, found "
                f"{trained!r:.200}; remove that file to do the stage again"
            )
        if wrong := wrong_file(self.path, result.get(_SUMS, {})):
            raise DataCorrupt(
                f"{wrong} in {self.path}, where {self.name} left it; restore it, or remove the folders "
                "of that stage and of all later ones to do them again"
            )
        return {role: self.weights(role) for role in trained}

    def result(self) -> dict[str, Any] | None:
        """Return what the stage ended with; None while it has not."""
        found = self._read()
        return found and {name: value for name, value in found.items() if name != _SUMS}

    def _read(self) -> dict[str, Any] | None:
        """Return what `finish` wrote, the SHA-256 of the weights included."""
        file = self.path / _DONE
        if not file.exists():
            return None
        try:
            found: dict[str, Any] = read_json(file)
            if found["stage"] != self.name:
                raise ValueError(f"it is of {found['stage']!r:.80}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataCorrupt(
                f"expected the result of stage {self.name} in {file}, found something else "
                f"({error}); remove that file to do the stage again"
            ) from error
        return found

    def finish(self, result: Mapping[str, Any], seconds: float) -> None:
        """Write down that the stage has ended, with the SHA-256 of its weights."""
        if is_first():
            record = {"stage": self.name, "seconds": round(seconds, 3), **result}
            with writing(self.path):
                if files := (record.get("weights") or {}).values():
                    record[_SUMS] = digests_of(self.path, files)
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
        """Return the folder of a stage; it is made."""
        path = self.path / "stages" / f"{number:02d}-{name}"
        path.mkdir(parents=True, exist_ok=True)
        return StageFolder(path, name)

    def _describe(self, described: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        """Write down another session, if it is of the training that is there."""
        path, sessions = self.path / "run.json", list[Any]()
        plain = without_secrets(json.loads(json.dumps(described)))
        if path.exists():
            try:
                known = read_json(path)
                if known["format"] != FORMAT:
                    raise ValueError("another format")
                sessions = [*known["sessions"]]
                before, now = map(_without_tasks, (known["described"], plain))
                differing = differences(before, now, _MAY_CHANGE)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DataCorrupt(
                    f"expected a training of comap in {path}, found something else ({error}); begin "
                    "anew in another folder"
                ) from error
            made = {one.name for one in self.path.iterdir()} - {"lock", "journal.jsonl", "model"}
            if differing and made > {path.name}:
                raise OptionError(
                    f"expected to go on with the training in {self.path}, found other settings "
                    f"({differing}); give the settings that are there, or begin anew in another folder"
                )
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        sessions.append({"started": started, "versions": {"comap": __version__}, **session})
        write_json(path, {"format": FORMAT, "described": plain, "sessions": sessions})


def write_weights(folder: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write named tensors into a checkpoint, each by the name of its part."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: weight.detach().to("cpu", copy=True).contiguous()
        for name, weight in _named(parts).items()
    }
    save_file(tensors, folder / _WEIGHTS)


def read_weights(folder: Path, parts: Mapping[str, Mapping[str, Tensor]], role: str) -> None:
    """Fill tensors with what `write_weights` wrote of them."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    wanted = _named(parts)
    try:
        found = load_file(folder / _WEIGHTS)
        problem = difference(wanted, found)
    except (OSError, SafetensorError) as error:
        problem = f"the file cannot be read ({error})"
    if problem:
        raise DataCorrupt(
            f"expected the weights of {role} in the checkpoint {folder}, found others: {problem:.400}; "
            "remove that folder to train this stage anew"
        )
    fill(wanted, found)


def _named(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{part}/{name}": w for part, named in parts.items() for name, w in named.items()}


def mark_complete(folder: Path) -> None:
    """Mark a checkpoint as one that training can resume from; the last thing that is written."""
    (folder / _COMPLETE).touch()


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint in a folder, and remove what was left half written."""
    wait()
    found: list[tuple[int, Path]] = []
    for path in sorted(folder.glob("checkpoint-*")):
        number = path.name.rpartition("-")[2]
        if (path / _COMPLETE).exists() and number.isdecimal():
            found.append((int(number), path))
        elif is_first():
            shutil.rmtree(path, ignore_errors=True)
    wait()
    return str(max(found)[1]) if found else None


Done: TypeAlias = "tuple[str, Any]"
"""A key, and the JSON data that came of it."""


def each_once(
    folder: Path, keys: Sequence[str], work: Callable[[Sequence[str]], Iterable[Done]]
) -> dict[str, Any]:
    """Return what came of each key, in the order of the keys; what is known is not done again."""
    mine = list(keys)[rank() :: world_size()]
    path = folder / f"rank-{rank()}-of-{world_size()}.jsonl"
    with writing(folder):
        known = RecordedCalls(path, expected="what came of one thing")
    missing = [key for key in mine if key not in known]
    if missing:
        for key, value in work(missing):
            with writing(folder):
                known.add([{"key": key, "value": value}])
    wait()
    everything = dict(gathered([(key, known.get(key)) for key in mine]))
    return {key: everything[key] for key in keys}
