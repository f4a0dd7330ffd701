"""Actions: WebEvolver's seven, and two more, read leniently.

``click [7]``, ``type [7] [words] [1]``, ``scroll [down]``, ``wait``, ``goback``, ``restart`` and
``stop [answer]`` are upstream's (Fang et al., 2025); ``select [7] [option]`` and ``goto [url]`` are
ours. In the place of a number may stand what the line says: ``click [link 'Cart']``. A number means
something on one page only; names are what beliefs and world models can speak of.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ..canon import collapse
from .lines import Line, plain, quoted, read_page, unquoted

MOST_TYPED = 500
_WORD = re.compile(r"([A-Za-z_]+) ?(.*)")
_NUMBER = re.compile(r"\[? ?([1-9]\d{0,5}) ?(?:\]|(?= |$)) ?")
_NAMED = re.compile(r"\[? ?(?:([A-Za-z]+) )?'((?:[^'\\]|\\.)*)'(?: (\d{1,4}))? ?\]? ?")
_BRACKETS = re.compile(r"\[([^\[\]]+)\] ?|([^\[\]]+)(?=\[)")
_ENTER = re.compile(r"(.*\S) ?\[ ?(?:press_enter_after ?= ?)?([01]) ?\]")
_DIRECTION = re.compile(r"\[? ?(?:direction ?= ?)?(up|down) ?\]?", re.IGNORECASE)
# ``go_back`` is WebArena's and BrowserGym's; models write it whatever they are told.
_VERBS = {
    "goback": "goback",
    "go_back": "goback",
    "back": "goback",
    "click": "click",
    "type": "type",
    "select": "select",
    "scroll": "scroll",
    "wait": "wait",
    "restart": "restart",
    "goto": "goto",
    "stop": "stop",
}


class Target(NamedTuple):
    """A line of the page: by its number, or by role and name; `which` says which of equal ones."""

    number: int = 0
    role: str = ""
    name: str = ""
    which: int = 1

    def __str__(self) -> str:
        if self.number:
            return f"[{self.number}]"
        line = f"{self.role} {quoted(self.name)}".strip()
        return f"[{line} {self.which}]" if self.which > 1 else f"[{line}]"


class Move(NamedTuple):
    """An action that was read."""

    verb: str
    target: Target = Target()
    text: str = ""
    enter: bool = True

    def __str__(self) -> str:
        if self.verb in ("wait", "goback", "restart"):
            return self.verb
        if self.verb == "click":
            return f"click {self.target}"
        if self.verb == "type":
            return f"type {self.target} [{self.text}] [{int(self.enter)}]"
        if self.verb == "select":
            return f"select {self.target} [{self.text}]"
        return f"{self.verb} [{self.text}]"


@lru_cache(maxsize=1024)
def read_action(action: str) -> Move | None:
    """Return what an action says; None where it says nothing that can be done.

    Example:
        >>> print(read_action("Type 7 [red  lamp] [press_enter_after=0]"))
        type [7] [red lamp] [0]
        >>> print(read_action("click [button 'Add to cart']"))
        click [button 'Add to cart']
        >>> read_action("open the door") is None
        True
    """
    # Models write actions as code, between backticks, or end them with a period.
    words = _WORD.fullmatch(" ".join(action.lstrip("` \n").rstrip("`. \n").split()))
    verb = _VERBS.get(words[1].lower()) if words else None
    if words is None or verb is None:
        return None
    rest = words[2]

    # Verbs without a line of the page.
    if verb in ("wait", "goback", "restart"):
        return Move(verb) if rest.strip("[] ") == "" else None
    if verb == "scroll":
        direction = _DIRECTION.fullmatch(rest)
        return Move(verb, text=direction[1].lower()) if direction else None
    if verb in ("stop", "goto"):
        text = _typed(rest)
        return Move(verb, text=text) if text or verb == "stop" else None

    # Verbs with one. Only of a click can a bare name be told from what follows it: nothing does.
    target, rest = _target(rest, whole=verb == "click")
    if target is None:
        return None
    if verb == "click":
        return Move(verb, target) if not rest else None
    if verb == "select":
        return Move(verb, target, _typed(rest)) if rest else None

    # Enter is pressed unless a last [0] says otherwise.
    text_and_enter = _ENTER.fullmatch(rest)
    if text_and_enter is not None:
        return Move(verb, target, _typed(text_and_enter[1]), text_and_enter[2] == "1")
    return Move(verb, target, _typed(rest)) if rest else None


def _target(text: str, whole: bool) -> tuple[Target | None, str]:
    """Return the target that a text begins with, and what follows it."""
    if number := _NUMBER.match(text):
        return Target(int(number[1])), text[number.end() :]
    if named := _NAMED.match(text):
        role = named[1] or ""
        name = " ".join(unquoted(named[2]).split())
        rank = max(int(named[3] or 1), 1)
        return Target(0, role, name, rank), text[named.end() :]
    if bracketed := _BRACKETS.match(text):
        name = (bracketed[1] or bracketed[2]).strip()
        return Target(name=name), text[bracketed.end() :]
    if whole and text and "[" not in text:
        return Target(name=text), ""
    return None, text


def _typed(text: str) -> str:
    """Return what is in brackets, or bare, as it is typed: on one line, without control characters."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    text = " ".join(text.split())
    if not text.isprintable():
        # Half a surrogate pair is no Unicode: no browser could be sent it.
        text = "".join(char for char in text if ord(char) >= 32 and ord(char) != 127)
        text = text.encode("utf-8", "replace").decode()
    return text[:MOST_TYPED]


def canonical(action: str) -> str:
    """Return the canonical form of an action: names and texts in lower case, single blanks."""
    collapsed = collapse(action)
    move = read_action(action) or read_action(collapsed)
    if move is None:
        return collapsed
    name = plain(move.target.name)
    target = move.target._replace(name=name, role=move.target.role.lower())
    return str(move._replace(target=target, text=plain(move.text)))


def line_of(page: str, target: Target) -> tuple[Line | None, int]:
    """Return the line of a page that a target means, and its number; None and 0 where there is none."""
    page_text = read_page(page)
    lines = page_text.lines if page_text else ()
    if target.number:
        is_there = target.number <= len(lines)
        return (lines[target.number - 1], target.number) if is_there else (None, 0)

    # Of equal lines the target's rank says which one is meant; a name is needed, a role is not.
    role = target.role.lower()
    name = plain(target.name)
    rank = target.which
    for number, line in enumerate(lines, 1):
        if name and plain(line.name) == name and role in ("", line.role.lower()):
            rank -= 1
            if rank == 0:
                return line, number
    return None, 0
