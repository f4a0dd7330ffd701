"""Pages as trees of components: the HTML that a browser gets, and the lines that it would show.

Both are written from one tree. Each text has a block of its own, controls are named by
``aria-label``, and nothing depends on layout, so that the lines written here are those of Chromium's
accessibility tree. Lists, list items, paragraphs and forms have no lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple, TypeVar
from urllib.parse import quote_plus

from .lines import FIRST, ROOT, quoted

TYPED = frozenset(("textbox", "searchbox", "textarea"))
CONTROLS = TYPED | {"button", "checkbox", "combobox", "radio", "radiogroup", "option"}
_SILENT = frozenset(("list", "item", "form"))
PER_PAGE = 10
_T = TypeVar("_T")
_PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


class Node(NamedTuple):
    """A component; which attributes mean something depends on its role."""

    role: str  # or list, item, form, hidden, which have no line
    name: str = ""
    children: tuple[Node, ...] = ()
    href: str = ""  # where a link leads, and a form's action
    field: str = ""  # a control's name in its form, and a form's method
    value: str = ""  # what a control sends, or the text in it at first
    checked: bool = False  # a checkbox, a radio button or an option, at first
    disabled: bool = False


class Page(NamedTuple):
    """A title and the components under it."""

    title: str
    body: tuple[Node, ...]


def heading(name: str) -> Node:
    return Node("heading", name)


def text(name: str) -> Node:
    return Node("StaticText", name)


def address(path: str, **query: object) -> str:
    """Return a path with a query.

    Example:
        >>> address("/search", q="red lamp", page=2)
        '/search?q=red+lamp&page=2'
    """
    return path + "?" + "&".join(f"{key}={quote_plus(str(value))}" for key, value in query.items())


def link(name: str, path: str, **query: object) -> Node:
    return Node("link", name, href=address(path, **query) if query else path)


def facts(values: Mapping[str, object]) -> Iterator[Node]:
    """Yield the texts ``label: value``."""
    return (text(f"{label}: {value}") for label, value in values.items())


def image(name: str) -> Node:
    return Node("image", name)


def nav(name: str, *links: Node) -> Node:
    return Node("navigation", name, links)


def rows(items: Iterable[Sequence[Node]]) -> Node:
    """Return a list with an item for each group of components."""
    return Node("list", children=tuple(Node("item", children=tuple(item)) for item in items))


def form(action: str, *children: Node, method: str = "get") -> Node:
    return Node("form", children=children, href=action, field=method)


def post(action: str, values: Mapping[str, object], *children: Node) -> Node:
    """Return a form that changes something, with values that nobody sees."""
    fields = (hidden(field, str(value)) for field, value in values.items())
    return form(action, *fields, *children, method="post")


def hidden(field: str, value: str) -> Node:
    return Node("hidden", field=field, value=value)


def button(name: str) -> Node:
    return Node("button", name)


def textbox(name: str, field: str, value: str = "", role: str = "textbox") -> Node:
    """Return a field of one line; the role ``textarea`` makes it one of several."""
    if role != "textarea":
        value = value.replace("\n", "").replace("\r", "")  # as the HTML Standard sanitizes it
    return Node(role, name, field=field, value=value)


def checkbox(name: str, field: str, checked: bool = False) -> Node:
    return Node("checkbox", name, field=field, value="yes", checked=checked)


def radios(name: str, field: str, choices: Iterable[str], choice: str = "") -> Node:
    """Return a group of radio buttons, whose values are their names."""
    buttons = [
        Node("radio", label, field=field, value=label, checked=label == choice) for label in choices
    ]
    return Node("radiogroup", name, tuple(buttons))


def select(name: str, field: str, choices: Iterable[str], choice: str = "") -> Node:
    """Return a list to choose from, whose values are its options' names; the first is the default."""
    labels = tuple(choices)
    if choice not in labels:
        choice = labels[0]
    options = [Node("option", label, value=label, checked=label == choice) for label in labels]
    return Node("combobox", name, tuple(options), field=field)


def search_form(action: str, name: str, value: str, *controls: Node) -> Node:
    """Return a form with a search box, and controls between it and its button."""
    return form(action, textbox(name, "q", value, "searchbox"), *controls, button("Search"))


def listing(
    results: Sequence[_T], path: str, query: Mapping[str, str], row: Callable[[_T], Sequence[Node]]
) -> Iterator[Node]:
    """Yield one page of results, and links to the pages around it."""
    last_page = max(1, -(-len(results) // PER_PAGE))
    page_parameter = query.get("page", "")
    page = 1  # also where an address was written by hand and names none
    if re.fullmatch("[1-9][0-9]{0,5}", page_parameter):
        page = min(int(page_parameter), last_page)

    yield text(f"Results: {len(results)}, page {page} of {last_page}")
    yield rows(map(row, results[(page - 1) * PER_PAGE : page * PER_PAGE]))

    other_parameters = {key: value for key, value in query.items() if key != "page"}
    if page > 1:
        yield link("Previous page", path, **other_parameters, page=page - 1)
    if page < last_page:
        yield link("Next page", path, **other_parameters, page=page + 1)


class Item(NamedTuple):
    """A node that has a line: `form` is the index of its form, `owner` of its group's line."""

    node: Node
    depth: int
    form: int
    owner: int


class Outline:
    """The lines of a page, and its forms, before anybody has typed anything.

    Attributes:
        items: What has a line, in order; line ``[n]`` is ``items[n - 1]``.
        lines: Role and name of each, as the line says them.
        forms: The form components.
        controls: For each form its nodes that can be sent, with their index in `items` or -1.
    """

    def __init__(self, page: Page):
        self.title = page.title
        self.items = [Item(Node(ROOT, page.title), 0, -1, -1)]
        self.lines = [(ROOT, page.title)]
        self.forms: list[Node] = []
        self.controls: list[list[tuple[int, Node]]] = []
        # Most of a page's text never changes: it is written once, and only controls get more later.
        self._line_starts = [f"[1] {ROOT} {quoted(page.title)}"]
        self._stateful: list[int] = []
        self._default_choices: dict[int, int] = {}
        for node in page.body:
            self._add(node, 1, -1, -1)

    def _add(self, node: Node, depth: int, form_index: int, owner: int) -> None:
        """Add a component, with what is in it, to the lines and to the form that it is in."""
        role = node.role
        index = -1
        if role == "form":
            form_index = len(self.forms)
            self.forms.append(node)
            self.controls.append([])
        elif role not in _SILENT and role != "hidden":
            index = len(self.items)
            self.items.append(Item(node, depth, form_index, owner))
            line_role = "textbox" if role == "textarea" else role  # as Chromium's tree has it
            self.lines.append((line_role, node.name))
            indent = depth * "\t"
            self._line_starts.append(f"{indent}[{index + 1}] {line_role} {quoted(node.name)}")
            if role in CONTROLS:
                self._stateful.append(index)
            if node.checked and owner >= 0:
                self._default_choices[owner] = index
            depth += 1
            owner = index

        if form_index >= 0 and (node.field or role == "button") and role != "form":
            self.controls[form_index].append((index, node))
        for child in node.children:
            self._add(child, depth, form_index, owner)

    def label(self, index: int) -> str:
        """Return role and name of a line, for messages."""
        role, name = self.lines[index]
        return f"{role} {name!r:.80}"

    def text_of(self, index: int, values: Mapping[int, str | int]) -> str:
        """Return the text in a control."""
        return str(values.get(index, self.items[index].node.value))

    def is_checked(self, index: int, values: Mapping[int, str | int]) -> bool:
        """Return whether a checkbox is checked, or a radio button or an option is chosen."""
        node, _, _, owner = self.items[index]
        if node.role == "checkbox":
            return bool(values.get(index, node.checked))
        return values.get(owner, self._default_choices.get(owner, -1)) == index

    def choice(self, owner: int, values: Mapping[int, str | int]) -> int:
        """Return the index of what is chosen in a group; -1 where nothing is."""
        return int(values.get(owner, self._default_choices.get(owner, -1)))

    def write(self, url: str, values: Mapping[int, str | int]) -> str:
        """Return the page's text, with what was typed and chosen."""
        lines = self._line_starts.copy()
        for index in self._stateful:
            if state := self._state_of(index, values):
                lines[index] += state
        return f"{FIRST}{url}\n" + "\n".join(lines)

    def _state_of(self, index: int, values: Mapping[int, str | int]) -> str:
        """Return what the line of a control says behind its name, in the order of Chromium's engine."""
        node = self.items[index].node
        role = node.role
        state = ""
        if role in TYPED:
            value = self.text_of(index, values)
            if value:
                state = f" value: {quoted(value)}"
        elif role == "combobox":
            choice = self.choice(index, values)
            if choice >= 0:
                state = f" value: {quoted(self.items[choice].node.name)}"
        elif role in ("checkbox", "radio"):
            state = f" checked: {str(self.is_checked(index, values)).lower()}"
        elif role == "option":
            state = f" selected: {str(self.is_checked(index, values)).lower()}"

        if node.disabled:
            state += " disabled: true"
        return state


def to_html(page: Page) -> str:
    """Return a page as HTML: what the chromium engine serves.

    Example:
        >>> print(to_html(Page("A & B", (text("<b>"),))).splitlines()[1])
        <p>&lt;b&gt;</p>
    """
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_safe(page.title)}'
    return f"{head}</title></head><body>\n{''.join(map(_element, page.body))}</body></html>\n"


def _safe(text: str) -> str:
    return escape(text.encode("utf-8", "replace").decode())


_ATTRIBUTE_NAMES = {
    "label": "aria-label",
    "kind": "type",
}  # where Python has another use for a name


def _attributes(**values: str) -> str:
    """Return attributes as they stand in a tag."""
    return "".join(
        f' {_ATTRIBUTE_NAMES.get(key, key)}="{_safe(value)}"' for key, value in values.items()
    )


def _element(node: Node) -> str:
    """Return the HTML of a component; links never open a new tab."""
    role = node.role
    name = node.name
    children = "".join(map(_element, node.children))
    field = {"name": node.field} if node.field else {}
    label_and_field = _attributes(label=name, **field)
    disabled = " disabled" if node.disabled else ""
    if role in ("textbox", "searchbox"):
        kind = "search" if role == "searchbox" else "text"
        return f"<input{_attributes(kind=kind, value=node.value)}{label_and_field}{disabled}>"
    if role in ("checkbox", "radio"):
        kind_and_value = _attributes(kind=role, value=node.value)
        checked = " checked" if node.checked else ""
        return f"<input{kind_and_value}{label_and_field}{checked}{disabled}>"
    if role == "form":
        # Chromium would offer what was typed in another episode.
        action = _attributes(action=node.href, method=node.field, autocomplete="off")
        return f"<form{action}>{children}</form>\n"
    if role == "option":
        selected = " selected" if node.checked else ""
        return f"<option{_attributes(value=node.value)}{selected}>{_safe(name)}</option>"
    if role == "hidden":
        return f"<input{_attributes(kind='hidden', name=node.field, value=node.value)}>"
    if role == "image":
        return f"<p><img{_attributes(alt=name, src=_PIXEL)} width=16 height=16></p>"

    # Each in a block of its own, so that no text's line depends on where another ends.
    elements = {
        "heading": f"<h1>{_safe(name)}</h1>",
        "StaticText": f"<p>{_safe(name)}</p>",
        "link": f"<p><a{_attributes(href=node.href)}>{_safe(name)}</a></p>",
        "button": f"<button{disabled}>{_safe(name)}</button>",
        "textarea": f"<textarea{label_and_field}{disabled}>\n{_safe(node.value)}</textarea>",
        "combobox": f"<select{label_and_field}{disabled}>{children}</select>",
        "radiogroup": f'<div role="radiogroup"{label_and_field}>{children}</div>',
        "navigation": f"<nav{_attributes(label=name)}>{children}</nav>",
        "list": f"<ul>{children}</ul>",
        "item": f"<li>{children}</li>",
    }
    return elements[role] + "\n"
