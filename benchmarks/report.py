"""A benchmark's report: one HTML page that needs nothing else, and what the terminal shows.

The page holds tables, plots and a trajectory viewer. Everything in it that came from a model or an
environment stays text: Jinja escapes it, the viewer's script writes text nodes only, and a content
security policy lets no other script, style or connection in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .episode_pack import Pack
from .episodes import Episode, script_json
from .plots import Plot, Series, render_plot
from .tables import Table, format_cells, numeric_columns
from .terminal import Advance, print_table, progress
from .training_page import page_environment, source_hash, template_text, write_whole

__all__ = [
    "Advance",
    "Episode",
    "Pack",
    "Plot",
    "Series",
    "Table",
    "print_table",
    "progress",
    "render_report",
    "write_report",
]

_STYLES = ("report.css", "viewer.css")
_SCRIPTS = (
    "viewer_text.js",
    "viewer_data.js",
    "viewer_lists.js",
    "viewer_filters.js",
    "viewer_search.js",
    "viewer_compare.js",
    "viewer_thoughts.js",
    "viewer_step.js",
    "viewer_main.js",
)


def write_report(
    path: Path,
    *,
    title: str,
    summary: Mapping[str, str],
    tables: Sequence[Table],
    plots: Sequence[Plot],
    episodes: Iterable[Episode] | Pack,
    folded: bool = False,
) -> None:
    """Write a report, so that a reader finds the old page or the new one, whole.

    Args:
        path: The file; its folder is made where it is missing.
        title: The page's title.
        summary: What was run, in a few names and values.
        tables: The results.
        plots: The results, drawn.
        episodes: What the trajectory viewer shows, packed already or not.
        folded: Fold tables and plots away: the page is for its episodes.

    Raises:
        MissingExtra: jinja2, or for plots matplotlib, is not installed.

    Example:
        >>> import tempfile
        >>> table = Table("Success", ("agent", "rate"), (("react", 0.5),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = Path(folder, "report.html")
        ...     write_report(page, title="Demo", summary={}, tables=[table], plots=[], episodes=[])
        ...     page.read_text("utf-8").splitlines()[0]
        '<!doctype html>'
    """
    page = render_report(
        title=title,
        summary=summary,
        tables=tables,
        plots=plots,
        episodes=episodes,
        folded=folded,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page)


def render_report(
    *,
    title: str,
    summary: Mapping[str, str],
    tables: Sequence[Table],
    plots: Sequence[Plot],
    episodes: Iterable[Episode] | Pack,
    folded: bool = False,
) -> str:
    """Return the page that `write_report` writes; the same arguments give the same page.

    Example:
        >>> page = render_report(title="<b>", summary={}, tables=[], plots=[], episodes=[])
        >>> "<b>" in page
        False
    """
    environment = page_environment()
    from markupsafe import Markup  # a part of jinja2

    pack = episodes if isinstance(episodes, Pack) else Pack(episodes)
    style = "".join(map(template_text, _STYLES))
    script = _script() if len(pack) else ""
    return str(
        environment.get_template("report.html").render(
            title=title,
            summary=summary,
            tables=[(table, format_cells(table), numeric_columns(table)) for table in tables],
            plots=[(plot, Markup(render_plot(plot, f"plot-{i}"))) for i, plot in enumerate(plots)],
            episodes=len(pack),
            folded=folded,
            style=Markup(style),
            style_hash=source_hash(style),
            script=Markup(script),
            script_hash=source_hash(script),
            index=Markup(script_json(pack.index())),
            parts=[Markup(part) for part in pack.parts()],
        )
    )


def _script() -> str:
    """Return the viewer's script: its parts share one scope, and nothing of it is global."""
    parts = "".join(map(template_text, _SCRIPTS))
    return f'"use strict";\n(() => {{\n{parts}}})();\n'
