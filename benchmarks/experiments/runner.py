"""Runs the jobs of a plan: in parallel, in the order of what they need, past those that fail.

Each job has a folder ``jobs/ID``: ``out`` is written by its commands, ``log.txt`` holds what they print,
``ended.json`` what they cost, and ``job.json`` is the record of how it ended, with its configuration.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
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
_LOG = "log.txt"
_COST = "ended.json"
_COSTS = ("seconds", "cpu_seconds", "peak_mib")
_LINES = 12  # of a failed job's log that its record keeps

Main = Callable[[Sequence[str]], int]
"""Runs the words of a command after ``comap`` and returns its exit code."""
Listener = Callable[[str, Job, str], object]
"""Called when a job begins or ends: the event (begun, done, failed, left out), the job, and why."""


@dataclass(frozen=True, slots=True)
class JobEnd:
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
) -> dict[str, JobEnd]:
    """Run the jobs of a plan that have not been run, and return how each of all ended."""
    if workers < 1:
        raise OptionError(f"--jobs must be at least 1, not {workers}")
    # All commands are made before the first job runs: what is missing is said at once.
    job_commands = {name: commands(plan, job, paths) for name, job in plan.jobs.items()}
    paths.out.mkdir(parents=True, exist_ok=True)

    with ExitStack() as stack:
        # Two runners would write the same jobs' folders.
        try:
            stack.enter_context(locked(paths.out / "lock", wait=0.0))
        except DownloadError as error:
            raise OptionError(
                f"expected {paths.out} to be free, found another 'comap bench run' at work in it; wait "
                "for it, or give another --out"
            ) from error

        pool = _Pool(plan, paths, job_commands, main, workers, launcher, listener)
        try:
            return pool.run()
        finally:
            pool.stop()


def job_record(paths: Paths, job: Job) -> dict[str, Any] | None:
    """Return what is recorded of a job; None where it has not been run with this configuration."""
    path = paths.of(job.id).parent / RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        return record if record["config_hash"] == job.config_hash else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"expected a job's record in {path}, found {error}; remove it") from error


@dataclass
class _Pool:
    """The jobs that wait, those that run, and how the others ended."""

    plan: Plan
    paths: Paths
    commands: Mapping[str, Sequence[Sequence[str]]]
    main: Main
    workers: int
    launcher: str | None
    listener: Listener
    ends: dict[str, JobEnd] = field(default_factory=dict)
    running: dict[str, Any] = field(default_factory=dict)
    """the process of each job, a launcher's `Popen` or a cluster's `Submitted`"""
    start_times: dict[str, float] = field(default_factory=dict)

    def run(self) -> dict[str, JobEnd]:
        """Run all jobs, each as soon as what it needs has ended and a worker is free."""
        cluster = None
        if self.launcher is not None and is_cluster(self.launcher):
            cluster = Cluster(self.launcher, self.paths.out / "submitted")
        context = None if cluster else _context(self.workers)

        waiting = [job for job in self.plan.jobs.values() if not self._is_settled(job)]
        while waiting or self.running:
            self._reap()
            waiting = [job for job in waiting if not self._is_left_out(job)]
            ready = [job for job in waiting if self.ends.keys() >= {*job.needs.values()}]
            for job in ready[: self.workers - len(self.running)]:
                waiting.remove(job)
                self._begin(job, context, cluster)
            if self.running:
                # A submission's state is read from files, or asked of the cluster.
                time.sleep(1.0 if cluster else 0.05)
        return self.ends

    def stop(self) -> None:
        """End what still runs, when the runner itself is stopped."""
        # All are told before the first is waited for.
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            if isinstance(process, subprocess.Popen):
                process.wait(10)
            else:
                process.join(10)

    def _is_settled(self, job: Job) -> bool:
        """Return whether a job was run before, or has no command to run."""
        record = job_record(self.paths, job)
        if record is not None and record["status"] == "done":
            self.ends[job.id] = JobEnd(True)
            self.listener("done", job, "before")
        elif not self.commands[job.id]:
            self._end(job, "done", cost={"seconds": 0.0, "cpu_seconds": 0.0})
        return job.id in self.ends

    def _is_left_out(self, job: Job) -> bool:
        """Return whether a job cannot be run, since one that it needs has failed."""
        for recipe_name, needed_job in job.needs.items():
            if needed_job in self.ends and not self.ends[needed_job].ok:
                self._end(job, "left out", f"needs {recipe_name}, which failed")
                return True
        return False

    def _begin(self, job: Job, context: Any, cluster: Cluster | None) -> None:
        """Start a job where it belongs: on the cluster, under the launcher, or in a worker."""
        out = self.paths.of(job.id)
        out.mkdir(parents=True, exist_ok=True)
        log = out.parent / _LOG
        cost = out.parent / _COST
        # Of an earlier try: it would be taken for this one's.
        cost.unlink(missing_ok=True)

        self.start_times[job.id] = time.monotonic()
        words = [list(command) for command in self.commands[job.id]]
        arguments = (self.main, words, str(log), str(cost))
        if cluster is not None:
            self.running[job.id] = cluster.submit(job.id, InProcess(work, arguments), log)
        elif self.launcher is not None and job.recipe.kind in ("comap", "baseline", "paw"):
            # Only trainings are launched so: a launcher starts one process for each GPU.
            (training,) = words
            self.running[job.id] = _launch(self.launcher, training, log)
        else:
            process = context.Process(target=work, args=arguments, daemon=False)
            process.start()
            self.running[job.id] = process
        self.listener("begun", job, "")

    def _reap(self) -> None:
        """Record the jobs whose process has ended."""
        for name, process in list(self.running.items()):
            code = process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
            if code is None:
                continue
            del self.running[name]

            folder = self.paths.of(name).parent
            end_record = _read_end(folder / _COST)
            cost = {part: end_record[part] for part in _COSTS if part in end_record}
            if not cost:  # it was killed, or a launcher ran it
                cost = {"seconds": round(time.monotonic() - self.start_times[name], 2)}
            why = ""
            if code != 0:
                why = f"signal {-code}" if code < 0 else f"exit code {code}"
                why += f": {_last_lines(folder / _LOG)}"
            event = "failed" if code else "done"
            self._end(self.plan.jobs[name], event, why, cost, end_record.get("gpus", ()))

    def _end(
        self,
        job: Job,
        event: str,
        why: str = "",
        cost: Mapping[str, Any] | None = None,
        gpus: Sequence[str] = (),
    ) -> None:
        """Write the record of a job that has ended, or that will not be run."""
        self.ends[job.id] = JobEnd(event == "done", why)
        setup = job.setup
        env = None
        if setup is not None:
            env = {"id": setup.env, "options": dict(setup.options)}

        job_circumstances = circumstances(_PACKAGES)
        if gpus:
            job_circumstances["hardware"]["gpus"] = list(gpus)

        record = {
            "job": job.id,
            "recipe": job.recipe.name,
            "kind": job.recipe.kind,
            "backbone": None if job.backbone is None else job.backbone.name,
            "env": env,
            "seed": job.seed,
            "preset": job.preset,
            "settings": dict(job.settings),
            "needs": dict(job.needs),
            "config_hash": job.config_hash,
            "commands": [self._portable(words) for words in self.commands[job.id]],
            "status": event,
            "why": why or None,
            "cost": None if cost is None else dict(cost),
            **job_circumstances,
            "code": code_version(),
        }
        write_result(self.paths.of(job.id).parent / RECORD, record)
        self.listener(event, job, why)

    def _portable(self, words: Sequence[str]) -> str:
        """Return a command without paths on this machine: records are published."""
        names = {str(self.paths.out): "OUT"}
        names |= dict.fromkeys(self.paths.data.values(), "DATA")
        names |= dict.fromkeys(self.paths.demos.values(), "DEMOS")
        names |= dict.fromkeys(self.paths.models.values(), "MODEL")

        portable = list(words)
        for path, name in names.items():
            portable = [word.replace(path, name) for word in portable]
        return shlex.join(["comap", *portable])


def _launch(launcher: str, training: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a training under a launcher such as accelerate's, with what it prints in a file."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [*shlex.split(launcher), *training],
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
        )


def _context(workers: int) -> Any:
    """Return what makes worker processes: forks of one that has imported what is slow to import."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    if workers > 1 or (os.cpu_count() or 1) <= 2:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads of a small model only wait
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _read_end(path: Path) -> dict[str, Any]:
    """Return what a worker wrote when it ended: its costs, and the GPUs it used; empty where it did not."""
    try:
        end_record: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return end_record


def _last_lines(path: Path) -> str:
    """Return the end of a log: what its command complained of."""
    try:
        with path.open("rb") as log:
            log.seek(max(path.stat().st_size - 8192, 0))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "no log"

    # Of a traceback, the error without its files.
    lines = [line for line in lines if line.strip() and not line[0].isspace()]
    lines = [line for line in lines if not line.startswith("Traceback")][-_LINES:]
    complaints = [line for line in lines if line.startswith("comap")]
    return complaints[-1] if complaints else " | ".join(lines)[-1000:]


def code_version() -> str:
    """Return comap's version with the commit: ten of its forty digits, and whether files had changed."""
    revision = commit()
    return f"{__version__}+{revision[:10]}{revision[40:]}" if revision else __version__


# What follows runs in a job's own process.


def work(main: Main, commands: Sequence[Sequence[str]], log: str, cost: str) -> None:
    """Run commands, with what they print in a file, and exit as the first that fails does."""
    # The descriptors are replaced too: libraries in C, and processes that a job starts, print past
    # `sys.stdout`.
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log_file, 1)
    os.dup2(log_file, 2)
    sys.stdout = os.fdopen(1, "w", 1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="replace", closefd=False)
    threading.Thread(target=_end_with_runner, daemon=True).start()

    start = time.monotonic()
    code = 0
    for words in commands:
        code = _run(main, words)
        if code:
            break
    sys.stdout.flush()
    sys.stderr.flush()

    # Simulators and workers are processes of their own; these count once they have ended.
    times = os.times()
    cpu_seconds = times.user + times.system + times.children_user + times.children_system
    record: dict[str, Any] = {
        "exit": code,
        "seconds": round(time.monotonic() - start, 2),
        "cpu_seconds": round(cpu_seconds, 2),
    }
    peak = _peak_mib()
    if peak is not None:
        record["peak_mib"] = peak
    with suppress(RuntimeError):  # a GPU that has failed may not even tell its name
        record["gpus"] = _gpus_used()
    Path(cost).write_text(json.dumps(record) + "\n", "ascii")
    os._exit(min(code, 255))  # threads of libraries shall not keep it


def _peak_mib() -> float | None:
    """Return the most memory of this process or of one that it started; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes
    return round(max(usage.ru_maxrss for usage in usages) / unit, 1)


def _gpus_used() -> list[str]:
    """Return the names of the GPUs on which this process, not a child of it, had tensors."""
    torch = sys.modules.get("torch")
    # Asking for a name would begin to use a GPU.
    if torch is None or not torch.cuda.is_initialized():
        return []

    return [
        torch.cuda.get_device_name(number)
        for number in range(torch.cuda.device_count())
        if torch.cuda.max_memory_reserved(number)
    ]


def _end_with_runner() -> None:
    """End this process when the runner has ended, however it did: nobody would know of its job."""
    runner = multiprocessing.parent_process()
    if runner is not None:
        runner.join()
        os._exit(1)


def _run(main: Main, words: Sequence[str]) -> int:
    """Return the exit code of a command; whatever it raises is printed, which is its log."""
    try:
        return main([*words])
    except SystemExit as error:  # a command line that is not understood
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 70
