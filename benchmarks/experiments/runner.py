"""Runs the jobs of a plan: in parallel, in the order of what they need, past those that fail.

Each job has a folder ``jobs/ID``: ``out`` is written by its commands, ``log.txt`` holds what they print,
``ended.json`` what they cost, and ``job.json`` is the record of how it ended, with its configuration.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shlex
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import __version__
from ...envs.storage import locked
from ...errors import DataCorrupt, DownloadError, OptionError
from ..record import circumstances, commit, write_result
from .cluster import Cluster, InProcess, is_cluster
from .plan import Job, Paths, Plan, commands

PRELOADED = ("torch", "transformers", "comap.cli", "comap.benchmarks.experiments.runner")
"""What the process that workers are forked from has imported: each of them would take seconds."""
RECORD = "job.json"

_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "gymnasium", "numpy")
_LOG, _COST = "log.txt", "ended.json"
_LINES = 12  # of a failed job's log that its record keeps

Main = Callable[[Sequence[str]], int]
"""Runs the words of a command after ``comap`` and returns its exit code."""
Listener = Callable[[str, Job, str], object]
"""Called when a job begins or ends: the event (begun, done, failed, left out), the job, and why."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    ok: bool
    why: str = ""


def run_jobs(
    plan: Plan,
    paths: Paths,
    main: Main,
    *,
    workers: int = 1,
    launcher: str | None = None,
    listener: Listener = lambda event, job, why: None,
) -> dict[str, Ended]:
    if workers < 1:
        raise OptionError(f"--jobs must be at least 1, not {workers}")
    planned = {name: commands(plan, job, paths) for name, job in plan.jobs.items()}
    paths.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(paths.out / "lock", wait=0.0))
        except DownloadError as error:
            raise OptionError(
                f"expected {paths.out} to be free, found another 'comap bench run' at work in it; wait "
                "for it, or give another --out"
            ) from error
        pool = _Pool(plan, paths, planned, main, workers, launcher, listener)
        try:
            return pool.run()
        finally:
            pool.stop()


def job_record(paths: Paths, job: Job) -> dict[str, Any] | None:
    """Return what is recorded of a job; None where it has not been run with this configuration."""
    path = paths.of(job.id).parent / RECORD
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found if found["config_hash"] == job.config_hash else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"expected a job's record in {path}, found {error}; remove it") from error


@dataclass
class _Pool:
    """The jobs that wait, those that run, and how the others ended."""

    plan: Plan
    paths: Paths
    planned: Mapping[str, Sequence[Sequence[str]]]
    main: Main
    workers: int
    launcher: str | None
    listener: Listener
    ended: dict[str, Ended] = field(default_factory=dict)
    running: dict[str, Any] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def run(self) -> dict[str, Ended]:
        cluster = None
        if self.launcher is not None and is_cluster(self.launcher):
            cluster = Cluster(self.launcher, self.paths.out / "submitted")
        context = None if cluster else _context(self.workers)
        waiting = [job for job in self.plan.jobs.values() if not self._is_settled(job)]
        while waiting or self.running:
            self._reap()
            waiting = [job for job in waiting if not self._is_left_out(job)]
            ready = [job for job in waiting if self.ended.keys() >= {*job.needs.values()}]
            for job in ready[: self.workers - len(self.running)]:
                waiting.remove(job)
                self._begin(job, context, cluster)
            if self.running:
                time.sleep(1.0 if cluster else 0.05)
        return self.ended

    def stop(self) -> None:
        """End what still runs, when the runner itself is stopped."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            (process.join if hasattr(process, "join") else process.wait)(10)

    def _is_settled(self, job: Job) -> bool:
        """Return whether a job was run before, or has no command to run."""
        record = job_record(self.paths, job)
        if record is not None and record["status"] == "done":
            self.ended[job.id] = Ended(True)
            self.listener("done", job, "before")
        elif not self.planned[job.id]:
            self._end(job, "done", cost={"seconds": 0.0, "cpu_seconds": 0.0})
        return job.id in self.ended

    def _is_left_out(self, job: Job) -> bool:
        """Return whether a job cannot be run, since one that it needs has failed."""
        for name, needed in job.needs.items():
            if needed in self.ended and not self.ended[needed].ok:
                self._end(job, "left out", f"needs {name}, which failed")
                return True
        return False

    def _begin(self, job: Job, context: Any, cluster: Cluster | None) -> None:
        out = self.paths.of(job.id)
        out.mkdir(parents=True, exist_ok=True)
        log, cost = out.parent / _LOG, out.parent / _COST
        cost.unlink(missing_ok=True)
        self.started[job.id] = time.monotonic()
        words = [list(command) for command in self.planned[job.id]]
        arguments = (self.main, words, str(log), str(cost))
        if cluster is not None:
            self.running[job.id] = cluster.submit(job.id, InProcess(work, arguments), log)
        elif self.launcher is not None and job.recipe.kind in ("comap", "baseline", "paw"):
            (training,) = words
            with log.open("ab") as file:
                self.running[job.id] = subprocess.Popen(
                    [*shlex.split(self.launcher), *training],
                    stdout=file,
                    stderr=file,
                    stdin=subprocess.DEVNULL,
                )
        else:
            process = context.Process(target=work, args=arguments, daemon=False)
            process.start()
            self.running[job.id] = process
        self.listener("begun", job, "")

    def _reap(self) -> None:
        for name, process in list(self.running.items()):
            code = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
            if code is None:
                continue
            del self.running[name]
            folder = self.paths.of(name).parent
            cost = _cost(folder / _COST)
            cost = cost or {"seconds": round(time.monotonic() - self.started[name], 2)}
            why = ""
            if code != 0:
                why = f"signal {-code}" if code < 0 else f"exit code {code}"
                why += f": {_last_lines(folder / _LOG)}"
            self._end(self.plan.jobs[name], "failed" if code else "done", why, cost)

    def _end(
        self, job: Job, event: str, why: str = "", cost: Mapping[str, Any] | None = None
    ) -> None:
        self.ended[job.id] = Ended(event == "done", why)
        record = {
            "job": job.id,
            "recipe": job.recipe.name,
            "kind": job.recipe.kind,
            "backbone": job.backbone and job.backbone.name,
            "env": job.setup and {"id": job.setup.env, "options": dict(job.setup.options)},
            "seed": job.seed,
            "preset": job.preset,
            "settings": dict(job.settings),
            "needs": dict(job.needs),
            "config_hash": job.config_hash,
            "commands": [self._portable(words) for words in self.planned[job.id]],
            "status": event,
            "why": why or None,
            "cost": None if cost is None else dict(cost),
            **circumstances(_PACKAGES),
            "code": code_version(),
        }
        write_result(self.paths.of(job.id).parent / RECORD, record)
        self.listener(event, job, why)

    def _portable(self, words: Sequence[str]) -> str:
        """Return a command without paths on this machine."""
        names = {str(self.paths.out): "OUT"}
        names |= dict.fromkeys(self.paths.data.values(), "DATA")
        names |= dict.fromkeys(self.paths.demos.values(), "DEMOS")
        words = [*words]
        for path, name in names.items():
            words = [word.replace(path, name) for word in words]
        return shlex.join(["comap", *words])


def _context(workers: int) -> Any:
    """Return what makes worker processes: forks of one that has imported what is slow to import."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    if workers > 1 or (os.cpu_count() or 1) <= 2:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads of a small model only wait
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


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
    # of a traceback, the error without its files
    lines = [line for line in lines if line.strip() and not line[0].isspace()]
    lines = [line for line in lines if not line.startswith("Traceback")][-_LINES:]
    complaints = [line for line in lines if line.startswith("comap")]
    return complaints[-1] if complaints else " | ".join(lines)[-1000:]


def code_version() -> str:
    known = commit() or ""
    return f"{__version__}+{known[:10]}{known[40:]}" if known else __version__


# What follows runs in a job's own process.


def work(main: Main, commands: Sequence[Sequence[str]], log: str, cost: str) -> None:
    """Run commands, with what they print in a file, and exit as the first that fails does."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", 1, encoding="utf-8", errors="replace", closefd=False)
        for number in (1, 2)
    )
    threading.Thread(target=_end_with_runner, daemon=True).start()
    start, code = time.monotonic(), 0
    for words in commands:
        code = _run(main, words)
        if code:
            break
    sys.stdout.flush()
    sys.stderr.flush()
    own, others = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    ended = {
        "exit": code,
        "seconds": round(time.monotonic() - start, 2),
        "cpu_seconds": round(sum(u.ru_utime + u.ru_stime for u in (own, others)), 2),
        "peak_mib": round(max(own.ru_maxrss, others.ru_maxrss) / 1024, 1),
    }
    Path(cost).write_text(json.dumps(ended) + "\n", "ascii")
    os._exit(min(code, 255))  # threads of libraries shall not keep it


def _end_with_runner() -> None:
    """End this process when the runner has ended, however it did: nobody would know of its job."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        runner.join()
        os._exit(1)


def _run(main: Main, words: Sequence[str]) -> int:
    try:
        return main([*words])
    except SystemExit as error:  # a command line that is not understood
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 70
