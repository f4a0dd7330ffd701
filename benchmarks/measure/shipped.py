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
_EXPERIMENT, _SCALE = "lab-shipped", "lab"
_LAST = "lab-shipped-masked"  # the recipe of the last training, whose models are shipped
_PACKAGES = ("torch", "transformers", "tokenizers", "gymnasium", "numpy", "trl")
_ASKED = (
    *("prompts", "state_text", "decoding", "form", "temperature", "max_length"),
    *("draft_tokens", "reflect_tokens", "final_tokens", "p_source", "q_source", "tau_p", "tau_q"),
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
    described = read_training(folder).described
    config, env = described["config"], described["env"]
    for name in ("agent", "wm"):
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(folder / "models" / name, target / name)
    for path in target.rglob("*.safetensors"):
        path.chmod(0o644)  # for all who install comap, not only for who made them
    world_model = {name: config["agent"][name] for name in ("prompts", "state_text", "max_length")}
    settings = {
        "env": env["id"],
        "env_options": {n: v for n, v in env["options"].items() if n != "expert"},
        "agent": {name: config["agent"][name] for name in _ASKED},
        "world_model": {**world_model, "max_new_tokens": config["predict_tokens"]},
        "made_by": COMMAND,
    }
    rows = [row for row in read_rows(out / ROWS) if row.experiment == _EXPERIMENT]
    record = {
        "command": COMMAND,
        "configuration": job.config_hash,
        "parameters": parameters_in(target / "agent" / "model.safetensors"),
        "success": {
            row.method: {"value": row.value, "low": row.low, "high": row.high, "n": row.n}
            for row in rows
            if row.metric == "success_rate" and row.split is None
        },
        "trainings": _trainings(out),
        "cpu_seconds": round(sum(map(_seconds, (out / "jobs").glob("lab-[bs]*/out/summary.json")))),
        **circumstances(_PACKAGES),
    }
    write_result(target / "settings.json", settings)
    write_result(target / "training.json", record)
    (target / "CARD.md").write_text(_card(record), "utf-8")
    return record


def _trainings(out: Path) -> dict[str, dict[str, str]]:
    """Return when each of the trainings that follow each other ended, and on which processor."""
    records = [read_json(path) for path in sorted((out / "jobs").glob("lab-[bs]*/job.json"))]
    return {
        record["recipe"]: {"date": record["date"], "cpu": record["hardware"]["cpu"]}
        for record in sorted(records, key=lambda record: str(record["date"]))
    }


def _seconds(summary: Path) -> float:
    return sum(
        float(stage.get("cpu_seconds", 0)) for stage in read_json(summary)["stages"].values()
    )


def _card(record: Mapping[str, Any]) -> str:
    """Return the models' card: what they are, and how they were made."""
    success = "\n".join(
        f"| {name} | {one['value']:.1f} [{one['low']:.1f}, {one['high']:.1f}] | {one['n']} |"
        for name, one in record["success"].items()
    )
    template = Path(__file__).with_name("shipped_card.md")
    return template.read_text("utf-8").format(
        **{**record, "success": success}, day=record["date"][:10]
    )


if __name__ == "__main__":
    sys.exit(make())
