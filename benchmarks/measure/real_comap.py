"""Entry conditions of lab-comap-real's seeds, what teacher and world-state gate tell, and differences.

``python benchmarks/measure/real_comap.py OUT FILE`` adds the seeds whose jobs in OUT have ended to FILE,
and compares all arms of the committed rows, paired by seed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from lab_conditions import POLICY_STAGES, PRIMARY, difference, seeds_of, successes_of

from comap.benchmarks.record import circumstances, write_result
from comap.trajectory import Step, read_trajectories

COMAP = "CoMap"
ORACLE = "CoMap with the oracle"
SHUT = "CoMap, gate shut"
BEST = "the best of the controls"
COMPARED = {
    "best": (COMAP, BEST),
    **{name: (COMAP, name) for name in PRIMARY},
    "oracle": (ORACLE, COMAP),
    "oracle, shut": (ORACLE, SHUT),
    "saturation": ("SFT, further", "SFT"),
}

TRAININGS = ("comap-sft", "comap-init", "comap-further", "comap")
"""Trainings of a seed, by what follows ``real-`` in their names."""


def of_seed(out: Path, seed: int) -> dict[str, Any]:
    """Return the conditions of a seed, the policy's tokens of each training, and what rounds tell."""
    record: dict[str, Any] = {"policy_tokens": {}, "rounds": {}}
    for training in TRAININGS:
        job = finished_job(out, f"real-{training}-alfworld-*-{seed}-*")
        stages = json.loads((job / "out" / "summary.json").read_bytes())["stages"]
        record["policy_tokens"][training] = sum(
            stage["tokens"] for name, stage in stages.items() if POLICY_STAGES.fullmatch(name)
        )
        # All arms go on from one start, which measured them once.
        if "entry-conditions" in stages:
            entry = stages["entry-conditions"]
            conditions = {name: rate["value"] for name, rate in entry["conditions"].items()}
            record["conditions"] = {**conditions, "episodes": entry["episodes"]}

        for folder in sorted((job / "out" / "stages").glob("*-round-*-rollouts")):
            number = folder.name.split("-")[2]
            record["rounds"][number] = of_round(list(probed_steps(folder)))
    return record


def finished_job(out: Path, pattern: str) -> Path:
    """Return the folder of the job that ended; one of an earlier plan was stopped."""
    (job,) = (job for job in out.glob(f"jobs/{pattern}") if (job / "ended.json").exists())
    return job


def probed_steps(folder: Path) -> Iterator[Step]:
    """Yield a round's steps in which student and teacher predicted and the environment was asked."""
    for path in sorted(folder.rglob("*.jsonl")):
        for episode in read_trajectories(path):
            for step in episode.steps:
                if step.notes.get("student_f1") is not None:
                    yield step


def of_round(steps: list[Step]) -> dict[str, Any]:
    """Return how often student and teacher are right, and whether the world-state gate tells it.

    A prediction is right where it changes the same facts as the environment did. In the first round both
    have the same weights, so that they differ by the truth in the teacher's prompt alone.
    """
    adopted_if_right = []
    adopted_if_wrong = []
    for step in steps:
        is_right = step.notes["student_f1"] == 1
        chosen = adopted_if_right if is_right else adopted_if_wrong
        chosen.append(step.notes["wm_gate"] is True)

    return {
        "steps": len(steps),
        "student_f1": fmean(step.notes["student_f1"] for step in steps),
        "teacher_f1": fmean(step.notes["teacher_f1"] for step in steps),
        "right": {"n": len(adopted_if_right), "adopted": share(adopted_if_right)},
        "wrong": {"n": len(adopted_if_wrong), "adopted": share(adopted_if_wrong)},
    }


def share(flags: list[bool]) -> float | None:
    """Return a share in percent; None of nothing."""
    return 100 * fmean(flags) if flags else None


def differences() -> dict[str, Any]:
    """Return the differences of the hypotheses, over the seeds that have both arms."""
    by_method = successes_of("lab-comap-real")
    controls = [by_method.get(name, {}) for name in PRIMARY]
    # The best of the controls is taken seed by seed, which favors them over CoMap.
    by_method[BEST] = {
        seed: max(control[seed] for control in controls)
        for seed in controls[0]
        if all(seed in control for control in controls)
    }

    compared = {}
    for name, (method, control) in COMPARED.items():
        shared = sorted({*by_method.get(method, {})} & {*by_method.get(control, {})}, key=int)
        if len(shared) > 1:  # one seed has no interval
            compared[name] = difference(by_method, (method, control), shared)
    return compared


def main(out: Path, file: Path) -> None:
    """Add the seeds of a folder of jobs to a file, and compare all committed rows."""
    seeds = {}
    if file.exists():
        seeds = json.loads(file.read_bytes())["seeds"]
    for seed in seeds_of(out.glob("jobs/real-play-comap-oracle-alfworld-*/out/*")):
        seeds[str(seed)] = of_seed(out, seed)

    record = {"seeds": dict(sorted(seeds.items())), "differences": differences()}
    write_result(file, {**record, **circumstances()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
