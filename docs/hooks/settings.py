"""Tables of settings, from the dataclasses that the command line's options come from."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from annotations import plain_annotation
from apis import linked

from comap.agents.config import FromModel
from comap.cli.options import field_help
from comap.settings import Range, ranges_of

__all__ = ["preset_table", "settings_table"]

_GROUP = re.compile(r"^    # -- (.+?) --$", re.MULTILINE)


def settings_table(config: type, *, inherited: bool = False) -> str:
    """Return the fields that a dataclass defines itself, as Markdown: a table for each group.

    Args:
        config: The dataclass. Comments such as ``# -- rounds --`` begin groups; docstrings under
            fields say what they are.
        inherited: Also the fields that it inherits. A group that several classes have is one, and
            stands where the last of them has it.

    Raises:
        ValueError: A field has no docstring.
    """
    help_texts = field_help(config)
    owners = [config]
    if inherited:
        owners = [cls for cls in reversed(config.__mro__) if "__dataclass_fields__" in vars(cls)]
    annotations: dict[str, ast.expr] = {}
    for cls in owners:
        annotations |= _annotations(cls)
    missing = [name for name in annotations if not help_texts[name]]
    if missing:
        raise ValueError(f"{config.__name__}: no docstring under {', '.join(missing)}")
    hints = get_type_hints(config)
    ranges = ranges_of(config)
    defaults = {part.name: part.default for part in fields(config)}
    parts: list[str] = []
    for title, names in _all_groups(owners).items():
        if title:
            parts.append(f"### {title[0].upper()}{title[1:]}\n")
        parts.append("| setting | values | default | |\n|---|---|---|---|")
        for name in names:
            values = _values(hints[name], annotations[name], ranges.get(name))
            cells = (f"`{name}`", values, _shown(defaults[name]), linked(help_texts[name]))
            parts.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
        parts.append("")
    return "\n".join(parts) if annotations else "It has no settings of its own."


def preset_table(presets: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what presets set, as a Markdown table with a column for each preset that sets anything.

    Args:
        presets: The settings of each, by name.
    """
    columns = {name: settings for name, settings in presets.items() if settings}
    lines = [f"| setting | {' | '.join(f'`{name}`' for name in columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for setting in sorted(set().union(*columns.values())):
        cells = []
        for settings in columns.values():
            cells.append(_shown(settings[setting]) if setting in settings else "")
        lines.append(f"| `{setting}` | {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines)


def _tree(config: type) -> ast.ClassDef:
    source = textwrap.dedent(inspect.getsource(config))
    return next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))


def _annotations(config: type) -> dict[str, ast.expr]:
    """Return the annotation of each field that is written in the class itself."""
    field_names = {part.name for part in fields(config)}
    annotations = {}
    for node in _tree(config).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in field_names:
            annotations[ast.unparse(node.target)] = node.annotation
    return annotations


def _all_groups(owners: Sequence[type]) -> dict[str, list[str]]:
    """Return the names under each group's title, over all classes; a name stands where it is first."""
    groups: dict[str, list[str]] = {}
    for cls in owners:
        for title, names in _groups(cls, list(_annotations(cls))).items():
            groups[title] = list(dict.fromkeys([*groups.pop(title, []), *names]))
    return groups


def _groups(config: type, names: list[str]) -> dict[str, list[str]]:
    """Return the names under each group's title; one group without a title where there are none."""
    source = textwrap.dedent(inspect.getsource(config))
    starts = [(heading.start(), heading[1]) for heading in _GROUP.finditer(source)]
    groups: dict[str, list[str]] = {}
    for name in names:
        field = re.search(rf"^    {name}\s*:", source, re.MULTILINE)
        position = field.start() if field else 0
        title = next((text for start, text in reversed(starts) if start < position), "")
        groups.setdefault(title, []).append(name)
    return groups


def _values(hint: Any, annotation: ast.expr, number_range: Range | None) -> str:
    """Return what a field may be: the values of a ``Literal``, else its type and range."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    type_name = plain_annotation(annotation)
    if number_range is None:
        return f"`{type_name}`"

    words = str(number_range).removeprefix("of ")
    if type_name.endswith(" | None"):
        return f"`{type_name.removesuffix(' | None')}` {words}, or `None`"
    return f"`{type_name}` {words}"


def _shown(value: Any) -> str:
    if value is MISSING:
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{member}`" for member in value)
    if isinstance(value, FromModel):
        return "follows the model"
    return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
