"""What the folder of a training tells: settings, sessions, and what each stage ended with and cost."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checksums import unseal
from ..errors import DataCorrupt, DataNotFound
from ..trainers.run_folder import FORMAT, StageFolder

__all__ = [
    "Fault",
    "StageRecord",
    "TrainingRecord",
    "flat_metrics",
    "get",
    "members",
    "number",
    "read_training",
]

_FOLDER = re.compile(r"(\d+)-([a-z0-9-]+)")
_EVALUATION = re.compile(r"round-(\d+)-evaluation")
_ROLLOUTS = re.compile(r"round-(\d+)-rollouts")
_LONG = ("log", "weights", "histogram", "stage")  # not among the flat metrics


@dataclass(frozen=True, slots=True)
class Fault:
    """Episodes of a stage that an error of one kind ended.

    Attributes:
        kind: The error's type.
        count: How many.
        first: The message of the first.
    """

    kind: str
    count: int
    first: str


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage.

    Attributes:
        place: Its number.
        name: Its name.
        result: What it ended with; None while it has not.
        spent: What its episodes cost so far: ``episodes``, ``calls`` to models, tokens ``read`` and
            ``written``.
        faults: What went wrong in its episodes.
    """

    place: int
    name: str
    result: Mapping[str, Any] | None
    spent: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """A training.

    Attributes:
        described: Its settings, environment and models.
        sessions: When it ran, and with which versions.
        stages: All stages that were begun, in order.
    """

    described: Mapping[str, Any]
    sessions: tuple[Mapping[str, Any], ...]
    stages: tuple[StageRecord, ...]

    def done(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield name and result of each stage that has ended."""
        for stage in self.stages:
            if stage.result is not None:
                yield stage.name, stage.result

    def evaluations(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the number of each round that was evaluated, and what came out."""
        return list(self._of_rounds(_EVALUATION))

    def rollouts(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the number of each round that was played, and what came out."""
        return list(self._of_rounds(_ROLLOUTS))

    def learned(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return name and result of each stage in which a model learned."""
        return [(name, found) for name, found in self.done() if isinstance(found.get("role"), str)]

    def _of_rounds(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for name, result in self.done():
            match = pattern.fullmatch(name)
            if match:
                yield int(match[1]), result


def get(value: object, *keys: str) -> Any:
    """Return what is at a path of keys in JSON data; None where there is nothing.

    Example:
        >>> get({"a": {"b": 1}}, "a", "b"), get({"a": 2}, "a", "b")
        (1, None)
    """
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def members(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the object at a path of keys in JSON data; an empty one where there is none.

    Example:
        >>> members({"a": {"b": 1}}, "a"), members({"a": 2}, "a")
        ({'b': 1}, {})
    """
    found = get(value, *keys)
    return found if isinstance(found, Mapping) else {}


def number(value: object, *keys: str) -> float | None:
    """Return the finite number at a path of keys in JSON data; None where there is none.

    Example:
        >>> number({"a": 2}, "a"), number({"a": "2"}, "a")
        (2, None)
    """
    found = get(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return found


def read_training(folder: str | Path) -> TrainingRecord:
    """Read the folder of a training, finished or not.

    Raises:
        DataNotFound: There is no training.
        DataCorrupt: A file is not what a training writes.

    Example:
        >>> read_training("no/such/training")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a training at no/such/training, found no run.json; \
'comap train' makes one
    """
    place = Path(folder)
    path = place / "run.json"
    if not path.is_file():
        raise DataNotFound(
            f"expected a training at {place}, found no run.json; 'comap train' makes one"
        )
    known = _json(path)
    described, sessions = get(known, "described"), get(known, "sessions")
    if get(known, "format") != FORMAT or not isinstance(described, Mapping):
        raise DataCorrupt(f"expected the run.json of a training at {path}, found something else")
    listed = sessions if isinstance(sessions, list) else []
    kept = [one for one in listed if isinstance(one, Mapping)]
    found = [(match, path) for path in place.glob("stages/*") if (match := _named(path))]
    stages = [
        _stage(int(match[1]), StageFolder(path, match[2]))
        for match, path in sorted(found, key=lambda one: int(one[0][1]))
    ]
    return TrainingRecord(described, tuple(kept), tuple(stages))


def _named(path: Path) -> re.Match[str] | None:
    return _FOLDER.fullmatch(path.name) if path.is_dir() else None


def _json(path: Path) -> Any:
    try:
        return unseal(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataCorrupt(f"expected JSON in {path}, found something else ({error})") from error


def _stage(place: int, folder: StageFolder) -> StageRecord:
    spent: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for path in sorted(folder.path.glob("**/summary.json")):
        summary = _json(path)
        spent["episodes"] += int(number(summary, "n") or 0)
        for whose in ("language_model", "world_model"):
            for name, told in _SPENT.items():
                spent[name] += int(number(summary, whose, "all", told) or 0)
        for kind in members(summary, "errors"):
            counts[str(kind)] += int(number(summary, "errors", kind) or 0)
            first.setdefault(str(kind), str(get(summary, "first_errors", kind) or ""))
    faults = tuple(Fault(kind, counts[kind], first[kind]) for kind in sorted(counts))
    return StageRecord(place, folder.name, folder.result(), dict(spent), faults)


_SPENT = {"calls": "calls", "read": "prompt_tokens", "written": "completion_tokens"}


def flat_metrics(training: TrainingRecord) -> list[dict[str, Any]]:
    """Return a flat line of numbers and texts for each stage that has ended, in order.

    Names are paths such as ``splits/valid_seen/success``; what is a list, as histograms and logs are,
    is left out.

    Example:
        >>> stage = StageRecord(3, "round-1-rollouts", {"gates": {"opened": 0.5}, "log": []})
        >>> flat_metrics(TrainingRecord({}, (), (stage,)))
        [{'stage': 'round-1-rollouts', 'number': 3, 'gates/opened': 0.5}]
    """
    return [
        {"stage": stage.name, "number": stage.place, **dict(_flat(stage.result.items()))}
        for stage in training.stages
        if stage.result is not None
    ]


def _flat(items: Iterable[tuple[str, Any]], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in items:
        if isinstance(value, Mapping) and key not in _LONG:
            yield from _flat(value.items(), f"{prefix}{key}/")
        elif not isinstance(value, list | Mapping) and (prefix or key not in _LONG):
            yield f"{prefix}{key}", value
