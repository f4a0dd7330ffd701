"""Entry conditions of the labs' seeds, and lab-comap's trained tokens, from the folders of their jobs.

``python benchmarks/measure/lab_conditions.py OUT FILE`` adds the seeds whose jobs are in OUT to FILE, and
what both labs' hypotheses compare, from the committed rows.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from comap.benchmarks.record import circumstances, write_result
from comap.metrics import t_interval

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
"""Trainings of lab-comap, by what follows ``lab-`` in their names."""

POLICY_STAGES = re.compile(r"warmup-policy|reflection-init|round-\d+-policy")
"""The stages in which the policy learns."""


def of_seed(out: Path, seed: int) -> dict[str, Any]:
    """Return the conditions before reflection-init, and the policy's tokens of each training."""
    conditions: dict[str, Any] = {}
    policy_tokens = {}
    for arm in ARMS:
        for path in out.glob(f"jobs/lab-{arm}-alfworld-*-{seed}-*/out/summary.json"):
            stages = json.loads(path.read_bytes())["stages"]
            policy_tokens[arm] = 0
            for name, stage in stages.items():
                if POLICY_STAGES.fullmatch(name):
                    policy_tokens[arm] += stage["tokens"]

            # All arms go on from one start, which measured them once.
            if "entry-conditions" in stages:
                entry = stages["entry-conditions"]
                conditions = {name: rate["value"] for name, rate in entry["conditions"].items()}
                conditions["episodes"] = entry["episodes"]
    return {"conditions": conditions, "policy_tokens": policy_tokens}


STARTS = {"as planned": "", "answers alone": "-answers", "sparse": "-sparse"}
"""Starts of lab-paw, each with what follows the algorithm in its jobs' names."""


def of_paw(out: Path, seed: int) -> dict[str, Any]:
    """Return how each start of lab-paw begins, and what GRPO gains on the games of the evaluations."""
    starts = {}
    for name, ending in STARTS.items():
        (paw,) = out.glob(f"jobs/lab-grpo+paw{ending}-alfworld-*-{seed}-*/out")
        (grpo,) = out.glob(f"jobs/lab-grpo{ending}-alfworld-*-{seed}-*/out")
        # The first update's rollouts are of the start itself: nothing was learned yet.
        first_update = lines(paw / "metrics.jsonl")[0]
        curve = successes(grpo)
        starts[name] = {
            "success": curve[0],
            "solved_to_success": first_update["solved"] / first_update["success"],
            "grpo_gain": curve[max(curve)] - curve[0],
            "nll": first_update["wm_nll"],
            "median": first_update["wm_median"],
            "moderate": 100 * first_update["wm_moderate"],
        }
    return starts


class Count(NamedTuple):
    """How many of some episodes were successes."""

    successes: float
    episodes: float


def successes(run: Path) -> dict[int, float]:
    """Return the success, in percent over both splits, of each update that was evaluated."""
    counts: dict[int, Count] = {}
    for split in lines(run / "evaluations.jsonl"):
        count = counts.get(split["update"], Count(0.0, 0.0))
        counts[split["update"]] = Count(
            count.successes + split["success"] * split["n"], count.episodes + split["n"]
        )
    return {update: 100 * count.successes / count.episodes for update, count in counts.items()}


COMAP = "CoMap"
SHUT = "CoMap, gate shut"
EXECUTED = "Executed actions as anchors"
BEFORE = "Reflection-init with its world model"
BEFORE_SHUT = "Reflection-init, gate shut"
PRIMARY = ("SFT", "SFT, further", SHUT)
ROWS = Path(__file__).parents[2] / "benchmarks/results"
Successes = dict[str, dict[str, float]]
"""Success in percent by method and seed."""


def successes_of(lab: str, *labs_beside: str) -> Successes:
    """Return the success in percent of each method and seed, from a lab's committed rows.

    Its folder may have the rows of other labs beside it, which begin from the same trainings.
    """
    by_method: Successes = {}
    for row in lines(ROWS / f"experiments-{lab}/rows.jsonl"):
        was_run = row.get("value") is not None
        is_of_lab = row["experiment"] in (lab, *labs_beside)
        if was_run and is_of_lab and row["metric"] == "success_rate":
            by_method.setdefault(row["method"], {})[str(row["seed"])] = row["value"]
    return by_method


def difference(
    by_method: Successes, methods: Iterable[str], seeds: Iterable[str]
) -> dict[str, Any]:
    """Return the first method's success less the second's, plus the third's less the fourth's.

    In points, over some seeds, paired, with a 95 % interval.
    """
    signed_methods = list(zip(methods, itertools.cycle((1, -1)), strict=False))
    values = {}
    for seed in seeds:
        values[seed] = sum(sign * by_method[name][seed] for name, sign in signed_methods)
    low, high = t_interval(list(values.values()))
    return {"mean": fmean(values.values()), "low": low, "high": high, "seeds": values}


def paw_differences(seeds: dict[str, Any]) -> dict[str, Any]:
    """Return the differences of lab-paw's hypotheses."""
    by_method = successes_of("lab-paw")
    usual = ("GRPO + PaW", "GRPO")
    sparse = ("GRPO + PaW (sparse)", "GRPO (sparse)")
    compared: dict[str, tuple[str, ...]] = {
        "paw": usual,
        "placebo": ("GRPO + PaW, placebo", "GRPO"),
        "paw, placebo": ("GRPO + PaW", "GRPO + PaW, placebo"),
        "answers": ("GRPO + PaW (answers)", "GRPO (answers)"),
        "sparse": sparse,
        "sparse less usual": (*sparse, *reversed(usual)),
        "gigpo": ("GiGPO + PaW", "GiGPO"),
        "rloo": ("RLOO + PaW", "RLOO"),
        "ce": ("GRPO + PaW with cross-entropy", "GRPO"),
    }
    differences = {}
    for name, methods in compared.items():
        differences[name] = difference(by_method, methods, by_method[methods[0]])

    # One seed has no interval.
    seeds_that_meet = [seed for seed, starts in seeds.items() if paw_meets(**starts["as planned"])]
    if len(seeds_that_meet) > 1:
        differences["paw, conditions met"] = difference(by_method, usual, seeds_that_meet)
    return differences


def paw_meets(
    success: float,
    solved_to_success: float,
    grpo_gain: float,
    nll: float,
    moderate: float,
    **_: Any,
) -> bool:
    """Return whether a seed meets the conditions under which lab-paw expects PaW to help."""
    return (
        15 <= success <= 40
        and solved_to_success >= 2
        and grpo_gain >= 25
        and nll < 3
        and moderate >= 10
    )


def differences(seeds: dict[str, Any]) -> dict[str, Any]:
    """Return the differences of lab-comap's hypotheses."""
    by_method = successes_of("lab-comap")
    all_seeds = list(by_method[COMAP])

    def paired(*methods: str, on_seeds: Iterable[str] = all_seeds) -> dict[str, Any]:
        return difference(by_method, methods, on_seeds)

    # The best of the baselines is taken seed by seed, which favors them over CoMap.
    by_method["best"] = {}
    by_method["best, and before"] = {}
    for seed in all_seeds:
        best = max(by_method[name][seed] for name in PRIMARY)
        by_method["best"][seed] = best
        by_method["best, and before"][seed] = max(best, by_method[BEFORE_SHUT][seed])

    seeds_that_meet = [seed for seed, start in seeds.items() if meets(**start["conditions"])]
    names = {
        "frozen": "CoMap with the frozen world model",
        "oracle": "CoMap with the oracle",
        "placebo": "CoMap with the placebo (nothing happens)",
        "dagger": "Labels as drafts (DAgger)",
        "no future": "CoMap without future state",
        "before": BEFORE,
        "eta": "On-policy (eta = 0)",
        "no gate": "Without world-state gate",
    }
    return {
        "best": paired(COMAP, "best"),
        "best, conditions met": paired(COMAP, "best", on_seeds=seeds_that_meet),
        **{name: paired(COMAP, method) for name, method in names.items()},
        "oracle, shut": paired(names["oracle"], SHUT),
        "frozen, shut": paired(names["frozen"], SHUT),
        "placebo, shut": paired(names["placebo"], SHUT),
        "saturation": paired("SFT, further", "SFT"),
        "best, and before": paired(COMAP, "best, and before"),
        "shut, before shut": paired(SHUT, BEFORE_SHUT),
        "redraft": paired(COMAP, "4 drafts, filtered by the world model"),
        "executed, dagger": paired(EXECUTED, names["dagger"]),
        "executed": paired(EXECUTED, COMAP),
        "executed, its gate": paired(EXECUTED, f"{EXECUTED}, gate shut"),
        "executed, its gate less": paired(EXECUTED, f"{EXECUTED}, gate shut", SHUT, COMAP),
    }


def meets(success: float, ever: float, wasted: float, precision: float, **_: Any) -> bool:
    """Return whether a seed meets the entry conditions that are measured before any arm."""
    return 30 <= success <= 60 and ever >= 20 and wasted >= 20 and precision >= 90


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def seeds_of(paths: Iterable[Path]) -> list[int]:
    """Return the seeds of jobs, by the names of their folders."""
    return sorted(int(path.parts[-3].split("-")[-2]) for path in paths)


def main(out: Path, file: Path) -> None:
    """Add the seeds of a folder of jobs to a file, and compare all that it has then."""
    earlier = json.loads(file.read_bytes()) if file.exists() else {}
    comap_seeds = dict(earlier.get("seeds", {}))
    paw_seeds = dict(earlier.get("paw", {}))
    # A seed counts from when this job of it, one of the last, has ended.
    for seed in seeds_of(out.glob("jobs/lab-play-executed-shut-*/out/*")):
        comap_seeds[str(seed)] = of_seed(out, seed)
    for seed in seeds_of(out.glob("jobs/lab-play-grpo+paw-sparse-*/out/*")):
        paw_seeds[str(seed)] = of_paw(out, seed)

    comap_seeds = dict(sorted(comap_seeds.items()))
    paw_seeds = dict(sorted(paw_seeds.items()))
    record = {
        "seeds": comap_seeds,
        "differences": differences(comap_seeds),
        "paw": paw_seeds,
        "paw_differences": paw_differences(paw_seeds),
    }
    write_result(file, {**record, **circumstances()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
