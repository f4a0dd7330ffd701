"""A job's process: it runs commands of comap one after the other, and writes down how they ended."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["PRELOADED", "Main", "work"]

PRELOADED = ("torch", "transformers", "comap.cli", "comap.benchmarks.experiments.worker")
"""What the process that workers are forked from has imported: each of them would take seconds."""


Main = Callable[[Sequence[str]], int]
"""Runs the words of a command after ``comap`` and returns its exit code."""


def work(main: Main, commands: Sequence[Sequence[str]], log: str, done: str) -> None:
    """Run commands, with what they print in a file, and exit as the first that fails does.

    Args:
        main: Runs one.
        commands: The words of each after ``comap``.
        log: The file that is appended to.
        done: The file that tells in the end how it went: ``exit``, ``seconds``, ``cpu_seconds`` and
            ``peak_mib``.

    Example:
        >>> work(main, [["--version"]], "log.txt", "done.json")  # doctest: +SKIP
    """
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
    told = {
        "exit": code,
        "seconds": round(time.monotonic() - start, 2),
        "cpu_seconds": round(sum(u.ru_utime + u.ru_stime for u in (own, others)), 2),
        "peak_mib": round(max(own.ru_maxrss, others.ru_maxrss) / 1024, 1),
    }
    Path(done).write_text(json.dumps(told) + "\n", "ascii")
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
