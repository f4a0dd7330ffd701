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
MOST_LINES = 300  # upstream cuts a page there
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
    # Most names are plain: these tests are cheaper than to split and to replace.
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


def _char(escape: re.Match[str]) -> str:
    """Return the character that an escape stands for; its own text where there is no such character."""
    code = escape[1]
    if len(code) == 1:
        return code
    number = int(code[1:], 16)
    return chr(number) if number < 0x110000 else code  # a model may write any number


@lru_cache(maxsize=8_192)
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

    # Predicted pages may have anything between the lines that fit: it is passed over. The first address
    # counts, and only above the lines.
    url = ""
    lines: list[Line] = []
    answer = None
    for text in observation.split("\n"):
        line = _LINE.fullmatch(text)
        if line is not None:
            tabs, _, role, name, rest = line.groups()
            properties = _properties(rest) if rest else {}
            lines.append(Line(len(tabs), role, unquoted(name), properties))
        elif text.startswith(FIRST) and not lines and not url:
            url = text[len(FIRST) :].strip()
        elif answer is None and (answer_line := _ANSWER.fullmatch(text)):
            answer = unquoted(answer_line[1])

    if not lines and answer is None:
        return None
    return PageText(url, tuple(lines), answer)


def _properties(text: str) -> dict[str, str]:
    return {key: word if word else unquoted(name) for key, name, word in _PROPERTY.findall(text)}


class Tree(NamedTuple):
    """A page in the dialect ``webevolver``, and for each of its lines that of the dialect ``comap``."""

    text: str
    numbers: tuple[int, ...]


class _Ancestor(NamedTuple):
    """A node around the lines to come, as `write_tree` writes it."""

    depth: int
    children_depth: int  # in the dialect ``webevolver``
    printed_name: str  # its own, or that of the nearest node around it which has a line
    role: str


@lru_cache(maxsize=64)
def write_tree(page: str, tab: str, focus: int = 0) -> Tree:
    """Return a page as WebEvolver writes it (``web/server.js``), of its text in the dialect ``comap``.

    `tab` is the title of the page that was opened first, which upstream never renews; `focus` the number
    of the line that has the focus, beside the page itself. Nodes without a name have no line; neither
    have texts, headings and images whose name is part of their parent's, nor the options of a closed
    list, whose boxes are empty. What is typed is a text in its field; what is chosen in a list cannot be
    seen. Names are not escaped. The properties of each role are Chromium 156's.
    """
    page_text = read_page(page)
    lines: list[str] = []
    numbers: list[int] = []
    ancestors = [_Ancestor(depth=-1, children_depth=0, printed_name="root", role="")]

    def add(number: int, depth: int, role: str, name: str, rest: str, parent_name: str) -> bool:
        repeats_parent = role in _REPEATED and name in parent_name
        if not name or role == "gridcell" or repeats_parent or len(lines) == MOST_LINES:
            return False
        numbers.append(number)
        indent = depth * "\t"
        lines.append(f"{indent}[{len(lines) + 1}] {role} '{name}'{rest}")
        return True

    for number, line in enumerate(page_text.lines if page_text else (), 1):
        while ancestors[-1].depth >= line.depth:
            ancestors.pop()
        _, depth, parent_name, parent_role = ancestors[-1]
        if line.role == "option" and parent_role == "combobox":
            continue

        # Children of a node without a line of its own take its place, one step further left.
        name = " ".join(line.name.split())
        rest = _properties_of(line, number == focus)
        if add(number, depth, line.role, name, rest, parent_name):
            depth += 1
            parent_name = name
        ancestors.append(_Ancestor(line.depth, depth, parent_name, line.role))

        if line.role in _FIELDS:
            value = " ".join(line.properties.get("value", "").split())
            add(number, depth, "StaticText", value, "", parent_name)
    return Tree("\n".join([TAB + tab, "", *lines]), tuple(numbers))


def _properties_of(line: Line, focused: bool) -> str:
    """Return the properties of a node in Chromium's order, without those that upstream drops."""
    role = line.role
    property_of = line.properties.get
    properties = {
        "disabled": property_of("disabled"),
        "focused": "true" if focused or role == ROOT else None,
    }
    if role == "combobox":
        properties["hasPopup"] = "menu"
        properties["expanded"] = property_of("expanded", "false")
    elif role in ("textbox", "radiogroup"):
        properties["required"] = property_of("required", "false")
    else:
        for key in ("expanded", "checked", "selected", "pressed"):
            properties[key] = property_of(key)
    return "".join(f" {key}: {value}" for key, value in properties.items() if value)


def _read_tree(observation: str) -> PageText:
    """Return what a page in the dialect ``webevolver`` shows; nothing of a refusal."""
    lines: list[Line] = []
    for text in observation.split("\n")[1:]:
        node = _TREE.fullmatch(text)
        if node is None:
            continue
        tabs, role, name, rest = node.groups()
        depth = len(tabs)

        # A text inside of a field is what is typed there.
        field = lines[-1] if lines else None
        is_inside = field is not None and field.role in _FIELDS and field.depth + 1 == depth
        if field is not None and role == "StaticText" and is_inside:
            field.properties["value"] = name
        else:
            lines.append(Line(depth, role, name, _properties(rest)))
    return PageText("", tuple(lines))
