"""What a folder of a run or a training tells of how it came about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..benchmarks.journal import public_words, read_journal
from ..benchmarks.record import circumstances
from ..checksums import unseal
from .cards import shown, table

__all__ = ["Origin"]


@dataclass(frozen=True, slots=True)
class Origin:
    """How something came about.

    Attributes:
        command: The words after ``comap`` of its last session, without secrets and places; empty
            where nobody knows.
        versions: What it ran with.
        commit: The commit of comap, where it is known.
        date: When its last session ended.
        run: What its ``run.json`` says.
    """

    command: tuple[str, ...] = ()
    versions: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None
    date: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Origin:
        """Return what a folder tells; where it tells nothing, the versions are those of now.

        Example:
            >>> Origin.of(Path("nowhere")).command
            ()
        """
        sessions = [one for one in read_journal(folder) if one.get("command")]
        last = sessions[-1] if sessions else {}
        run = _json(folder / "run.json")
        now = circumstances(("gymnasium", "torch", "transformers", "trl", "peft"))
        words = last.get("command", [])
        return cls(
            tuple(public_words([str(word) for word in words])) if isinstance(words, list) else (),
            _mapping(last.get("versions")) or _mapping(now["versions"]),
            last.get("commit"),
            last.get("ended"),
            run,
        )

    def part(self) -> str:
        """Return a part of a card."""
        versions = ", ".join(f"{name} {one}" for name, one in self.versions.items() if one)
        rows = [("versions", shown(versions))]
        if self.command:
            rows.insert(0, ("command", shown(shlex.join(["comap", *self.command]))))
        if self.commit:
            rows.append(("commit", shown(self.commit)))
        if self.date:
            rows.append(("date", shown(self.date)))
        return "## How it was made\n\n" + table(("", ""), rows)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return _mapping(unseal(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
