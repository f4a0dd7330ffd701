"""The report of a PaW training: one HTML page that needs nothing else.

``python -m comap.benchmarks.paw_report FOLDER`` writes it anew, of a training that has not ended too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .paw_curves import (
    evaluation_plots,
    further_plots,
    phase_plots,
    policy_plots,
    reward_plots,
    world_plots,
)
from .paw_record import PaWRecord, read_paw
from .paw_tables import phase_table, results_table, setting_tables
from .training_page import Section, render_page, report_command, write_whole

__all__ = ["REPORT", "write_report"]

REPORT = "report.html"
"""The page, in the training's folder."""


def write_report(folder: str | Path) -> Path:
    """Write the report of a training into its folder, and return its path.

    It need not have ended: what is there is shown.

    Args:
        folder: The training's folder, with ``metrics.jsonl``, ``evaluations.jsonl`` and ``run.json``
            as far as they are written.

    Raises:
        DataNotFound: There is no training.
        DataCorrupt: A file is not what a training writes.
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> write_report("no/such/training")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a training at no/such/training, found no metrics.jsonl \
and no run.json; 'comap train paw' makes one
    """
    record, place = read_paw(folder), Path(folder)
    page = render_page(f"Training {place.resolve().name}", record.summary(), _sections(record))
    write_whole(place / REPORT, page)
    return place / REPORT


def _sections(record: PaWRecord) -> list[Section]:
    observed = (
        "What PaW learns from observations: selected rows alone; a token counts while the policy "
        "gives it at most ρ."
    )
    parts = [
        Section("Results", [results_table(record)], evaluation_plots(record)),
        Section("Rollouts", (), reward_plots(record)),
        Section("Policy", (), policy_plots(record)),
        Section("Observations", (), world_plots(record), observed),
        Section("Cost", [phase_table(record)], phase_plots(record)),
        Section("Further measures", (), further_plots(record)),
        Section("Settings", setting_tables(record)),
    ]
    return [part for part in parts if part.tables or part.plots]


if __name__ == "__main__":
    sys.exit(report_command("paw_report", write_report))
