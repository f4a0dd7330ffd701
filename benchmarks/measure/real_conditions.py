"""Entry conditions of lab-paw-real's seeds, and what its hypotheses compare.

``python benchmarks/measure/real_conditions.py OUT FILE`` adds the seeds whose GRPO + PaW is in OUT to FILE,
and compares all arms of the committed rows, paired by seed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lab_conditions import difference, lines, seeds_of, successes_of

from comap.benchmarks.record import circumstances, write_result

START = "SFT, where all arms start"
PAW = "GRPO + PaW"
COMPARED = {
    "paw": (PAW, "GRPO"),
    "placebo": ("GRPO + PaW, placebo", "GRPO"),
    "paw, placebo": (PAW, "GRPO + PaW, placebo"),
    "ce": ("GRPO + PaW with cross-entropy", "GRPO"),
    "paw, ce": (PAW, "GRPO + PaW with cross-entropy"),
    "grpo": ("GRPO", START),
}


def first_update(out: Path, seed: int) -> dict[str, Any]:
    """Return what the first update of GRPO + PaW saw: the start's own play, before anything is learned."""
    # A job of an earlier plan, with another configuration, was stopped.
    jobs = out.glob(f"jobs/real-grpo+paw-alfworld-*-{seed}-*")
    (job,) = (job for job in jobs if (job / "ended.json").exists())
    update = lines(job / "out" / "metrics.jsonl")[0]
    return {
        "solved_to_success": update["solved"] / update["success"] if update["success"] else None,
        "nll": update["wm_nll"],
        "median": update["wm_median"],
        "moderate": 100 * update["wm_moderate"],
    }


def main(out: Path, file: Path) -> None:
    """Add the seeds of a folder of jobs to a file, and compare all committed rows."""
    seeds = {}
    if file.exists():
        seeds = json.loads(file.read_bytes())["seeds"]
    for seed in seeds_of(out.glob("jobs/real-play-grpo+paw-alfworld-*/out/*")):
        seeds[str(seed)] = first_update(out, seed)

    by_method = successes_of("lab-paw-real")
    starts = by_method.get(START, {})
    for seed, conditions in seeds.items():
        conditions["success"] = starts.get(seed)
        conditions["grpo_gain"] = None
        if seed in starts and seed in by_method.get("GRPO", {}):
            conditions["grpo_gain"] = by_method["GRPO"][seed] - starts[seed]

    differences = {}
    for name, methods in COMPARED.items():
        shared = [
            seed
            for seed in by_method.get(methods[0], {})
            if all(seed in by_method.get(method, {}) for method in methods)
        ]
        if len(shared) > 1:  # one seed has no interval
            differences[name] = difference(by_method, methods, sorted(shared, key=int))

    record = {"seeds": dict(sorted(seeds.items())), "differences": differences}
    write_result(file, {**record, **circumstances()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
