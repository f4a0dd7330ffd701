"""The shipped agent with masked and with free decoding: collects runs, and compares them game by game.

``python benchmarks/measure/shipped_agent.py --out FILE --former TRAINING --development NAME=RUN ... --final
NAME=RUN ...``. RUN is a folder of `comap run`, TRAINING the file that the former models were shipped with.
PLAN was written and committed before any of the final runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from comap.benchmarks.record import circumstances, write_result
from comap.jsonl import read_json
from comap.metrics import normal_quantile
from comap.trajectory import read_trajectories

PROGRAM = "benchmarks/measure/shipped_agent.py (not in the package)"
PLAN: dict[str, Any] = {
    "questions": [
        "does the shipped policy win more if it chooses among the admissible actions (masked decoding)?",
        "does its own world model then still add to that?",
    ],
    "games": "generated ALFWorld, difficulty r16-20.o12-18.f123456, at most 20 steps, split train of "
    "generator seed 12, 800 games, each once, seed 0: those of the numbers that are on record",
    "chosen before, on 400 games of generator seed 9": "temperature 0.7 and tau_q 0.6 (CoMap, Table 5; "
    "also tried: temperature 1.0 and 0.4, tau_q 0.3), and one further training, lab-shipped-masked",
    "runs": "the former models with free decoding at temperature 1.0 (on record, not repeated), and with "
    "masked decoding at 1.0; the new models with masked and with free decoding at 0.7; each without a "
    "world model (gate shut), with their own, and with the oracle",
    "verdict": "a world model helps if the 95 % interval of the difference in games won, paired by game, "
    "lies above 0",
}
PAIRS = (
    ("own world model and gate shut", "own", "shut"),
    ("oracle and gate shut", "oracle", "shut"),
    ("oracle and own world model", "oracle", "own"),
    ("own world model and placebo", "own", "placebo"),  # of which the plan says nothing
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--former", type=Path, help="training.json of the former models")
    for part in ("--development", "--final"):
        parser.add_argument(part, nargs="*", default=[], metavar="MODELS.DECODING.WORLD=RUN")
    options = parser.parse_args()

    result: dict[str, Any] = {"benchmark": "shipped agent", "program": PROGRAM, "plan": PLAN}
    result |= circumstances(("torch", "transformers", "gymnasium", "numpy"))
    if options.former is not None:
        result["former"] = read_json(options.former)
    # Apart, since settings were chosen by the first games and are judged by the second ones.
    result["development"] = collected(options.development)
    result["final"] = collected(options.final)
    write_result(options.out, result)


def collected(words: Sequence[str]) -> dict[str, Any]:
    """Return what came of some runs, and the differences between those that differ in the world model."""
    outcomes = {}
    wins_of_runs = {}
    for word in words:
        name, _, folder = word.partition("=")
        outcomes[name] = outcome(Path(folder))
        wins_of_runs[name] = wins(Path(folder))
    return {"runs": outcomes, "differences": differences(wins_of_runs)}


def wins(run: Path) -> dict[str, bool]:
    """Return of each game whether it was won."""
    episodes = read_trajectories(run / "trajectories.jsonl")
    return {episode.task: episode.success for episode in episodes}


def outcome(run: Path) -> dict[str, Any]:
    """Return the settings that matter, and what came of a run, as shares."""
    summary = read_json(run / "summary.json")
    record = read_json(run / "run.json")
    agent = record["agent"]
    success = summary["success"]
    run_outcome: dict[str, Any] = {
        "settings": {name: agent[name] for name in ("decoding", "temperature", "top_p")},
        "games": record["config"]["env_options"],
        "success": {name: _rounded(success[name]) for name in ("value", "low", "high")},
        "n": success["n"],
        "steps": summary["steps"]["all"],
        "refused": _rounded(summary["invalid_actions"]),
    }

    # Without a world model there is neither a gate nor a prediction.
    gate = summary.get("gate")
    if gate is not None:
        run_outcome["gate open"] = _rounded(gate["opened"] / gate["reflections"])
    predictions = summary.get("predictions")
    if predictions is not None:
        run_outcome["Delta-F1 of changes"] = _rounded(predictions["nonempty"])
    return run_outcome


def differences(wins_of_runs: dict[str, dict[str, bool]]) -> dict[str, Any]:
    """Return differences in games won, with 95 % intervals, where only the world model differs."""
    differences_of_pairs: dict[str, Any] = {}
    # A run's name ends with its world model; what stands before names models and decoding.
    for models in dict.fromkeys(name.rpartition(".")[0] for name in wins_of_runs):
        for title, world, baseline in PAIRS:
            first = wins_of_runs.get(f"{models}.{world}")
            second = wins_of_runs.get(f"{models}.{baseline}")
            if first is not None and second is not None:
                differences_of_pairs[f"{models}: {title}"] = paired(first, second)
    return differences_of_pairs


def paired(first: dict[str, bool], second: dict[str, bool]) -> dict[str, float]:
    """Return the mean difference over the games of both, as a share, with its interval."""
    games = sorted(first.keys() & second.keys())
    gains = [float(first[game] - second[game]) for game in games]
    mean = fmean(gains)
    half_width = normal_quantile() * stdev(gains) / math.sqrt(len(gains))
    return {
        "mean": _rounded(mean),
        "low": _rounded(mean - half_width),
        "high": _rounded(mean + half_width),
        "n": len(gains),
    }


def _rounded(share: float) -> float:
    return round(share, 4)


if __name__ == "__main__":
    main()
