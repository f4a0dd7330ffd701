"""A training that is a list of stages, and goes on at the first one that is not done.

Each stage has a folder, does its work in a way that depends only on the settings and on what earlier
stages left, and is marked as done at its end. So a training that was stopped or killed goes on with the
episodes, checkpoints and predictions that are there already.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..trajectory import Trajectory
from .run_folder import RunFolder, StageFolder

if TYPE_CHECKING:
    from .session import Session

__all__ = ["StagedTraining", "Work", "fingerprint_of"]

Work: TypeAlias = Callable[[StageFolder], Mapping[str, Any]]
"""A stage's work: returns its result; under ``weights`` the files of what it trained."""


class StagedTraining(ABC):
    """A training in a folder, stage by stage.

    Args:
        session: The models and environments.
        out: The folder.
        told: What to write down of this session: versions, hardware.
    """

    def __init__(self, session: Session, out: Path, told: Mapping[str, Any] | None = None):
        self.session, self.out, self.told = session, out, dict(told or {})

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return what makes this training the training it is, as plain data."""

    @abstractmethod
    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""

    @abstractmethod
    def finish(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Save what came out for use elsewhere, and return the summary.

        Args:
            results: The result of each stage.
        """

    def run(self) -> dict[str, Any]:
        """Do all stages that are not done, and return the summary that is written to the folder.

        Raises:
            OptionError: The folder is another training's, in use or cannot be written, or a setting
                does not fit the models or the environment.
            DataCorrupt: The folder's files are not what they should be.
        """
        with RunFolder(self.out).open(self.described(), self.told) as folder:
            plan = self.stages()
            results: dict[str, dict[str, Any]] = {}
            weights: dict[str, Path] = {}
            loaded = False
            for number, (name, work) in enumerate(plan):
                stage = folder.stage(number, name)
                self.session.places[name] = stage
                found = stage.result()
                event = {"stage": name, "number": number + 1, "of": len(plan)}
                if found is None:
                    if not loaded:
                        self.session.load(weights)
                        loaded = True
                    self.session.tell({"event": "stage", **event})
                    found = self._do(stage, work)
                else:
                    stage.tidy()
                    self.session.tell({"event": "known", **event})
                weights |= stage.trained(self.session.roles.names)
                results[name] = found
            if not loaded:
                self.session.load(weights)
            return self.finish(results)

    def _do(self, stage: StageFolder, work: Work) -> dict[str, Any]:
        began, cpu = time.monotonic(), time.process_time()
        result = work(stage)
        spent = round(time.process_time() - cpu, 3)
        stage.finish({**result, "cpu_seconds": spent}, time.monotonic() - began)
        found = stage.result()
        assert found is not None
        self.session.tell({"event": "done", "stage": stage.name, "result": found})
        return found


def fingerprint_of(demos: Sequence[Trajectory]) -> str:
    """Return how many demonstrations there are, and what identifies them.

    Example:
        >>> fingerprint_of(())
        '0, sha256 e3b0c44298fc1c14'
    """
    digest = hashlib.sha256()
    for shown in demos:
        told = (shown.env_id, shown.task, [step.action for step in shown.steps])
        digest.update(json.dumps(told).encode("ascii") + b"\n")
    return f"{len(demos)}, sha256 {digest.hexdigest()[:16]}"
