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
from .results import Results, read_results

__all__ = ["FORMATS", "PICTURES", "print_report", "write_reports"]

FORMATS = ("md", "tex", "html")
"""The formats of reports, each the end of a file's name."""

PICTURES = "figures"
"""The folder beside a report in Markdown that holds its pictures."""


def write_reports(
    results: Path,
    out: Path | None = None,
    formats: Sequence[str] = FORMATS,
    *,
    only: Sequence[str] | None = None,
    definitions: Sequence[Experiment] | None = None,
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> list[Path]:
    """Write the reports of a folder of results: ``report.md``, ``report.tex`` and ``report.html``.

    Links lead to jobs by relative paths, so that the folder can be moved as a whole. Figures in Markdown
    are pictures in the folder ``figures`` beside it.

    Args:
        results: The folder; its rows are in ``rows.jsonl``.
        out: Where the reports go; None for the same folder.
        formats: Which of ``md``, ``tex`` and ``html``.
        only: Ids of the experiments to report; None for all that have a row.
        definitions: The experiments, in their order; None for all that comap has.
        cited: What returns an experiment's published numbers.

    Returns:
        The reports that were written, one a format.

    Raises:
        DataNotFound: There are no rows.
        DataCorrupt: A row is not what it should be.
        OptionError: There is no such format or experiment.
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
    found = _read(results, only, definitions, cited)
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
    results: Path,
    *,
    only: Sequence[str] | None = None,
    definitions: Sequence[Experiment] | None = None,
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> None:
    """Print the tables of a folder of results on standard output.

    Args:
        results: The folder; its rows are in ``rows.jsonl``.
        only: Ids of the experiments to print; None for all that have a row.
        definitions: The experiments, in their order; None for all that comap has.
        cited: What returns an experiment's published numbers.

    Raises:
        DataNotFound: There are no rows.
        DataCorrupt: A row is not what it should be.
        OptionError: There is no such experiment.
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> import tempfile
        >>> from comap.benchmarks.experiments.rows import ResultRow, write_rows
        >>> row = ResultRow(experiment="comap-t2", method="SFT", metric="delta_f1", value=1.0)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write_rows(Path(place, "rows.jsonl"), [row])
        ...     print_report(Path(place), cited=lambda name: None)  # doctest: +ELLIPSIS
        CoMap, Table 2: World-model quality (Delta-F1)
        ...
    """
    found = _read(results, only, definitions, cited)
    for place, one in enumerate(found.shown):
        if place:
            print("\n")
        print_shown(one)
    for line in found.left_out:
        print(f"\n{line}")


def _read(
    results: Path,
    only: Sequence[str] | None,
    definitions: Sequence[Experiment] | None,
    cited: Callable[[str], CitedTable | None],
) -> Results:
    found = read_results(results, definitions, cited)
    if only is None:
        return found
    known = [one.experiment.id for one in found.shown]
    for name in only:
        if name not in known:
            raise OptionError(
                f"expected an experiment with rows in {results}, found {name!r:.80}; "
                f"{suggest(name, known)}"
            )
    shown = tuple(one for one in found.shown if one.experiment.id in only)
    return Results(shown=shown, about=found.about)


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
