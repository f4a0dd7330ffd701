"""Parts of pages that are written from code when the site is built.

``<!-- settings: MODULE:CLASS -->``
    The settings that a dataclass defines itself, with what their docstrings say.
``<!-- all settings: MODULE:CLASS -->``
    The same, with those that it inherits.
``<!-- presets: MODULE:NAME -->``
    What presets set.
``<!-- commands -->``
    The commands of the command line, with all options.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from commands import commands_text
from settings import preset_table, settings_table

__all__ = ["fill", "on_page_markdown"]

_MARK = re.compile(r"^<!-- (settings|all settings|presets): (\S+) -->$", re.MULTILINE)
_COMMANDS = "<!-- commands -->"


def fill(markdown: str) -> str:
    """Return a page with its marks replaced by what they name.

    Args:
        markdown: The page.

    Raises:
        ImportError, AttributeError: There is no such class or table.
    """
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, commands_text())
    return _MARK.sub(lambda found: _written(found[1], found[2]), markdown)


def _written(kind: str, name: str) -> str:
    module, _, attribute = name.partition(":")
    named = getattr(import_module(module), attribute)
    if kind == "presets":
        return preset_table(named)
    return settings_table(named, inherited=kind == "all settings")


def on_page_markdown(markdown: str, **given: Any) -> str:
    """Fill a page's marks; MkDocs calls this."""
    return fill(markdown)
