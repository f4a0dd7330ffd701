"""How values, counts and reasons are written: the same wherever they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..marks import one_line
from .aggregate import Cell
from .definition import Column
from .sheets import DIGITS

__all__ = ["Notes", "caption", "head", "interval", "number", "printed", "seeds", "usual", "value"]

_REASON = 400
_TEXT = 120


class Notes:
    """Footnotes under a table: letters, one for each text.

    Example:
        >>> notes = Notes()
        >>> notes.mark("out of memory"), notes.mark("killed"), notes.mark("out of memory")
        ('a', 'b', 'a')
        >>> notes.told()
        (('a', 'out of memory'), ('b', 'killed'))
    """

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """Return the letter of a footnote; its text is on one line, and not longer than is read."""
        said = one_line(text, _REASON)
        return self._letters.setdefault(said, _letter(len(self._letters)))

    def told(self) -> tuple[tuple[str, str], ...]:
        """Return the letters and texts, in their order."""
        return tuple((letter, text) for text, letter in self._letters.items())


def number(value: float, unit: str) -> str:
    """Return a number as it is shown: per cent with one decimal, counts whole.

    Example:
        >>> number(71.4286, "%"), number(0.5, "share"), number(3119, "count"), number(-0.01, "%")
        ('71.4', '0.500', '3,119', '0.0')
        >>> number(12345.678, ""), number(0.00012, "nats")
        ('12,346', '1.2e-04')
    """
    digits = DIGITS.get(unit, 3)
    if unit == "count" and value != round(value):
        digits = 1
    if unit not in DIGITS:
        size = abs(value)
        if 0 < size < 0.001:
            return f"{value:.1e}"
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    written = f"{value:,.{digits}f}"
    return written.lstrip("-") if float(written.replace(",", "")) == 0 else written


def value(cell: Cell, unit: str) -> str:
    """Return what stands in a cell: its mean and deviation, its text, or that there is none.

    Example:
        >>> value(Cell(status="value", value=50.0, sd=2.5), "%"), value(Cell(status="missing"), "%")
        ('50.0 ± 2.5', '–')
    """
    if cell.value is not None:
        written = number(cell.value, unit)
        return written if cell.sd is None else f"{written} ± {number(cell.sd, unit)}"
    if cell.status == "text":
        return one_line(cell.text or "", _TEXT)
    return "failed" if cell.status == "failed" else "–"


def printed(value: float, unit: str) -> str:
    """Return a cited number with the decimals that it has, two at most beside ours.

    Example:
        >>> printed(60.15, "%"), printed(60.1, "%"), printed(89.0, "%"), printed(2.02, "nats")
        ('60.15', '60.1', '89.0', '2.02')
    """
    if unit == "count" and value == round(value):
        return number(value, unit)
    decimals = len(f"{value:.6f}".rstrip("0").partition(".")[2])
    return f"{value:,.{min(max(decimals, 1), 2 if unit in DIGITS else 6)}f}"


def interval(cell: Cell, unit: str) -> str:
    """Return the 95 % interval and what it is; "" where there is none.

    Example:
        >>> interval(Cell(status="value", value=1.0, low=0.5, high=1.5, interval="Wilson"), "%")
        '0.5 to 1.5 (Wilson)'
    """
    if cell.low is None or cell.high is None:
        return ""
    return f"{number(cell.low, unit)} to {number(cell.high, unit)} ({cell.interval})"


def seeds(cell: Cell) -> str:
    """Return the seeds of a cell in words.

    Example:
        >>> seeds(Cell(status="value", value=1.0, seeds=(0, 1, 2)))
        '0, 1, 2'
    """
    return ", ".join(str(seed) for seed in cell.seeds if seed is not None)


def usual(told: Iterable[str]) -> str:
    """Return what is told most often, the first of those told equally often; "" for nothing.

    Example:
        >>> usual(["140", "134", "134", ""])
        '134'
    """
    counts = Counter(one for one in told if one)
    return max(counts, key=lambda one: counts[one], default="")


def head(column: Column, columns: Sequence[Column]) -> str:
    """Return what stands above a column: its label, and its unit where units differ.

    Example:
        >>> time = Column(label="step", metric="seconds", unit="s")
        >>> head(time, [time, Column(label="rate", metric="success_rate")])
        'step (s)'
    """
    shown = one_line(column.label, 60)
    units = {one.unit for one in columns if not one.average}
    unit = "" if column.average else column.unit
    return f"{shown} ({unit})" if unit and unit != "share" and len(units) > 1 else shown


def caption(columns: Sequence[Column]) -> str:
    """Return what all numbers of a table are, where it is the same for all.

    Example:
        >>> caption([Column(label="ALFWorld", metric="delta_f1")])
        'All values in %.'
    """
    units = {one.unit for one in columns if not one.average}
    unit = units.pop() if len(units) == 1 else ""
    return {"": "", "share": "All values are shares of 1.", "count": "All values are counts."}.get(
        unit, f"All values in {unit}."
    )


def _letter(place: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    before, last = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("a") + last)
