"""The cited values of an experiment, each in its place: a column of the cited part, or a list below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .aggregate import Cell
from .cited import CitedRow, CitedTable
from .definition import Experiment
from .rows import ResultRow

__all__ = ["Quoted", "Quotes"]

_AVERAGE = "average"
_METRICS: Mapping[tuple[str | None, str], str] = {
    ("comap/SearchQA-v0", "exact_match"): "success_rate",  # success there is an exact match
}
_SPLITS: Mapping[tuple[str | None, str | None], str] = {
    ("comap/ScienceWorld-v0", "seen"): "dev",  # as ETO's lists call them (METHODS.md 1.15)
    ("comap/ScienceWorld-v0", "unseen"): "test",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A cited value in a column.

    Attributes:
        row: The value.
        column: The place of its column in the definition.
        notes: What a reader should know of it.
    """

    row: CitedRow
    column: int
    notes: tuple[str, ...] = ()

    def cell(self) -> Cell:
        """Return the value as a cell of the cited part of a table; its notes are lines of `reason`.

        Example:
            >>> row = CitedRow(method="CoMap", metric="delta_f1", unit="%", value=93.7)
            >>> Quoted(row=row, column=0).cell().value
            93.7
        """
        return Cell(
            status="value",
            value=self.row.value,
            sd=self.row.spread,
            counts=(self.row.n,),
            values=(self.row.value,),
            reason="\n".join(self.notes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotes:
    """The cited values of an experiment.

    Attributes:
        table: The published table; None where there is none.
        placed: Its values that have a column.
        others: Its values that have none: other measures, or a figure's.
    """

    table: CitedTable | None
    placed: tuple[Quoted, ...] = ()
    others: tuple[CitedRow, ...] = ()

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        table: CitedTable | None,
        rows: Iterable[ResultRow] = (),
    ) -> Quotes:
        """Return the cited values of an experiment, in their places.

        Args:
            experiment: The experiment.
            table: Its published numbers.
            rows: Rows of results; those that are cited count where there is no such table.

        Example:
            >>> from comap.benchmarks.experiments.cited import load_cited
            >>> from comap.benchmarks.experiments.definition import experiment
            >>> found = Quotes.of(experiment("comap-t2"), load_cited("comap-t2"))
            >>> found.table.table
            'Table 2'
        """
        table = table or _of_rows(experiment, rows)
        if table is None:
            return cls(table=None)
        placed, others = [], []
        for row in table.rows:
            column = _column(experiment, row)
            if column is None:
                others.append(row)
            else:
                notes = tuple(note.text for note in table.notes(row))
                placed.append(Quoted(row=row, column=column, notes=notes))
        return cls(table=table, placed=tuple(placed), others=tuple(others))

    @property
    def backbones(self) -> tuple[str | None, ...]:
        """The language models that cited values are of, in their order."""
        return tuple(dict.fromkeys(one.row.backbone for one in self.placed))


def _column(experiment: Experiment, row: CitedRow) -> int | None:
    """Return the place of a cited value's column; None where the definition has none.

    Unlike ours, a cited value is not taken for a part of a column that pools several splits. One whose
    split is not told belongs to the column of its measure and environment, where there is only one.
    """
    columns = list(enumerate(experiment.columns))
    if row.metric == _AVERAGE:
        return next((i for i, one in columns if one.average and row.split is None), None)
    metric = _METRICS.get((row.env, row.metric), row.metric)
    split = _SPLITS.get((row.env, row.split)) or row.split
    alike = [
        (i, one)
        for i, one in columns
        if not one.average and (one.metric, one.env, one.unit) == (metric, row.env, row.unit)
    ]
    exact = [i for i, one in alike if one.split == split]
    if exact:
        return exact[0]
    return alike[0][0] if split is None and len(alike) == 1 else None


def _of_rows(experiment: Experiment, rows: Iterable[ResultRow]) -> CitedTable | None:
    cited = tuple(
        CitedRow(
            method=row.method,
            metric=row.metric,
            unit=row.unit,
            value=row.value,
            backbone=row.backbone,
            env=row.env,
            split=row.split,
            n=row.n,
            note=row.note,
        )
        for row in rows
        if row.cited and row.experiment == experiment.id and row.value is not None
    )
    if not cited:
        return None
    return CitedTable(
        id=experiment.id,
        paper=experiment.paper,
        arxiv="",
        table=experiment.published,
        source="the rows of these results that say that they are cited",
        status="partial",
        missing=None,
        footnotes=(),
        rows=cited,
    )
