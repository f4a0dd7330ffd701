"""``python docs/hooks/pages.py`` writes what code says of itself into the documentation.

These are whole pages (environments, the reference, examples and notebooks) and marked parts of pages
written by hand (see `markers`). They are committed, so that they can be read without building anything;
``make pages`` runs this program, and a test compares.
"""

from __future__ import annotations

import ast
import base64
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from apis import DOCS, ENVIRONMENTS, REFERENCE, documented, linked, names_of, resolved, written
from entries import entry, fenced, items_of, sections_of
from markers import END, fill
from prompts import prompt_pages

__all__ = ["environment_page", "examples_page", "generated", "reference_page", "renewed"]

EXAMPLES = DOCS.parent / "examples"
NOTE = "<!-- Written by `make pages` from {}; edit those, not this page. -->"


def generated() -> Iterator[tuple[str, str]]:
    """Yield the place and the Markdown of each page that code writes."""
    for folder in ENVIRONMENTS:
        yield f"environments/{folder}.md", environment_page(folder)
    for name in REFERENCE:
        yield f"reference/{name}.md", reference_page(name)
    yield "examples.md", examples_page()
    yield from prompt_pages()


def renewed() -> dict[Path, bytes]:
    """Return the content that each written page, each page with marks and each picture should have."""
    contents: dict[Path, bytes] = {}
    for place, markdown in generated():
        contents[DOCS / place] = resolved(markdown, place).encode()
    for path in sorted(DOCS.glob("**/*.md")):
        text = path.read_text("utf-8")
        if path not in contents and END in text:
            contents[path] = fill(text, path.relative_to(DOCS).as_posix()).encode()
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        contents |= {DOCS / place: picture for place, picture in _pictures(path)}
    return contents


def main() -> None:
    """Write all pages and pictures that differ, and say which."""
    for path, content in renewed().items():
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            print(path.relative_to(DOCS.parent))


# -- environments --------------------------------------------------------------------------------


def environment_page(folder: str) -> str:
    """Return the page of an environment: its class's docstring, and what else its package has.

    Args:
        folder: Its package in ``comap.envs``.
    """
    title, name = ENVIRONMENTS[folder]
    module = f"comap.envs.{folder}"
    made: Any = getattr(import_module(module), name)
    text, sections = sections_of(inspect.cleandoc(made.__doc__ or ""))
    summary, _, body = text.partition("\n")
    body = body.replace("## Arguments\nThe constructor's, below.\n", _arguments(made, sections))
    parts = [
        NOTE.format("docstrings") + "\n",
        f"# {title}\n",
        f"{linked(summary)}\n",
        f'`gymnasium.make("{made.env_id}", ...)` makes it; its class is `{module}.{name}`.\n',
        _headed(linked(body)).strip() + "\n",
        f"## Example\n\n{fenced(sections['Example'])}",
        "## More in this package\n",
    ]
    home = documented()
    rest = [other for other in names_of(module) if other != f"{module}.{name}"]
    parts += [entry(other, 3) for other in rest if home[other] == other]
    return _joined(parts)


def _joined(parts: list[str]) -> str:
    """Return a page, without the blank lines that its parts have too many of."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip() + "\n"


def _headed(text: str) -> str:
    """Return text with blank lines around its headings, as Markdown wants them."""
    return re.sub(r"^(## .+)\n", r"\n\1\n\n", text, flags=re.MULTILINE)


def _arguments(made: type, sections: dict[str, str]) -> str:
    """Return the arguments of a constructor as a table, and what it raises."""
    described = items_of(sections["Args"])
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.default is not parameter.empty
    }
    lines = ["## Arguments\n", "| argument | default | |", "|---|---|---|"]
    for name, text in described.items():
        default = f"`{defaults[name]!r}`" if name in defaults else ""
        lines.append(f"| `{name}` | {default} | {_escaped(text)} |")
    raised = items_of(sections.get("Raises", "")).items()
    if raised:
        lines += ["", "It raises\n", *(f"- `{name}`: {text}" for name, text in raised)]
    return "\n".join([*lines, ""]) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


# -- the reference -------------------------------------------------------------------------------


def reference_page(name: str) -> str:
    """Return a page of the reference.

    Args:
        name: One of `REFERENCE`.
    """
    home = documented()
    modules = REFERENCE[name]
    title = modules[0] if len(modules) < 5 else f"comap.{name}"
    parts = [NOTE.format("docstrings") + "\n", f"# {title}\n"]
    for module in modules:
        if len(modules) > 1:
            parts.append(f"## `{module}`\n")
        parts.append(_headed(linked(inspect.getdoc(import_module(module)) or "")) + "\n")
        elsewhere = []
        for public in names_of(module):
            if home[public] == public and public not in written():
                parts.append(entry(public, 3))
            else:
                elsewhere.append(f"[`{public.rpartition('.')[2]}`][{home[public]}]")
        if elsewhere:
            parts.append(f"Also here: {', '.join(elsewhere)}.\n")
    return _joined(parts)


# -- examples and notebooks ----------------------------------------------------------------------


def examples_page() -> str:
    """Return the page of the example scripts and the notebooks."""
    parts = [
        NOTE.format("the folder `examples`") + "\n",
        "# Examples and notebooks\n",
        "All run on generated tasks, on a CPU, in less than a minute each; the tests run them. "
        "They are in the folder `examples` of the repository, and need "
        '`pip install "comap-agents[viz,train]"`.\n',
    ]
    for path in sorted(EXAMPLES.glob("*.py")):
        source = path.read_text("utf-8")
        doc = ast.get_docstring(ast.parse(source)) or ""
        code = source[source.index('"""', source.index('"""') + 3) + 3 :].strip()
        parts += [f"## {path.name}\n", linked(doc) + "\n", _folded(path.name, code)]
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        parts += [f"## {path.name}\n", _notebook(path)]
    return _joined(parts)


def _folded(title: str, code: str) -> str:
    """Return code that a click shows, here and where Markdown is rendered elsewhere."""
    shown = f"```py\n{code}\n```\n"
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{shown}\n</details>\n'


def _notebook(path: Path) -> str:
    """Return a notebook's cells and their outputs as Markdown, its headings two levels down."""
    pictures = (place for place, _ in _pictures(path))
    parts = []
    for cell in _cells(path):
        text = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(re.sub(r"^#", "###", text, flags=re.MULTILINE) + "\n")
            continue
        parts.append(f"```py\n{text}\n```\n")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![Plot of the cell above]({next(pictures)})\n")
            else:
                printed = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{printed.rstrip()}\n```\n")
    return "\n".join(parts)


def _pictures(notebook: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the content of each picture among a notebook's outputs."""
    outputs = [output for cell in _cells(notebook) for output in cell.get("outputs", ())]
    encoded = [
        output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    for number, picture in enumerate(encoded, 1):
        yield f"images/{notebook.stem}-{number}.png", base64.b64decode(picture)


def _cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return cells


if __name__ == "__main__":
    main()
