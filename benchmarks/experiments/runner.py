"""Runs the jobs of a plan: in parallel, in the order of what they need, past those that fail."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...envs.storage import locked
from ...errors import DataCorrupt, DownloadError, OptionError
from ..record import circumstances, write_result
from .commands import Places, commands, folder_of
from .jobs import Job, Plan
from .worker import PRELOADED, Main, work

__all__ = ["Ended", "Tell", "code_version", "job_record", "run_jobs"]

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "gymnasium", "numpy")
_RECORD, _LOG, _TOLD = "job.json", "log.txt", "ended.json"
_JOURNAL = "journal.jsonl"
_LINES = 12  # of a failed job's log that its record keeps

Tell = Callable[[str, Job, str], object]
"""Told of a job's beginning and end: what happened (``begun``, ``done``, ``failed``, ``left out``), the
job, and a word on it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended.

    Attributes:
        ok: Whether it did what it should.
        why: What went wrong, in a line or a few.
    """

    ok: bool
    why: str = ""


def run_jobs(
    plan: Plan,
    places: Places,
    main: Main,
    *,
    workers: int = 1,
    launcher: str | None = None,
    tell: Tell = lambda event, job, word: None,
) -> dict[str, Ended]:
    """Run all jobs that have not ended well yet, and return how each ended.

    A job that failed or was stopped goes on where it was. One whose needs failed is left out. The
    folder belongs to one runner at a time.

    Args:
        plan: What is to be run.
        places: Where things are.
        main: Runs the words of one command after ``comap`` and returns its exit code; a function of a
            module, since other processes call it.
        workers: Jobs at the same time, each in a process of its own.
        launcher: What trainings are started with in place of this Python, such as
            ``accelerate launch --num_processes 4 -m comap``; None runs all within worker processes.
        tell: Told what happens.

    Raises:
        OptionError: The folder is another runner's now, or official data has no place.

    Example:
        >>> run_jobs(plan, Places(Path("runs/tiny")), main, workers=2)  # doctest: +SKIP
    """
    if workers < 1:
        raise OptionError(f"--workers must be at least 1, not {workers}")
    planned = {name: commands(plan, job, places) for name, job in plan.jobs.items()}
    places.out.mkdir(parents=True, exist_ok=True)
    with _alone(places.out):
        _journal(places, {"event": "begun", "scale": plan.scale.name, "jobs": len(planned)})
        pool = _Pool(plan, places, planned, main, workers, launcher, tell)
        try:
            return pool.run()
        finally:
            pool.stop()
            _journal(places, {"event": "ended", **pool.counts()})


def job_record(places: Places, job: Job) -> dict[str, Any] | None:
    """Return what is recorded of a job; None where it has not been run with this configuration.

    Raises:
        DataCorrupt: The record cannot be read.
    """
    path = places.out / "jobs" / job.id / _RECORD
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        if found["config_hash"] != job.config_hash:
            return None
        return found
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"expected a job's record in {path}, found {error}; remove it") from error


class _Pool:
    """The jobs that wait, those that run, and how the others ended."""

    def __init__(
        self,
        plan: Plan,
        places: Places,
        planned: Mapping[str, Sequence[Sequence[str]]],
        main: Main,
        workers: int,
        launcher: str | None,
        tell: Tell,
    ):
        self.plan, self.places, self.planned = plan, places, planned
        self.main, self.workers, self.launcher, self.tell = main, workers, launcher, tell
        self.ended: dict[str, Ended] = {}
        self.running: dict[str, Any] = {}
        self.started: dict[str, float] = {}
        self.context = _context(workers)

    def run(self) -> dict[str, Ended]:
        waiting = [job for job in self.plan.jobs.values() if not self._settled(job)]
        while waiting or self.running:
            self._reap()
            waiting = [job for job in waiting if not self._left_out(job)]
            for job in [job for job in waiting if self._ready(job)]:
                if len(self.running) >= self.workers:
                    break
                waiting.remove(job)
                self._begin(job)
            if self.running:
                time.sleep(0.05)
        return self.ended

    def counts(self) -> dict[str, int]:
        done = sum(one.ok for one in self.ended.values())
        return {"done": done, "failed": len(self.ended) - done}

    def stop(self) -> None:
        """End what still runs, when the runner itself is stopped."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            (process.join if hasattr(process, "join") else process.wait)(10)

    def _settled(self, job: Job) -> bool:
        """Return whether a job was run before, or has no command to run."""
        record = job_record(self.places, job)
        if record is not None and record["status"] == "done":
            self.ended[job.id] = Ended(True)
            self.tell("done", job, "before")
        elif not self.planned[job.id]:
            self._end(job, Ended(True), {"seconds": 0.0, "cpu_seconds": 0.0}, "done")
        return job.id in self.ended

    def _left_out(self, job: Job) -> bool:
        """Return whether a job cannot be run, since one that it needs has failed."""
        for name, needed in job.needs.items():
            if needed in self.ended and not self.ended[needed].ok:
                self._end(job, Ended(False, f"needs {name}, which failed"), None, "left out")
                return True
        return False

    def _ready(self, job: Job) -> bool:
        return all(needed in self.ended for needed in job.needs.values())

    def _begin(self, job: Job) -> None:
        folder = self.places.out / "jobs" / job.id
        folder_of(self.places, job.id).mkdir(parents=True, exist_ok=True)
        (folder / _TOLD).unlink(missing_ok=True)
        self.started[job.id] = time.monotonic()
        words = [list(command) for command in self.planned[job.id]]
        if self.launcher is not None and job.recipe.kind in ("comap", "baseline", "paw"):
            self.running[job.id] = _launched(self.launcher, words, folder)
        else:
            process = self.context.Process(
                target=work,
                args=(self.main, words, str(folder / _LOG), str(folder / _TOLD)),
                daemon=False,
            )
            process.start()
            self.running[job.id] = process
        self.tell("begun", job, "")

    def _reap(self) -> None:
        for name, process in list(self.running.items()):
            code = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
            if code is None:
                continue
            del self.running[name]
            job = self.plan.jobs[name]
            folder = self.places.out / "jobs" / name
            cost = _cost(folder / _TOLD) or {
                "seconds": round(time.monotonic() - self.started[name], 2)
            }
            if code == 0:
                self._end(job, Ended(True), cost, "done")
            else:
                said = f"signal {-code}" if code < 0 else f"exit code {code}"
                why = f"{said}: {_last_lines(folder / _LOG)}"
                self._end(job, Ended(False, why), cost, "failed")

    def _end(self, job: Job, ended: Ended, cost: Mapping[str, Any] | None, event: str) -> None:
        self.ended[job.id] = ended
        place = job.place and {"id": job.place.env, "options": dict(job.place.options)}
        record = {
            "job": job.id,
            "recipe": job.recipe.name,
            "kind": job.recipe.kind,
            "backbone": job.backbone and job.backbone.name,
            "env": place,
            "seed": job.seed,
            "preset": job.preset,
            "settings": dict(job.settings),
            "needs": dict(job.needs),
            "config_hash": job.config_hash,
            "commands": [self._plain(words) for words in self.planned[job.id]],
            "status": "done" if ended.ok else event,
            "why": ended.why or None,
            "cost": None if cost is None else dict(cost),
            **_circumstances(),
        }
        folder = self.places.out / "jobs" / job.id
        folder.mkdir(parents=True, exist_ok=True)
        write_result(folder / _RECORD, record)
        _journal(self.places, {"event": event, "job": job.id, "why": ended.why or None})
        self.tell(event, job, ended.why)

    def _plain(self, words: Sequence[str]) -> str:
        """Return a command without places on this machine."""
        known = {str(self.places.out): "OUT"}
        known |= dict.fromkeys(self.places.data.values(), "DATA")
        known |= dict.fromkeys(self.places.demos.values(), "DEMOS")
        told = [*words]
        for place, name in known.items():
            told = [word.replace(place, name) for word in told]
        return shlex.join(["comap", *told])


def _context(workers: int) -> Any:
    """Return what makes worker processes: forks of one that has imported what is slow to import."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    if workers > 1 or (os.cpu_count() or 1) <= 2:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads of a small model only wait
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _launched(launcher: str, commands_: Sequence[Sequence[str]], folder: Path) -> Any:
    """Start the one command of a training with a launcher."""
    (words,) = commands_
    with (folder / _LOG).open("ab") as log:
        return subprocess.Popen(
            [*shlex.split(launcher), *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )


def _cost(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return {name: found[name] for name in ("seconds", "cpu_seconds", "peak_mib") if name in found}


def _last_lines(path: Path) -> str:
    """Return the end of a log: what its command complained of."""
    try:
        with path.open("rb") as log:
            log.seek(max(path.stat().st_size - 8192, 0))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "no log"
    told = [
        line for line in lines if line.strip() and not line[0].isspace()
    ]  # no traceback's files
    told = [line for line in told if not line.startswith("Traceback")][-_LINES:]
    complaints = [line for line in told if line.startswith("comap")]
    return complaints[-1] if complaints else " | ".join(told)[-1000:]


def _circumstances() -> dict[str, Any]:
    return {**circumstances(_PACKAGES), "code": code_version()}


@cache
def code_version() -> str:
    """Return comap's version, and the commit where it runs from a checkout without changes.

    Example:
        >>> code_version().split("+")[0].count(".")
        2
    """
    from ... import __version__

    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return __version__
    asked = [["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]]
    try:
        told = [
            subprocess.run(
                ["git", "-C", str(root), *words],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout.strip()
            for words in asked
        ]
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}+{told[0]}{'.changed' if told[1] else ''}"


def _journal(places: Places, line: Mapping[str, Any]) -> None:
    """Write down what happened, with the time."""
    told = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **line}
    if line["event"] == "begun":
        told |= {"python": platform.python_version(), "code": code_version()}
    with (places.out / _JOURNAL).open("a", encoding="ascii") as file:
        file.write(json.dumps({k: v for k, v in told.items() if v is not None}) + "\n")


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(locked(out / "lock", wait=0.0))
        except DownloadError as error:
            raise OptionError(
                f"expected {out} to be free, found another 'comap bench run' at work in it; wait for "
                "it, or give another --out"
            ) from error
        yield
