"""What the folder of a PaW training tells: settings, what each update measured, and evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checksums import unseal
from ..errors import DataCorrupt, DataNotFound
from ..metrics import Rate, success_rate
from ..trainers.paw.journal import EVALUATIONS, METRICS, read_lines
from .training_record import get, members, number

__all__ = ["PaWRecord", "read_paw"]

_MOST_EPISODES = 10**7  # more than anybody plays; a number that large is a fault


@dataclass(frozen=True, slots=True)
class PaWRecord:
    """A training.

    Attributes:
        described: Its settings, environment and model; empty where that is not written.
        sessions: When it ran, and with which versions.
        updates: What each update measured, by its number.
        evaluations: What each evaluation found, by update, in the order of the splits.

    Example:
        >>> record = PaWRecord(updates=({"update": 1, "kl": 0.5}, {"update": 2, "kl": None}))
        >>> record.curve("kl")
        ((1,), (0.5,))
    """

    described: Mapping[str, Any] = field(default_factory=dict)
    sessions: tuple[Mapping[str, Any], ...] = ()
    updates: tuple[Mapping[str, Any], ...] = ()
    evaluations: tuple[Mapping[str, Any], ...] = ()

    def curve(self, name: str, times: float = 1.0) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return a measure: the updates that told it, and the finite numbers that they told.

        Args:
            name: Its name in the lines.
            times: What the numbers are multiplied by.
        """
        told = [(number(line, "update"), number(line, name)) for line in self.updates]
        known = [(x, times * y) for x, y in told if x is not None and y is not None]
        return tuple(x for x, _ in known), tuple(y for _, y in known)

    def names(self) -> list[str]:
        """Return the names of all measures, in the order in which they were first told."""
        return list(dict.fromkeys(str(name) for line in self.updates for name in line))

    def splits(self) -> list[str]:
        """Return the splits that were evaluated."""
        return list(dict.fromkeys(str(get(line, "split")) for line in self.evaluations))

    def evaluated(self, split: str) -> list[tuple[int, Rate, float | None]]:
        """Return update, success and mean score of each evaluation of a split.

        Example:
            >>> told = {"update": 0, "split": "valid_seen", "n": 4, "success": 0.5, "score": 0.6}
            >>> update, success, score = PaWRecord(evaluations=(told,)).evaluated("valid_seen")[0]
            >>> update, str(success), score
            (0, '50.0 % [15.0, 85.0] (n=4)', 0.6)
        """
        found = []
        for line in self.evaluations:
            update, share, n = (number(line, name) for name in ("update", "success", "n"))
            if line.get("split") != split or update is None or share is None or n is None:
                continue
            if 0 <= share <= 1 and 0 < n <= _MOST_EPISODES:
                won = round(share * n)
                rate = success_rate([True] * won + [False] * (int(n) - won))
                found.append((int(update), rate, number(line, "score")))
        return found

    def summary(self) -> dict[str, str]:
        """Return what was trained, in a few names and values."""
        config = members(self.described, "config")
        last = self.sessions[-1] if self.sessions else {}
        told = {
            "environment": get(self.described, "env", "id"),
            "model": get(self.described, "model", "name"),
            "preset": get(self.described, "preset"),
            "algorithm": get(self.described, "row") or config.get("algorithm"),
            "seed": config.get("seed"),
            "updates": len(self.updates),
            "comap": get(last, "versions", "comap"),
            "last begun": get(last, "started"),
        }
        return {name: "unknown" if value is None else str(value) for name, value in told.items()}


def read_paw(folder: str | Path) -> PaWRecord:
    """Read the folder of a training, finished or not.

    Of an update that was done twice, because the training was killed and went on from an earlier
    checkpoint, the later line counts; a last line that a kill cut off does not.

    Args:
        folder: The training's folder.

    Raises:
        DataNotFound: There is no training.
        DataCorrupt: A file is not what a training writes.

    Example:
        >>> read_paw("no/such/training")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected a training at no/such/training, found no metrics.jsonl \
and no run.json; 'comap train paw' makes one
    """
    place = Path(folder)
    if not any((place / name).is_file() for name in (METRICS, "run.json")):
        raise DataNotFound(
            f"expected a training at {place}, found no {METRICS} and no run.json; 'comap train paw' "
            "makes one"
        )
    run = _run(place / "run.json")
    sessions = get(run, "sessions")
    listed = sessions if isinstance(sessions, list) else []
    kept = [one for one in listed if isinstance(one, Mapping)]
    updates = {line["update"]: line for line in read_lines(place / METRICS)}
    tests: dict[tuple[float, str], dict[str, Any]] = {}
    for line in read_lines(place / EVALUATIONS):
        tests[line["update"], str(line.get("split"))] = line
    order = list(dict.fromkeys(split for _, split in tests))
    keys = sorted(tests, key=lambda key: (key[0], order.index(key[1])))
    return PaWRecord(
        members(run, "described"),
        tuple(kept),
        tuple(updates[number] for number in sorted(updates)),
        tuple(tests[key] for key in keys),
    )


def _run(path: Path) -> Any:
    if not path.is_file():
        return {}
    try:
        return unseal(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataCorrupt(f"expected JSON in {path}, found something else ({error})") from error
