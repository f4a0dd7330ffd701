"""The shared results schema: one row for each measured value, ours or cited (METHODS.md 4 [D])."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ...checksums import SEAL, seal, unseal
from ...errors import DataCorrupt, DataNotFound

__all__ = ["ResultRow", "read_rows", "write_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One value of a table or a figure, from one seed.

    Attributes:
        experiment: The table or figure, such as ``comap-t1``.
        method: The row's or curve's name, as the paper has it.
        backbone: The language model, such as ``Qwen3-4B`` or ``tiny-0.3M``; None where there is none.
        env: Id of the environment; None for what is of several or of none.
        split: Its split.
        metric: What was measured, such as ``success_rate`` or ``delta_f1``.
        unit: ``%``, ``share``, ``nats``, ``s``, ``GiB``, ``count`` or "".
        value: The value; None where the cell failed, or holds text.
        low: Lower end of the 95 % interval over tasks or transitions, where one is known.
        high: Its upper end.
        n: How many tasks, transitions or decisions it is the mean of.
        seed: The seed; None for what has none.
        x: Position on a figure's axis (an update, a round, a threshold, a setting).
        text: What a cell holds that is no number (a setting of comap-t5).
        cited: Whether the value is the paper's own. Such rows never share a column with ours.
        config_hash: SHA-256 of the job's resolved configuration, 12 digits.
        code_version: Version of comap, and the commit where it is known.
        fingerprint: SHA-256 of the environment's fingerprint (tasks, facts, engine), 12 digits.
        hardware: What it ran on, in words.
        seconds: How long the job took by the clock.
        cost: What it cost: ``cpu_seconds``, and calls and tokens of language models where they count.
        job: The job that measured it: a folder under ``jobs/``.
        trajectories: A file of trajectories to look at, relative to the results' folder.
        note: What a reader should know; cited rows name a footnote here.
        error: Why there is no value, where the cell failed or was not run.

    Raises:
        DataCorrupt: A number is not finite, or a cited row names a job.

    Example:
        >>> row = ResultRow(experiment="comap-t1", method="ReAct", metric="success_rate", value=50.0)
        >>> row.cited, row.unit
        (False, '%')
    """

    experiment: str
    method: str
    metric: str
    backbone: str | None = None
    env: str | None = None
    split: str | None = None
    unit: str = "%"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    seed: int | None = None
    x: float | None = None
    text: str | None = None
    cited: bool = False
    config_hash: str | None = None
    code_version: str | None = None
    fingerprint: str | None = None
    hardware: str | None = None
    seconds: float | None = None
    cost: Mapping[str, float] | None = None
    job: str | None = None
    trajectories: str | None = None
    note: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        for name in ("value", "low", "high", "x", "seconds"):
            number = getattr(self, name)
            if number is not None and not (_is_number(number) and math.isfinite(number)):
                raise DataCorrupt(f"expected a finite number as {name}, found {number!r:.80}")
        if self.cited and self.job is not None:
            raise DataCorrupt("a cited row is no job's result, and names none")

    def key(self) -> tuple[Any, ...]:
        """Return what tells this value from others of its experiment, the seed left out."""
        return (
            self.cited,
            self.backbone or "",
            self.method,
            self.env or "",
            self.split or "",
            self.metric,
            -math.inf if self.x is None else self.x,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON data, without what is None.

        Example:
            >>> ResultRow(experiment="paw-f6", method="GRPO", metric="reward", unit="").to_json()
            {'experiment': 'paw-f6', 'method': 'GRPO', 'metric': 'reward', 'unit': '', 'cited': False}
        """
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: object) -> ResultRow:
        """Return the row of JSON data.

        Raises:
            DataCorrupt: It is no such row.
        """
        if not isinstance(data, Mapping):
            raise DataCorrupt(f"expected a result row, found {data!r:.80}")
        known = {part.name for part in fields(cls)}
        strange = sorted(set(data) - known - {SEAL})
        if strange:
            raise DataCorrupt(f"expected the fields of a result row, found also {strange[0]!r:.80}")
        for name in ("experiment", "method", "metric"):
            if not isinstance(data.get(name), str):
                raise DataCorrupt(f"expected text as {name} of a result row, found {data!r:.120}")
        return cls(**{name: value for name, value in data.items() if name != SEAL})


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write rows as JSON lines, so that a reader finds the old file or the new one, whole.

    Args:
        path: The file; its folder is made where it is missing.
        rows: The rows, in the order in which they shall stand.

    Example:
        >>> import tempfile
        >>> row = ResultRow(experiment="comap-t1", method="ReAct", metric="success_rate", value=1.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_rows(Path(folder, "rows.jsonl"), [row])
        ...     list(read_rows(Path(folder, "rows.jsonl"))) == [row]
        True
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    lines = (seal(json.dumps(row.to_json(), ensure_ascii=True)) + "\n" for row in rows)
    draft.write_text("".join(lines), "ascii")
    draft.replace(path)


def read_rows(path: Path) -> Iterator[ResultRow]:
    """Yield the rows of a file.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: A line was changed, or is no result row.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise DataNotFound(
            f"expected result rows in {path}, found that it cannot be read ({error.strerror}); "
            "'comap bench run' makes them"
        ) from error
    except UnicodeDecodeError as error:
        raise DataCorrupt(f"expected result rows in {path}, found no text ({error})") from error
    for number, line in enumerate(lines, 1):
        try:
            yield ResultRow.from_json(unseal(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise DataCorrupt(f"{path}, line {number}: {error}") from error


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
