"""Many episodes in one page: a small index that is read at once, and the rest when it is wanted.

The index has a line for each episode: what the list shows and the filters ask. The episodes
themselves are compressed, each by itself, and written in base64, each as an element of the page, which
unpacks one when it is opened or searched. So a page of a thousand episodes shows its list and its first
step before the rest is read, and writing it needs no more memory than its own size.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from .episode_gates import was_revised
from .episodes import Episode, episode_record
from .task_types import task_type

__all__ = ["Pack"]

_LEVEL = 6  # of compression: higher ones take twice the time for a few percent


class Pack:
    """Episodes, as a page holds them.

    Args:
        episodes: The first ones.

    Example:
        >>> from comap.facts import State
        >>> from comap.trajectory import Trajectory
        >>> start = Trajectory("comap/ALFWorld-v0", "task", "dev", "find it", "", "a room", State())
        >>> pack = Pack([Episode("first", start, None)])
        >>> len(pack), pack.index()["episodes"][0]["outcome"]
        (1, 'not solved')
    """

    def __init__(self, episodes: Iterable[Episode] = ()) -> None:
        self._entries: list[dict[str, Any]] = []
        self._names: dict[str, int] = {}
        self._parts: list[str] = []
        for episode in episodes:
            self.add(episode)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, episode: Episode) -> None:
        """Add an episode."""
        record = episode_record(episode)
        text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        part = base64.b64encode(zlib.compress(text.encode("ascii"), _LEVEL)).decode("ascii")
        self._entries.append(self._entry(episode, record))
        self._parts.append(part)

    def index(self) -> dict[str, Any]:
        """Return the index: names, and for each episode what is known before it is unpacked."""
        return {"names": list(self._names), "episodes": self._entries}

    def parts(self) -> Sequence[str]:
        """Return the episodes, each compressed and in base64."""
        return self._parts

    def _entry(self, episode: Episode, record: dict[str, Any]) -> dict[str, Any]:
        """Return an episode's line in the index; names that many share are numbers there."""
        real, imagined = episode.real, episode.imagined
        named = {
            "run": episode.run,
            "environment": real.env_id,
            "agent": real.agent,
            "split": real.split,
            "type": task_type(real.env_id, real.task, real.split),
            "task": real.task,
        }
        scores = [score for score in record["delta_f1"] if score is not None]
        entry: dict[str, Any] = {
            "title": episode.title,
            **{name: self._name(value) for name, value in named.items()},
            "outcome": _outcome(episode),
            "steps": max(len(real.steps), len(imagined.steps) if imagined else 0),
            "flags": _flags(episode),
        }
        if real.trial > 1:
            entry["trial"] = real.trial
        if scores:
            entry["f1"] = round(sum(scores) / len(scores), 4)
        return entry

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


def _outcome(episode: Episode) -> str:
    """Return how an episode ended: a fault comes before all else."""
    if episode.real.error is not None:
        return "failed"
    return "solved" if episode.real.success else "not solved"


def _flags(episode: Episode) -> list[str]:
    """Return what else a filter may ask of an episode."""
    real, imagined = episode.real, episode.imagined
    flags = {
        "imagined": real.imagined or imagined is not None,
        "predicted": any(step.prediction is not None for step in real.steps),
        "revised": any(was_revised(step.notes) for step in real.steps),
        "refused": any(step.invalid_action for step in real.steps),
        "tokens": any(call.logprobs for step in real.steps for call in step.calls),
    }
    return [name for name, is_set in flags.items() if is_set]
