"""The folder of a training: what was asked, and one folder for each stage.

``run.json`` tells the settings, the environment and each session's versions; ``stages/NN-NAME`` is a
stage's folder, and ``done.json`` in it, written last, tells that the stage has ended and with what. A
stage without it is done again, or goes on, when the training is started again. All JSON files have
checksums (`comap.checksums`), and ``done.json`` has those of the stage's weights.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..agents.records import writing
from ..agents.run_description import differences
from ..checksums import seal, sums_of, unseal, wrong_file
from ..envs.storage import locked
from ..errors import DataCorrupt, DownloadError, OptionError
from .processes import is_first, wait

__all__ = ["FORMAT", "HEAD", "RunFolder", "StageFolder", "read_json", "write_json"]

FORMAT = "comap training 1"
"""What a ``run.json`` begins with."""

HEAD = "head"
"""What the refinement head is called among the weights of a stage."""

_DONE, _SUMS = "done.json", "weights_files"
_CONTENT = "content"
_NAME = re.compile(r"[a-z0-9-]+")
_ROLE = re.compile(r"[A-Za-z0-9_-]+")
_NO_MATTER = {"config.live", "config.save_steps"}  # may change when a training is gone on with


@dataclass(frozen=True, slots=True)
class StageFolder:
    """A stage's folder.

    Attributes:
        path: The folder.
        name: The stage's name.

    Example:
        >>> StageFolder(Path("stages/00-warmup-policy"), "warmup-policy").weights("agent").name
        'agent.safetensors'
    """

    path: Path
    name: str

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are kept until the stage ends."""
        return self.path / "checkpoints"

    def weights(self, role: str) -> Path:
        """Return the file of a role's weights, or of the head's, which may not be there."""
        assert _ROLE.fullmatch(role), role
        return self.path / f"{role}.safetensors"

    def trained(self, roles: Collection[str]) -> dict[str, Path]:
        """Return the files of what the stage trained, once it has ended.

        Args:
            roles: The roles of the training; its head may be there besides.

        Raises:
            DataCorrupt: The result tells of something else, or a file was changed since.
        """
        result = self._read() or {}
        told = result.get("weights", {})
        known = {role: self.weights(role) for role in (*roles, HEAD)}
        if not isinstance(told, Mapping) or any(
            role not in known or file != known[role].name for role, file in told.items()
        ):
            raise DataCorrupt(
                f"expected weights of {', '.join(known)} in {self.path / _DONE}, found {told!r:.200}; "
                "remove that file to do the stage again"
            )
        if wrong := wrong_file(self.path, result.get(_SUMS, {})):
            raise DataCorrupt(
                f"{wrong} in {self.path}, where {self.name} left it; restore it, or remove the folders "
                "of that stage and of all later ones to do them again"
            )
        return {role: known[role] for role in told}

    def result(self) -> dict[str, Any] | None:
        """Return what the stage ended with; None while it has not.

        Raises:
            DataCorrupt: The file is not what `finish` wrote.
        """
        found = self._read()
        return found and {name: value for name, value in found.items() if name != _SUMS}

    def _read(self) -> dict[str, Any] | None:
        """Return what `finish` wrote, the checksums of the weights included."""
        file = self.path / _DONE
        if not file.exists():
            return None
        try:
            found: dict[str, Any] = unseal(file.read_bytes())
            if found["stage"] != self.name:
                raise ValueError(f"it is of {found['stage']!r:.80}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataCorrupt(
                f"expected the result of stage {self.name} in {file}, found something else "
                f"({error}); remove that file to do the stage again"
            ) from error
        return found

    def finish(self, result: Mapping[str, Any], seconds: float) -> None:
        """Write down that the stage has ended, with the checksums of its weights.

        Args:
            result: Its result, as JSON data; ``weights`` names the files of its weights by role.
            seconds: How long it took.
        """
        if is_first():
            told = {"stage": self.name, "seconds": round(seconds, 3), **result}
            with writing(self.path):
                if files := (told.get("weights") or {}).values():
                    told[_SUMS] = sums_of(self.path, files)
                write_json(self.path / _DONE, told)
        self.tidy()
        wait()

    def tidy(self) -> None:
        """Remove the checkpoints of a stage that has ended; before that they are needed."""
        if is_first() and (self.path / _DONE).exists():
            shutil.rmtree(self.checkpoints, ignore_errors=True)


class RunFolder:
    """The folder of a training.

    Args:
        path: The folder; made where it is missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place, RunFolder(place).open({"a": 1}, {}) as run:
        ...     stage = run.stage(0, "warmup-policy")
        ...     stage.finish({"rows": 3}, 0.5)
        ...     stage.result()["rows"]
        3
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @contextmanager
    def open(self, described: Mapping[str, Any], session: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Take the folder for this training; nobody else may write there meanwhile.

        Args:
            described: What makes this training the training it is, as plain data.
            session: What else to write down of this session: versions, hardware.

        Raises:
            OptionError: The folder is another training's, in use or cannot be written.
            DataCorrupt: Its ``run.json`` is none.
        """
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
        assert _NAME.fullmatch(name), name
        path = self.path / "stages" / f"{number:02d}-{name}"
        path.mkdir(parents=True, exist_ok=True)
        return StageFolder(path, name)

    def _describe(self, described: Mapping[str, Any], session: Mapping[str, Any]) -> None:
        path = self.path / "run.json"
        plain = json.loads(json.dumps(described))
        sessions: list[Any] = []
        if path.exists():
            known = _read(path)
            sessions = known["sessions"]
            _check_same(path, known["described"], plain)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        sessions.append({"started": started, **session})
        write_json(path, {"format": FORMAT, "described": plain, "sessions": sessions})


def write_json(path: Path, value: object) -> None:
    """Write a file so that a reader finds the old one or the new one, whole; it has a checksum.

    Args:
        path: The file; its folder is there.
        value: JSON data; what is no object is put into one, of which it is the ``content``.

    Example:
        >>> write_json(Path("some.json"), [1, 2])
        >>> read_json(Path("some.json"))
        [1, 2]
    """
    whole = value if isinstance(value, dict) else {_CONTENT: value}
    draft = path.with_name(path.name + ".part")
    draft.write_text(seal(json.dumps(whole, indent=2)) + "\n", "ascii")
    draft.replace(path)


def read_json(path: Path) -> Any:
    """Return what `write_json` wrote, in this version or an older one.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no JSON, or was changed.

    Example:
        >>> size = Path("old.json").write_text("[1, 2]")
        >>> read_json(Path("old.json"))
        [1, 2]
    """
    found = unseal(path.read_bytes())
    return found[_CONTENT] if isinstance(found, dict) and found.keys() == {_CONTENT} else found


def _read(path: Path) -> dict[str, Any]:
    try:
        known: dict[str, Any] = unseal(path.read_bytes())
        if known["format"] != FORMAT or not isinstance(known["sessions"], list):
            raise ValueError("another format")
        known["described"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataCorrupt(
            f"expected a training of comap in {path}, found something else ({error}); begin anew in "
            "another folder"
        ) from error
    return known


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    told = differences(before, now, _NO_MATTER)
    if told:
        raise OptionError(
            f"expected to go on with the training in {path.parent}, found other settings ({told}); "
            "give the settings that are there, or begin anew in another folder"
        )
