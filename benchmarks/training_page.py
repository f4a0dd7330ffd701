"""The page that the report of a training is: sections of tables and plots, and nothing that runs.

Everything on it stays text: Jinja escapes it, and a content security policy lets no script and no
connection in.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import CoMapError, MissingExtra
from .marks import pieces, visible
from .plots import SYMBOLS, Plot, render_plot
from .tables import Table, format_cells, numeric_columns

__all__ = [
    "Section",
    "page_environment",
    "render_page",
    "report_command",
    "source_hash",
    "template_text",
    "write_whole",
]

_STYLE = "h2 { margin: 2.5rem 0 0.8rem; }\nsection > .plots { margin-top: 1.5rem; }\n"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    Attributes:
        title: What it is about.
        tables: Its tables.
        plots: Its plots, after them.
        note: A line below the title.

    Example:
        >>> Section("Results").plots
        ()
    """

    title: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    note: str = ""


def render_page(title: str, summary: Mapping[str, str], sections: Sequence[Section]) -> str:
    """Return the page of a training, in HTML; the same arguments give the same page.

    Args:
        title: The page's title.
        summary: What was trained, in a few names and values.
        sections: What there is to see.

    Raises:
        MissingExtra: The extra ``viz`` is not installed.

    Example:
        >>> "<b>" in render_page("<b>", {"seed": "0"}, [Section("Results")])
        False
    """
    environment = page_environment()
    from markupsafe import Markup  # a part of jinja2

    style = template_text("report.css") + _STYLE
    told = []
    for place, section in enumerate(sections):
        drawn = [
            (plot, Markup(render_plot(plot, f"plot-{place}-{i}")))
            for i, plot in enumerate(section.plots)
        ]
        tables = [(one, format_cells(one), numeric_columns(one)) for one in section.tables]
        part = {"title": section.title, "note": section.note, "tables": tables, "plots": drawn}
        told.append(part)
    page = environment.get_template("training.html").render(
        title=title,
        summary=summary,
        sections=told,
        style=Markup(style),
        style_hash=source_hash(style),
    )
    return str(page)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old one or the new one, whole.

    Args:
        path: The file; its folder is there.
        text: What to write.

    Example:
        >>> write_whole(Path("some.txt"), "text")
        >>> Path("some.txt").read_text()
        'text'
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(text.encode("utf-8", errors="replace"))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def page_environment() -> Any:
    """Return jinja2's environment of our pages: what is filled in is escaped.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtra.of("viz", "writing a report") from error
    environment = Environment(
        loader=FunctionLoader(template_text),
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


def source_hash(source: str) -> str:
    """Return how a content security policy names an inline script or style.

    Example:
        >>> source_hash("")
        'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    digest = hashlib.sha256(source.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def template_text(name: str) -> str:
    """Return one of our templates, or a style or script that belongs to one."""
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def report_command(
    module: str, write: Callable[[str], Path], arguments: Sequence[str] | None = None
) -> int:
    """Write the report of a folder that a command line names, and return the exit status.

    Args:
        module: The module's name in this package, as ``python -m`` runs it.
        write: Writes the report of a folder, and returns its path.
        arguments: What follows the module's name; None for what was typed.

    Example:
        >>> report_command("paw_report", lambda folder: Path(folder, "report.html"), ["runs"])
        report: runs/report.html
        0
    """
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        print(f"usage: python -m comap.benchmarks.{module} FOLDER", file=sys.stderr)
        return 2
    try:
        print(f"report: {write(given[0])}")
    except (CoMapError, OSError) as error:
        print(f"comap: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0
