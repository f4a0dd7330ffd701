"""What a part of the reliability benchmark found, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..marks import one_line

__all__ = ["Findings"]

_SHOWN = 20
_LONGEST = 400


class Findings:
    """Counts, what was lost, and how faults were told.

    Something is lost when a fault cost more than itself: a crash, a wrong answer, a record that cannot
    be read, an error that is none of comap's. One such finding makes the benchmark fail.

    Example:
        >>> found = Findings()
        >>> found.count("actions", 3)
        >>> found.tell("EngineError")
        >>> found.plain()
        {'counts': {'actions': 3}, 'told': {'EngineError': 1}, 'lost': 0, 'losses': []}
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._figures: dict[str, Any] = {}
        self._losses: list[str] = []
        self._lost = 0

    def count(self, what: str, number: int = 1) -> None:
        """Add to a count."""
        self._counts[what] += number

    def tell(self, how: str, number: int = 1) -> None:
        """Note that a fault was told, and how: an error's type, a status."""
        self._told[how] += number

    def note(self, name: str, figure: Any) -> None:
        """Keep a figure that is no count, as JSON data."""
        self._figures[name] = figure

    def lose(self, what: str) -> None:
        """Note a loss; the first ones are kept in words."""
        self._lost += 1
        if len(self._losses) < _SHOWN:
            self._losses.append(one_line(what, _LONGEST))

    def check(self, right: bool, what: str) -> bool:
        """Note a loss unless something is right, and return whether it is."""
        if not right:
            self.lose(what)
        return right

    def take(self, other: Mapping[str, Any]) -> None:
        """Add what another process found, as `plain` told it; its own figures are left out."""
        self._counts.update(other["counts"])
        self._told.update(other["told"])
        self._lost += other["lost"]
        self._losses += other["losses"][: _SHOWN - len(self._losses)]

    def plain(self) -> dict[str, Any]:
        """Return all of it as JSON data: counts, figures, what was told, and what was lost."""
        return {
            "counts": dict(sorted(self._counts.items())),
            **self._figures,
            "told": dict(sorted(self._told.items())),
            "lost": self._lost,
            "losses": self._losses,
        }
