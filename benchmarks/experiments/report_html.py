"""The report of experiments as one HTML page that needs nothing else.

What we measured and what the papers print stand side by side in column groups of their own. Plots are
drawn by plotly, whose script is inside the page, packed, and is unpacked when the first plot comes
into view; without it pictures and tables of the same data stand there. A content security policy
names the page's two scripts and its style by their hashes, and lets nothing else run or load.
"""

from __future__ import annotations

import base64
import gzip
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...errors import MissingExtra
from ..episodes import script_json
from ..marks import one_line
from ..training_page import page_environment, source_hash, template_text
from .charts import chart, chart_table, picture
from .html_tables import HtmlTable, html_table, list_table
from .links import Links
from .results import Results, Shown

__all__ = ["render_html"]

_GUARDED = re.compile(r'getElementById\("([0-9a-f]{40,})"\)')  # what its map part looks for


@dataclass(frozen=True, slots=True)
class _Chart:
    """A panel on the page."""

    title: str
    svg: Any
    place: int
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    curves: tuple[str, ...]
    lost: tuple[tuple[str, str], ...]
    bars: bool
    band: bool


@dataclass(frozen=True, slots=True)
class _Section:
    """An experiment on the page."""

    id: str
    shown: Shown
    table: HtmlTable | None
    charts: tuple[_Chart, ...]
    cited: tuple[Any, ...]


def render_html(results: Results, links: Links) -> str:
    """Return the page; the same results give the same page.

    Args:
        results: What was measured.
        links: Where records and trajectories are.

    Raises:
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> from pathlib import Path
        >>> page = render_html(Results(shown=()), Links(Path("runs"), Path("runs")))
        >>> page.splitlines()[0]
        '<!doctype html>'
    """
    environment = page_environment()
    from markupsafe import Markup  # a part of jinja2

    sections, charts = [], list[dict[str, Any]]()
    for one in results.shown:
        sections.append(_section(one, links, charts))
    style = template_text("report.css") + template_text("experiments.css")
    script = template_text("experiments.js")
    library = _library() if charts else None
    return str(
        environment.get_template("experiments.html").render(
            about=results.about,
            notes=results.notes,
            left_out=results.left_out,
            sections=sections,
            style=Markup(style),
            script=Markup(script),
            style_hash=source_hash(style),
            script_hashes=[source_hash(script), *([library.hash] if library else [])],
            library=library,
            charts=Markup(script_json({"charts": charts})),
        )
    )


@dataclass(frozen=True, slots=True)
class _Library:
    """The script that draws plots.

    Attributes:
        name: Its name and licence.
        packed: Its text, in gzip and base64.
        hash: What the page's policy calls it.
        guards: Ids of elements: where they are there, it adds no styles of its own to the page.
    """

    name: str
    packed: str
    hash: str
    guards: tuple[str, ...]


@lru_cache(maxsize=1)
def _library() -> _Library:
    try:
        import plotly
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtra.of("viz", "drawing interactive plots") from error
    text: str = get_plotlyjs()
    packed = gzip.compress(text.encode("utf-8"), 9, mtime=0)
    return _Library(
        name=f"plotly.js as in plotly {plotly.__version__} for Python, MIT licence",
        packed=base64.b64encode(packed).decode("ascii"),
        hash=source_hash(text),
        guards=("plotly.js-style-global", *dict.fromkeys(_GUARDED.findall(text))),
    )


def _section(one: Shown, links: Links, charts: list[dict[str, Any]]) -> _Section:
    name = re.sub(r"[^a-z0-9-]", "-", one.experiment.id.lower())
    drawn = []
    for place, panel in enumerate(one.panels):
        charts.append(chart(panel))
        drawn.append(_chart(panel, f"{name}-plot-{place}", len(charts) - 1))
    rows = list(one.quotes.others)
    if one.sheet is None:
        rows = [quoted.row for quoted in one.quotes.placed] + rows
    return _Section(
        id=name,
        shown=one,
        table=None if one.sheet is None else html_table(one.sheet, name, links),
        charts=tuple(drawn),
        cited=tuple(list_table(one.quotes, rows, name)) if rows else (),
    )


def _chart(panel: Any, name: str, place: int) -> _Chart:
    from markupsafe import Markup

    head, rows = chart_table(panel)
    lost = []
    for curve in panel.curves:
        for one in curve.lost:
            where = (
                "" if one.x is None else panel.labels[int(one.x)] if panel.labels else f"{one.x:g}"
            )
            what = ", ".join(part for part in (curve.name, where) if part)
            lost.append((what, one.cell.reason or "no value"))
    return _Chart(
        title=panel.column.label,
        svg=Markup(picture(panel, name)),
        place=place,
        head=head,
        rows=rows,
        curves=tuple(one_line(curve.name, 60) for curve in panel.curves if curve.points),
        lost=tuple(lost),
        bars=panel.kind == "bar",
        band=any(p.cell.sd is not None for curve in panel.curves for p in curve.points),
    )
