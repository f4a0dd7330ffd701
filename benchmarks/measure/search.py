"""Time and memory of a tree search: `comap run --agent rap` with the tiny model, in fresh processes.

``python benchmarks/measure/search.py --out FILE [--tree NAME=DIR ...] [--limit SECONDS]``. DIR is a
checkout of comap; several, such as one from before a change, are measured in turn. On a busy machine trust
the seconds of the processor. A process that needs more of them than the limit is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from comap.benchmarks.record import circumstances, write_result

PROGRAM = "benchmarks/measure/search.py (not in the package)"
COMMAND = "run --agent rap --model tiny --episodes 2 --env-option max_episode_steps=3"
SEARCHES = {
    "defaults": "",
    "as in the tables": "--candidates 8 --candidate-rounds 4 --depth 6 --rollouts 32",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tree", action="append", metavar="NAME=DIR")
    parser.add_argument("--limit", type=int, default=900, help="most seconds of the processor")
    options = parser.parse_args()

    this_checkout = Path(__file__).resolve().parents[2]
    trees = dict(text.split("=", 1) for text in options.tree or [f"now={this_checkout}"])
    result: dict[str, Any] = {
        "benchmark": "search",
        "program": PROGRAM,
        "limit": options.limit,
        **circumstances(("torch", "transformers")),
        "command": f"comap {COMMAND}",
        "trees": {name: {} for name in trees},
    }

    # Checkouts take turns, so that a load of the machine that comes and goes meets them all.
    for search, search_options in SEARCHES.items():
        for name, tree in trees.items():
            measured = measure(Path(tree).resolve(), search_options, options.limit)
            result["trees"][name][search] = {"options": search_options, **measured}
            print(name, search, json.dumps(measured), flush=True)
    write_result(options.out, result)


def measure(tree: Path, options: str, limit: int) -> dict[str, Any]:
    """Play with the code of a checkout, and return what it took."""
    with tempfile.TemporaryDirectory() as folder:
        # As packages of these names the checkout's code is found, and not what is installed.
        (Path(folder) / "comap").symlink_to(tree)
        (Path(folder) / "comap_envs").symlink_to(tree / "integrations" / "comap_envs")
        words = [sys.executable, "-m", "comap", *COMMAND.split(), *options.split()]

        start = time.perf_counter()
        process = subprocess.Popen(
            [*words, "--out", f"{folder}/run"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            # The system counts the processor's seconds, whatever else runs here.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start

        calls = None
        summary = Path(folder, "run", "summary.json")
        if summary.is_file():
            calls = json.loads(summary.read_text("utf-8"))["language_model"]["all"]["calls"]

    return {
        "ended": os.waitstatus_to_exitcode(status) == 0,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 1024, 1),
        "calls": calls,
    }


if __name__ == "__main__":
    main()
