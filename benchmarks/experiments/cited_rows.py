"""What the published numbers of a table or figure are as data: rows and footnotes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .rows import ResultRow

__all__ = ["CitedRow", "CitedTable", "Footnote"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedRow:
    """One published number.

    Attributes:
        method: The row's or curve's name, as the paper has it.
        metric: What was measured; ``average`` is the printed mean of a table's columns.
        unit: ``%``, ``share``, ``points`` (of per cent), ``count``, ``nats``, ``s``, ``h``, ``GPU-h``,
            ``GB`` or "".
        value: The number.
        backbone: The language model, with its full name; None where the source does not say.
        env: Id of the environment; None for what is of several or of none.
        split: Its split as the paper names it, a data set of Search QA, or a phase or setting.
        spread: The standard deviation that is printed beside it.
        n: How many tasks it is the mean of, where the value is a whole number of them.
        note: Name of the footnote that says the most about it.
    """

    method: str
    metric: str
    unit: str
    value: float
    backbone: str | None = None
    env: str | None = None
    split: str | None = None
    spread: float | None = None
    n: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Footnote:
    """What a reader should know of some numbers.

    Attributes:
        id: Its name in its table.
        text: What it says, in our words.
        applies_to: Fields of a row and what they hold, one value or a list of them; where it is empty,
            it is about the rows that name it, or about numbers that are missing.
    """

    id: str
    text: str
    applies_to: Mapping[str, Any]

    def about(self, row: CitedRow) -> bool:
        """Return whether the footnote is about `row`.

        Example:
            >>> row = CitedRow(method="CoMap", metric="delta_f1", unit="%", value=50.0)
            >>> Footnote(id="a", text="b", applies_to={"method": ["CoMap", "SFT"]}).about(row)
            True
        """
        if row.note == self.id:
            return True
        held = {name: getattr(row, name) for name in self.applies_to}
        return bool(held) and all(
            value in wanted
            if isinstance(wanted := self.applies_to[name], list)
            else value == wanted
            for name, value in held.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedTable:
    """The published numbers of one table or figure.

    Attributes:
        id: Its name, that of the experiment.
        paper: ``CoMap`` or ``PaW``.
        arxiv: The paper's number there.
        table: What it is called there.
        source: Where the numbers were seen.
        status: ``complete``, ``partial``, or ``none`` where no number was seen.
        missing: What could not be seen; None where nothing is missing.
        footnotes: What a reader should know.
        rows: The numbers.
    """

    id: str
    paper: str
    arxiv: str
    table: str
    source: str
    status: Literal["complete", "partial", "none"]
    missing: str | None
    footnotes: tuple[Footnote, ...]
    rows: tuple[CitedRow, ...]

    def notes(self, row: CitedRow) -> tuple[Footnote, ...]:
        """Return the footnotes that are about a row, its own first.

        Example:
            >>> from comap.benchmarks.experiments.cited import load_cited
            >>> table = load_cited("comap-t3")
            >>> [note.id for note in table.notes(table.rows[0])]
            ['hrr-over-urr']
        """
        found = (note for note in self.footnotes if note.about(row))
        return tuple(sorted(found, key=lambda note: note.id != row.note))

    def result_rows(self) -> tuple[ResultRow, ...]:
        """Return the numbers in the schema that ours are in, marked as cited.

        Example:
            >>> from comap.benchmarks.experiments.cited import load_cited
            >>> {row.cited for row in load_cited("comap-t2").result_rows()}
            {True}
        """
        return tuple(
            ResultRow(
                experiment=self.id,
                method=row.method,
                backbone=row.backbone,
                env=row.env,
                split=row.split,
                metric=row.metric,
                unit=row.unit,
                value=row.value,
                n=row.n,
                cited=True,
                note=row.note,
            )
            for row in self.rows
        )
