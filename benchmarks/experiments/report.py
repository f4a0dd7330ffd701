"""The reports of a folder of results: Markdown, LaTeX and one HTML page; and tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import OptionError, suggest
from ..training_page import write_whole
from .charts import svg_file
from .cited import CitedTable, load_cited
from .definition import Experiment
from .links import Links
from .report_html import render_html
from .report_latex import latex
from .report_text import markdown, print_shown
from .results import Results, read_results, results_of
from .rows import ResultRow

__all__ = ["FORMATS", "PICTURES", "print_report", "write_reports"]

FORMATS = ("md", "tex", "html")
"""The formats of reports, each the end of a file's name."""

PICTURES = "figures"
"""The folder beside a report in Markdown that holds its pictures."""


def write_reports(
    results: Path,
    out: Path | None = None,
    formats: Sequence[str] = FORMATS,
    experiments: Sequence[Experiment] | None = None,
    *,
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> list[Path]:
    """Write the reports of a folder of results: ``report.md``, ``report.tex`` and ``report.html``.

    Links lead to jobs by relative paths, so that the folder can be moved as a whole. Figures in
    Markdown are pictures in the folder ``figures`` beside it.

    Args:
        results: The folder; its rows are in ``rows.jsonl``.
        out: Where the reports go; None for the same folder.
        formats: Which of ``md``, ``tex`` and ``html``.
        experiments: What to report, in this order; None for all that have a row.
        cited: What returns an experiment's published numbers.

    Returns:
        The reports that were written, one a format.

    Raises:
        DataNotFound: There are no rows.
        DataCorrupt: A row is not what it should be.
        OptionError: There is no such format.
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> write_reports(Path("no/such/results"))
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected result rows in no/such/results/rows.jsonl, found that it \
cannot be read (No such file or directory); 'comap bench run' makes them
    """
    for name in formats:
        if name not in FORMATS:
            raise OptionError(f"there is no format {name!r:.40}; {suggest(name, list(FORMATS))}")
    found = read_results(results, experiments, cited)
    place = results if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    writers: dict[str, Callable[[], str]] = {
        "md": lambda: markdown(found, _pictures(found, place)),
        "tex": lambda: latex(found),
        "html": lambda: render_html(found, Links(results, place)),
    }
    written = []
    for name in dict.fromkeys(formats):
        path = place / f"report.{name}"
        write_whole(path, writers[name]())
        written.append(path)
    return written


def print_report(
    rows: Sequence[ResultRow],
    experiments: Sequence[Experiment] | None = None,
    *,
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> None:
    """Print the tables of experiments on standard output.

    Args:
        rows: The rows of results.
        experiments: What to print, in this order; None for all that have a row.
        cited: What returns an experiment's published numbers.

    Raises:
        DataCorrupt: A definition is not what it should be.
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> row = ResultRow(experiment="comap-t2", method="SFT", metric="delta_f1", value=1.0)
        >>> print_report([row], cited=lambda name: None)  # doctest: +ELLIPSIS
        CoMap, Table 2: World-model quality (Delta-F1)
        ...
    """
    found = results_of(rows, experiments, cited)
    for place, one in enumerate(found.shown):
        if place:
            print("\n")
        print_shown(one)
    for line in found.left_out:
        print(f"\n{line}")


def _pictures(found: Results, place: Path) -> dict[tuple[str, int], str]:
    """Write the pictures of all figures, and return their files as Markdown names them."""
    files = {}
    for one in found.shown:
        for number, panel in enumerate(one.panels):
            name = f"{PICTURES}/{one.experiment.id}-{number + 1}.svg"
            (place / PICTURES).mkdir(exist_ok=True)
            write_whole(place / name, svg_file(panel))
            files[one.experiment.id, number] = name
    return files
