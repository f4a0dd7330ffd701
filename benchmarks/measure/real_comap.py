"""Entry conditions of lab-comap-real's seeds, what teacher and world-state gate tell, and differences.

``python benchmarks/measure/real_comap.py OUT FILE`` adds the seeds whose jobs in OUT have ended to FILE,
and compares all arms of the committed rows, paired by seed. With ``--development SEED`` it adds what was
measured of a seed in development, whose jobs may have been stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from lab_conditions import POLICY_STAGES, PRIMARY, seeds_of, successes_of
from real_conditions import finished_job, paired_differences, seeds_in, write_seeds

from comap.benchmarks.record import circumstances, write_result
from comap.envs.alfworld.goal import NOTHING_HAPPENS
from comap.trajectory import Step, read_trajectories

LABS = ("lab-comap-real", "lab-comap-real-arms")
COMAP = "CoMap"
ORACLE = "CoMap with the oracle"
SHUT = "CoMap, gate shut"
DAGGER = "Labels as drafts (DAgger)"
EXECUTED = "Executed actions as anchors"
BEST = "the best of the controls"
COMPARED = {
    "best": (COMAP, BEST),
    **{name: (COMAP, name) for name in PRIMARY},
    "oracle": (ORACLE, COMAP),
    "oracle, shut": (ORACLE, SHUT),
    "saturation": ("SFT, further", "SFT"),
    "no future": (COMAP, "CoMap without future state"),
    "dagger": (COMAP, DAGGER),
    "executed": (EXECUTED, COMAP),
    "dagger, further": (DAGGER, "SFT, further"),
}

TRAININGS = ("comap-base", "comap-sft", "comap-init", "comap-further", "comap")
"""Trainings of a seed, by what follows ``real-`` in their names."""

FURTHER_TRAININGS = ("comap-no-future", "comap-drafts", "comap-executed")
"""Those of lab-comap-real-arms, which a folder may not have."""

PLAYS = {COMAP: "play-comap", ORACLE: "play-comap-oracle"}
"""Plays in which the policy reflects."""


def of_seed(out: Path, seed: int) -> dict[str, Any]:
    """Return the conditions of a seed, the policy's tokens of each training, and what rounds tell."""
    record: dict[str, Any] = {"policy_tokens": {}, "rounds": {}}
    for training in TRAININGS:
        job = finished_job(out, f"real-{training}-alfworld-*-{seed}-*")
        stages = json.loads((job / "out" / "summary.json").read_bytes())["stages"]
        record["policy_tokens"][training] = policy_tokens(stages)
        # All arms go on from one start, which measured them once.
        if "entry-conditions" in stages:
            entry = stages["entry-conditions"]
            conditions = {name: rate["value"] for name, rate in entry["conditions"].items()}
            record["conditions"] = {**conditions, "episodes": entry["episodes"]}

        # A seed's revisions are what teaches its policy to reflect: too few, and the gate stays shut.
        if training == "comap-init":
            record["labels"] = stages["reflection-init"]["samples"]

        rounds = rounds_of((job / "out" / "stages").glob("*-round-*-rollouts"))
        for number, round_record in rounds.items():
            training_stage = stages[f"round-{number}-policy"]
            round_record["policy"] = {name: training_stage[name] for name in ("rows", "updates")}
        record["rounds"] |= rounds

    for training in FURTHER_TRAININGS:
        for file in out.glob(f"jobs/real-{training}-alfworld-*-{seed}-*/out/summary.json"):
            stages = json.loads(file.read_bytes())["stages"]
            record["policy_tokens"][training] = policy_tokens(stages)

    record["reflections"] = {}
    for name, play in PLAYS.items():
        job = finished_job(out, f"real-{play}-alfworld-*-{seed}-*")
        record["reflections"][name] = reflections_of(job / "out" / "train" / "trajectories.jsonl")
    return record


def rounds_of(folders: Iterable[Path]) -> dict[str, Any]:
    """Return what the rollouts of rounds tell, by the rounds' numbers."""
    rounds = {}
    for folder in sorted(folders):
        number = folder.name.split("-")[2]
        played = json.loads((folder / "done.json").read_bytes())
        rounds[number] = {
            **of_round(list(probed_steps(folder))),
            "success": 100 * played["success"],
            "episodes": played["episodes"],
            "foreseen": played["gates"]["foreseen_refusals"],
            "p": played["gates"]["p"]["mean"],
            "opened": 100 * played["gates"]["opened"],
        }
    return rounds


def policy_tokens(stages: dict[str, Any]) -> int:
    """Return how many tokens the stages of a training trained the policy on."""
    return sum(stage["tokens"] for name, stage in stages.items() if POLICY_STAGES.fullmatch(name))


def probed_steps(folder: Path) -> Iterator[Step]:
    """Yield a round's steps in which student and teacher predicted and the environment was asked."""
    for path in sorted(folder.rglob("trajectories.jsonl")):
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
        is_adopted = step.notes["wm_gate"] is True
        if is_right:
            adopted_if_right.append(is_adopted)
        else:
            adopted_if_wrong.append(is_adopted)

    return {
        "steps": len(steps),
        "student_f1": fmean(step.notes["student_f1"] for step in steps),
        "teacher_f1": fmean(step.notes["teacher_f1"] for step in steps),
        "right": {"n": len(adopted_if_right), "adopted": share(adopted_if_right)},
        "wrong": {"n": len(adopted_if_wrong), "adopted": share(adopted_if_wrong)},
    }


def reflections_of(file: Path) -> dict[str, Any]:
    """Return what a policy's reflections say where a refusal is foreseen, and elsewhere."""
    notes_at_refusals = []
    notes_elsewhere = []
    for episode in read_trajectories(file):
        for step in episode.steps:
            if step.notes["predicted_next_state"] == NOTHING_HAPPENS:
                notes_at_refusals.append(step.notes)
            else:
                notes_elsewhere.append(step.notes)

    return {
        "refusals": decision_shares(notes_at_refusals),
        "others": decision_shares(notes_elsewhere),
    }


def decision_shares(notes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a revision's mean probability, and how often (%) one is named, differs, and is followed."""
    return {
        "n": len(notes),
        "p": fmean(note["p"] for note in notes) if notes else None,
        "revise": share([note["decision"] == "REVISE" for note in notes]),
        "changed": share([note["gate_parts"]["changed"] for note in notes]),
        "opened": share([note["gate"] for note in notes]),
    }


def share(flags: list[bool]) -> float | None:
    """Return a share in percent; None of nothing."""
    return 100 * fmean(flags) if flags else None


def differences() -> dict[str, Any]:
    """Return the differences of the hypotheses, over the seeds that have both arms."""
    by_method = successes_of(*LABS)
    controls = [by_method.get(name, {}) for name in PRIMARY]
    # The best of the controls is taken seed by seed, which favors them over CoMap.
    by_method[BEST] = {
        seed: max(control[seed] for control in controls)
        for seed in controls[0]
        if all(seed in control for control in controls)
    }

    return paired_differences(by_method, COMPARED)


SIZES = {
    "comap-sft": (
        "demonstrations",
        "side_steps",
        "copy_side_steps",
        "warmup_rate",
        "warmup_rollouts",
    ),
    "comap-init": ("reflection_tasks",),
    "comap": ("tasks_per_round",),
}
"""Settings that development chooses, by the training that uses them."""


def of_development(out: Path, seed: int) -> dict[str, Any]:
    """Return sizes, machines and tokens of a start, and what conditions, plays and rounds measured."""
    record: dict[str, Any] = {"seed": seed}
    for training, names in SIZES.items():
        for file in out.glob(f"jobs/real-{training}-alfworld-*-{seed}-*/out/run.json"):
            described = json.loads(file.read_bytes())["described"]
            record |= {name: described["config"][name] for name in names}
            record["games"] = described["env"]["fingerprint"]["train"]["games"]

    for file in out.glob(f"jobs/real-comap-sft-*-{seed}-*/out/stages/*-warmup-rollouts/done.json"):
        play = json.loads(file.read_bytes())
        record["warmup"] = {"success": 100 * play["success"], "episodes": play["episodes"]}

    for file in out.glob(
        f"jobs/real-comap-init-*-{seed}-*/out/stages/*-entry-conditions/done.json"
    ):
        entry = json.loads(file.read_bytes())
        record["conditions"] = {name: rate["value"] for name, rate in entry["conditions"].items()}
        record["foreseen"] = entry["foreseen"]
        record["episodes"] = entry["episodes"]

    # A stopped training has no summary.
    record["policy_tokens"] = {}
    for training in TRAININGS:
        for summary in out.glob(f"jobs/real-{training}-alfworld-*-{seed}-*/out/summary.json"):
            stages = json.loads(summary.read_bytes())["stages"]
            record["policy_tokens"][training] = policy_tokens(stages)

    machines = set()
    for job in out.glob(f"jobs/real-*-{seed}-*/job.json"):
        hardware = json.loads(job.read_bytes())["hardware"]
        machines.add(", ".join([hardware["cpu"], *hardware.get("gpus", ())]))
    record["machines"] = sorted(machines)

    record["plays"] = {}
    for summary in sorted(
        out.glob(f"jobs/real-play-comap*-alfworld-*-{seed}-*/out/train/summary.json")
    ):
        arm = summary.parts[-4].removeprefix("real-play-").partition("-alfworld")[0]
        played = json.loads(summary.read_bytes())
        record["plays"][arm] = {"success": 100 * played["success"]["value"], "n": played["n"]}

    record["rounds"] = rounds_of(
        out.glob(f"jobs/real-comap-alfworld-*-{seed}-*/out/stages/*-round-*-rollouts")
    )
    return record


def add_development(out: Path, file: Path, seed: int) -> None:
    """Add what was measured of a seed in development to a file, after what it has of earlier starts."""
    starts = json.loads(file.read_bytes())["starts"] if file.exists() else []
    starts.append(of_development(out, seed))
    write_result(file, {"starts": starts, **circumstances()})


def main(out: Path, file: Path) -> None:
    """Add the seeds of a folder of jobs to a file, and compare all committed rows."""
    seeds = seeds_in(file)
    for seed in seeds_of(out.glob("jobs/real-play-comap-oracle-alfworld-*/out/*")):
        seeds[str(seed)] = of_seed(out, seed)

    write_seeds(file, seeds, success=successes_of(*LABS), differences=differences())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--development", type=int, metavar="SEED")
    options = parser.parse_args()

    if options.development is None:
        main(options.out, options.file)
    else:
        add_development(options.out, options.file, options.development)
