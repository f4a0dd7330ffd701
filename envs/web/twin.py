"""The twin: a browser for pages that need no layout and no script, in pure Python.

It does what Chromium does with the same pages: navigation and redirects, typing, check boxes, lists,
the serialization of forms, and what Enter submits. Unlike a browser it can be saved and brought back
exactly, in microseconds. See `comap.envs.web.engine` for what it has in common with a real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus, urljoin

from .actions import Move, Target
from .engine import (
    MOST_HISTORY,
    MOST_REDIRECTS,
    Effect,
    Moment,
    Refused,
    check_address,
    find_line,
    request_of,
)
from .lines import plain
from .pages import TYPED, Node, Outline
from .sites import World


def encode(pairs: Sequence[tuple[str, str]]) -> str:
    """Return fields as browsers send them (URL Standard, application/x-www-form-urlencoded).

    Example:
        >>> encode([("q", "a*b ~c"), ("sort", "")])
        'q=a*b+%7Ec&sort='
    """
    return "&".join(f"{_encoded(name)}={_encoded(value)}" for name, value in pairs)


def _encoded(text: str) -> str:
    # Forms send line breaks as CRLF, and escape "~", which Python's quoting leaves alone.
    lines = text.replace("\r\n", "\n").replace("\n", "\r\n")
    return quote_plus(lines, safe="*", errors="replace").replace("~", "%7E")


class Twin:
    """The engine in pure Python."""

    dialogs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.states: Mapping[str, Any] = {}
        self.url = ""
        self._start = ""
        self._world: World | None = None
        self._history: tuple[str, ...] = ()
        self._values: dict[int, str | int] = {}
        self._outline: Outline

    def open(self, world: World, url: str) -> None:
        """Start at an address of fresh sites."""
        self._world = world
        self.states = {}
        self._start = url
        self._history = ()
        self._values = {}
        self._fetch(url)

    def text(self) -> str:
        """Return the page as an observation."""
        return self._outline.write(self.url, self._values)

    def save(self) -> Moment:
        """Return this moment."""
        return Moment(self.states, self.url, self._history, tuple(self._values.items()))

    def load(self, saved: Any) -> None:
        """Go back to a moment of the world that is open."""
        self.states, url, self._history, values, _ = saved
        self._fetch(url)
        self._values = dict(values)

    def close(self) -> None:
        """Do nothing: there is nothing outside."""

    def act(self, move: Move) -> Effect:
        """Take an action other than ``stop``."""
        try:
            effect: Effect = getattr(self, f"_{move.verb}")(move)
        except Refused as refusal:
            return Effect(str(refusal))
        return effect

    def _fetch(self, url: str, method: str = "GET", body: str = "") -> None:
        """Ask for an address, follow redirects, and show the page where they end."""
        assert self._world is not None
        for _ in range(MOST_REDIRECTS):
            request = request_of(url, method, body)
            self.states, response = self._world.answer(self.states, request)
            if response.page is not None:
                self.url = url
                self._outline = Outline(response.page)
                self._values = {}
                return

            # The sites redirect after a change (303): whatever was posted, the next page is only read.
            url = check_address(response.location)
            method = "GET"
            body = ""
        raise Refused("the site redirects without end")

    def _visit(self, url: str, method: str = "GET", body: str = "") -> None:
        """Open an address; the page before it is what ``goback`` leads to."""
        url_before = self.url
        self._fetch(url, method, body)
        if self.url != url_before:  # as in browsers, the same address again is no new entry
            self._history = (*self._history, url_before)[-MOST_HISTORY:]

    def _enabled(self, target: Target) -> tuple[int, Node]:
        """Return the index and the node of a target; raise `Refused` where nothing can be done to it."""
        index = find_line(target, self._outline.lines)
        node, _, _, owner = self._outline.items[index]
        if node.disabled or (owner >= 0 and self._outline.items[owner].node.disabled):
            raise Refused(f"{self._outline.label(index)} is disabled")
        return index, node

    def _click(self, move: Move) -> Effect:
        index, node = self._enabled(move.target)
        if node.role == "link":
            self._visit(check_address(urljoin(f"http://{self.url}", node.href)))
        elif node.role == "button":
            self._submit(self._outline.items[index].form)
        elif node.role == "checkbox":
            checked = not self._outline.is_checked(index, self._values)
            self._values[index] = checked
            return Effect("", node.name, str(checked).lower())
        elif node.role in ("radio", "option"):
            return self._choose(index)
        return Effect()  # as in a browser, a click on a text or a picture does nothing

    def _choose(self, index: int) -> Effect:
        owner = self._outline.items[index].owner
        self._values[owner] = index
        return Effect(
            "", self._outline.items[owner].node.name, self._outline.items[index].node.name
        )

    def _select(self, move: Move) -> Effect:
        index, node = self._enabled(move.target)
        option_name = plain(move.text)
        if node.role not in ("combobox", "radiogroup"):
            raise Refused(f"{self._outline.label(index)} has no options")
        for option_index, item in enumerate(self._outline.items):
            if item.owner == index and plain(item.node.name) == option_name:
                return self._choose(option_index)
        raise Refused(f"{node.name!r:.80} has no option {move.text!r:.80}")

    def _type(self, move: Move) -> Effect:
        index, node = self._enabled(move.target)
        if node.role not in TYPED:
            raise Refused(f"nothing can be typed into {self._outline.label(index)}")
        self._values[index] = move.text
        if move.enter and node.role == "textarea":
            self._values[index] = (
                move.text + "\n"
            )  # Enter is a character there, and submits nothing
        elif move.enter:
            self._enter(self._outline.items[index].form)
        return Effect("", node.name, move.text)

    def _enter(self, form: int) -> None:
        """Submit a form as Enter does (HTML Standard, implicit submission)."""
        controls = self._outline.controls[form] if form >= 0 else []
        buttons = [node for _, node in controls if node.role == "button"]
        fields = [node for _, node in controls if node.role in ("textbox", "searchbox")]
        if (buttons and not buttons[0].disabled) or (not buttons and len(fields) == 1):
            self._submit(form)

    def _submit(self, form: int) -> None:
        if form < 0:
            return  # a button outside of a form

        node = self._outline.forms[form]
        fields = encode(self._fields(form))
        url = urljoin(f"http://{self.url}", node.href)
        if node.field == "post":
            self._visit(check_address(url), "POST", fields)
        else:
            # The fields take the place of the query that the form's own address has (HTML Standard).
            address = url.partition("?")[0]
            self._visit(check_address(f"{address}?{fields}"))

    def _fields(self, form: int) -> list[tuple[str, str]]:
        """Return what a form sends, in the order of the page; unchecked boxes are left out."""
        outline = self._outline
        pairs: list[tuple[str, str]] = []
        for index, node in outline.controls[form]:
            if node.disabled or not node.field:
                continue
            if node.role in TYPED:
                pairs.append((node.field, outline.text_of(index, self._values)))
            elif node.role == "combobox":
                choice = outline.choice(index, self._values)
                pairs.append((node.field, outline.items[choice].node.value))
            elif node.role == "hidden" or outline.is_checked(index, self._values):
                pairs.append((node.field, node.value))
        return pairs

    def _scroll(self, move: Move) -> Effect:
        return Effect()  # the whole page is shown

    def _wait(self, move: Move) -> Effect:
        return Effect()

    def _goback(self, move: Move) -> Effect:
        if self._history:  # else it does nothing, as the button of a browser
            *earlier, url = self._history
            self._fetch(url)
            self._history = tuple(earlier)
        return Effect()

    def _restart(self, move: Move) -> Effect:
        self._visit(self._start)
        return Effect()

    def _goto(self, move: Move) -> Effect:
        self._visit(check_address(move.text))
        return Effect()
