"""Command-line options from a dataclass: one for each field, its docstring the help."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import fields
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import OptionError

__all__ = ["add_fields", "argument_help", "field_help", "pairs"]


def add_fields(
    parser: argparse.ArgumentParser, config: type, prefix: str = "", taken: Collection[str] = ()
) -> dict[str, str]:
    """Add an option for each field of a dataclass to a parser.

    An option that is not given leaves nothing in the parsed arguments, so that the field's default
    counts.

    Args:
        parser: The parser.
        config: The dataclass; what its fields mean is said in docstrings under them.
        prefix: Put before the names of fields that are `taken`.
        taken: Names that are options of the parser already.

    Returns:
        The field that each name among the parsed arguments stands for.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Config:
        ...     width: int = 2
        >>> parser = argparse.ArgumentParser()
        >>> add_fields(parser, Config)
        {'width': 'width'}
        >>> parser.parse_args(["--width", "3"])
        Namespace(width=3)
    """
    group = parser.add_argument_group(f"options of {config.__name__}")
    told, hints = field_help(config), get_type_hints(config)
    named = {}
    for part in fields(config):
        name = f"{prefix}{part.name}" if part.name in taken else part.name
        text = f"{told.get(part.name, '')} (default: {part.default})".replace("%", "%%").strip()
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            default=argparse.SUPPRESS,
            help=text,
            **_kind(hints[part.name]),
        )
        named[name] = part.name
    return named


def field_help(config: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and of those it inherits from.

    Example:
        >>> from comap.benchmarks.demo import DemoConfig
        >>> field_help(DemoConfig)["env"]
        "The environment's id."
    """
    told: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(cls))
            body = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)).body
        except (OSError, TypeError, SyntaxError, StopIteration):
            continue  # written at a prompt, or built in: there is nothing to read
        for node, after in pairwise(body):
            if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                text = after.value
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    told[ast.unparse(node.target)] = " ".join(text.value.split())
    return told


def argument_help(made: type) -> dict[str, str]:
    """Return what a class's docstring says of each argument of its constructor.

    Example:
        >>> from comap.agents import RandomAgent
        >>> argument_help(RandomAgent)["seed"]
        'Seed of the choices.'
    """
    text = inspect.cleandoc(made.__doc__ or "")
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE)
    lines = textwrap.dedent(section[1]) if section else ""
    found = re.findall(r"^(\w+):((?:.*\n?)(?:[ \t]+.*\n?)*)", lines, re.MULTILINE)
    told = {name: " ".join(said.split()) for name, said in found}
    return {name: told.get(name, "") for name in inspect.signature(made).parameters}


def pairs(texts: Sequence[str] | None, option: str, *, plain: bool = False) -> dict[str, Any]:
    """Return what ``--option NAME=VALUE`` said, the values read as JSON where they are that.

    Args:
        texts: The options' values.
        option: The option's name, for errors.
        plain: Leave the values as text.

    Raises:
        OptionError: One has no ``=``.

    Example:
        >>> pairs(["expert=explore", "max_episode_steps=30"], "--env-option")
        {'expert': 'explore', 'max_episode_steps': 30}
    """
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise OptionError(f"{option} expects NAME=VALUE, found {text!r:.80}")
        found[name] = value if plain else _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _kind(hint: Any) -> dict[str, Any]:
    """Return how argparse reads a value of this type."""
    choices = [part for part in get_args(hint) if part is not NoneType]
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(hint) is tuple:
        return {"nargs": "+", "type": _reader(choices[0])}
    return {"type": _reader(choices[0] if choices else hint)}


def _reader(kind: Any) -> Any:
    return kind if kind in (int, float, str) else _value
