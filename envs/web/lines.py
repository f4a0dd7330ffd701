r"""The text of a page: how a line is written, and how it is read.

In the dialect ``comap`` a page is the line ``URL host/path?query`` and a line for each node of its
accessibility tree::

    [1] RootWebArea 'Cart'
    \t[2] link 'Checkout'
    \t[3] textbox 'City' value: 'Millford'

The form is WebEvolver's (Fang et al., 2025), with the values of controls, and with names that cannot
break out of their quotes or of their line. The dialect ``webevolver`` is upstream's text itself, made
of the other one: see `write_tree`.
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
TAB = "Tab 0 (current): "
REFUSED = "The action you have chosen cannot be executed."
MOST_LINES = 300
_TREE = re.compile(
    r"(\t*)\[\d{1,6}\] (\w+) '(.*?)'"
    r"((?: (?:disabled|focused|hasPopup|required|expanded|checked|selected|pressed): \w+)*)"
)
_REPEATED = frozenset(("StaticText", "heading", "image", "generic"))
_FIELDS = frozenset(("textbox", "searchbox"))
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
    if observation.startswith(TAB) or observation == REFUSED:
        return _read_tree(observation)
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


class Tree(NamedTuple):
    """A page in the dialect ``webevolver``, and for each of its lines that of the dialect ``comap``."""

    text: str
    numbers: tuple[int, ...]


@lru_cache(maxsize=64)
def write_tree(page: str, tab: str, focus: int = 0) -> Tree:
    """Return a page as WebEvolver writes it (``web/server.js``), of its text in the dialect ``comap``.

    `tab` is the title of the page that was opened first, which upstream never renews; `focus` the number
    of the line that has the focus, beside the page itself. Nodes without a name have no line; neither
    have texts, headings and images whose name is part of their parent's, nor the options of a closed
    list, whose boxes are empty. What is typed is a text in its field; what is chosen in a list cannot be
    seen. Names are not escaped. The properties of each role are Chromium 156's.
    """
    shown = read_page(page)
    lines, numbers = list[str](), list[int]()
    # Of each ancestor: its depth, its children's depth here, the name printed last, and its role.
    above = [(-1, 0, "root", "")]

    def add(number: int, depth: int, role: str, name: str, rest: str, parent: str) -> bool:
        repeats = role in _REPEATED and name in parent
        if not name or role == "gridcell" or repeats or len(lines) == MOST_LINES:
            return False
        numbers.append(number)
        lines.append(f"{depth * chr(9)}[{len(lines) + 1}] {role} '{name}'{rest}")
        return True

    for number, line in enumerate(shown.lines if shown else (), 1):
        while above[-1][0] >= line.depth:
            above.pop()
        _, depth, parent, around = above[-1]
        if line.role == "option" and around == "combobox":
            continue
        name, value = (
            " ".join(text.split()) for text in (line.name, line.properties.get("value", ""))
        )
        rest = _properties_of(line, number == focus)
        if add(number, depth, line.role, name, rest, parent):
            depth, parent = depth + 1, name
        above.append((line.depth, depth, parent, line.role))
        if line.role in _FIELDS:
            add(number, depth, "StaticText", value, "", parent)
    return Tree("\n".join([TAB + tab, "", *lines]), tuple(numbers))


def _properties_of(line: Line, focused: bool) -> str:
    """Return the properties of a node in Chromium's order, without those that upstream drops."""
    role, held = line.role, line.properties
    found = {
        "disabled": held.get("disabled"),
        "focused": "true" if focused or role == ROOT else None,
    }
    if role == "combobox":
        found |= {"hasPopup": "menu", "expanded": held.get("expanded", "false")}
    elif role in ("textbox", "radiogroup"):
        found["required"] = held.get("required", "false")
    else:
        found |= {key: held.get(key) for key in ("expanded", "checked", "selected", "pressed")}
    return "".join(f" {key}: {value}" for key, value in found.items() if value)


def _read_tree(observation: str) -> PageText:
    """Return what a page in the dialect ``webevolver`` shows; nothing of a refusal."""
    lines = list[Line]()
    for text in observation.split("\n")[1:]:
        if found := _TREE.fullmatch(text):
            depth, role, name, rest = len(found[1]), found[2], found[3], _properties(found[4])
            if (
                role == "StaticText"
                and lines
                and (lines[-1].role, lines[-1].depth + 1) in {(field, depth) for field in _FIELDS}
            ):
                lines[-1].properties["value"] = name
            else:
                lines.append(Line(depth, role, name, rest))
    return PageText("", tuple(lines))
