"""Pages that are written from code: environments, the reference, examples and notebooks."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from apis import ENVIRONMENTS, REFERENCE, documented, linked, names_of, written

__all__ = [
    "environment_page",
    "examples_page",
    "generated",
    "on_files",
    "on_startup",
    "reference_page",
]

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "build" / "sources"
RESULTS = ROOT / "benchmarks" / "results"
REPORTS = {
    "experiments-lab-comap": "lab-comap",
    "experiments-lab-paw": "lab-paw",
    "experiments-tiny": "Tiny scale",
}
"""Folders of reports that are pages, and what these are called."""


def on_startup(**given: Any) -> None:
    """Give the package its name, whatever the checkout's folder is called; MkDocs calls this.

    The root of this repository is the package itself, and docstrings are collected from a folder
    with the package's name (``paths`` in ``mkdocs.yml``).
    """
    SOURCES.mkdir(parents=True, exist_ok=True)
    link = SOURCES / "comap"
    if link.is_symlink() and link.resolve() != ROOT:
        link.unlink()  # of a checkout that was moved
    if not link.is_symlink():
        link.symlink_to(Path("..", ".."), target_is_directory=True)


def generated() -> Iterator[tuple[str, str]]:
    """Yield the place and the Markdown of each page that code writes."""
    for folder in ENVIRONMENTS:
        yield f"environments/{folder}.md", environment_page(folder)
    for name in REFERENCE:
        yield f"reference/{name}.md", reference_page(name)
    yield "examples.md", examples_page()
    for name, title in REPORTS.items():
        report = (RESULTS / name / "report.md").read_text("utf-8")
        yield f"{name}.md", report.replace("# Experiments", f"# {title}", 1)


def on_files(files: Any, config: Any, **given: Any) -> Any:
    """Add the pages to the site; MkDocs calls this."""
    from mkdocs.structure.files import File

    for place, markdown in generated():
        files.append(File.generated(config, place, content=markdown))
    for path in sorted(RESULTS.glob("experiments-*/figures/*")):
        content = path.read_text("utf-8")
        files.append(File.generated(config, f"figures/{path.name}", content=content))
    return files


# -- environments --------------------------------------------------------------------------------


def environment_page(folder: str) -> str:
    """Return the page of an environment: its class's docstring, and what else its package has.

    Args:
        folder: Its package in ``comap.envs``.
    """
    title, name = ENVIRONMENTS[folder]
    module = f"comap.envs.{folder}"
    made: type = getattr(import_module(module), name)
    text, sections = _sections(inspect.cleandoc(made.__doc__ or ""))
    summary, _, body = text.partition("\n")
    body = body.replace("## Arguments\nThe constructor's, below.\n", _arguments(made, sections))
    parts = [
        f"# {title} {{#{module}.{name}}}\n",
        f"{linked(summary)}\n",
        f'`gymnasium.make("{made.env_id}", ...)` makes it; its class is `{module}.{name}`.\n',  # type: ignore[attr-defined]
        _headed(linked(body)).strip() + "\n",
        f"## Example\n\n```pycon\n{sections['Example'].strip()}\n```\n",
        "## More in this package\n",
    ]
    home = documented()
    rest = [other for other in names_of(module) if other != f"{module}.{name}"]
    others = [other for other in rest if home[other] == other]
    parts += [f"::: {other}\n    options: {{heading_level: 3}}\n" for other in others]
    return "\n".join(parts)


def _sections(doc: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's text, and what stands under ``Args:``, ``Raises:`` and ``Example:``."""
    head, *rest = re.split(r"^(Args|Raises|Example):\n", doc, flags=re.MULTILINE)
    found = {name: textwrap.dedent(text) for name, text in zip(rest[::2], rest[1::2], strict=True)}
    return head.rstrip() + "\n", {"Args": "", "Raises": "", "Example": "", **found}


def _headed(text: str) -> str:
    """Return text with blank lines around its headings, as Markdown wants them."""
    return re.sub(r"^(## .+)\n", r"\n\1\n\n", text, flags=re.MULTILINE)


def _arguments(made: type, sections: dict[str, str]) -> str:
    """Return the arguments of a constructor as a table, and what it raises."""
    described = _items(sections["Args"])
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.default is not parameter.empty
    }
    lines = ["## Arguments\n", "| argument | default | |", "|---|---|---|"]
    for name, text in described.items():
        default = f"`{defaults[name]!r}`" if name in defaults else ""
        lines.append(f"| `{name}` | {default} | {_escaped(text)} |")
    raised = [f"- `{name}`: {text}" for name, text in _items(sections["Raises"]).items()]
    return "\n".join([*lines, "", *(["It raises\n", *raised, ""] if raised else [])]) + "\n"


def _items(text: str) -> dict[str, str]:
    """Return the entries of a section of a docstring, each on one line."""
    found = re.findall(r"^([\w*, ]+):((?:.*\n?)(?:[ \t]+.*\n?)*)", text, re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in found}


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


# -- the reference -------------------------------------------------------------------------------


def reference_page(name: str) -> str:
    """Return a page of the reference.

    Args:
        name: One of `REFERENCE`.
    """
    home = documented()
    parts = [f"# {REFERENCE[name][0] if len(REFERENCE[name]) < 5 else f'comap.{name}'}\n"]
    for module in REFERENCE[name]:
        if len(REFERENCE[name]) > 1:
            parts.append(f"## `{module}`\n")
        parts.append(_headed(linked(inspect.getdoc(import_module(module)) or "")) + "\n")
        elsewhere = []
        for public in names_of(module):
            if home[public] == public and public not in written():
                parts.append(f"::: {public}\n    options: {{heading_level: 3}}\n")
            else:
                elsewhere.append(f"[`{public.rpartition('.')[2]}`][{home[public]}]")
        if elsewhere:
            parts.append(f"Also here: {', '.join(elsewhere)}.\n")
    return "\n".join(parts)


# -- examples and notebooks ----------------------------------------------------------------------


def examples_page() -> str:
    """Return the page of the example scripts and the notebooks."""
    parts = [
        "# Examples and notebooks\n",
        "All run on generated tasks, on a CPU, in less than a minute each; the tests run them. "
        "They are in the folder `examples` of the repository, and need "
        '`pip install "comap-agents[viz,train]"`.\n',
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text("utf-8")
        doc = ast.get_docstring(ast.parse(source)) or ""
        rest = source[source.index('"""', source.index('"""') + 3) + 3 :].strip()
        parts += [f"## {path.name}\n", linked(doc) + "\n", f'??? example "{path.name}"\n']
        parts.append(textwrap.indent(f"```python\n{rest}\n```\n", "    "))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        parts += [f"## {path.name}\n", _notebook(path)]
    return "\n".join(parts)


def _notebook(path: Path) -> str:
    """Return a notebook's cells and their outputs as Markdown, its headings two levels down."""
    lines = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            lines.append(f"```python\n{text}\n```\n")
            lines += [_output(output) for output in cell["outputs"]]
        else:
            lines.append(re.sub(r"^#", "###", text, flags=re.MULTILINE) + "\n")
    return "\n".join(lines)


def _output(output: dict[str, Any]) -> str:
    """Return an output as Markdown: a picture where there is one, else its text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![Plot of the cell above](data:image/png;base64,{data['image/png'].strip()})\n"
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```\n"
