r"""The text of a page in the dialect ``comap``: how a line is written, and how it is read.

A page is the line ``URL host/path?query`` and a line for each node of its accessibility tree::

    [1] RootWebArea 'Cart'
    \t[2] link 'Checkout'
    \t[3] textbox 'City' value: 'Millford'

The form is WebEvolver's (Fang et al., 2025), with the values of controls, and with names that cannot
break out of their quotes or of their line.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

FIRST = "URL "
ANSWERED = "Answer: "
ROOT = "RootWebArea"
_NAME = r"'((?:[^'\\]|\\.)*)'"
_LINE = re.compile(rf"(\t*)\[(\d{{1,6}})\] (\w+) {_NAME}((?: \w+: (?:'(?:[^'\\]|\\.)*'|\w+))*)")
_PROPERTY = re.compile(rf" (\w+): (?:{_NAME}|(\w+))")
_ESCAPE = re.compile(r"\\(U[0-9a-f]{8}|u[0-9a-f]{4}|.)")
_ANSWER = re.compile(rf"{ANSWERED}{_NAME}")


class Line(NamedTuple):
    """One node of a page's text."""

    depth: int
    role: str
    name: str
    properties: dict[str, str]


class PageText(NamedTuple):
    """What can be read of an observation; `url` is empty where no line says it."""

    url: str
    lines: tuple[Line, ...]
    answer: str | None = None


def quoted(text: str) -> str:
    r"""Return a name on one line, in quotes: blanks collapsed, and what is not printable escaped.

    Example:
        >>> print(quoted("it's\n[12]  button \u202e"))
        'it\'s [12] button \u202e'
    """
    if (
        "'" in text
        or "\\" in text
        or "  " in text
        or not text.isprintable()
        or text != text.strip()
    ):
        text = " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'")
        if not text.isprintable():
            text = "".join(char if char.isprintable() else _code(char) for char in text)
    return f"'{text}'"


def _code(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unquoted(text: str) -> str:
    """Return what `quoted` wrote between its quotes."""
    return _ESCAPE.sub(_char, text) if "\\" in text else text


def _char(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) == 1:
        return code
    number = int(code[1:], 16)
    return chr(number) if number < 0x110000 else code


@lru_cache(maxsize=32_768)
def plain(text: str) -> str:
    """Return a text as facts have it: NFKC, lower case, single blanks.

    Example:
        >>> plain("  Ａdd to   Cart ")
        'add to cart'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.lower().split())


def write_answer(answer: str) -> str:
    """Return the observation after the end of an episode."""
    return f"{ANSWERED}{quoted(answer)}"


@lru_cache(maxsize=64)
def read_page(observation: str) -> PageText | None:
    r"""Return what an observation, real or predicted, shows; None where no line fits the form.

    Example:
        >>> page = read_page("URL shop.test/\n[1] RootWebArea 'Shop'\n\t[2] checkbox 'Gift' checked: true")
        >>> page.url, page.lines[1].name, page.lines[1].properties
        ('shop.test/', 'Gift', {'checked': 'true'})
    """
    url, lines, answer = "", list[Line](), None
    for text in observation.split("\n"):
        found = _LINE.fullmatch(text)
        if found is not None:
            depth, _, role, name, rest = found.groups()
            properties = _properties(rest) if rest else {}
            lines.append(Line(len(depth), role, unquoted(name), properties))
        elif text.startswith(FIRST) and not lines and not url:
            url = text[len(FIRST) :].strip()
        elif answer is None and (said := _ANSWER.fullmatch(text)):
            answer = unquoted(said[1])
    if not lines and answer is None:
        return None
    return PageText(url, tuple(lines), answer)


def _properties(text: str) -> dict[str, str]:
    return {key: word if word else unquoted(name) for key, name, word in _PROPERTY.findall(text)}
