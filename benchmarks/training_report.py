"""The report of a training: one HTML page that needs nothing else, and its metrics line by line.

``python -m comap.benchmarks.training_report FOLDER`` writes both anew, of a training that has not
ended too. Everything on the page stays text: Jinja escapes it, and a content security policy lets no
script and no connection in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import CoMapError, MissingExtra
from ..trainers.config import ABLATIONS
from .marks import pieces, visible
from .plots import SYMBOLS, Plot, render_plot
from .tables import Table, format_cells, numeric_columns
from .training_costs import cost_tables, fault_table, settings_tables
from .training_curves import gate_plots, loss_plots, result_plots, sample_plots
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

_STYLE = "h2 { margin: 2.5rem 0 0.8rem; }\nsection > .plots { margin-top: 1.5rem; }\n"


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    note: str = ""


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
    _write(place / REPORT, _page(training, place.resolve().name))
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
    _write(folder / METRICS, "".join(lines))
    return folder / METRICS


def _write(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old one or the new one, whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(text.encode("utf-8", errors="replace"))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _sections(training: TrainingRecord) -> list[_Section]:
    results = [results_table(training), prediction_table(training), revision_table(training)]
    losses = (
        "Plain fine-tuning (warm-up) averages over tokens, all else over samples: the curves of "
        "different stages are on different scales."
    )
    return [
        _Section("Results", results, result_plots(training)),
        _Section("Gates", [gate_table(training)], gate_plots(training)),
        _Section("Samples", [sample_table(training)], sample_plots(training)),
        _Section("Losses", (), loss_plots(training), losses),
        _Section("Cost", cost_tables(training)),
        _Section("Faults", [fault_table(training)]),
        _Section("Settings", settings_tables(training)),
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


def _page(training: TrainingRecord, name: str) -> str:
    environment = _environment()
    from markupsafe import Markup  # a part of jinja2

    style = _template("report.css") + _STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    sections = []
    for place, section in enumerate(_sections(training)):
        drawn = [
            (plot, Markup(render_plot(plot, f"plot-{place}-{i}")))
            for i, plot in enumerate(section.plots)
        ]
        tables = [(one, format_cells(one), numeric_columns(one)) for one in section.tables]
        told = {"title": section.title, "note": section.note, "tables": tables, "plots": drawn}
        sections.append(told)
    page = environment.get_template("training.html").render(
        title=f"Training {name}",
        summary=_summary(training),
        sections=sections,
        style=Markup(style),
        style_hash=f"sha256-{digest}",
    )
    return str(page)


def _environment() -> Any:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtra.of("viz", "writing a report") from error
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["pieces"] = pieces
    environment.filters["visible"] = visible
    environment.globals["symbols"] = SYMBOLS
    return environment


def _template(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m comap.benchmarks.training_report FOLDER", file=sys.stderr)
        return 2
    try:
        print(f"report: {write_report(arguments[0])}")
    except (CoMapError, OSError) as error:
        print(f"comap: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
