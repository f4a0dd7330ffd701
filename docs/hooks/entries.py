"""The entry of a public name on a page: its heading, its signature, and its docstring as Markdown."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from annotations import plain_annotation
from apis import linked, titles

__all__ = ["entry", "fenced", "items_of", "sections_of"]

WIDTH = 88
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example|Note):\n", re.MULTILINE)
_TITLES = {"Args": "Arguments"}
_ITEM = re.compile(r"^([\w*., ]+):((?:.*\n?)(?:(?:[ \t]+.*)?\n?)*)", re.MULTILINE)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Attribute(NamedTuple):
    """A field or a property of a class."""

    name: str
    annotation: str
    default: str
    text: str


def entry(name: str, level: int, *, source: bool = False, members: Sequence[str] = ()) -> str:
    """Return what a page says of a public name, as Markdown.

    Args:
        name: Its full name, such as ``comap.worldmodel.Query``.
        level: The level of its heading; methods are one level below.
        source: Whether the code follows.
        members: The methods that are shown; all that have docstrings where none are named.
    """
    module, _, short = name.rpartition(".")
    thing = getattr(import_module(module), short)
    heading = _heading(titles().get(name, short), level)
    if inspect.isroutine(thing):
        return "\n".join([heading, *_function(thing, short, source)])
    if not isinstance(thing, type):
        return "\n".join([heading, *_constant(module, short)])

    parts = [heading, *_class(thing)]
    if source and not members:
        parts.append(_code(_source(thing)))
    for member, method in _methods(thing):
        if not members or member in members:
            parts.append(_heading(f"{short}.{member}", level + 1))
            parts += _function(method, member, source)
    return "\n".join(parts)


def sections_of(docstring: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's text, and what stands under ``Args:``, ``Raises:`` and the like.

    Args:
        docstring: It, without indentation.
    """
    head, *rest = _SECTION.split(docstring)
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return head.rstrip() + "\n", {title: textwrap.dedent(text) for title, text in pairs}


def items_of(section: str) -> dict[str, str]:
    """Return the entries of a section such as ``Args:``, each on one line."""
    return {name: " ".join(text.split()) for name, text in _ITEM.findall(section)}


def _heading(name: str, level: int) -> str:
    return f"{'#' * level} `{name}`\n"


# -- docstrings ----------------------------------------------------------------------------------


def _described(docstring: str | None) -> list[str]:
    """Return a docstring as Markdown."""
    text, sections = sections_of(inspect.cleandoc(docstring or ""))
    parts = [fenced(linked(text))]
    for title, section in sections.items():
        if title == "Example":
            parts.append(fenced(section))
        elif title in ("Returns", "Note"):
            parts.append(f"**{title}** {linked(' '.join(section.split()))}\n")
        else:
            items = items_of(section).items()
            lines = [f"- {_item_name(name)}: {linked(text)}" for name, text in items]
            parts.append("\n".join([f"**{_TITLES.get(title, title)}**\n", *lines, ""]))
    return parts


def _item_name(names: str) -> str:
    """Return names of an item, linked to where they are documented."""
    return ", ".join(linked(f"`{name.strip()}`") for name in names.split(","))


def fenced(text: str) -> str:
    """Return text with its doctests in fences."""
    paragraphs = filter(str.strip, re.split(r"\n\s*\n", text.strip("\n")))
    blocks: list[str] = []
    for is_code, group in itertools.groupby(paragraphs, _is_doctest):
        if is_code:
            examples = "\n\n".join(map(textwrap.dedent, group))
            blocks.append(f"```pycon\n{examples}\n```")
        else:
            blocks += group
    return "\n\n".join(blocks) + "\n"


def _is_doctest(paragraph: str) -> bool:
    return paragraph.lstrip().startswith(">>> ")


# -- classes -------------------------------------------------------------------------------------


def _class(cls: type) -> list[str]:
    """Return a class's signature, docstring and attributes."""
    parts = [_code(_class_signature(cls)), *_described(cls.__doc__)]
    attributes = list(_attributes(cls))
    if attributes:
        lines = ["**Attributes**\n"]
        for attribute in attributes:
            annotation = f" (`{attribute.annotation}`)" if attribute.annotation else ""
            is_short = 0 < len(attribute.default) <= WIDTH
            default = f", default `{attribute.default}`" if is_short else ""
            lines.append(f"- `{attribute.name}`{annotation}{default}: {linked(attribute.text)}")
        parts.append("\n".join([*lines, ""]))
    return parts


def _class_signature(cls: type) -> str:
    """Return how a class is called; its first line where its attributes say that, or nobody calls it."""
    fields = _fields(cls)
    if fields and not all(field.text for field in fields):
        return _call(cls.__name__, [_parameter(*field[:3]) for field in fields], "")
    if not fields:
        for base in cls.__mro__:
            constructor = vars(base).get("__init__")
            if inspect.isfunction(constructor) and constructor.__module__.startswith("comap"):
                _, *parameters = _parameters(_definition(constructor))
                return _call(cls.__name__, parameters, "")
    bases = ", ".join(ast.unparse(base) for base in _definition(cls).bases)
    return f"class {cls.__name__}({bases})" if bases else f"class {cls.__name__}"


def _fields(cls: type) -> list[Attribute]:
    """Return the fields that a dataclass or a named tuple is made of, also those that it inherits."""
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if field.init]
    else:
        names = list(getattr(cls, "_fields", ()))
    fields_by_name: dict[str, Attribute] = {}
    for base in reversed(cls.__mro__):  # a class may write an inherited field anew
        if base.__module__.startswith("comap"):
            fields_by_name |= {field.name: field for field in _written_fields(base)}
    return [fields_by_name[name] for name in names if name in fields_by_name]


def _attributes(cls: type) -> Iterator[Attribute]:
    """Yield the fields that have docstrings, and the properties, of a class itself."""
    for field in _written_fields(cls):
        if field.text and field.name[0] != "_":
            yield field
    for name, member in vars(cls).items():
        if isinstance(member, functools.cached_property):
            read = member.func
        else:
            read = getattr(member, "fget", None)
        if name[0] != "_" and read is not None and read.__doc__:
            returned = _definition(read).returns
            annotation = ast.unparse(returned) if returned else ""
            yield Attribute(name, annotation, "", " ".join(read.__doc__.split()))


def _written_fields(cls: type) -> list[Attribute]:
    """Return the fields that are annotated in a class's own body."""
    body = _definition(cls).body
    fields = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = "" if node.value is None else _default(node.value)
            text = " ".join(_string(following).split())
            annotation = plain_annotation(node.annotation)
            fields.append(Attribute(node.target.id, annotation, default, text))
    return fields


def _default(value: ast.expr) -> str:
    """Return a field's default as it is written; of ``field(...)`` what makes the value."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "dataclasses.field"):
        arguments = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" in arguments:
            return ast.unparse(arguments["default"])
        if "default_factory" in arguments:
            return f"{ast.unparse(arguments['default_factory'])}()"
        return ""
    return ast.unparse(value)


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods of a class itself that have docstrings."""
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", member)
        if name[0] != "_" and inspect.isfunction(function) and function.__doc__:
            yield name, member


# -- functions and constants ---------------------------------------------------------------------


def _function(function: Any, name: str, source: bool) -> list[str]:
    """Return a function's signature and docstring, or its docstring and its code."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if source:
        return [*_described(plain.__doc__), _code(_source(plain))]

    node = _definition(plain)
    parameters = _parameters(node)
    if isinstance(function, classmethod) or (parameters and parameters[0] == "self"):
        parameters = parameters[1:]
    returned = ast.unparse(node.returns) if node.returns else ""
    call = _call(name, parameters, returned)
    kind = type(function).__name__
    decorator = f"@{kind}\n" if kind in ("classmethod", "staticmethod") else ""
    return [_code(decorator + call), *_described(plain.__doc__)]


def _parameters(node: Any) -> list[str]:
    """Return the parameters of a function, one text each, with the bare ``/`` and ``*``."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    parameters = [_argument(*pair) for pair in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        parameters.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        parameters.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parameters.append("*")
    parameters += [
        _argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parameters.append(f"**{_argument(arguments.kwarg, None)}")
    return parameters


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    return _parameter(argument.arg, annotation, ast.unparse(default) if default else "")


def _parameter(name: str, annotation: str, default: str) -> str:
    if annotation:
        return f"{name}: {annotation} = {default}" if default else f"{name}: {annotation}"
    return f"{name}={default}" if default else name


def _call(name: str, parameters: Sequence[str], returned: str) -> str:
    """Return a signature, with one parameter a line where it is long."""
    arrow = f" -> {returned}" if returned else ""
    call = f"{name}({', '.join(parameters)}){arrow}"
    if len(call) <= WIDTH:
        return call
    lines = [f"    {parameter}," for parameter in parameters]
    return "\n".join([f"{name}(", *lines, f"){arrow}"])


def _constant(module: str, name: str) -> list[str]:
    """Return how a constant or an alias of a type is defined, and the text under it."""
    body = _tree(module).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom):
            origins = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
            if origins:
                return _constant(_absolute(module, node), origins[0])
        if _assigned(node) == name:
            code = ast.get_source_segment(inspect.getsource(import_module(module)), node) or name
            return [_code(code), *_described(_string(following))]
    raise ValueError(f"expected a definition of {name!r} in {module}, found none")


def _absolute(module: str, node: ast.ImportFrom) -> str:
    """Return the full name of the module that an import names."""
    if not node.level:
        return str(node.module)
    package = import_module(module).__spec__.parent or ""
    base = package.rsplit(".", node.level - 1)[0]
    return f"{base}.{node.module}" if node.module else base


def _assigned(node: ast.stmt) -> str:
    """Return the name that a statement binds; nothing where it binds none."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


# -- code ----------------------------------------------------------------------------------------


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(module)))


@cache  # to find a class, Python parses the whole of its module
def _definition(thing: Any) -> Any:
    """Return the syntax tree of a class or a function."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _string(node: ast.stmt | None) -> str:
    """Return the text that a statement is; nothing where it is no text."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    value = node.value.value if is_text else ""  # type: ignore[union-attr]
    return inspect.cleandoc(value) if isinstance(value, str) else ""


def _code(text: str) -> str:
    return f"```py\n{text}\n```\n"


def _source(thing: Any) -> str:
    """Return the code of a class or a function, without its docstring."""
    text = textwrap.dedent(inspect.getsource(thing))
    first = ast.parse(text).body[0].body[0]  # type: ignore[attr-defined]
    lines = text.splitlines()
    if _string(first):
        del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(lines)
