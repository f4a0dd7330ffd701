"""What CoMap's gate did before: on which kinds of drafts a look ahead changed the action."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checksums import seal, unseal
from ..errors import DataCorrupt, DataNotFound, OptionError
from ..trajectory import Trajectory
from .verbs import verb_of

__all__ = ["GateHistory"]

_FORMAT = "comap gate history 1"
_STRENGTH = 4.0  # as many reflections as the share over all kinds counts for, beside a kind's own
_LARGEST = 2**40


@dataclass(frozen=True, slots=True)
class GateHistory:
    """How often drafts were reflected on, and how often the gate then opened, by the draft's verb.

    Attributes:
        seen: Reflections on drafts of each verb.
        opened: Those of them at which the gate opened.

    Raises:
        OptionError: A count is no whole number, or the gate opened more often than it was asked.

    Example:
        >>> history = GateHistory({"go": 96, "open": 4}, {"open": 4})
        >>> round(history.share("open chest 1"), 3), round(history.share("go to desk 1"), 3)
        (0.52, 0.002)
    """

    seen: Mapping[str, int] = field(default_factory=dict)
    opened: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for counts in (self.seen, self.opened):
            for verb, count in counts.items():
                if type(verb) is not str or type(count) is not int or not 0 <= count < _LARGEST:
                    raise OptionError(
                        f"expected counts of verbs, found {str(verb)!r:.40}: {count!r:.40}"
                    )
        for verb, count in self.opened.items():
            if count > self.seen.get(verb, 0):
                raise OptionError(
                    f"the gate cannot have opened {count} times in {self.seen.get(verb, 0)} "
                    f"reflections on {verb!r:.40}"
                )

    @property
    def reflections(self) -> int:
        """How many reflections there were."""
        return sum(self.seen.values())

    def share(self, draft: str) -> float:
        """Return how often the gate is expected to open on a draft.

        It is the share among drafts with the same verb, drawn towards the share among all drafts as if
        four more reflections had had that; without any reflection it is 1, so that one is made.

        Args:
            draft: The drafted action.
        """
        total = self.reflections
        if not total:
            return 1.0
        whole = sum(self.opened.values()) / total
        verb = verb_of(draft)
        seen, opened = self.seen.get(verb, 0), self.opened.get(verb, 0)
        return (opened + _STRENGTH * whole) / (seen + _STRENGTH)

    def also(self, outcomes: Iterable[Sequence[Any]]) -> GateHistory:
        """Return this history and some outcomes more: pairs of a verb, and whether the gate opened.

        Example:
            >>> GateHistory().also([("go", False), ("go", True)]).seen
            {'go': 2}
        """
        seen, opened = dict(self.seen), dict(self.opened)
        for verb, did in outcomes:
            seen[verb] = seen.get(verb, 0) + 1
            if did:
                opened[verb] = opened.get(verb, 0) + 1
        return GateHistory(seen, opened)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> GateHistory:
        """Return the history of recorded episodes of CoMap's agent; other steps count nothing.

        Args:
            trajectories: The episodes.
        """
        return cls().also(
            (verb_of(str(step.notes.get("draft_action"))), bool(step.notes.get("gate")))
            for trajectory in trajectories
            for step in trajectory.steps
            if step.notes.get("path") == "reflected"
        )

    def save(self, path: str | Path) -> None:
        """Write it as JSON: the whole new file or none."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".part")
        told = {"format": _FORMAT, "seen": dict(self.seen), "opened": dict(self.opened)}
        draft.write_text(seal(json.dumps(told, sort_keys=True)) + "\n", "utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> GateHistory:
        """Read what `save` wrote.

        Raises:
            DataNotFound: There is no such file.
            DataCorrupt: It is no history, or was changed.
        """
        try:
            told = unseal(Path(path).read_bytes())
        except OSError as error:
            raise DataNotFound(f"cannot read a gate history at {path}: {error.strerror}") from error
        except DataCorrupt as error:
            raise DataCorrupt(f"{path}: {error}") from error
        except ValueError as error:
            raise DataCorrupt(f"expected a gate history at {path}, found no JSON") from error
        if not isinstance(told, dict) or told.get("format") != _FORMAT:
            raise DataCorrupt(
                f"expected a gate history at {path} (format {_FORMAT!r}), found something else; "
                "GateHistory.of(trajectories).save(path) makes one"
            )
        try:
            return cls(dict(told["seen"]), dict(told["opened"]))
        except (KeyError, TypeError, ValueError, OptionError) as error:
            raise DataCorrupt(f"expected a gate history at {path}, found {error}") from error
