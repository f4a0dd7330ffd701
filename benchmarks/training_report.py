"""The report of a training: one HTML page that needs nothing else, and its metrics line by line.

``python -m comap.benchmarks.training_report FOLDER`` writes both anew, of a training that has not
ended too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..trainers.config import ABLATIONS
from .training_costs import cost_tables, fault_table, settings_tables
from .training_curves import gate_plots, loss_plots, result_plots, sample_plots
from .training_page import Section, render_page, report_command, write_whole
from .training_record import TrainingRecord, flat_metrics, get, members, read_training
from .training_tables import (
    gate_table,
    prediction_table,
    results_table,
    revision_table,
    sample_table,
)

__all__ = ["METRICS", "REPORT", "write_metrics", "write_report"]

REPORT = "report.html"
"""The page, in the training's folder."""

METRICS = "metrics.jsonl"
"""The file of metrics, one line a stage, in the training's folder."""


def write_report(folder: str | Path) -> Path:
    """Write the report of a training into its folder, and return its path; the metrics as well.

    It need not have ended: what is there is shown.

    Args:
        folder: The training's folder.

    Raises:
        DataNotFound: There is no training.
        DataCorrupt: A file is not what a training writes.
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> write_report("no/such/training")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a training at no/such/training, found no run.json; \
'comap train' makes one
    """
    training = read_training(folder)
    place = Path(folder)
    write_metrics(place, training)
    page = render_page(f"Training {place.resolve().name}", _summary(training), _sections(training))
    write_whole(place / REPORT, page)
    return place / REPORT


def write_metrics(folder: Path, training: TrainingRecord | None = None) -> Path:
    """Write the metrics of a training's stages, one JSON object a line, and return the file's path.

    Args:
        folder: The training's folder.
        training: What is in it; None to read it.

    Example:
        >>> write_metrics(Path(), TrainingRecord({}, (), ())).read_text()
        ''
    """
    known = read_training(folder) if training is None else training
    lines = [json.dumps(line, ensure_ascii=True) + "\n" for line in flat_metrics(known)]
    write_whole(folder / METRICS, "".join(lines))
    return folder / METRICS


def _sections(training: TrainingRecord) -> list[Section]:
    results = [results_table(training), prediction_table(training), revision_table(training)]
    losses = (
        "Plain fine-tuning (warm-up) averages over tokens, all else over samples: the curves of "
        "different stages are on different scales."
    )
    return [
        Section("Results", results, result_plots(training)),
        Section("Gates", [gate_table(training)], gate_plots(training)),
        Section("Samples", [sample_table(training)], sample_plots(training)),
        Section("Losses", (), loss_plots(training), losses),
        Section("Cost", cost_tables(training)),
        Section("Faults", [fault_table(training)]),
        Section("Settings", settings_tables(training)),
    ]


def _summary(training: TrainingRecord) -> dict[str, str]:
    described = training.described
    done = sum(stage.result is not None for stage in training.stages)
    ablations = _ablations(members(described, "config"))
    last = training.sessions[-1] if training.sessions else {}
    return {
        "environment": str(get(described, "env", "id") or "unknown"),
        "model": str(get(described, "model", "name") or "unknown"),
        "preset": str(get(described, "preset") or "unknown"),
        "switched off": ", ".join(ablations) or "nothing",
        "seed": str(get(described, "config", "seed")),
        "stages": f"{done} done" + ("" if done == len(training.stages) else ", 1 begun"),
        "comap": str(get(last, "versions", "comap") or "unknown"),
        "last begun": str(get(last, "started") or "unknown"),
    }


def _ablations(config: Any) -> list[str]:
    return [told for name, told in ABLATIONS.items() if get(config, name) is False]


if __name__ == "__main__":
    sys.exit(report_command("training_report", write_report))
