"""The report of experiments as one HTML page that needs nothing else, and the pictures of figures.

What we measured and what the papers print stand side by side in column groups of their own. A content
security policy names the page's script and its style by their hashes, and lets nothing else run or load.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from ...agents.run import TRAJECTORIES
from ..plots import Plot, Series, image_of
from ..report import page_environment, source_hash, template_text
from ..tables import one_line
from .definition import ResultRow
from .report import Results, Shown
from .runner import RECORD
from .table import (
    Block,
    Curve,
    Entry,
    Panel,
    Table,
    entry,
    interval,
    number,
    values,
    with_unit,
)


def render_html(results: Results, folder: Path, page: Path) -> str:
    """Return the page for a folder `page`, with links into the results' folder."""
    environment = page_environment()
    from markupsafe import Markup  # a part of jinja2

    sections = [_section(one, folder, page) for one in results.shown]
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


def _section(one: Shown, folder: Path, page: Path) -> dict[str, Any]:
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
