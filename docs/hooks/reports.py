"""Reports of experiments as pages of the site; in the repository they lie in ``benchmarks/results``."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

__all__ = ["on_files", "on_page_markdown"]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
REPORTS = {
    "experiments-lab-comap": "lab-comap",
    "experiments-lab-paw": "lab-paw",
    "experiments-tiny": "Tiny scale",
}
"""Folders of reports that are pages, and what these are called."""

_LINK = re.compile(rf"\]\([./]*/benchmarks/results/({'|'.join(REPORTS)})/report\.md")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the reports and their figures to the site; MkDocs calls this."""
    from mkdocs.structure.files import File

    for folder, title in REPORTS.items():
        report = (RESULTS / folder / "report.md").read_text("utf-8")
        content = report.replace("# Experiments", f"# {title}", 1)
        files.append(File.generated(config, f"{folder}.md", content=content))
    for path in sorted(RESULTS.glob("experiments-*/figures/*")):
        content = path.read_text("utf-8")
        files.append(File.generated(config, f"figures/{path.name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to reports to their pages of the site; MkDocs calls this."""
    folder = posixpath.dirname(page.file.src_uri) or "."
    return _LINK.sub(lambda link: f"]({posixpath.relpath(f'{link[1]}.md', folder)}", markdown)
