"""How well lab-comap-real's world models predict before and after CoMap's rounds, on the same transitions.

``python benchmarks/measure/real_comap_world_models.py OUT FILE --model DIR`` scores both world models of
each seed whose arms in OUT have ended, on transitions of two of its plays, of the SFT policy and of
CoMap's with its gate shut, and of the second round. From round to round world model and games change
together; here the games do not. What FILE has is not measured again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_conditions import seeds_of
from real_conditions import finished_job, parser_of_jobs, seeds_in, write_seeds

from comap.benchmarks.experiments.definition import recipe

TRAININGS = {"before": "comap-sft", "after": "comap"}
"""Trainings whose world models are compared."""

EPISODES = {
    "SFT": ("play-comap-sft", "out/train"),
    "CoMap, gate shut": ("play-comap-shut", "out/train"),
    "CoMap's second round": ("comap", "out/stages/06-round-2-rollouts/episodes/rank-0-of-1"),
}
"""Jobs, and folders in them, whose transitions are predicted."""

SAMPLES = 300


def score(out: Path, seed: int, training: str, name: str, model: Path) -> dict[str, Any]:
    """Return the scores of a training's world model on transitions of some episodes."""
    adapter = finished_job(out, f"real-{training}-alfworld-*-{seed}-*") / "out" / "models" / "wm"
    job_name, folder_name = EPISODES[name]
    episodes = finished_job(out, f"real-{job_name}-alfworld-*-{seed}-*") / folder_name
    env_options = recipe("real-play-comap-sft").settings["env_options"]

    command = [sys.executable, "-m", "comap", "score", "world-model"]
    command += ["--world-model", str(model), "--adapter", f"wm={adapter}"]
    command += ["--world-model-adapter", "wm", "--world-model-prompts", "brief"]
    command += ["--world-model-state-text", "belief", "--dtype", "bfloat16"]
    command += ["--world-model-option", "max_length=1024"]
    command += ["--world-model-option", "max_new_tokens=64"]
    command += ["--env", "comap/ALFWorld-v0", "--env-option", "source=generated"]
    for name, value in env_options.items():
        command += ["--env-option", f"{name}={value}"]
    command += ["--transitions", str(episodes), "--samples", str(SAMPLES), "--seed", str(seed)]

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scores.json")
        subprocess.run([*command, "--out", str(file)], check=True)
        scores = json.loads(file.read_bytes())["scores"]

    return {
        "n": scores["n"],
        "transitions": scores["fingerprint"],
        "delta_f1": scores["all"]["delta_f1"],
        "stderr": scores["all"]["stderr"],
        "predictable": scores["predictable"],
        "refusals": scores["refusals"],
    }


def main(out: Path, file: Path, model: Path) -> None:
    """Add the seeds of a folder of jobs to a file, after each of them."""
    seeds = seeds_in(file)
    for seed in seeds_of(out.glob("jobs/real-play-comap-shut-alfworld-*/out/*")):
        scores_by_name = seeds.setdefault(str(seed), {})
        for name in EPISODES:
            if name in scores_by_name:
                continue

            scores = {
                moment: score(out, seed, training, name, model)
                for moment, training in TRAININGS.items()
            }
            if scores["before"]["transitions"] != scores["after"]["transitions"]:
                raise RuntimeError(f"other transitions for each world model: {seed}, {name}")
            scores_by_name[name] = scores
            write_seeds(file, seeds)


if __name__ == "__main__":
    options = parser_of_jobs(__doc__).parse_args()
    main(options.out, options.file, options.model)
