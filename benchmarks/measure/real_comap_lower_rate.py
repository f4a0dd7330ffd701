"""Would a lower rate in its rounds have let lab-comap-real's CoMap win? On development's games only.

``python benchmarks/measure/real_comap_lower_rate.py OUT FILE --model DIR --work FOLDER --seeds N ...``
trains the rounds of these seeds again at a fifth of the policy's rate, from the same initialization, and
lets both policies play development's games (generator seed 13), with their reflections and with the gate
shut. It is an analysis after the results: the final games are not played. What FOLDER has is gone on from,
and what FILE has is not measured again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from real_comap import reflections_of
from real_conditions import command_of, finished_job, parser_of_jobs, seeds_in, write_seeds

LOWER_RATE = "0.0001"
"""A fifth of the run's."""

DEVELOPMENT_GAMES = "generator_seed=13"
PLAYS = {"CoMap": "play-comap", "gate shut": "play-comap-shut"}
"""Jobs whose commands play, by what is played."""


def run(words: list[str]) -> None:
    """Run a command of comap."""
    subprocess.run([sys.executable, "-m", *words], check=True)


def train_rounds(out: Path, seed: int, model: Path, work: Path) -> Path:
    """Train the rounds of a seed at the lower rate, or go on with it, and return the training's folder."""
    job = finished_job(out, f"real-comap-alfworld-*-{seed}-*")
    words = command_of(job, out, model)
    training = work / "comap"
    words[words.index("--out") + 1] = str(training)
    words[words.index("--policy-rate") + 1] = LOWER_RATE
    if not (training / "summary.json").exists():
        run(words)
    return training


def success_of_play(
    out: Path, seed: int, model: Path, play: str, training: Path, folder: Path
) -> dict[str, float]:
    """Let a training's policy play development's games, or go on with it, and return its success."""
    play_job = finished_job(out, f"real-{play}-alfworld-*-{seed}-*")
    training_job = finished_job(out, f"real-comap-alfworld-*-{seed}-*")
    words = command_of(play_job, out, model, {f"OUT/jobs/{training_job.name}/out": training})

    (final_games,) = (word for word in words if word.startswith("generator_seed="))
    words[words.index(final_games)] = DEVELOPMENT_GAMES
    words[words.index("--out") + 1] = str(folder)
    if not (folder / "summary.json").exists():
        run(words)
    return json.loads((folder / "summary.json").read_bytes())["success"]


def of_seed(out: Path, seed: int, model: Path, work: Path) -> dict[str, Any]:
    """Return what a seed's policies win, by rate and play, and what the rounds learned from."""
    trainings = {
        "run": finished_job(out, f"real-comap-alfworld-*-{seed}-*") / "out",
        "lower": train_rounds(out, seed, model, work),
    }
    record: dict[str, Any] = {"success": {}, "reflections": {}, "rounds": {}}
    for rate, training in trainings.items():
        stages = json.loads((training / "summary.json").read_bytes())["stages"]
        record["rounds"][rate] = {
            number: {
                "won": 100 * stages[f"round-{number}-rollouts"]["success"],
                "updates": stages[f"round-{number}-policy"]["updates"],
            }
            for number in (1, 2)
        }
        record["success"][rate] = {
            name: success_of_play(out, seed, model, play, training, work / rate / play)
            for name, play in PLAYS.items()
        }
        reflecting = work / rate / PLAYS["CoMap"] / "trajectories.jsonl"
        record["reflections"][rate] = reflections_of(reflecting)
    return record


def main(out: Path, file: Path, model: Path, work: Path, seeds: list[int]) -> None:
    """Add seeds to a file, after each of them."""
    records = seeds_in(file)
    for seed in seeds:
        if str(seed) not in records:
            records[str(seed)] = of_seed(out, seed, model, work / str(seed))
            write_seeds(file, records, rate=float(LOWER_RATE))


if __name__ == "__main__":
    parser = parser_of_jobs(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    options = parser.parse_args()
    folders = (options.out.resolve(), options.file, options.model, options.work.resolve())
    main(*folders, options.seeds)
