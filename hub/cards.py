"""Cards: the page that the Hub shows of a repository.

What episodes, settings and users say is text of others: in a card it is only ever shown, as code within
a line, so that no markup and no link can come of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..metrics import success_rate

__all__ = ["card", "listed", "rate", "shown", "table"]

_LONGEST = 200


def shown(value: object) -> str:
    """Return a text as code within a line of Markdown; control characters and line ends are gone.

    Example:
        >>> shown("a|b <script>`x`")
        "`a¦b <script>'x'`"
    """
    text = " ".join(str(value).split())
    text = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    text = text.encode("utf-8", "replace").decode("utf-8").replace("`", "'").replace("|", "¦")
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return f"`{text}`" if text.strip() else "–"


def listed(values: Iterable[object], most: int = 8) -> str:
    """Return some texts in a line.

    Example:
        >>> listed(["b", "a"]), listed("abcdefghij", most=2)
        ('`a`, `b`', '`a`, `b` and 8 more')
    """
    found = sorted({str(value) for value in values})
    told = ", ".join(shown(value) for value in found[:most])
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return (told or "–") + more


def rate(outcomes: Iterable[bool]) -> str:
    """Return a share of successes with its 95 % interval, in words."""
    return str(success_rate(outcomes))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; its cells are Markdown.

    Example:
        >>> print(table(("a", "b"), [("1", "2")]))
        | a | b |
        |---|---|
        | 1 | 2 |
    """
    lines = [tuple(heads), ("---",) * len(heads), *rows]
    shown_rows = [f"| {' | '.join(row)} |" for row in lines]
    shown_rows[1] = shown_rows[1].replace(" ", "")
    return "\n".join(shown_rows)


def card(front: Mapping[str, Any], title: str, parts: Iterable[str]) -> str:
    """Return a card: front matter, heading, and parts.

    Args:
        front: The front matter, as JSON data, which is YAML too.
        title: The heading; any text.
        parts: Paragraphs and tables, in Markdown.

    Example:
        >>> print(card({"license": "mit"}, "runs", ["Some."]))
        ---
        license: "mit"
        ---
        <BLANKLINE>
        # `runs`
        <BLANKLINE>
        Some.
        <BLANKLINE>
    """
    lines = [f"{key}: {json.dumps(value, ensure_ascii=True)}" for key, value in front.items()]
    head = "\n".join(["---", *lines, "---"])
    return "\n\n".join([head, f"# {shown(title)}", *parts]) + "\n"
