"""Entry conditions of the labs' seeds, and lab-comap's trained tokens, from the folders of their jobs.

``python benchmarks/measure/lab_conditions.py OUT FILE`` adds the seeds whose jobs are in OUT to FILE, and
what both labs' hypotheses compare, from the committed rows.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from comap.benchmarks.experiments.cells import t_interval
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


STARTS = {"as planned": "", "answers alone": "-answers", "sparse": "-sparse"}


def of_paw(out: Path, seed: int) -> dict[str, Any]:
    """Return how each start of lab-paw begins, and what GRPO gains on the games of the evaluations."""
    found = {}
    for name, ending in STARTS.items():
        (paw,) = out.glob(f"jobs/lab-grpo+paw{ending}-alfworld-*-{seed}-*/out")
        (grpo,) = out.glob(f"jobs/lab-grpo{ending}-alfworld-*-{seed}-*/out")
        first = lines(paw / "metrics.jsonl")[0]
        curve = successes(grpo)
        found[name] = {
            "success": curve[0],
            "solved_to_success": first["solved"] / first["success"],
            "grpo_gain": curve[max(curve)] - curve[0],
            "nll": first["wm_nll"],
            "median": first["wm_median"],
            "moderate": 100 * first["wm_moderate"],
        }
    return found


def successes(run: Path) -> dict[int, float]:
    """Return the success, in percent over both splits, of each update that was evaluated."""
    counts: dict[int, list[float]] = {}
    for one in lines(run / "evaluations.jsonl"):
        won, n = counts.setdefault(one["update"], [0.0, 0.0])
        counts[one["update"]] = [won + one["success"] * one["n"], n + one["n"]]
    return {update: 100 * won / n for update, (won, n) in counts.items()}


COMAP, SHUT, EXECUTED = "CoMap", "CoMap, gate shut", "Executed actions as anchors"
BEFORE = "Reflection-init with its world model"
BEFORE_SHUT = "Reflection-init, gate shut"
PRIMARY = ("SFT", "SFT, further", SHUT)
ROWS = Path(__file__).parents[2] / "benchmarks/results"
Won = dict[str, dict[str, float]]


def successes_of(lab: str) -> Won:
    """Return the success in percent of each method and seed, from the committed rows."""
    won: Won = {}
    for row in lines(ROWS / f"experiments-{lab}/rows.jsonl"):
        if row["experiment"] == lab and row["metric"] == "success_rate":
            won.setdefault(row["method"], {})[str(row["seed"])] = row["value"]
    return won


def difference(won: Won, signed: Iterable[str], some: Iterable[str]) -> dict[str, Any]:
    """Return the first method's success less the second's, plus the third's less the fourth's.

    In points, over some seeds, paired, with a 95 % interval.
    """
    values = {
        seed: sum((-1) ** n * won[name][seed] for n, name in enumerate(signed)) for seed in some
    }
    low, high = t_interval(list(values.values()))
    return {"mean": fmean(values.values()), "low": low, "high": high, "seeds": values}


def paw_differences(seeds: dict[str, Any]) -> dict[str, Any]:
    """Return the differences of lab-paw's hypotheses."""
    won = successes_of("lab-paw")
    met = [seed for seed, one in seeds.items() if paw_meets(**one["as planned"])]
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
    found = {key: difference(won, names, won[names[0]]) for key, names in compared.items()}
    if len(met) > 1:
        found["paw, conditions met"] = difference(won, usual, met)
    return found


def paw_meets(
    success: float,
    solved_to_success: float,
    grpo_gain: float,
    nll: float,
    moderate: float,
    **_: Any,
) -> bool:
    return (
        15 <= success <= 40
        and solved_to_success >= 2
        and grpo_gain >= 25
        and nll < 3
        and moderate >= 10
    )


def differences(seeds: dict[str, Any]) -> dict[str, Any]:
    """Return the differences of lab-comap's hypotheses."""
    won = successes_of("lab-comap")

    def paired(*signed: str, some: Iterable[str] = won[COMAP]) -> dict[str, Any]:
        return difference(won, signed, some)

    won["best"] = {seed: max(won[name][seed] for name in PRIMARY) for seed in won[COMAP]}
    won["best, and before"] = {
        seed: max(won["best"][seed], won[BEFORE_SHUT][seed]) for seed in won[COMAP]
    }
    met = [seed for seed, one in seeds.items() if meets(**one["conditions"])]
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
        "best, conditions met": paired(COMAP, "best", some=met),
        **{name: paired(COMAP, other) for name, other in names.items()},
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


if __name__ == "__main__":
    out, file = map(Path, sys.argv[1:])
    known = json.loads(file.read_bytes()) if file.exists() else {}
    comap, paw = known.get("seeds", {}), known.get("paw", {})
    for seed in seeds_of(out.glob("jobs/lab-play-executed-shut-*/out/*")):
        comap[str(seed)] = of_seed(out, seed)
    for seed in seeds_of(out.glob("jobs/lab-play-grpo+paw-sparse-*/out/*")):
        paw[str(seed)] = of_paw(out, seed)
    comap, paw = (dict(sorted(some.items())) for some in (comap, paw))
    found = {"seeds": comap, "differences": differences(comap), "paw": paw}
    found["paw_differences"] = paw_differences(paw)
    write_result(file, {**found, **circumstances()})
