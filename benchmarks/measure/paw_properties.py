"""Which property of a start goes with what PaW adds to GRPO, in lab-paw's rows.

``python benchmarks/measure/paw_properties.py FILE`` reads lab-paw's committed rows and entry conditions
(eight seeds, each with three starts), and writes Spearman's correlation of each property with what
GRPO + PaW wins above GRPO, over all 24 pairs and within the starts. Both models of a pair have the same
start: a property is known before either of them is trained, but for GRPO's own gain.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from comap.benchmarks.record import circumstances, write_result
from comap.metrics import t_interval

RESULTS = Path("benchmarks/results")
STARTS = {"as planned": "", "answers alone": " (answers)", "sparse": " (sparse)"}
"""Starts of lab-paw, each with what follows a method's name in its rows."""

PROPERTIES = {
    "success": "success of the start, %",
    "solved_to_success": "success in any of 8 plays, over that of one",
    "grpo_gain": "what GRPO alone gains, points",
    "nll": "nats of an observed token",
    "median": "median probability of an observed token",
    "moderate": "observed tokens with probability from .01 to .2, %",
}
RESAMPLES = 9_999


class Pair(NamedTuple):
    """What a seed's start is like, and what PaW added to GRPO from there."""

    start: str
    seed: int
    properties: Mapping[str, float]
    gain: float


def main() -> None:
    (out,) = sys.argv[1:]
    pairs = read_pairs()

    gains = {}
    for start in STARTS:
        of_start = [pair.gain for pair in pairs if pair.start == start]
        low, high = t_interval(of_start)
        gains[start] = {
            "mean": float(np.mean(of_start)),
            "low": low,
            "high": high,
            "n": len(of_start),
        }

    rows = {}
    for name, about in PROPERTIES.items():
        rows[name] = {
            "about": about,
            "over_all": correlation([pair.properties[name] for pair in pairs], pairs),
            "within_starts": correlation(centered(pairs, name), pairs, within=True),
        }
    record = {"benchmark": "paw_properties", "pairs": len(pairs), "gains": gains, "rows": rows}
    write_result(Path(out), {**record, **circumstances(("numpy", "scipy"))})


def read_pairs() -> list[Pair]:
    """Return the pairs of all seeds and starts."""
    conditions = json.loads((RESULTS / "lab_conditions.json").read_bytes())["paw"]
    success: dict[str, dict[int, float]] = defaultdict(dict)
    lines = (RESULTS / "experiments-lab-paw" / "rows.jsonl").read_text("utf-8").splitlines()
    for row in map(json.loads, lines):
        is_of_tables = row["experiment"] == "lab-paw" and row.get("split") is None
        if is_of_tables and row["metric"] == "success_rate":
            success[row["method"]][row["seed"]] = row["value"]

    pairs = []
    for seed_text, starts in conditions.items():
        seed = int(seed_text)
        for start, ending in STARTS.items():
            gain = success[f"GRPO + PaW{ending}"][seed] - success[f"GRPO{ending}"][seed]
            pairs.append(Pair(start, seed, starts[start], gain))
    return pairs


def centered(pairs: Sequence[Pair], name: str) -> list[float]:
    """Return a property less its mean over the seeds of the same start."""
    values = defaultdict(list)
    for pair in pairs:
        values[pair.start].append(pair.properties[name])
    return [pair.properties[name] - float(np.mean(values[pair.start])) for pair in pairs]


def correlation(
    values: Sequence[float], pairs: Sequence[Pair], *, within: bool = False
) -> dict[str, Any]:
    """Return Spearman's correlation with the gains, its 95 % interval, and its p by permutation.

    The interval is of a bootstrap over seeds, whose three starts stay together.
    """
    gains = np.array([pair.gain for pair in pairs])
    if within:
        starts = np.array([pair.start for pair in pairs])
        for start in STARTS:
            gains[starts == start] -= gains[starts == start].mean()
    numbers = np.array(values)

    seeds = np.array([pair.seed for pair in pairs])
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = rng.choice(np.unique(seeds), size=len(np.unique(seeds)))
        indices = np.concatenate([np.flatnonzero(seeds == seed) for seed in chosen])
        drawn.append(stats.spearmanr(numbers[indices], gains[indices]).statistic)
    low, high = np.nanpercentile(drawn, [2.5, 97.5])

    test = stats.permutation_test(
        (numbers,),
        lambda shuffled: stats.spearmanr(shuffled, gains).statistic,
        permutation_type="pairings",
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(0),
    )
    found = {"rho": test.statistic, "low": low, "high": high, "p": test.pvalue}
    return {name: round(float(value), 3) for name, value in found.items()}


if __name__ == "__main__":
    main()
