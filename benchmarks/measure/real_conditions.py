"""Entry conditions of lab-paw-real's seeds, and what its hypotheses compare.

``python benchmarks/measure/real_conditions.py OUT FILE`` adds the seeds whose GRPO + PaW is in OUT to FILE,
and compares all arms of the committed rows, paired by seed.
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab_conditions import Successes, difference, lines, seeds_of, successes_of

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


def finished_job(out: Path, pattern: str) -> Path:
    """Return the folder of the job that ended; one of an earlier plan, with other settings, was stopped."""
    (job,) = (job for job in out.glob(f"jobs/{pattern}") if (job / "ended.json").exists())
    return job


def command_of(
    job: Path, out: Path, model: Path, changed: Mapping[str, Path] | None = None
) -> list[str]:
    """Return the words of a job's command, for this machine's model and folders.

    Args:
        job: The job's folder.
        out: The folder of all jobs.
        model: The model's folder.
        changed: Folders that stand for others of the command, by their names in it; None for none.
    """
    (command,) = json.loads((job / "job.json").read_bytes())["commands"]
    words = []
    for word in shlex.split(command):
        for name, folder in {**(changed or {}), "OUT": out}.items():
            word = word.replace(f"{name}/", f"{folder}/", 1)
        words.append(str(model) if word == "MODEL" else word)
    return words


def seeds_in(file: Path) -> dict[str, Any]:
    """Return the seeds that a result file has, by their numbers; none where there is no file yet."""
    return json.loads(file.read_bytes())["seeds"] if file.exists() else {}


def write_seeds(file: Path, seeds: Mapping[str, Any], **further: Any) -> None:
    """Write seeds and what else a result file has, with today's date, versions and hardware."""
    write_result(file, {"seeds": dict(sorted(seeds.items())), **further, **circumstances()})


def parser_of_jobs(description: str) -> ArgumentParser:
    """Return the parser of a program that measures trained models: jobs, result file, model."""
    parser = ArgumentParser(description=description)
    parser.add_argument("out", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    return parser


def paired_differences(
    by_method: Successes, compared: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """Return the differences in success of pairs of methods, over the seeds that both have."""
    differences = {}
    for name, methods in compared.items():
        seeds_by_method = [{*by_method.get(method, {})} for method in methods]
        shared_seeds = sorted(set.intersection(*seeds_by_method), key=int)
        if len(shared_seeds) > 1:  # one seed has no interval
            differences[name] = difference(by_method, methods, shared_seeds)
    return differences


def first_update(out: Path, seed: int) -> dict[str, Any]:
    """Return what the first update of GRPO + PaW saw: the start's own play, before anything is learned."""
    job = finished_job(out, f"real-grpo+paw-alfworld-*-{seed}-*")
    update = lines(job / "out" / "metrics.jsonl")[0]
    return {
        "solved_to_success": update["solved"] / update["success"] if update["success"] else None,
        "nll": update["wm_nll"],
        "median": update["wm_median"],
        "moderate": 100 * update["wm_moderate"],
    }


def main(out: Path, file: Path) -> None:
    """Add the seeds of a folder of jobs to a file, and compare all committed rows."""
    seeds = seeds_in(file)
    # A play has a summary from when it ended.
    played = out.glob("jobs/real-play-grpo+paw-alfworld-*/out/*/summary.json")
    for seed in seeds_of(summary.parent for summary in played):
        seeds[str(seed)] = first_update(out, seed)

    by_method = successes_of("lab-paw-real")
    starts = by_method.get(START, {})
    for seed, conditions in seeds.items():
        conditions["success"] = starts.get(seed)
        conditions["grpo_gain"] = None
        if seed in starts and seed in by_method.get("GRPO", {}):
            conditions["grpo_gain"] = by_method["GRPO"][seed] - starts[seed]

    differences = paired_differences(by_method, COMPARED)
    write_seeds(file, seeds, differences=differences)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
