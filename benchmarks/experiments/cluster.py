"""Jobs on a cluster, through submitit: each is a submission of its own, and goes on after a preemption."""

from __future__ import annotations

import multiprocessing
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import OptionError, needs_extra

CLUSTERS = ("slurm", "local")

_MINUTES = 240  # of a job, where the user gives no timeout_min
_TIMEOUTS = 100  # after which a job is not submitted again; each goes on where the last one ended


def is_cluster(launcher: str | None) -> bool:
    """Return whether a launcher names a cluster, and not a program that starts a training."""
    words = (launcher or "").split()
    return bool(words) and words[0] in CLUSTERS


class Cluster:
    """Submits jobs to Slurm, or for a trial to this machine, with submitit's own parameters."""

    def __init__(self, launcher: str, folder: Path) -> None:
        with needs_extra("slurm", "submitting jobs to a cluster"):
            import submitit

        name, *settings = shlex.split(launcher)
        parameters: dict[str, Any] = {"timeout_min": _MINUTES}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals:
                raise OptionError(f"--launcher {name} expects NAME=VALUE, found {setting!r}")
            parameters[key] = int(value) if value.isdigit() else value

        # submitit raises at once for a parameter that it does not know, and where Slurm is not installed.
        try:
            self._executor = submitit.AutoExecutor(
                folder, cluster=name, slurm_max_num_timeout=_TIMEOUTS
            )
            self._executor.update_parameters(**parameters)
        except (RuntimeError, NameError, ValueError, TypeError) as error:
            raise OptionError(
                f"expected a cluster and parameters that submitit takes in --launcher {launcher!r}: {error}"
            ) from error

    def submit(self, name: str, work: Callable[[], int], log: Path) -> Submitted:
        """Submit a function as a job of that name; OptionError where the cluster refuses it."""
        self._executor.update_parameters(name=name)
        try:
            return Submitted(self._executor.submit(work), log)
        except Exception as error:  # of submitit: what the cluster's own command said
            reason = " ".join(str(error).split())[:500]
            raise OptionError(
                f"expected the cluster to take the job {name}, found: {reason}; "
                "mend --launcher's parameters"
            ) from error


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submission, with what the runner asks of a process."""

    job: Any
    log: Path

    @property
    def exitcode(self) -> int | None:
        """The exit code; None while it waits or runs."""
        if not self.job.done():
            return None
        try:
            return int(self.job.result())
        except Exception as error:  # whatever the cluster did to it
            with self.log.open("a", encoding="utf-8") as file:
                file.write(f"{error}\n")
            return 1

    def terminate(self) -> None:
        self.job.cancel(check=False)

    def join(self, timeout: float) -> None:
        """Return at once: the cluster ends it."""


@dataclass(frozen=True, slots=True)
class InProcess:
    """Runs a function in a process of its own, which ends with the submission; returns its exit code."""

    target: Callable[..., object]
    arguments: Sequence[object]

    def __call__(self) -> int:
        process = multiprocessing.get_context("spawn").Process(
            target=self.target, args=tuple(self.arguments)
        )
        process.start()
        try:
            process.join()
        finally:  # a preemption raises here
            process.terminate()
        return process.exitcode or 0

    def checkpoint(self) -> Any:
        """Return what is submitted after a preemption: the same, since commands go on where they were."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
