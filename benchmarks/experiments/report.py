"""Reports of experiments as text: Markdown, LaTeX, and tables for a terminal."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ...agents.run import TRAJECTORIES
from ..display import open_console, print_grid
from ..report import page_environment, source_hash, template_text
from ..tables import Plot, Series, image_of, one_line, visible
from .cited import CitedTable, cited_tables, load_cited
from .definition import Experiment, ResultRow, experiment_ids, read_data
from .runner import RECORD
from .table import (
    Block,
    Curve,
    Entry,
    Panel,
    Table,
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
class Shown:
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
        panels = map(panel_table, self.panels)
        tables = (self.measured, self.differences, *panels, self.cited, self.listed)
        return [one for one in tables if one is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All experiments of a folder."""

    shown: tuple[Shown, ...]
    about: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def results_of(
    rows: Iterable[ResultRow],
    experiments: Sequence[Experiment],
    cited: Callable[[str], CitedTable | None] = load_cited,
) -> Results:
    """Return what rows of results come to; rows that say that they are cited are not ours."""
    ours = [row for row in rows if not row.cited]
    shown, own, empty = [], list[ResultRow](), []
    for one in experiments:
        found = [row for row in ours if row.experiment == one.id]
        if not found:
            empty.append(f"{one.paper} {one.published} ({one.id})")
            continue
        own += found
        is_table = one.kind == "table"
        in_columns, others = cited_tables(one, cited(one.id))
        shown.append(
            Shown(
                experiment=one,
                measured=measured_table(one, found) if is_table else None,
                differences=differences_table(one, found) if one.compared else None,
                panels=() if is_table else panels(one, found),
                cited=in_columns,
                listed=others,
            )
        )
    left_out = [f"Not run: {', '.join(empty)}."] if empty else []
    ids = {*(one.id for one in experiments), *experiment_ids()}
    strange = [row.experiment for row in ours if row.experiment not in ids]
    if strange:
        names = ", ".join(dict.fromkeys(one_line(name, 60) for name in strange))
        left_out.append(
            f"Not shown: {len(strange)} rows of experiments that this version does not know: {names}."
        )
    return Results(shown=tuple(shown), about=_about(own), left_out=tuple(left_out))


def _about(rows: Sequence[ResultRow]) -> tuple[tuple[str, str], ...]:
    jobs = {row.job: row.seconds for row in rows if row.job is not None}
    seconds = [spent for spent in jobs.values() if spent is not None]
    failed = len({row.job for row in rows if row.job and row.error is not None})
    seeds = sorted({row.seed for row in rows if row.seed is not None})
    found = {
        "tasks": _listed(row.tasks for row in rows),
        "models": _listed(row.backbone for row in rows),
        "seeds": _listed(map(str, seeds)),
        "comap": _listed(row.code_version for row in rows),
        "hardware": _listed(row.hardware for row in rows),
        "jobs": f"{len(jobs):,}",
        "time of all jobs": f"{sum(seconds) / 3600:,.1f} h" if seconds else "",
        "failed": f"{failed:,} job{'s' if failed > 1 else ''}" if failed else "",
    }
    return tuple((name, value) for name, value in found.items() if value)


def _listed(names: Iterable[str | None]) -> str:
    found = list(dict.fromkeys(name for name in names if name))
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return ", ".join(one_line(str(name), 120) for name in found[:6]) + more


def picture(one: Shown, index: int) -> str:
    return f"figures/{one.experiment.id}-{index + 1}.svg"


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~#&$@]|:(?=\S)|(?<=www)\.)")
_STARTS = re.compile(r"^([-+=>]|\d+[.)])")
_EVERY = ("method", "column", "mean ± sd", "95 % interval", "n", "seeds")


def markdown(results: Results) -> str:
    parts = ["# Experiments"]
    parts.append("\n".join(f"- {escape(name)}: {escape(text)}" for name, text in results.about))
    parts += map(escape, results.notes)
    contents = (f"- [{escape(one.title)}](#{_anchor(one.title)})" for one in results.shown)
    parts.append("\n".join(contents))
    for one in results.shown:
        parts += section(one)
    parts += map(escape, results.left_out)
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    r"""Return text so that Markdown and HTML show it as it is, on one line."""
    line = _SPECIAL.sub(r"\\\1", one_line(text, 2000))
    return _STARTS.sub(r"\\\1", line) if not line[:1].isdigit() else line


def _anchor(title: str) -> str:
    """Return the id that code hosts give to a heading."""
    return re.sub(r"[^\w\- ]", "", one_line(title, 2000).lower()).replace(" ", "-")


def section(one: Shown) -> Iterator[str]:
    """Yield the paragraphs of an experiment, in Markdown."""
    yield f"## {escape(one.title)}"
    yield escape(one.experiment.about)
    for i, panel in enumerate(one.panels):
        yield f"![{escape(panel.column.label)}]({picture(one, i)})"
    for found in one.tables:
        yield f"**{escape(found.title)}**"
        lines = [[_cell(entry, kind) for entry in row.entries] for kind, row in found.lines()]
        yield _table(found.head, lines, found.texts)
        notes = [escape(note) for note in found.notes]
        notes += [f"<sup>{letter}</sup> {escape(text)}" for letter, text in found.footnotes]
        yield "  \n".join(f"<sub>{note}</sub>" for note in notes)
    if one.measured is not None:
        lines = [
            [
                escape(text)
                for text in (
                    *(value.method, one_line(value.column.label), value.entry.text),
                    *(value.interval, value.cell.n, value.cell.seed_names),
                )
            ]
            for value in values(one.measured, one.experiment.columns)
            if value.cell.value is not None
        ]
        if lines:
            yield "<details><summary>Every value with its interval, n and seeds</summary>"
            yield _table(_EVERY, lines, 2)
            yield "</details>"
    yield "\n".join(f"- {escape(text)}" for text in one.experiment.footnotes.values())


def _cell(entry: Entry, kind: str) -> str:
    text = escape(entry.text)
    if text:
        text = f"**{text}**" if entry.best or kind == "block" else text
        text = f"*{text}*" if kind == "counts" else text
    return text + (f" <sup>{' '.join(entry.marks)}</sup>" if entry.marks else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    rules = [":--" if i < texts else "--:" for i in range(len(head))]
    lines = [[escape(name) for name in head], rules, *rows]
    return "\n".join(
        f"| {' | '.join(cell or ' ' for cell in [*line, *[''] * (len(head) - len(line))])} |"
        for line in lines
    )


def print_shown(results: Results) -> None:
    """Print the tables of experiments on standard output."""
    console = open_console()
    for i, one in enumerate(results.shown):
        between = "\n\n" if i else ""
        console.print(Text(between + visible(one.title), style="bold"), soft_wrap=True)
        for found in one.tables:
            console.print()
            _print_table(found, console)
    for line in results.left_out:
        console.print(Text(f"\n{visible(line)}"), soft_wrap=True)


def _print_table(found: Table, console: Console) -> None:
    title = Text(visible(found.title), style="bold")
    shown = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for i, name in enumerate(found.head):
        shown.add_column(Text(visible(name)), justify="left" if i < found.texts else "right")
    for kind, row in found.lines():
        if kind != "line":
            shown.add_section()
        usual = {"block": "bold italic", "counts": "dim"}.get(kind, "")
        shown.add_row(
            *(
                Text(visible(one.text), style="bold" if one.best else usual)
                + Text("".join(f" [{mark}]" for mark in one.marks), style="dim")
                for one in row.entries
            )
        )
    print_grid(console, shown)
    for line in (*found.notes, *(f"[{letter}] {text}" for letter, text in found.footnotes)):
        console.print(Text(visible(line)), soft_wrap=True)


_HEAD = r"""% Tables of experiments, written by comap. A table environment can be copied by itself;
% it needs the packages booktabs and textcomp.
\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{textcomp}
\usepackage[a4paper,landscape,margin=1.5cm]{geometry}
\usepackage{booktabs}
\begin{document}
"""


def latex(results: Results) -> str:

    def lines(texts: Iterable[str]) -> str:
        return "".join(rf"\noindent {escape_latex(text)}\par" + "\n" for text in texts)

    parts = [_HEAD, lines(f"{name}: {text}" for name, text in results.about), lines(results.notes)]
    for one in results.shown:
        title = escape_latex(one.title)
        parts.append(f"\n\\section*{{{title}}}\n{escape_latex(one.experiment.about)}\n")
        for found in one.tables:
            parts.append(_latex_table(found, f"{title}. {escape_latex(found.title)}"))
        parts += [f"\n{lines([text])}" for text in one.experiment.footnotes.values()]
    return "".join([*parts, lines(results.left_out), "\\end{document}\n"])


def escape_latex(text: str) -> str:
    r"""Return text as LaTeX that shows it as it is; what its fonts lack is shown by its code point."""
    known = _latex_characters()

    def written(char: str) -> str:
        plain = char.isascii() or ("À" <= char <= "ÿ" and char not in "×÷")
        return known.get(char) or (char if plain else rf"\texttt{{[U+{ord(char):04X}]}}")

    return "".join(map(written, visible(text)))


@cache
def _latex_characters() -> dict[str, str]:
    return read_data("latex.json", dict)


def _latex_table(found: Table, caption: str) -> str:
    width = len(found.head)
    lines = [
        r"\begin{table}[htbp]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{caption}.}}",
        rf"\begin{{tabular}}{{@{{}}{'l' * found.texts}{'r' * (width - found.texts)}@{{}}}}",
        r"\toprule",
        " & ".join(map(_heading, found.head)) + r" \\",
        r"\midrule",
    ]
    above = {"ruled": r"\addlinespace", "block": r"\addlinespace", "counts": r"\midrule"}
    for i, (kind, row) in enumerate(found.lines()):
        lines += [above[kind]] if kind in above and (i or kind != "block") else []
        if kind == "block":
            name = escape_latex(row.name)
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{\itshape {name}}} \\")
        else:
            lines.append(" & ".join(map(_latex_cell, row.entries)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [escape_latex(note) for note in found.notes]
    notes += [rf"\textsuperscript{{{mark}}}~{escape_latex(text)}" for mark, text in found.footnotes]
    if notes:
        lines.append(r"\par\smallskip\begin{minipage}{0.95\linewidth}\raggedright\scriptsize")
        lines += [r"\par ".join(notes), r"\end{minipage}"]
    return "\n".join(["", *lines, r"\end{table}", ""])


def _heading(name: str) -> str:
    """Return a column's head; where it is long, on two lines."""
    words = name.split(" ")
    if len(name) <= 12 or len(words) < 2:
        return escape_latex(name)
    halves = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(1, len(words))]
    first, second = map(escape_latex, min(halves, key=lambda half: max(map(len, half))))
    return rf"\shortstack[r]{{{first} \\ {second}}}"


def _latex_cell(entry: Entry) -> str:
    text = escape_latex(entry.text)
    if entry.best:
        text = rf"\textbf{{\boldmath {text}}}"
    return text + (rf"\textsuperscript{{{','.join(entry.marks)}}}" if entry.marks else "")


def render_html(results: Results, folder: Path, page: Path) -> str:
    """Return the page for a folder `page`, with links into the results' folder."""
    environment = page_environment()
    from markupsafe import Markup  # a part of jinja2

    sections = [_page_section(one, folder, page) for one in results.shown]
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


def _page_section(one: Shown, folder: Path, page: Path) -> dict[str, Any]:
    name = re.sub(r"[^a-z0-9-]", "-", one.experiment.id.lower())
    columns = one.experiment.columns
    found = list(values(one.measured, columns)) if one.measured else []
    targets = {id(value.entry): f"{name}-v{i}" for i, value in enumerate(found)}
    details = [
        {
            "id": targets[id(value.entry)],
            "value": value,
            "column": one_line(value.column.label),
            "sources": [_source(row, value.column.split, folder, page) for row in value.cell.rows],
        }
        for value in found
    ]
    return {
        "id": name,
        "shown": one,
        "blocks": list(_blocks(one, targets)),
        "texts": _texts(one.measured),
        "spread": any(entry.spread for entry in _entries(one.measured)),
        "details": details,
        "charts": list(map(_plot, one.panels)),
    }


def _entries(table: Table | None) -> Iterator[Entry]:
    for block in table.blocks if table else ():
        for row in block.rows:
            yield from row.entries[1:]


def _texts(table: Table | None) -> list[bool]:
    width = len(table.head) - 1 if table else 0
    found = [[entry.status for entry in _entries(table)][i::width] for i in range(width)]
    return ["text" in statuses and "value" not in statuses for statuses in found]


def _blocks(one: Shown, targets: dict[int, str]) -> Iterator[tuple[Any, ...]]:
    """Yield the names of each of our blocks and of a cited one beside it, and their lines together."""
    order = {one_line(method.name, 60): i for i, method in enumerate(one.experiment.methods)}
    for pair in pairs(one.measured, one.cited):
        rows = [
            {row.name: row.entries[1:] for row in block.rows} if block else {} for block in pair
        ]
        names = sorted({**rows[0], **rows[1]}, key=lambda name: order.get(name, len(order)))
        lines = []
        for name in names:
            cells = []
            for own, table in zip(rows, (one.measured, one.cited), strict=True):
                width = len(table.head) - 1 if table else 0
                entries = own.get(name, (Entry(),) * width)
                cells.append([(entry, targets.get(id(entry), "")) for entry in entries])
            lines.append((name, *cells))
        yield (*(None if block is None else block.name or "" for block in pair), lines)


def pairs(measured: Table | None, cited: Table | None) -> list[tuple[Block | None, Block | None]]:
    """Return our blocks, each beside a cited one, then those left over.

    That of the same language model comes first, else the first that shares a method: the papers' tables
    and ours both begin with the smallest.
    """
    ours, left = (list(table.blocks) if table else [] for table in (measured, cited))
    names = {block.name for block in ours}
    together: list[tuple[Block | None, Block | None]] = []
    for block in ours:
        methods = {row.name for row in block.rows}
        same = [one for one in left if one.name is not None and one.name == block.name]
        free = [one for one in left if one.name is None or one.name not in names]
        alike = [one for one in free if methods & {row.name for row in one.rows}]
        beside = next(iter([*same, *alike]), None)
        left = [one for one in left if one is not beside]
        together.append((block, beside))
    return [*together, *((None, block) for block in left)]


def _source(row: ResultRow, split: str | None, folder: Path, page: Path) -> dict[str, Any]:
    """Return one seed's part of a value."""
    if row.value is not None:
        text = number(row.value, row.unit)
    else:
        text = one_line(row.text or f"no value: {row.error or 'nothing was said'}", 400)
    seed = "" if row.seed is None else f"seed {row.seed}"
    where = row.split if split is None and row.split else ""
    name = ", ".join(part for part in (seed, where) if part)
    return {"seed": name, "value": text, "links": list(_links(row, folder, page))}


def _links(row: ResultRow, folder: Path, page: Path) -> Iterator[tuple[str, str]]:
    """Yield names and addresses of what there is to see of a row's job, which work when folders move."""
    named = []
    if row.job is not None:
        job = f"jobs/{row.job}"
        named.append(("record", f"{job}/{RECORD}" if _inside(folder, f"{job}/{RECORD}") else job))
    if row.trajectories is not None and _inside(folder, row.trajectories):
        file = PurePosixPath(row.trajectories)
        view = "view.html" if file.name == TRAJECTORIES else f"{file.stem}.html"
        named += [("trajectories", str(file)), ("viewer", str(file.with_name(view)))]
    for name, relative in named:
        path = _inside(folder, relative)
        if path is not None:
            address = Path(os.path.relpath(path, page)).as_posix()
            address = quote(address.encode("utf-8", "surrogateescape"))
            end = "/" if path.is_dir() else ""
            yield name, f"{address if address.startswith('.') else f'./{address}'}{end}"


def _inside(folder: Path, name: str) -> Path | None:
    parts = PurePosixPath(name).parts
    if not parts or "\\" in name or "\0" in name or name.startswith("/") or ".." in parts:
        return None
    path = folder.joinpath(*parts)
    try:
        inside = path.resolve().is_relative_to(folder.resolve()) and path.exists()
    except OSError:  # a name that no file can have
        return None
    return path if inside else None


def _plot(panel: Panel) -> dict[str, Any]:
    """Return what the template shows of a panel: its picture, legend, lost points and data."""
    unit = panel.column.unit
    points = [(curve, x, cell) for curve in panel.curves for x, cell in curve.points]
    lost = [(curve, x, cell) for curve in panel.curves for x, cell in curve.lost]
    return {
        "title": panel.column.label,
        "image": image_of(plot_of(panel)),
        "bars": panel.kind == "bar",
        "band": any(cell.sd is not None for _, _, cell in points),
        "curves": [one_line(curve.name, 60) for curve in panel.curves if curve.points],
        "lost": [
            (
                ", ".join(part for part in (curve.name, "" if x is None else panel.at(x)) if part),
                cell.reason or "no value",
            )
            for curve, x, cell in lost
        ],
        "axis": "method" if panel.kind == "bar" else panel.axis or "x",
        "rows": [
            (
                *(one_line(panel.at(x)), one_line(curve.name)),
                *(entry(cell, unit).text, interval(cell, unit), cell.measured),
            )
            for curve, x, cell in points
        ],
    }


def plot_of(panel: Panel) -> Plot:
    drawn = tuple(_series(curve, panel) for curve in panel.curves if curve.points)
    labels = panel.labels if panel.kind == "bar" and drawn else None
    if panel.log and drawn:  # at equal distances for equal ratios, by their names
        drawn = tuple(replace(one, x=tuple(map(math.log10, one.x))) for one in drawn)
        labels = tuple(_brief(10**x) for x in sorted({x for one in drawn for x in one.x}))
    ylabel = with_unit(panel.column)
    return Plot(panel.column.label, panel.axis, ylabel, drawn, panel.kind, labels)


def _series(curve: Curve, panel: Panel) -> Series:
    """Return a curve for matplotlib; bars have a place for every label."""
    found = dict(curve.points)
    xs = sorted(found) if panel.kind == "line" else [float(i) for i in range(len(panel.labels))]
    values = [found[x].value if x in found else None for x in xs]
    means = [math.nan if value is None else value for value in values]
    spreads = [found[x].sd or 0.0 if x in found else 0.0 for x in xs]
    low, middle, high = (
        tuple(mean + sign * sd for mean, sd in zip(means, spreads, strict=True))
        for sign in (-1, 0, 1)
    )
    if all(cell.sd is None for cell in found.values()):
        return Series(curve.name, tuple(xs), middle)
    return Series(curve.name, tuple(xs), middle, low, high)


def _brief(value: float) -> str:
    """Return a large number in few letters."""
    for size, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.1 * size:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"
