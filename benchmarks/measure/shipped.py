"""Makes the small models that comap ships, by the recipe of the lab: an hour of one core.

``python benchmarks/measure/shipped.py``. Jobs that are done are not done again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comap.benchmarks.experiments.definition import experiment, read_rows, scale_named
from comap.benchmarks.experiments.plan import Job, plan
from comap.benchmarks.experiments.session import ROWS, run_experiments
from comap.benchmarks.record import circumstances, write_result
from comap.benchmarks.training_record import read_training
from comap.cli import main
from comap.jsonl import read_json
from comap.lm.create import model_folder, parameters_in

COMMAND = "python benchmarks/measure/shipped.py"
_EXPERIMENT = "lab-shipped"
_SCALE = "lab"
_LAST = "lab-shipped-masked"  # the recipe of the last training, whose models are shipped
_PACKAGES = ("torch", "transformers", "tokenizers", "gymnasium", "numpy", "trl")
# How the agent was asked in training, and must be asked again.
_ASKED = (
    "prompts",
    "state_text",
    "decoding",
    "form",
    "temperature",
    "max_length",
    "draft_tokens",
    "reflect_tokens",
    "final_tokens",
    "p_source",
    "q_source",
    "tau_p",
    "tau_q",
)


def make() -> int:
    """Train and measure the models, unless that was done, and ship them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/experiments-lab"), help="the jobs")
    parser.add_argument("--target", type=Path, default=model_folder(), help="the models")
    options = parser.parse_args()

    if not run_experiments([_EXPERIMENT], _SCALE, options.out, main):
        return 1  # a job failed, which was told
    ship(options.out, options.target)
    print(f"models: {options.target}")
    return 0


def training() -> Job:
    """Return the job that trains the shipped models."""
    jobs = plan([experiment(_EXPERIMENT)], scale_named(_SCALE)).jobs.values()
    return next(job for job in jobs if job.recipe.name == _LAST)


def ship(out: Path, target: Path) -> dict[str, Any]:
    """Copy the models of a folder of jobs to `target`, and write settings, record and card beside them."""
    job = training()
    folder = out / "jobs" / job.id / "out"
    settings = _settings(read_training(folder).described)
    _copy_models(folder / "models", target)
    write_result(target / "settings.json", settings)

    record = {
        "command": COMMAND,
        "configuration": job.config_hash,
        "parameters": parameters_in(target / "agent" / "model.safetensors"),
        "success": _success(out / ROWS),
        "trainings": _trainings(out),
        "cpu_seconds": round(sum(map(_seconds, (out / "jobs").glob("lab-[bs]*/out/summary.json")))),
        **circumstances(_PACKAGES),
    }
    write_result(target / "training.json", record)
    (target / "CARD.md").write_text(_card(record), "utf-8")
    return record


def _copy_models(models: Path, target: Path) -> None:
    for name in ("agent", "wm"):
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(models / name, target / name)
    for path in target.rglob("*.safetensors"):
        path.chmod(0o644)  # for all who install comap, not only for who made them


def _settings(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the models are asked: as in their training, which `run.json` describes."""
    config = described["config"]
    agent = config["agent"]
    # The expert only shows demonstrations, which nobody who plays with the agent needs.
    env_options = dict(described["env"]["options"])
    env_options.pop("expert", None)
    return {
        "env": described["env"]["id"],
        "env_options": env_options,
        "agent": {name: agent[name] for name in _ASKED},
        "world_model": {
            "prompts": agent["prompts"],
            "state_text": agent["state_text"],
            "max_length": agent["max_length"],
            "max_new_tokens": config["predict_tokens"],
        },
        "made_by": COMMAND,
    }


def _success(rows: Path) -> dict[str, dict[str, float | None]]:
    """Return the success of each method with its interval, over all splits."""
    success = {}
    for row in read_rows(rows):
        is_whole = row.metric == "success_rate" and row.split is None
        if row.experiment == _EXPERIMENT and is_whole:
            success[row.method] = {"value": row.value, "low": row.low, "high": row.high, "n": row.n}
    return success


def _trainings(out: Path) -> dict[str, dict[str, str]]:
    """Return when each of the trainings that follow each other ended, and on which processor."""
    records = list(map(read_json, sorted((out / "jobs").glob("lab-[bs]*/job.json"))))
    records.sort(key=lambda record: str(record["date"]))

    trainings = {}
    for record in records:
        trainings[record["recipe"]] = {"date": record["date"], "cpu": record["hardware"]["cpu"]}
    return trainings


def _seconds(summary: Path) -> float:
    """Return the seconds of the processor that all stages of a training took."""
    stages = read_json(summary)["stages"].values()
    return sum(float(stage.get("cpu_seconds", 0)) for stage in stages)


def _card(record: Mapping[str, Any]) -> str:
    """Return the models' card: what they are, and how they were made."""
    lines = []
    for name, rate in record["success"].items():
        interval = f"[{rate['low']:.1f}, {rate['high']:.1f}]"
        lines.append(f"| {name} | {rate['value']:.1f} {interval} | {rate['n']} |")

    card_fields = {**record, "success": "\n".join(lines), "day": record["date"][:10]}
    template = Path(__file__).with_name("shipped_card.md").read_text("utf-8")
    return template.format(**card_fields)


if __name__ == "__main__":
    sys.exit(make())
