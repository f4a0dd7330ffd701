"""The commands and their options, for the page on the command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from comap.cli.main import COMMANDS, FOR_MAINTAINERS, load
from comap.cli.options import Options

__all__ = ["commands_text"]


def commands_text() -> str:
    """Return a table of the commands, and a section with all options of each."""
    os.environ["COLUMNS"] = "80"
    names = [name for name in COMMANDS if name not in FOR_MAINTAINERS]
    links = {name: f"[`comap {name}`](#comap-{name.replace(' ', '-')})" for name in names}
    rows = [f"| {links[name]} | {COMMANDS[name][1]} |" for name in names]
    table = "\n".join(["| command | |", "|---|---|", *rows, ""])
    return "\n".join([table, *(_section(name) for name in names)])


def _section(name: str) -> str:
    command = load(name)
    options = Options(command, ["--help-all"], f"comap {name}")
    lines = [f"## comap {name}\n", f"```text\n{options.usage}\n```\n"]
    lines += [f"{paragraph}\n" for paragraph in options.description.split("\n\n")]
    if command.example:
        lines.append(f"Example: `{command.example}`\n")
    for title, rows in _groups(options):
        lines.append(f"| {title[0].upper()}{title[1:]} | |\n|---|---|")
        lines += [f"| {names} | {text} |" for names, text in rows]
        lines.append("")
    return "\n".join(lines)


def _groups(options: Options) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the title of each group of options, and each option's names and help."""
    for group in options._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if actions:
            yield group.title or "options", [_row(action) for action in actions]


def _row(action: Any) -> tuple[str, str]:
    """Return a table's cells: the first long name of an option and its short ones, and its help."""
    flags = [flag for flag in action.option_strings if not flag.startswith("--no-")]
    has_negation = len(flags) < len(action.option_strings)
    long_flags = [flag for flag in flags if flag.startswith("--")][:1]
    short_flags = [flag for flag in flags if not flag.startswith("--")]

    if has_negation:
        long_flags = [flag.replace("--", "--[no-]", 1) for flag in long_flags]
    elif action.metavar:
        long_flags = [f"{flag} {action.metavar}" for flag in long_flags]
    names = [f"`{flag}`" for flag in [*long_flags, *short_flags]]
    listing = ", ".join(names) or f"`{action.dest.upper()}`"

    text = " ".join(str(action.help).replace("%%", "%").split())
    return listing.replace("|", "\\|"), text.replace("|", "\\|").replace("<", "&lt;")
