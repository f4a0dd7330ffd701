"""Reports of experiments as text: Markdown, LaTeX, and tables for a terminal."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ...agents.run import TRAJECTORIES
from ...errors import needs_extra
from ..display import open_console, print_grid
from ..report import page_environment, source_hash, template_text
from ..tables import Plot, Series, image_of, one_line, visible
from .cells import Cell, joined
from .cited import CitedTable, cited_tables, load_cited
from .definition import Experiment, ResultRow, experiment_ids, read_data
from .runner import RECORD
from .table import (
    Block,
    Curve,
    Entry,
    Panel,
    Table,
    Value,
    differences_table,
    entry,
    interval,
    measured_table,
    number,
    panel_table,
    panels,
    values,
    with_unit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSection:
    """An experiment with its results."""

    experiment: Experiment
    measured: Table | None
    differences: Table | None
    panels: tuple[Panel, ...]
    cited: Table | None
    listed: Table | None
    """cited values without a column"""

    @property
    def title(self) -> str:
        return f"{self.experiment.paper}, {self.experiment.published}: {self.experiment.title}"

    @property
    def tables(self) -> list[Table]:
        """All tables in order, a figure's panels as tables too."""
        of_panels = map(panel_table, self.panels)
        tables = (self.measured, self.differences, *of_panels, self.cited, self.listed)
        return [table for table in tables if table is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All experiments of a folder."""

    sections: tuple[ExperimentSection, ...]
    about: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def results_of(
    rows: Iterable[ResultRow],
    experiments: Sequence[Experiment],
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> Results:
    """Return tables and figures of rows of results; rows that say that they are cited are not ours."""
    our_rows = [row for row in rows if not row.cited]

    sections = []
    known_rows: list[ResultRow] = []
    not_run = []
    for experiment in experiments:
        experiment_rows = [row for row in our_rows if row.experiment == experiment.id]
        if experiment_rows:
            known_rows += experiment_rows
            sections.append(_section_of(experiment, experiment_rows, cited(experiment.id)))
        else:
            not_run.append(f"{experiment.paper} {experiment.published} ({experiment.id})")

    left_out = [f"Not run: {', '.join(not_run)}."] if not_run else []
    left_out += _unknown_experiments(our_rows, experiments)
    return Results(sections=tuple(sections), about=_about(known_rows), left_out=tuple(left_out))


def _unknown_experiments(
    rows: Sequence[ResultRow], experiments: Sequence[Experiment]
) -> Iterator[str]:
    """Yield a note on rows that an older or a newer version wrote, if there are any."""
    known_ids = {*experiment_ids()}
    known_ids |= {experiment.id for experiment in experiments}
    unknown = [row.experiment for row in rows if row.experiment not in known_ids]
    if unknown:
        names = ", ".join(dict.fromkeys(one_line(name, 60) for name in unknown))
        yield (
            f"Not shown: {len(unknown)} rows of experiments that this version does not know: {names}."
        )


def _section_of(
    experiment: Experiment, rows: Sequence[ResultRow], cited: CitedTable | None
) -> ExperimentSection:
    is_table = experiment.kind == "table"
    in_columns, listed = cited_tables(experiment, cited)
    return ExperimentSection(
        experiment=experiment,
        measured=measured_table(experiment, rows) if is_table else None,
        differences=differences_table(experiment, rows) if experiment.compared else None,
        panels=() if is_table else panels(experiment, rows),
        cited=in_columns,
        listed=listed,
    )


def _about(rows: Sequence[ResultRow]) -> tuple[tuple[str, str], ...]:
    """Return the circumstances of rows as names and texts, without those of which none is known."""
    # All rows of a job repeat its time, which counts once.
    seconds_of_jobs = {row.job: row.seconds for row in rows if row.job is not None}
    job_seconds = [seconds for seconds in seconds_of_jobs.values() if seconds is not None]
    failed = len({row.job for row in rows if row.job and row.error is not None})
    seeds = sorted({row.seed for row in rows if row.seed is not None})

    circumstances = {
        "tasks": _listed(row.tasks for row in rows),
        "models": _listed(row.backbone for row in rows),
        "seeds": _listed(map(str, seeds)),
        "comap": _listed(row.code_version for row in rows),
        "hardware": _listed((row.hardware for row in rows), separator="; "),  # each has commas
        "jobs": f"{len(seconds_of_jobs):,}",
    }
    if job_seconds:
        circumstances["time of all jobs"] = f"{sum(job_seconds) / 3600:,.1f} h"
    if failed:
        circumstances["failed"] = f"{failed:,} jobs" if failed > 1 else "1 job"
    return tuple((name, text) for name, text in circumstances.items() if text)


def _listed(names: Iterable[str | None], separator: str = ", ") -> str:
    """Return different names, six at most, and how many more there are."""
    different = list(dict.fromkeys(filter(None, names)))
    first_names = separator.join(one_line(str(name), 120) for name in different[:6])
    if len(different) <= 6:
        return first_names
    return f"{first_names} and {len(different) - 6} more"


def picture(section: ExperimentSection, panel_index: int) -> str:
    """Return the file of a panel's picture, relative to the report."""
    return f"figures/{section.experiment.id}-{panel_index + 1}.svg"


# Beside what Markdown reads: code hosts mention @names, set $formulas$, and make links of www. and of
# addresses with a scheme.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#&$@]|:(?=\S)|(?<=www)\.)")
# What begins a list or a quote at the start of a line, or underlines a heading.
_STARTS = re.compile(r"^([-+=>])")
# What begins a numbered list. Markdown has no escaped digits: the mark after the number is escaped.
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?= |$)")
_EVERY = ("method", "column", "mean ± sd", "95 % interval", "n", "seeds")


def markdown(results: Results) -> str:
    """Return all experiments as a page in Markdown, which code hosts show with its pictures."""
    parts = ["# Experiments"]
    parts.append("\n".join(f"- {escape(name)}: {escape(text)}" for name, text in results.about))
    parts += map(escape, results.notes)

    contents = []
    for section in results.sections:
        contents.append(f"- [{escape(section.title)}](#{_anchor(section.title)})")
    parts.append("\n".join(contents))

    for section in results.sections:
        parts += section_lines(section)
    parts += map(escape, results.left_out)
    return "\n\n".join(filter(None, parts)) + "\n"


def escape(text: str) -> str:
    r"""Return text so that Markdown and HTML show it as it is, on one line."""
    line = _SPECIAL.sub(r"\\\1", one_line(text, 2000))
    line = _STARTS.sub(r"\\\1", line)
    return _NUMBERED.sub(r"\1\\\2", line)


def _anchor(title: str) -> str:
    """Return the id that code hosts give to a heading."""
    return re.sub(r"[^\w\- ]", "", one_line(title, 2000).lower()).replace(" ", "-")


def section_lines(section: ExperimentSection) -> Iterator[str]:
    """Yield the paragraphs of an experiment, in Markdown."""
    yield f"## {escape(section.title)}"
    yield escape(section.experiment.about)

    for panel_index, panel in enumerate(section.panels):
        yield f"![{escape(panel.column.label)}]({picture(section, panel_index)})"

    for table in section.tables:
        yield f"**{escape(table.title)}**"
        # Markdown has no rules within a table: a block's name in bold stands for one.
        lines = []
        for kind, row in table.lines():
            lines.append([_cell(entry, kind) for entry in row.entries])
        yield _table(table.head, lines, table.texts)
        yield _notes(table)

    if section.measured is not None:
        yield from _every_value(section.measured, section.experiment)
    yield "\n".join(f"- {escape(text)}" for text in section.experiment.footnotes.values())


def _cell(entry: Entry, kind: str) -> str:
    """Return an entry in Markdown: the best in bold, and the marks of footnotes raised."""
    text = escape(entry.text)
    if text and (entry.best or kind == "block"):
        text = f"**{text}**"
    if text and kind == "counts":
        text = f"*{text}*"
    if entry.marks:
        text += f" <sup>{' '.join(entry.marks)}</sup>"
    return text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """Return a table in Markdown; short rows are filled up with empty cells."""
    texts_left = [":--"] * texts
    numbers_right = ["--:"] * (len(head) - texts)

    lines = []
    for row in (list(map(escape, head)), texts_left + numbers_right, *rows):
        filled = [*row, *[""] * (len(head) - len(row))]
        lines.append(f"| {' | '.join(cell or ' ' for cell in filled)} |")
    return "\n".join(lines)


def _notes(table: Table) -> str:
    notes = list(map(escape, table.notes))
    notes += [f"<sup>{letter}</sup> {escape(text)}" for letter, text in table.footnotes]
    return "  \n".join(f"<sub>{note}</sub>" for note in notes)


def _every_value(measured: Table, experiment: Experiment) -> Iterator[str]:
    """Yield a folded table of all values, with what the narrow one has no room for."""
    lines = []
    for value in values(measured, experiment.columns):
        if value.cell.value is None:
            continue
        texts = (
            value.method,
            one_line(value.column.label),
            value.entry.text,
            value.interval,
            value.cell.n,
            value.cell.seed_names,
        )
        lines.append(list(map(escape, texts)))

    if lines:
        yield "<details><summary>Every value with its interval, n and seeds</summary>"
        yield _table(_EVERY, lines, 2)
        yield "</details>"


def print_results(results: Results) -> None:
    """Print the tables of experiments on standard output."""
    console = open_console()
    for i, section in enumerate(results.sections):
        if i:
            console.print("\n")
        console.print(Text(visible(section.title), style="bold"), soft_wrap=True)
        for table in section.tables:
            console.print()
            _print_table(table, console)

    for line in results.left_out:
        console.print(Text(f"\n{visible(line)}"), soft_wrap=True)


def _print_table(table: Table, console: Console) -> None:
    title = Text(visible(table.title), style="bold")
    grid = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for i, name in enumerate(table.head):
        grid.add_column(Text(visible(name)), justify="left" if i < table.texts else "right")

    for kind, row in table.lines():
        if kind != "line":
            grid.add_section()
        style = {"block": "bold italic", "counts": "dim"}.get(kind, "")
        cells = []
        for row_entry in row.entries:
            text = Text(visible(row_entry.text), style="bold" if row_entry.best else style)
            marks = "".join(f" [{mark}]" for mark in row_entry.marks)
            cells.append(text + Text(marks, style="dim"))
        grid.add_row(*cells)

    print_grid(console, grid)
    footnotes = (f"[{letter}] {text}" for letter, text in table.footnotes)
    for line in (*table.notes, *footnotes):
        console.print(Text(visible(line)), soft_wrap=True)


def latex(results: Results) -> str:
    """Return the tables as a LaTeX document; a table environment can be copied by itself."""
    environment = _latex_environment()
    return str(
        environment.get_template("experiments.tex").render(
            about=results.about,
            notes=results.notes,
            sections=results.sections,
            left_out=results.left_out,
        )
    )


def _latex_environment() -> Any:
    """Return jinja2's environment of LaTeX, where braces and percent signs are not jinja2's."""
    with needs_extra("viz", "a report"):
        from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(template_text),
        undefined=StrictUndefined,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "latex": escape_latex,
        "latex_heading": _heading,
        "latex_cell": _latex_cell,
        "latex_notes": _latex_notes,
    }
    return environment


def escape_latex(text: str) -> str:
    r"""Return text as LaTeX that shows it as it is; what its fonts lack is shown by its code point."""
    return "".join(map(_latex_character, visible(text)))


def _latex_character(char: str) -> str:
    escaped = _latex_characters().get(char)
    if escaped:
        return escaped

    # Of Latin-1 the fonts have the letters; its two signs among them are of mathematics.
    in_font = char.isascii() or ("À" <= char <= "ÿ" and char not in "×÷")
    return char if in_font else rf"\texttt{{[U+{ord(char):04X}]}}"


@cache
def _latex_characters() -> dict[str, str]:
    return read_data("latex.json", dict)


def _heading(name: str) -> str:
    """Return a column's head; where it is long, on two lines."""
    words = name.split(" ")
    if len(name) <= 12 or len(words) < 2:
        return escape_latex(name)

    # The column is as wide as the longer half.
    halves = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(1, len(words))]
    first, second = min(halves, key=lambda half: max(map(len, half)))
    return rf"\shortstack[r]{{{escape_latex(first)} \\ {escape_latex(second)}}}"


def _latex_cell(entry: Entry) -> str:
    text = escape_latex(entry.text)
    if entry.best:
        text = rf"\textbf{{\boldmath {text}}}"
    if entry.marks:
        text += rf"\textsuperscript{{{','.join(entry.marks)}}}"
    return text


def _latex_notes(table: Table) -> list[str]:
    notes = list(map(escape_latex, table.notes))
    for mark, text in table.footnotes:
        notes.append(rf"\textsuperscript{{{mark}}}~{escape_latex(text)}")
    return notes


def render_html(results: Results, folder: Path, page: Path) -> str:
    """Return the page for a folder `page`, with links into the results' folder."""
    environment = page_environment()
    from markupsafe import Markup  # a part of jinja2

    sections = [_page_section(section, folder, page) for section in results.sections]
    style = template_text("report.css") + template_text("experiments.css")
    script = template_text("experiments.js")
    return str(
        environment.get_template("experiments.html").render(
            about=results.about,
            notes=results.notes,
            left_out=results.left_out,
            sections=sections,
            style=Markup(style),
            script=Markup(script),
            style_hash=source_hash(style),
            script_hashes=[source_hash(script)],
        )
    )


def _page_section(section: ExperimentSection, folder: Path, page: Path) -> dict[str, Any]:
    """Return what the template shows of an experiment."""
    section_id = re.sub(r"[^a-z0-9-]", "-", section.experiment.id.lower())
    measured = section.measured
    section_values = list(values(measured, section.experiment.columns)) if measured else []

    # A cell of the table links to its line among the details. Entries of different cells may be equal, so
    # they are known by their identity.
    targets: dict[int, str] = {}
    details = []
    for i, value in enumerate(section_values):
        target = f"{section_id}-v{i}"
        targets[id(value.entry)] = target
        details.append(_detail(value, target, folder, page))

    return {
        "id": section_id,
        "results": section,
        "blocks": list(_blocks(section, targets)),
        "texts": _text_columns(measured),
        "spread": any(entry.spread for entry in _entries(measured)),
        "details": details,
        "charts": list(map(_plot, section.panels)),
    }


def _detail(value: Value, target: str, folder: Path, page: Path) -> dict[str, Any]:
    """Return what the template shows of one value: where it comes from, seed by seed."""
    split = value.column.split
    return {
        "id": target,
        "value": value,
        "column": one_line(value.column.label),
        "sources": [_source(row, split, folder, page) for row in value.cell.rows],
    }


def _width(table: Table | None) -> int:
    """Return how many columns a table has beside the methods' names."""
    return len(table.head) - 1 if table else 0


def _entries(table: Table | None) -> Iterator[Entry]:
    """Yield the entries of a table beside the methods' names; none where there is no table."""
    if table is None:
        return
    for block in table.blocks:
        for row in block.rows:
            yield from row.entries[1:]


def _text_columns(table: Table | None) -> list[bool]:
    """Return for each column whether it holds texts and no number."""
    width = _width(table)
    statuses = [entry.status for entry in _entries(table)]
    by_column = [statuses[i::width] for i in range(width)]
    return ["text" in column and "value" not in column for column in by_column]


Target = tuple[Entry, str]
"""An entry, and the id of the details that it links to; "" for none."""


class PageLine(NamedTuple):
    """A method with our entries and the cited ones."""

    method: str
    measured: list[Target]
    cited: list[Target]


class PageBlock(NamedTuple):
    """One of our blocks and a cited one beside it: the name of each, and their lines together."""

    measured_name: str | None
    cited_name: str | None
    lines: list[PageLine]


def _blocks(section: ExperimentSection, targets: Mapping[int, str]) -> Iterator[PageBlock]:
    """Yield the blocks of a page's table: each of ours and a cited one beside it."""
    order = {one_line(method.name, 60): i for i, method in enumerate(section.experiment.methods)}

    def entries(block: Block | None) -> dict[str, tuple[Entry, ...]]:
        if block is None:
            return {}
        return {row.name: row.entries[1:] for row in block.rows}

    def with_targets(line: Sequence[Entry]) -> list[Target]:
        return [(entry, targets.get(id(entry), "")) for entry in line]

    for measured_block, cited_block in pairs(section.measured, section.cited):
        measured = entries(measured_block)
        cited = entries(cited_block)
        names = sorted({**measured, **cited}, key=lambda name: order.get(name, len(order)))

        lines = []
        for name in names:
            measured_line = measured.get(name, (Entry(),) * _width(section.measured))
            cited_line = cited.get(name, (Entry(),) * _width(section.cited))
            lines.append(PageLine(name, with_targets(measured_line), with_targets(cited_line)))

        yield PageBlock(_page_name(measured_block), _page_name(cited_block), lines)


def _page_name(block: Block | None) -> str | None:
    """Return the name of a block, "" where it has none; None where there is no block."""
    return None if block is None else block.name or ""


def pairs(measured: Table | None, cited: Table | None) -> list[tuple[Block | None, Block | None]]:
    """Return our blocks, each beside a cited one, then those left over.

    That of the same language model comes first, else the first that shares a method: the papers' tables
    and ours both begin with the smallest.
    """
    our_blocks = list(measured.blocks) if measured else []
    cited_blocks = list(cited.blocks) if cited else []
    our_names = {block.name for block in our_blocks}

    together: list[tuple[Block | None, Block | None]] = []
    for block in our_blocks:
        beside = _cited_beside(block, cited_blocks, our_names)
        # Each stands beside one of ours at most.
        cited_blocks = [cited_block for cited_block in cited_blocks if cited_block is not beside]
        together.append((block, beside))

    for cited_block in cited_blocks:
        together.append((None, cited_block))
    return together


def _cited_beside(
    block: Block, cited_blocks: Sequence[Block], our_names: set[str | None]
) -> Block | None:
    """Return the cited block that stands beside one of ours; None for none."""
    for cited in cited_blocks:
        if cited.name is not None and cited.name == block.name:
            return cited

    # One that has the name of another of our blocks is left to that one.
    methods = {row.name for row in block.rows}
    for cited in cited_blocks:
        is_free = cited.name is None or cited.name not in our_names
        if is_free and methods & {row.name for row in cited.rows}:
            return cited
    return None


def _source(row: ResultRow, split: str | None, folder: Path, page: Path) -> dict[str, Any]:
    """Return one seed's part of a value."""
    if row.value is not None:
        text = number(row.value, row.unit)
    else:
        text = one_line(row.text or f"no value: {row.error or 'nothing was said'}", 400)

    seed = "" if row.seed is None else f"seed {row.seed}"
    row_split = row.split if split is None and row.split else ""
    links = list(_links(row, folder, page))
    return {"seed": joined(seed, row_split), "value": text, "links": links}


def _links(row: ResultRow, folder: Path, page: Path) -> Iterator[tuple[str, str]]:
    """Yield names and addresses of what there is to see of a row's job, which work when folders move."""
    targets = []
    if row.job is not None:
        job = f"jobs/{row.job}"
        record = f"{job}/{RECORD}"
        targets.append(("record", record if _inside(folder, record) else job))
    if row.trajectories is not None and _inside(folder, row.trajectories):
        file = PurePosixPath(row.trajectories)
        view = "view.html" if file.name == TRAJECTORIES else f"{file.stem}.html"
        targets += [("trajectories", str(file)), ("viewer", str(file.with_name(view)))]

    for name, relative in targets:
        path = _inside(folder, relative)
        if path is not None:
            # A file's name need not be UTF-8; its bytes are what a browser asks for.
            address = Path(os.path.relpath(path, page)).as_posix()
            address = quote(address.encode("utf-8", "surrogateescape"))
            if not address.startswith("."):
                address = f"./{address}"  # a name with a colon is no scheme then
            yield name, f"{address}/" if path.is_dir() else address


def _inside(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder; None where a name leads out of it or to no file."""
    # Rows may come from anybody: a link to a file outside would show it under a trusted report's name.
    parts = PurePosixPath(name).parts
    if not parts or "\\" in name or "\0" in name or name.startswith("/") or ".." in parts:
        return None

    path = folder.joinpath(*parts)
    try:
        inside = path.resolve().is_relative_to(folder.resolve()) and path.exists()
    except OSError:  # a name that no file can have
        return None
    return path if inside else None


class PlotPoint(NamedTuple):
    """A point of a curve, with its value or without."""

    curve: Curve
    x: float | None
    cell: Cell


def _plot(panel: Panel) -> dict[str, Any]:
    """Return what the template shows of a panel: its picture, legend, lost points and data."""
    points = []
    lost = []
    for curve in panel.curves:
        points += [PlotPoint(curve, x, cell) for x, cell in curve.points]
        lost += [PlotPoint(curve, x, cell) for x, cell in curve.lost]

    return {
        "title": panel.column.label,
        "image": image_of(plot_of(panel)),
        "bars": panel.kind == "bar",
        "band": any(point.cell.sd is not None for point in points),
        "curves": [one_line(curve.name, 60) for curve in panel.curves if curve.points],
        "lost": [_lost_point(panel, point) for point in lost],
        "axis": "method" if panel.kind == "bar" else panel.axis or "x",
        "rows": [_plot_row(panel, point) for point in points],
    }


def _lost_point(panel: Panel, point: PlotPoint) -> tuple[str, str]:
    """Return the name of a point without a value, and why it has none."""
    return joined(point.curve.name, _x_name(panel, point)), point.cell.reason or "no value"


def _x_name(panel: Panel, point: PlotPoint) -> str:
    return "" if point.x is None else panel.at(point.x)


def _plot_row(panel: Panel, point: PlotPoint) -> list[str]:
    """Return a point as a row of the table under its plot."""
    unit = panel.column.unit
    return [
        one_line(_x_name(panel, point)),
        one_line(point.curve.name),
        entry(point.cell, unit).text,
        interval(point.cell, unit),
        point.cell.measured,
    ]


def plot_of(panel: Panel) -> Plot:
    """Return a panel as matplotlib draws it: curves without a point are left out."""
    series = tuple(_series(curve, panel) for curve in panel.curves if curve.points)
    labels = panel.labels if panel.kind == "bar" and series else None

    if panel.log and series:  # at equal distances for equal ratios, by their names
        series = tuple(replace(line, x=tuple(map(math.log10, line.x))) for line in series)
        xs = {x for line in series for x in line.x}
        labels = tuple(_brief(10**x) for x in sorted(xs))

    ylabel = with_unit(panel.column)
    return Plot(panel.column.label, panel.axis, ylabel, series, panel.kind, labels)


def _series(curve: Curve, panel: Panel) -> Series:
    """Return a curve for matplotlib; bars have a place for every label."""
    cells = dict(curve.points)
    if panel.kind == "line":
        xs = sorted(cells)
    else:
        xs = [float(i) for i in range(len(panel.labels))]

    means = []
    lows = []
    highs = []
    for x in xs:
        cell = cells.get(x)
        mean = math.nan if cell is None or cell.value is None else cell.value
        spread = 0.0 if cell is None else cell.sd or 0.0
        means.append(mean)
        lows.append(mean - spread)
        highs.append(mean + spread)

    if all(cell.sd is None for cell in cells.values()):
        return Series(curve.name, tuple(xs), tuple(means))
    return Series(curve.name, tuple(xs), tuple(means), tuple(lows), tuple(highs))


def _brief(value: float) -> str:
    """Return a large number in few letters."""
    for size, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.1 * size:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"
