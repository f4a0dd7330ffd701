"""Whether two checkouts do the same: recorded runs to the byte, short trainings to the bit.

``python benchmarks/measure/same_bits.py BEFORE NOW [--only NAME ...]`` plays a few episodes of each
environment and trains each method for moments, with the code of both checkouts, and compares what they
wrote: trajectories as text, weights as tensors. It is meant for changes that must change nothing, such as
renamed variables.
The exit status is 1 where anything differs. All takes about 6 minutes of two processors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

GENERATED = "--env-option source=generated"
FEW_STEPS = "--env-option max_episode_steps=4"
SHORT = f"{GENERATED} {FEW_STEPS}"
MODEL = f"--preset tiny --tiny-parameters 200000 {GENERATED}"
TINY = f"{MODEL} {FEW_STEPS}"
UPDATE = (
    "--max-episode-steps 4 --warmup.warmup-tokens 20000 --updates 2 --groups 2 --members 2"
    " --evaluation-tasks 1"
)
BASELINE = "--demonstrations 3 --evaluation-tasks 1 --epochs 1 --evaluation-splits valid_seen"

JOBS = {
    "run-expert-alfworld": f"run --agent expert --env comap/ALFWorld-v0 --episodes 4 {GENERATED}",
    "run-expert-webshop": f"run --agent expert --env comap/WebShop-v0 --episodes 4 {GENERATED}",
    "run-random-scienceworld": f"run --agent random --env comap/ScienceWorld-v0 --episodes 2 {FEW_STEPS}",
    "run-random-tools": f"run --agent random --env comap/StableToolBench-v0 --episodes 4 {SHORT}",
    "run-random-search": f"run --agent random --env comap/SearchQA-v0 --episodes 4 {SHORT}",
    "run-random-web": f"run --agent random --env comap/Web-v0 --episodes 4 {FEW_STEPS}",
    "run-react": f"run --agent react --model tiny --episodes 3 {SHORT}",
    "run-comap": (
        f"run --agent comap --model shipped:agent --world-model shipped:wm --episodes 4 {SHORT}"
    ),
    "run-rap": f"run --agent rap --model tiny --episodes 1 {SHORT}",
    "run-reflexion": f"run --agent reflexion --model tiny --episodes 1 {SHORT}",
    "train-grpo": f"train paw {MODEL} --algorithm grpo {UPDATE}",
    "train-gigpo": f"train paw {MODEL} --algorithm gigpo {UPDATE}",
    "train-rloo": f"train paw {MODEL} --algorithm rloo --no-paw {UPDATE}",
    "train-ppo": f"train paw {MODEL} --algorithm ppo {UPDATE}",
    "train-comap": (
        f"train comap {TINY} --rounds 1 --demonstrations 2 --warmup-rollouts 1 --reflection-tasks 1"
        " --states-per-episode 1 --tasks-per-round 1 --evaluation-tasks 2 --evaluation-splits valid_seen"
        " --diagnosed 1 --frozen-transitions 2 --warmup-epochs 1 --save-steps 0 --entry-tasks 1"
    ),
    "train-sft": f"train sft {TINY} {BASELINE}",
    "train-iwm": f"train iwm {TINY} {BASELINE}",
    "train-wkm": f"train wkm {TINY} {BASELINE}",
    "train-itp": f"train itp {TINY} {BASELINE}",
}
"""Commands by name; ``--out`` is added."""

TIMES = ("seconds", "time", "date", "duration", "version", "commit", "path", "memory", "host")
"""Parts of the names of values that two runs of the same code do not share."""

CLOCKS = {"timings.jsonl", "journal.jsonl"}
"""Files of nothing but times, or in the order in which episodes happened to end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("now", type=Path, help="a checkout")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="NAME")
    options = parser.parse_args()

    different = []
    for name in options.only:
        # Both at once: what slows one down slows down the other.
        with ThreadPoolExecutor(2) as pool:
            checkouts = [options.before.resolve(), options.now.resolve()]
            before, now = pool.map(
                lambda checkout, job=name: digests(checkout, JOBS[job]), checkouts
            )

        changed = sorted(file for file in before | now if before.get(file) != now.get(file))
        print(
            f"{name:26} {f'differs: {changed}' if changed else f'equal ({len(now)} files)'}",
            flush=True,
        )
        if changed:
            different.append(name)

    sys.exit(f"different: {', '.join(different)}" if different else 0)


def digests(checkout: Path, command: str) -> dict[str, str]:
    """Run a command with the code of a checkout, and return a digest of each file that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        # As packages of these names the checkout's code is found, and not what is installed.
        root = Path(folder)
        (root / "comap").symlink_to(checkout)
        (root / "comap_envs").symlink_to(checkout / "integrations" / "comap_envs")
        environment = os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        environment |= {"HF_HUB_OFFLINE": "1", "COMAP_HOME": f"{folder}/data"}

        words = [sys.executable, "-m", "comap", *command.split(), "--out", "out"]
        process = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if process.returncode:
            sys.exit(f"{command}\nfailed with the code of {checkout}:\n{process.stderr[-2000:]}")

        out = root / "out"
        digests_of_files = {}
        for path in sorted(out.rglob("*")):
            is_compared = path.suffix in {".jsonl", ".safetensors", ".txt"}
            if path.is_file() and is_compared and path.name not in CLOCKS:
                digests_of_files[str(path.relative_to(out))] = digest(path)
        return digests_of_files


def digest(path: Path) -> str:
    """Return a digest of what does not change from run to run: tensors, or values that are no times."""
    if path.suffix == ".jsonl":
        rows = [timeless(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
        content = json.dumps(rows, sort_keys=True).encode()
    else:
        content = path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def timeless(value: Any) -> Any:
    """Return a value of JSON without what depends on the moment or the machine."""
    if isinstance(value, dict):
        return {
            name: timeless(part)
            for name, part in value.items()
            if not any(word in name for word in TIMES)
        }
    if isinstance(value, list):
        return [timeless(part) for part in value]
    return value


if __name__ == "__main__":
    main()
