"""Makes the small models that comap ships, by the recipe of the lab: ``comap bench shipped``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..jsonl import read_json
from ..lm.create import parameters_in
from .experiments.definition import experiment, read_rows, scale_named
from .experiments.plan import Job, plan
from .experiments.runner import Main
from .experiments.session import ROWS, run_experiments
from .record import circumstances, write_result
from .training_record import read_training

COMMAND = "comap bench shipped"
_EXPERIMENT, _SCALE = "lab-shipped", "lab"
_LAST = "lab-shipped-masked"  # the recipe of the last training, whose models are shipped
_PACKAGES = ("torch", "transformers", "tokenizers", "gymnasium", "numpy", "trl")
_ASKED = (
    *("prompts", "state_text", "decoding", "form", "temperature", "max_length"),
    *("draft_tokens", "reflect_tokens", "final_tokens", "p_source", "q_source", "tau_p", "tau_q"),
)


def make(out: Path, target: Path, main: Main) -> dict[str, Any] | None:
    """Train and measure the models, unless that was done, and ship them; return their record.

    It is None where a job failed, which is told.
    """
    return ship(out, target) if run_experiments([_EXPERIMENT], _SCALE, out, main) else None


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
    template = Path(__file__).parent / "templates" / "shipped_card.md"
    return template.read_text("utf-8").format(
        **{**record, "success": success}, day=record["date"][:10]
    )
