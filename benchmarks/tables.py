"""A table of results, and how its values are written: the same in the terminal and on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from ..errors import OptionError

__all__ = ["Table", "format_cells", "numeric_columns"]

_MISSING = "—"
_NUMBER = re.compile(r"[-+−~<≤]?\d[\d\s.,:%±()\[\]/<n=–−+-]*")  # "45.0 % [40.1, 50.0] (n=200)"
_MAX_DECIMALS = 3


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        columns: Its column heads.
        rows: Its rows, each as long as `columns`.
        note: A line below it.

    Raises:
        OptionError: A row is not as long as `columns`.

    Example:
        >>> Table("Speed", ("environment", "steps/s"), (("ALFWorld", 41000),)).columns
        ('environment', 'steps/s')
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise OptionError(
                    f"expected {len(self.columns)} values in each row of the table "
                    f"{self.title!r}, found {len(row)}: {row!r:.80}"
                )


def format_cells(table: Table) -> list[list[str]]:
    """Return the rows as text; the numbers of a column have the same number of decimals.

    Example:
        >>> format_cells(Table("", ("a", "b"), ((0.5, True), (0.25, None))))
        [['0.50', 'yes'], ['0.25', '—']]
    """
    columns = [_format_column([row[i] for row in table.rows]) for i in range(len(table.columns))]
    return [list(cells) for cells in zip(*columns, strict=True)]


def numeric_columns(table: Table) -> list[bool]:
    """Return for each column whether it holds numbers, which are aligned to the right.

    Example:
        >>> numeric_columns(Table("", ("agent", "success"), (("react", "50.0 % [40, 60]"),)))
        [False, True]
    """
    cells = format_cells(table)
    result = []
    for i in range(len(table.columns)):
        written = [row[i] for row in cells if row[i] not in (_MISSING, "")]
        result.append(bool(written) and all(_NUMBER.fullmatch(cell) for cell in written))
    return result


def _is_float(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, Integral)


def _format_column(values: Sequence[object]) -> list[str]:
    floats = [float(value) for value in values if isinstance(value, Real) and _is_float(value)]
    decimals = _decimals([value for value in floats if math.isfinite(value)])
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
    if isinstance(value, Real) and _is_float(value):
        number = float(value)
        small = number != 0 and round(number, decimals) == 0
        return f"{number:.1e}" if small else f"{number:.{decimals}f}"
    return str(value)
