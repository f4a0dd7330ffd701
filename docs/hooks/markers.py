"""Parts of pages that are written from code: what stands between a mark and ``<!-- end -->``.

``<!-- api: NAME -->``
    The entry of a public name: signature, docstring, methods. After the name may stand ``level=3``
    (of its heading; 2 where nothing is said), ``members=a,b`` (these methods only) and ``source``.
``<!-- settings: MODULE:CLASS -->``
    The settings that a dataclass defines itself, with what their docstrings say.
``<!-- all settings: MODULE:CLASS -->``
    The same, with those that it inherits.
``<!-- presets: MODULE:NAME -->``
    What presets set.
``<!-- commands: all -->``
    The commands of the command line, with all options.
``<!-- official data: table -->``, ``<!-- official data: steps -->``
    The benchmarks' data sets, and how to get those that no command downloads.
``<!-- needs: memory -->``
    Memory of trainings by model and method.
"""

from __future__ import annotations

import re
from importlib import import_module

from apis import resolved
from commands import commands_text
from entries import entry
from official import data_steps, data_table
from takes import memory_table

from settings import preset_table, settings_table

__all__ = ["END", "fill"]

END = "<!-- end -->"

_KINDS = "api|settings|all settings|presets|commands|official data|needs"
_OPENING = re.compile(rf"^<!-- ({_KINDS}): ", re.MULTILINE)
_PART = re.compile(
    rf"^(?P<mark><!-- (?P<kind>{_KINDS}): (?P<what>[^\n]+) -->)\n.*?^{END}$",
    re.DOTALL | re.MULTILINE,
)


def fill(markdown: str, page: str) -> str:
    """Return a page with its marked parts written anew.

    Args:
        markdown: The page.
        page: Its place in the documentation, from which links are relative.

    Raises:
        ValueError: A mark has no end.
        ImportError, AttributeError: There is no such class or table.
    """

    def written(part: re.Match[str]) -> str:
        text = resolved(_written(part["kind"], part["what"]), page).strip()
        return f"{part['mark']}\n\n{text}\n\n{END}"

    filled, count = _PART.subn(written, markdown)
    marks = _OPENING.findall(markdown)
    if count != len(marks):
        raise ValueError(f"{page}: expected {END} after each of {len(marks)} marks, found {count}")
    return filled


def _written(kind: str, subject: str) -> str:
    if kind == "commands":
        return commands_text()
    if kind == "needs":
        return memory_table()
    if kind == "official data":
        return data_table() if subject == "table" else data_steps()
    if kind == "api":
        return _entry(subject)
    module, _, attribute = subject.partition(":")
    config = getattr(import_module(module), attribute)
    if kind == "presets":
        return preset_table(config)
    return settings_table(config, inherited=kind == "all settings")


def _entry(subject: str) -> str:
    name, *words = subject.split()
    options = dict(word.partition("=")[::2] for word in words)
    members = options.get("members", "")
    return entry(
        name,
        int(options.get("level", 2)),
        source="source" in options,
        members=members.split(",") if members else (),
    )
