"""The state of one episode's apps: seeded tables, what was changed in them, and who asked how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Ledger", "Marks", "Row", "Table", "ToolError", "page_of"]

Row: TypeAlias = Mapping[str, Any]
"""Values by column."""

Table: TypeAlias = Mapping[str, Row]
"""Rows by id."""


class ToolError(Exception):
    """A tool refuses a call; its message is what the agent is told."""


class Marks(NamedTuple):
    """A moment of a `Ledger`; nothing in it changes.

    Attributes:
        changes: New and changed rows, by table and id.
        clock: The number of calls so far.
        uses: When a limited tool was used, by its name.
    """

    changes: tuple[tuple[tuple[str, str], tuple[tuple[str, Any], ...]], ...]
    clock: int
    uses: tuple[tuple[str, tuple[int, ...]], ...]


class Ledger:
    """Tables that are never changed, and changes beside them.

    Args:
        tables: By name.

    Example:
        >>> ledger = Ledger({"flight": {"FL-1": {"seats": 3}}})
        >>> ledger.put("flight", "FL-1", seats=2)
        [{'table': 'flight', 'id': 'FL-1', 'set': {'seats': 2}}]
        >>> ledger.row("flight", "FL-1")["seats"], ledger.changed_cells()
        (2, {('flight', 'FL-1', 'seats'): 2})
    """

    def __init__(self, tables: Mapping[str, Table]):
        self.tables = tables
        self.changes: dict[tuple[str, str], Row] = {}
        self.clock = 0
        self._uses: dict[str, tuple[int, ...]] = {}

    def row(self, table: str, key: str) -> Row:
        """Return a row.

        Raises:
            ToolError: There is none of this id.
        """
        found = self.changes.get((table, key)) or self.tables[table].get(key)
        if found is None:
            raise ToolError(f"{table} {key[:64]!r} not found")
        return found

    def rows(self, table: str) -> list[tuple[str, Row]]:
        """Return all rows with their ids, new ones last."""
        base = self.tables[table]
        rows = [(key, self.changes.get((table, key), row)) for key, row in base.items()]
        new = [
            (key, row)
            for (name, key), row in self.changes.items()
            if name == table and key not in base
        ]
        return rows + new

    def put(self, table: str, key: str, **values: Any) -> list[dict[str, Any]]:
        """Set columns of a row, new or not, and return what a tool tells of that."""
        before = self.changes.get((table, key)) or self.tables[table].get(key) or {}
        self.changes[table, key] = {**before, **values}
        return [{"table": table, "id": key, "set": values}]

    def new_id(self, table: str, letters: str) -> str:
        """Return the id of a row to be added."""
        added = sum(name == table for name, _ in self.changes)
        return f"{letters}-{len(self.tables[table]) + added + 1}"

    def limit(self, tool: str, most: int, window: int) -> None:
        """Count a use of a tool that allows so many in so many calls.

        Raises:
            ToolError: There were as many already.
        """
        recent = tuple(at for at in self._uses.get(tool, ()) if self.clock - at < window)
        if len(recent) >= most:
            raise ToolError(f"Rate limit: {most} requests to {tool} in {window} calls; try again")
        self._uses[tool] = (*recent, self.clock)

    def changed_cells(self) -> dict[tuple[str, str, str], Any]:
        """Return what differs from the start, by table, id and column."""
        return {
            (table, key, column): value
            for (table, key), row in self.changes.items()
            for column, value in row.items()
            if self.tables[table].get(key, {}).get(column) != value
        }

    def save(self) -> Marks:
        """Return this moment."""
        changes = tuple((place, tuple(row.items())) for place, row in self.changes.items())
        return Marks(changes, self.clock, tuple(self._uses.items()))

    def load(self, marks: Marks) -> None:
        """Go back to a moment that `save` returned."""
        self.changes = {place: dict(row) for place, row in marks.changes}
        self.clock, self._uses = marks.clock, dict(marks.uses)


def page_of(
    name: str, items: Iterable[Any], arguments: Mapping[str, Any], size: int
) -> dict[str, Any]:
    """Return one page of a list, as tools tell it.

    Raises:
        ToolError: There is no such page.

    Example:
        >>> page_of("cities", "abcd", {"page": 2}, 3)
        {'cities': ['d'], 'page': 2, 'pages': 2, 'total': 4}
    """
    listed = list(items)
    page, pages = arguments.get("page", 1), max((len(listed) + size - 1) // size, 1)
    if not 1 <= page <= pages:
        raise ToolError(f"page {page} not found: there are {pages}")
    shown = listed[(page - 1) * size : page * size]
    return {name: shown, "page": page, "pages": pages, "total": len(listed)}
