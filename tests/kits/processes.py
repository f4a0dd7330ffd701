"""What tests of several processes share: children that are killed, and trainings of two processes."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
OTHER = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # than this process has
LOOPBACK = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
LAST = 3000  # characters of what a process that failed said
SERVE = "--serve"
PATIENCE = 1500  # seconds, for a machine that is busy with other things
TRAINERS = (  # what a training imports, which takes longer than a small one
    "transformers.models.qwen3.modeling_qwen3",
    "trl",
    "comap.lm.hf",
    "comap.trainers.comap.trainer",
    "comap.trainers.paw.trainer",
    "comap.trainers.paw.training",
    "comap.benchmarks.training_report",
    "matplotlib.style",
    "matplotlib.figure",
    "matplotlib.backends.backend_svg",
)


def import_trainers() -> None:
    """Import what trainings need, for forks of this process; no look for garbage meets it again."""
    gc.disable()
    import torch

    torch.set_num_threads(1)
    for name in TRAINERS:
        importlib.import_module(name)
    look_packages_up_once()
    importlib.import_module("comap.agents.create").corpus()  # of which tiny models are made
    gc.freeze()
    gc.enable()


def look_packages_up_once() -> None:
    """Remember what is installed: accelerate reads it anew with each pass, 6 % of a small training."""
    from accelerate.utils import imports

    imports._is_package_available = cache(imports._is_package_available)


# -- processes that have imported everything -------------------------------------------------------


def forked(
    words: Sequence[str], env: Mapping[str, str], place: Path | None = None
) -> tuple[int, str, str]:
    """Run a script in a fork of a process that has imported what trainings need, and nothing else.

    That process orders sets of texts in another way than this one.
    Return its status, its output and its errors.
    """
    if not hasattr(os, "fork"):
        pytest.skip("scripts are forked")
    with tempfile.TemporaryDirectory() as own_folder:
        out, errors = Path(own_folder, "out"), Path(own_folder, "errors")
        job = {"words": list(words), "env": dict(env), "place": str(place or own_folder)}
        server = _server()
        server.stdin.write(json.dumps(job | {"out": str(out), "errors": str(errors)}) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], PATIENCE)[0]:
            server.kill()
        status_line = server.stdout.readline()
        if not status_line:
            _server.cache_clear()  # the next script is given another
        assert status_line, "the process that runs scripts has ended"
        return int(status_line), out.read_text("utf-8"), errors.read_text("utf-8")


@cache
def _server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ONE_THREAD, "PYTHONHASHSEED": OTHER},
    )
    atexit.register(process.communicate)  # which closes its input: then it ends
    return process


def _serve() -> int:
    """Be that process: run scripts one after another until there are no more."""
    import_trainers()
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _become(**job)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)
    return 0


def _become(words: list[str], env: dict[str, str], place: str, out: str, errors: str) -> None:
    """Run a script in this process, and end as Python does."""
    for path, mode, number in ((os.devnull, "r", 0), (out, "w", 1), (errors, "w", 2)):
        with Path(path).open(mode) as file:
            os.dup2(file.fileno(), number)
    os.chdir(place)
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
    runpy.run_path(words[0], run_name="__main__")
    sys.exit(0)


# -- processes that are killed ---------------------------------------------------------------------


def attempt(work: Callable[[], None], log: Path, now: Callable[[], bool]) -> bool:
    """Return whether work in a forked child ended before `now` said to kill it with SIGKILL."""
    child = os.fork()
    if not child:
        code = 1
        try:
            with log.open("a") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                work()
                code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    killed = False
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if not killed and now():
            os.kill(child, signal.SIGKILL)
            killed = True
        time.sleep(0.002)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(log.read_text()[-LAST:])
    return os.WIFEXITED(status)


def report_of(script: str, place: Path, *arguments: str) -> Any:
    """Run a script that kills its children, and return the report that it left in `place`.

    It is a process of its own (see `forked`), for a process that has run torch cannot be forked.
    """
    status, _, errors = forked([script, *arguments, str(place)], {**os.environ, **ONE_THREAD})
    assert not status, errors[-LAST:]
    return json.loads((place / "report.json").read_bytes())


# -- processes that train together -------------------------------------------------------------------


def needs_gloo(test: Any) -> Any:
    """Skip a test where torch has no backend for processes without GPUs."""
    from torch import distributed

    has_gloo = distributed.is_available() and distributed.is_gloo_available()
    return pytest.mark.skipif(not has_gloo, reason="this torch has no gloo")(test)


def together(script: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
    """Run a script as `torchrun` does in two processes, forked from one that has imported everything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(env or {})}
    words = [__file__, str(script), *arguments]
    status, _, errors = forked(words, {**os.environ, **LOOPBACK, **rendezvous})
    assert status == 0, errors[-LAST:]


def _fork_both(script: str, *arguments: str) -> int:
    """Run a script in two children; return 0, or the status of one that failed, the other ended."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    ranks = {}
    for rank in (0, 1):
        child = os.fork()
        if not child:
            _be(rank, script)
        ranks[child] = rank
    while ranks:
        child, status = os.wait()
        del ranks[child]
        if status:
            for sibling in ranks:
                os.kill(sibling, signal.SIGTERM)
            return 1
    return 0


def _be(rank: int, script: str) -> None:
    """Run a script as one of two processes, and end as Python does."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(number) for name, number in names.items()})
    runpy.run_path(script, run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(_serve() if sys.argv[1:] == [SERVE] else _fork_both(*sys.argv[1:]))
