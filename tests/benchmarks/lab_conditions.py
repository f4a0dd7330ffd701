"""Entry conditions and trained tokens of lab-comap's seeds, from the folder of its jobs.

``python tests/benchmarks/lab_conditions.py OUT FILE`` adds the seeds whose jobs are in OUT to FILE.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from comap.benchmarks.record import circumstances, write_result

ARMS = (
    "sft",
    "further",
    "drafts",
    "no-future",
    "init",
    "comap",
    "executed",
    "no-wmsd",
    "no-ws-gate",
)


def of_seed(out: Path, seed: int) -> dict[str, Any]:
    """Return the conditions before reflection-init, and the policy's tokens of each training."""
    conditions, tokens = {}, {}
    for arm in ARMS:
        for path in out.glob(f"jobs/lab-{arm}-alfworld-*-{seed}-*/out/summary.json"):
            stages = json.loads(path.read_bytes())["stages"]
            tokens[arm] = sum(
                stage["tokens"]
                for name, stage in stages.items()
                if re.fullmatch(r"warmup-policy|reflection-init|round-\d+-policy", name)
            )
            if "entry-conditions" in stages:
                found = stages["entry-conditions"]
                conditions = {k: one["value"] for k, one in found["conditions"].items()}
                conditions["episodes"] = found["episodes"]
    return {"conditions": conditions, "policy_tokens": tokens}


if __name__ == "__main__":
    out, file = map(Path, sys.argv[1:])
    found = json.loads(file.read_bytes())["seeds"] if file.exists() else {}
    done = out.glob("jobs/lab-init-*/out/summary.json")
    for seed in sorted(int(path.parts[-3].split("-")[-2]) for path in done):
        found[str(seed)] = of_seed(out, seed)
    write_result(file, {"seeds": found, **circumstances()})
