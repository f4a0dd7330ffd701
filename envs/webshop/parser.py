"""Reading WebShop's pages, in either observation mode, and its actions.

The text itself shows the mode: parts joined by ``" [SEP] "``, or lines with ``[button]`` marks. Lines
with marks distinguish groups from values. Where nothing is marked, the first part is a group, and so
is each later one that has a known name and a value before and after it. Any text is allowed; one that
is no page is read as None.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from ...facts import Fact
from ..storage import packaged

_VERB = re.compile(r"\s*(search|click)\s*\[", re.IGNORECASE)
_PRICE = re.compile(r"\$([0-9]{1,9}(?:\.[0-9]{1,9})?)(?: to \$([0-9]{1,9}(?:\.[0-9]{1,9})?))?")


def clean(text: str) -> str:
    """Return text as facts have it: NFKC, lower case, single blanks."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    return " ".join(text.lower().split())


clean_short = lru_cache(maxsize=4096)(clean)  # titles and the like are shown again and again


def read_action(text: str) -> tuple[str, str] | None:
    """Return an action's verb and argument as WebShop understands it, or None."""
    # Upstream matches (.+)\[(.+)\], greedy and within one line; what follows the bracket is ignored.
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 1))
    return None if start < 1 else (line[:start], line[start + 1 : end].lower())


def read_written(text: str) -> tuple[str, str] | None:
    """Return the verb and argument of an action as agents write it, or None."""
    verb = _VERB.match(text)
    if verb is None:
        return None
    rest = text[verb.end() :].rstrip().removesuffix(".").rstrip()
    return (verb[1].lower(), rest[:-1]) if rest.endswith("]") else None


@lru_cache(maxsize=4096)
def cents(text: str) -> tuple[str, str]:
    """Return the least and the greatest price in cents, empty where the text is no price."""
    match = _PRICE.fullmatch(text)
    if match is None:
        return "", ""
    low = str(round(100 * float(match[1])))
    return low, low if match[2] is None else str(round(100 * float(match[2])))


Pairs: TypeAlias = tuple[tuple[str, str], ...]
_SELECTED = "Selected "


@lru_cache(maxsize=1)
def known_groups() -> frozenset[str]:
    """Return the names that distinguish groups of options from values in text mode."""
    return frozenset(packaged(__package__, "option_groups"))


@lru_cache(maxsize=1024)
def offers(options: Pairs) -> frozenset[Fact]:
    """Return the facts ``option`` of pairs."""
    return frozenset(("option", group, value) for group, value in options)


def options_of_lines(parts: Sequence[str], marks: Sequence[str]) -> tuple[Pairs, Pairs, str]:
    """Read options where values are marked: all options, the chosen ones, and the title."""
    is_value = tuple([mark[:1] == " " for mark in marks])
    pairs, title = _lay_out(tuple(parts), is_value)
    options = tuple([pair for pair in pairs if pair is not None])
    if " clicked" not in marks:
        return options, (), title

    clicked = [pair for pair, mark in zip(pairs, marks, strict=True) if mark == " clicked"]
    return options, tuple([pair for pair in clicked if pair is not None]), title


@lru_cache(maxsize=1024)
def _lay_out(
    parts: tuple[str, ...], is_value: tuple[bool, ...]
) -> tuple[tuple[tuple[str, str] | None, ...], str]:
    """Return for each line its option, or None, and the title: the same whatever is chosen."""
    pairs: list[tuple[str, str] | None] = [None] * len(parts)
    group = ""
    title = ""
    for index, part in enumerate(parts):
        if is_value[index]:
            pairs[index] = (group, clean_short(part))
        elif index + 1 < len(parts) and is_value[index + 1]:
            group = clean_short(part)
        else:
            title = f"{title} {part}"
    return tuple(pairs), title


def options_of_parts(parts: Sequence[str]) -> tuple[Pairs, Pairs, str]:
    """Read options where nothing is marked: all options, the chosen ones, and the title."""
    rest = list(parts)
    title = rest.pop() if rest else ""

    # A colon may be part of a group, or of a value: each is tried, and what the page offers stands.
    candidates: list[tuple[str, str]] = []
    while len(rest) > 2 and rest[-1].startswith(_SELECTED) and ": " in rest[-1]:
        text = clean(rest.pop()[len(_SELECTED) :])
        colons = [colon.span() for colon in re.finditer(": ", text)]
        candidates += [(text[:start], text[end:]) for start, end in colons]

    heads = {group for group, _ in candidates}
    options = _pairs(tuple(rest), frozenset(heads - known_groups()))
    offered = set(options if candidates else ())
    return options, tuple(sorted(pair for pair in candidates if pair in offered)), title


@lru_cache(maxsize=1024)
def _pairs(parts: tuple[str, ...], heads: frozenset[str]) -> Pairs:
    """Read options where nothing is marked, by known names of groups."""
    names = known_groups() | heads if heads else known_groups()
    options: list[tuple[str, str]] = []
    group = ""
    is_empty = False  # no value of the group has been read yet
    for number, text in enumerate(map(clean, parts), start=1):
        if not group or (text in names and not is_empty and number < len(parts)):
            group = text
            is_empty = True
        else:
            options.append((group, text))
            is_empty = False
    return tuple(options)


_SEPARATOR = " [SEP] "
_HEADING = re.compile(r"Page ([0-9]{1,9}) \(Total results: ([0-9]{1,9})\)")
_ASIN = re.compile(r"[A-Z0-9]{1,20}")
_NUMBER = re.compile(r"[01](?:\.[0-9]{1,30})?(?:e-[0-9]{1,3})?")
_CLICKED = "You have clicked "
_BACK = "Back to Search"
_PREVIOUS = "< Prev"
_NEXT = "Next >"
_BUY = "Buy Now"
_THANKS = "Thank you for shopping with us!"
_TASK = "Instruction:"
_PRICE_TAG = "Price: $"
_SCORE = "Your score"
_PLAIN = ""
_NONE: frozenset[Fact] = frozenset()
_Entry: TypeAlias = tuple[str, Fact, Fact]


class PageContents(NamedTuple):
    """What a page shows; every text is clean (see `clean`)."""

    kind: str
    instruction: str = ""
    page_no: str = ""
    total: str = ""
    results: frozenset[Fact] = _NONE
    titles: frozenset[Fact] = _NONE
    prices: frozenset[Fact] = _NONE
    opened: tuple[str, ...] = ()
    options: Pairs = ()
    offers: frozenset[Fact] = _NONE
    selected: Pairs = ()
    title: str = ""
    low: str = ""
    high: str = ""
    lines: tuple[str, ...] = ()
    asin: str = ""
    reward: str = ""


@lru_cache(maxsize=256)
def read_page(text: str) -> PageContents | None:
    """Return what a page shows; None for a text that is no page."""
    separator = text.find(_SEPARATOR)
    line_end = text.find("\n")
    if separator >= 0 and (line_end < 0 or separator < line_end):
        parts = text.split(_SEPARATOR)
        marks = [_PLAIN] * len(parts)
        has_marks = False
    else:
        parts, marks = _lines(text)
        has_marks = any(marks)

    first = parts[0].strip() if parts else ""
    if first == _THANKS:
        return _done(parts)

    start = 0 if first == _TASK else 1
    if start and (len(parts) < 2 or parts[1].strip() != _TASK):
        return None

    # The instruction itself may have any text in it; where buttons are marked, a button ends it.
    for end in range(start + 1, len(parts)):
        if parts[end] == _BACK and bool(marks[end]) == has_marks:
            instruction = _instruction(" ".join(parts[start + 1 : end]))
            return _behind(instruction, parts[end + 1 :], marks[end + 1 :], has_marks)
    if first == "WebShop" and len(parts) > 3 and parts[-1] == "Search":
        return PageContents("search", _instruction(" ".join(parts[2:-1])))
    return None


_instruction = lru_cache(maxsize=64)(clean)


def _lines(text: str) -> tuple[list[str], list[str]]:
    """Return the lines of a page in the mode ``text_rich``, and how each is marked."""
    lines = text.split("\n")
    while lines and lines[0].startswith(_CLICKED):
        del lines[0]
    if lines and not lines[-1]:
        del lines[-1]

    marks = [_PLAIN] * len(lines)
    for index, line in enumerate(lines):
        if line[-2:] == "_]":
            lines[index], marks[index] = _button(line)
    return lines, marks


@lru_cache(maxsize=4096)
def _button(line: str) -> tuple[str, str]:
    """Return what stands on a button, and its mark; a line that is none as it is."""
    body = line.lstrip(" ")
    inset = "" if body is line else " "
    if body.startswith("[button] ") and body.endswith(" [button_]"):
        return body[9:-10], f"{inset}button"
    if body.startswith("[clicked button] ") and body.endswith(" [clicked button_]"):
        return body[17:-18], f"{inset}clicked"
    return line, _PLAIN


def _behind(instruction: str, parts: list[str], marks: list[str], has_marks: bool) -> PageContents:
    """Read what follows the button *Back to Search*."""
    heading = _HEADING.fullmatch(parts[0]) if parts else None
    if heading is not None:
        return _results(instruction, heading, parts, marks)

    # An item page is one with a price, the last of them, and the button to buy at its end.
    start = 1 if parts and parts[0] == _PREVIOUS else 0
    if parts and parts[-1] == _BUY and bool(marks[-1]) == has_marks:
        for end in range(len(parts) - 2, start - 1, -1):
            if parts[end].startswith(_PRICE_TAG):
                return _item(instruction, parts[start : end + 1], marks[start:end], has_marks)
    return PageContents("sub", instruction, lines=tuple(map(clean, parts[start:])))


def _item(instruction: str, parts: list[str], marks: list[str], has_marks: bool) -> PageContents:
    """Read an item page from its options to its price."""
    low, high = cents(parts[-1][len("Price: ") :])
    option_parts = parts[:-1]
    if has_marks:
        options, selected, title = options_of_lines(option_parts, marks)
    else:
        options, selected, title = options_of_parts(option_parts)
    return PageContents(
        "item",
        instruction,
        options=options,
        offers=offers(options),
        selected=selected,
        title=clean_short(title),
        low=low,
        high=high,
    )


@lru_cache(maxsize=4096)
def _listed(asin: str, title: str, price: str) -> _Entry | None:
    """Return an entry of a result list as ASIN, title fact and price fact; None if it is none."""
    low, high = cents(price)
    if not low or _ASIN.fullmatch(asin) is None:
        return None
    asin = asin.lower()
    return asin, ("title", asin, clean(title)), ("price", asin, low, high)


def _results(
    instruction: str, heading: re.Match[str], parts: list[str], marks: list[str]
) -> PageContents:
    """Read a page of results from its heading on."""
    if "" in parts:
        rows = [number for number, part in enumerate(parts) if part]
        parts = [parts[number] for number in rows]
        marks = [marks[number] for number in rows]
    start = 1
    while start < len(parts) and parts[start] in (_PREVIOUS, _NEXT):
        start += 1

    page_no = str(int(heading[1]))
    first_rank = 10 * int(page_no) - 9
    entries: list[_Entry] = []
    opened: list[str] = []
    while start + 1 < len(parts):
        entry = _listed(*parts[start : start + 3]) if start + 2 < len(parts) else None
        step = 3
        if entry is None:  # it has no title
            entry = _listed(parts[start], "", parts[start + 1])
            step = 2
        if entry is None:  # the list was cut or is none; what came before it stands
            break

        entries.append(entry)
        if marks[start] == "clicked":
            opened.append(entry[0])
        start += step

    ranked = enumerate(entries, first_rank)
    return PageContents(
        "results",
        instruction,
        page_no=page_no,
        total=str(int(heading[2])),
        results=frozenset([("result", str(rank), asin) for rank, (asin, _, _) in ranked]),
        titles=frozenset([title for _, title, _ in entries]),
        prices=frozenset([price for _, _, price in entries]),
        opened=tuple(opened),
    )


def _done(parts: Sequence[str]) -> PageContents:
    """Read the page after a purchase."""
    texts = [part.strip() for part in parts]
    asin = _after(texts, "asin")
    score = next((after for text, after in pairwise(texts) if text.startswith(_SCORE)), "")
    return PageContents(
        "done",
        selected=_options_in_json(_after(texts, "options")),
        asin=asin.lower() if _ASIN.fullmatch(asin) else "",
        reward=repr(float(score)) if _NUMBER.fullmatch(score) and float(score) <= 1 else "",
    )


def _after(texts: list[str], name: str) -> str:
    """Return the text after the first one of this name; empty where there is none."""
    start = texts.index(name) + 1 if name in texts else len(texts)
    return next(iter(texts[start:]), "")


def _options_in_json(text: str) -> Pairs:
    """Return the options in the JSON of the page; none where it is cut or no such JSON."""
    if text == "{}":
        return ()
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(options, dict):
        return ()
    return tuple(
        (clean(group), clean(value)) for group, value in options.items() if isinstance(value, str)
    )
