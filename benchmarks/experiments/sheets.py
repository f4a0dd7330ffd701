"""A table as it is shown: blocks of one backbone each, ours and the cited ones apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from .aggregate import Cell, average, best, cell
from .definition import Column, Experiment, Method
from .quoted import Quotes
from .rows import ResultRow

__all__ = ["DIGITS", "Block", "Line", "Sheet", "pairs", "sheet", "shows"]

DIGITS = {"%": 1, "points": 1, "s": 1, "h": 1, "count": 0, "GiB": 2, "GB": 2}
"""How many decimals a value of a unit is shown with; others with three."""

_UNSEEN = Cell(status="missing", reason="not printed, or not seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of a table.

    Attributes:
        method: Its name.
        group: What it stands together with.
        cells: Its cells, one a column.
        best: The places of those that are the best of their column, in their block.
    """

    method: str
    group: str | None
    cells: tuple[Cell, ...]
    best: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The rows of one language model.

    Attributes:
        backbone: Its name; None where there is none.
        lines: Its rows, in the order of the definition.
    """

    backbone: str | None
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table.

    Attributes:
        experiment: What it shows.
        ours: What was measured here.
        cited: What the paper has.
        not_run: Methods without any row here, with the reason where one is known.
        quotes: The cited values as they came: their source, their footnotes, those without a column.
    """

    experiment: Experiment
    ours: tuple[Block, ...]
    cited: tuple[Block, ...]
    not_run: tuple[tuple[str, str], ...]
    quotes: Quotes


def sheet(experiment: Experiment, rows: Iterable[ResultRow], quotes: Quotes | None = None) -> Sheet:
    """Return a table's blocks, from its rows.

    Args:
        experiment: The table.
        rows: Its rows, of our runs; in what order backbones come is in what order they stand.
        quotes: What the paper has.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> row = ResultRow(
        ...     experiment="comap-t2", method="SFT", backbone="tiny", env="comap/ALFWorld-v0",
        ...     metric="delta_f1", value=50.0, seed=0, n=8,
        ... )
        >>> found = sheet(experiment("comap-t2"), [row])
        >>> line = next(line for line in found.ours[0].lines if line.method == "SFT")
        >>> line.cells[0].value, line.cells[-1].status
        (50.0, 'missing')
    """
    own = [row for row in rows if not row.cited and row.experiment == experiment.id]
    backbones = _backbones(own)
    ours = tuple(_block(experiment, name, own) for name in backbones)
    known = quotes or Quotes(table=None)
    return Sheet(
        experiment=experiment,
        ours=tuple(block for block in ours if block.lines),
        cited=_cited(experiment, known),
        not_run=_not_run(experiment, own, ours),
        quotes=known,
    )


def shows(experiment: Experiment, column: Column, row: ResultRow) -> bool:
    """Return whether a column shows a row.

    A row that says why there is no value, and names no split, is about all that its job would have
    measured: every column of its environment shows it.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> one = experiment("comap-t1")
        >>> row = ResultRow(
        ...     experiment=one.id, method="RAP", env="comap/ALFWorld-v0", metric="success_rate",
        ...     error="out of memory",
        ... )
        >>> [column.label for column in one.columns if shows(one, column, row)]
        ['ALFWorld seen', 'ALFWorld unseen']
    """
    if row.value is None and row.text is None and row.split is None:
        return not column.average and (row.env is None or column.env in (None, row.env))
    return experiment.column(row.metric, row.env, row.split) is column


def pairs(found: Sheet) -> list[tuple[Block | None, Block | None]]:
    """Return our blocks, each beside the cited block that it is most like, then those left over.

    A cited block of the same language model comes first; the other blocks are paired so that they share
    the most methods, and in their order, as the papers' tables and ours both begin with the smallest.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> pairs(sheet(experiment("comap-t2"), []))
        []
    """
    same = {block.backbone: block for block in found.cited if block.backbone is not None}
    taken = {id(one): same[one.backbone] for one in found.ours if one.backbone in same}
    used = {id(block) for block in taken.values()}
    free = [block for block in found.ours if id(block) not in taken]
    left = [block for block in found.cited if id(block) not in used]
    for block, other in _most_alike(free, left):
        taken[id(block)] = other
        left = [one for one in left if one is not other]
    together: list[tuple[Block | None, Block | None]] = [
        (block, taken.get(id(block))) for block in found.ours
    ]
    return together + [(None, other) for other in left]


def _most_alike(ours: Sequence[Block], cited: Sequence[Block]) -> list[tuple[Block, Block]]:
    """Return pairs in order that share the most methods; none that share nothing."""

    def shared(pair: tuple[Block, Block]) -> int:
        return len(_methods(pair[0]) & _methods(pair[1]))

    size = min(len(ours), len(cited))
    ways = (
        list(zip(some, others, strict=True))
        for some in combinations(ours, size)
        for others in combinations(cited, size)
    )
    closest = max(ways, key=lambda pairs: sum(map(shared, pairs)), default=[])
    return [pair for pair in closest if shared(pair)]


def _methods(block: Block) -> set[str]:
    return {line.method for line in block.lines}


def _backbones(rows: Sequence[ResultRow]) -> list[str | None]:
    """Return the language models of rows; none for rows that only say that nothing was run."""
    names = dict.fromkeys(row.backbone for row in rows if not _only_says_why(row))
    return list(names)


def _only_says_why(row: ResultRow) -> bool:
    return row.value is None and row.text is None and row.job is None


def _block(experiment: Experiment, backbone: str | None, rows: Sequence[ResultRow]) -> Block:
    own = [row for row in rows if row.backbone == backbone]
    with_rows = {row.method for row in own}
    methods = [
        one
        for one in experiment.methods
        if one.name in with_rows or (one.recipe is not None and one.backbones is None)
    ]
    named = {one.name for one in experiment.methods}
    others = [Method(name=name) for name in dict.fromkeys(row.method for row in own)]
    methods += [one for one in others if one.name not in named]

    def measure(method: Method, place: int) -> Cell:
        column = experiment.columns[place]
        return cell(
            [row for row in own if row.method == method.name and shows(experiment, column, row)]
        )

    def measure_all(method: Method) -> tuple[Cell, ...]:
        cells: list[Cell] = []
        for place, column in enumerate(experiment.columns):
            parts = [
                one
                for named, one in zip(experiment.columns, cells, strict=False)
                if not named.average
            ]
            cells.append(average(parts) if column.average else measure(method, place))
        return tuple(cells)

    lines = [(one, measure_all(one)) for one in methods]
    return _marked(experiment, backbone, lines, [_digits(one) for one in experiment.columns])


def _marked(
    experiment: Experiment,
    backbone: str | None,
    lines: Sequence[tuple[Method, tuple[Cell, ...]]],
    digits: Sequence[int],
) -> Block:
    """Return a block whose lines know where they are the best."""
    marked = [
        best([cells[place] for _, cells in lines], column.better, digits[place])
        for place, column in enumerate(experiment.columns)
    ]
    return Block(
        backbone=backbone,
        lines=tuple(
            Line(
                method=method.name,
                group=method.group,
                cells=cells,
                best=frozenset(i for i, places in enumerate(marked) if number in places),
            )
            for number, (method, cells) in enumerate(lines)
        ),
    )


def _digits(column: Column) -> int:
    return DIGITS.get(column.unit, 3)


def _cited(experiment: Experiment, quotes: Quotes) -> tuple[Block, ...]:
    """Return the cited blocks; a cited average is as printed, and none is computed."""
    order = {one.name: place for place, one in enumerate(experiment.methods)}
    groups = {one.name: one.group for one in experiment.methods}
    blocks = []
    for backbone in quotes.backbones:
        own = [one for one in quotes.placed if one.row.backbone == backbone]
        found = {(one.row.method, one.column): one.cell() for one in own}
        names = sorted(
            dict.fromkeys(one.row.method for one in own),
            key=lambda name: order.get(name, len(order)),
        )
        lines = [
            (
                Method(name=name, group=groups.get(name)),
                tuple(found.get((name, i), _UNSEEN) for i in range(len(experiment.columns))),
            )
            for name in names
        ]
        blocks.append(_marked(experiment, backbone, lines, [2] * len(experiment.columns)))
    return tuple(blocks)


def _not_run(
    experiment: Experiment, rows: Sequence[ResultRow], blocks: Sequence[Block]
) -> tuple[tuple[str, str], ...]:
    shown = {line.method for block in blocks for line in block.lines}
    reasons = {row.method: row.error or "" for row in rows if _only_says_why(row)}
    told = []
    for method in experiment.methods:
        if method.name not in shown:
            why = reasons.get(method.name) or ("cited only" if method.recipe is None else "")
            told.append((method.name, why))
    return tuple(told)
