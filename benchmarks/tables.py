"""A table of results, and how its values are written: the same in the terminal and on the page."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

_MISSING = "—"
_NUMBER = re.compile(r"[-+−~<≤]?\d[\d\s.,:%±()\[\]/<n=–−+-]*")  # "45.0 % [40.1, 50.0] (n=200)"
_MAX_DECIMALS = 3


@dataclass(frozen=True, slots=True)
class Table:
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""


def format_cells(table: Table) -> list[list[str]]:
    """Return the rows as text; the numbers of a column have the same number of decimals."""
    columns = [_format_column([row[i] for row in table.rows]) for i in range(len(table.columns))]
    return [list(cells) for cells in zip(*columns, strict=True)]


def numeric_columns(table: Table) -> list[bool]:
    """Return for each column whether it holds numbers, which are aligned to the right."""
    cells = format_cells(table)
    result = []
    for i in range(len(table.columns)):
        written = [row[i] for row in cells if row[i] not in (_MISSING, "")]
        result.append(bool(written) and all(_NUMBER.fullmatch(cell) for cell in written))
    return result


def _format_column(values: Sequence[object]) -> list[str]:
    reals = [
        value for value in values if isinstance(value, Real) and not isinstance(value, Integral)
    ]
    decimals = _decimals([float(value) for value in reals if math.isfinite(value)])
    return [_format(value, decimals) for value in values]


def _decimals(values: Sequence[float]) -> int:
    """Return the fewest decimals that lose nothing a reader would want."""
    largest = max((abs(value) for value in values), default=0.0)
    most = _MAX_DECIMALS if largest < 10 else 2 if largest < 100 else 1
    for few in range(1, most):
        if all(round(value, few) == round(value, most) for value in values):
            return few
    return most


def _format(value: object, decimals: int) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        small = number != 0 and round(number, decimals) == 0
        return f"{number:.1e}" if small else f"{number:.{decimals}f}"
    return str(value)


_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_KEPT = {"\n", "\t"}


def _is_hidden(char: str) -> bool:
    code = ord(char)
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return noncharacter or (char not in _KEPT and unicodedata.category(char) in _HIDDEN)


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    r"""Yield the runs of plain text (False) and the name of each hidden character (True)."""
    start = 0
    for position, char in enumerate(text):
        if _is_hidden(char):
            if start < position:
                yield False, text[start:position]
            yield True, f"U+{ord(char):04X}"
            start = position + 1
    if start < len(text):
        yield False, text[start:]


def visible(text: str) -> str:
    r"""Return `text` with each hidden character as its code point in brackets."""
    return "".join(f"[{piece}]" if hidden else piece for hidden, piece in pieces(text))


def one_line(text: str, limit: int = 120) -> str:
    r"""Return `visible` text on one line of at most `limit` characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
