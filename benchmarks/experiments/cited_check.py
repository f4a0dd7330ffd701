"""Checks what a file of published numbers holds, and makes a `CitedTable` of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, cast

from ...errors import DataCorrupt
from .cited_rows import CitedRow, CitedTable, Footnote

__all__ = ["read_cited"]

_PAPERS = {"comap": ("CoMap", "2606.02372"), "paw": ("PaW", "2606.02388")}
_RANGES = {
    "%": (0.0, 100.0),
    "share": (0.0, 1.0),
    "points": (-100.0, 100.0),
    "count": (0.0, math.inf),
    "nats": (0.0, math.inf),
    "s": (0.0, math.inf),
    "h": (0.0, math.inf),
    "GPU-h": (0.0, math.inf),
    "GB": (0.0, math.inf),
    "": (-math.inf, math.inf),
}


def read_cited(data: object, name: str) -> CitedTable:
    """Return the table that JSON data describe, once they were checked.

    Args:
        data: What a file holds.
        name: The name that it should have.

    Raises:
        DataCorrupt: A field is missing, strange or of another type, a number is not what its unit
            allows, two rows are of the same cell, or a footnote is about nothing; the message says
            which.

    Example:
        >>> read_cited({"id": "comap-t1"}, "comap-t1")
        Traceback (most recent call last):
        comap.errors.DataCorrupt: cited/comap-t1.json: expected the fields of a table, found no 'arxiv'
    """
    try:
        given = _fields_of(CitedTable, data, "a table")
        notes = tuple(_footnote(one) for one in _list(given["footnotes"], "footnotes"))
        rows = tuple(_row(one) for one in _list(given["rows"], "rows"))
        table = CitedTable(**{**given, "footnotes": notes, "rows": rows})
        _check_head(table, name)
        _check_notes(table)
        _check_cells(rows)
    except DataCorrupt as error:
        raise DataCorrupt(f"cited/{name}.json: {error}") from error
    return table


def _expect(holds: bool, expected: str, found: object) -> None:
    if not holds:
        raise DataCorrupt(f"expected {expected}, found {found!r:.120}")


def _fields_of(kind: Any, data: object, what: str) -> dict[str, Any]:
    _expect(isinstance(data, Mapping), f"{what} as a JSON object", data)
    given = dict(cast(Mapping[str, Any], data))
    known = {part.name for part in fields(kind)}
    for part in sorted(known - set(given)):
        raise DataCorrupt(f"expected the fields of {what}, found no {part!r}")
    for part in sorted(set(given) - known):
        raise DataCorrupt(f"expected the fields of {what}, found also {part!r:.80}")
    return given


def _list(data: object, what: str) -> list[Any]:
    _expect(isinstance(data, list), f"a list of {what}", data)
    return cast(list[Any], data)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # false of NaN, too


def _footnote(data: object) -> Footnote:
    given = _fields_of(Footnote, data, "a footnote")
    for name in ("id", "text"):
        _expect(_is_text(given[name]), f"text as {name} of a footnote", given[name])
    scope = given["applies_to"]
    known = {part.name for part in fields(CitedRow)}
    _expect(isinstance(scope, Mapping), "an object as applies_to of a footnote", scope)
    _expect(set(scope) <= known, "fields of a row in applies_to", sorted(set(scope) - known))
    return Footnote(**given)


def _row(data: object) -> CitedRow:
    given = _fields_of(CitedRow, data, "a row")
    checks: Iterable[tuple[str, Callable[[object], bool], str]] = (
        *((name, _is_text, "text") for name in ("method", "metric")),
        *(
            (name, _is_text_or_none, "text or null")
            for name in ("backbone", "env", "split", "note")
        ),
        ("unit", lambda unit: isinstance(unit, str) and unit in _RANGES, f"one of {list(_RANGES)}"),
        ("value", _is_number, "a finite number"),
        (
            "spread",
            lambda x: x is None or (_is_number(x) and cast(float, x) >= 0),
            "0 or more or null",
        ),
        ("n", lambda n: n is None or (type(n) is int and n > 0), "a positive number or null"),
    )
    for name, holds, expected in checks:
        _expect(holds(given[name]), f"{expected} as {name} of a row", given[name])
    low, high = _RANGES[given["unit"]]
    _expect(low <= given["value"] <= high, f"{low} to {high} in {given['unit']!r}", given["value"])
    return CitedRow(**given)


def _is_text_or_none(value: object) -> bool:
    return value is None or _is_text(value)


def _check_head(table: CitedTable, name: str) -> None:
    _expect(table.id == name, f"the id {name!r}", table.id)
    prefix = name.partition("-")[0]
    _expect(prefix in _PAPERS, f"an id that begins with one of {list(_PAPERS)}", name)
    paper, arxiv = _PAPERS[prefix]
    _expect(table.paper == paper, f"the paper {paper!r}", table.paper)
    _expect(table.arxiv == arxiv, f"{arxiv!r} as arxiv", table.arxiv)
    for what in ("table", "source"):
        _expect(_is_text(getattr(table, what)), f"text as {what}", getattr(table, what))
    _expect(_is_text_or_none(table.missing), "text or null as missing", table.missing)
    status = "complete" if table.missing is None else "partial" if table.rows else "none"
    _expect(table.status == status, f"the status {status!r}, by missing and rows", table.status)
    _expect(bool(table.rows) or status == "none", "rows in a table that misses nothing", table.rows)


def _check_notes(table: CitedTable) -> None:
    names = [note.id for note in table.footnotes]
    _expect(len(set(names)) == len(names), "footnotes with different ids", names)
    for row in table.rows:
        _expect(row.note is None or row.note in names, f"a footnote of {names} as note", row.note)
    for note in table.footnotes:
        used = not note.applies_to or any(note.about(row) for row in table.rows)
        _expect(used, "a footnote that is about a row", note.id)


def _check_cells(rows: tuple[CitedRow, ...]) -> None:
    cells = [(row.method, row.backbone, row.env, row.split, row.metric) for row in rows]
    for cell in cells:
        _expect(cells.count(cell) == 1, "one row for each cell", cell)
