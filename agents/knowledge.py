"""WKM's state-knowledge base: what was done in states that read alike (METHODS.md 3)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checksums import seal, unseal
from ..envs import state_text
from ..errors import DataCorrupt, DataNotFound
from ..trajectory import Trajectory
from ..worldmodel import Query, transitions_of

__all__ = ["Knowledge", "KnowledgeBase", "belief_knowledge"]

_WORD = re.compile(r"\w+")
_KEYS = ("knowledge", "previous_action", "action")


class Knowledge(NamedTuple):
    """What was known in a state, and which actions came before and after.

    Attributes:
        knowledge: The state in words.
        previous_action: The action before; empty at an episode's start.
        action: The action that was taken.
    """

    knowledge: str
    previous_action: str
    action: str


def belief_knowledge(query: Query) -> str:
    """Return the belief in words, as state knowledge that needs no language model."""
    return state_text(query.env_id, query.goal, query.history, query.state)


class KnowledgeBase:
    """Remembers states in words with the actions around them, and finds those that read alike.

    Likeness is the cosine of two bags of words, in which rare words weigh more (inverse document
    frequency). WKM compares sentence embeddings; this needs no further model.

    Args:
        entries: What it shall know from the start.

    Example:
        >>> base = KnowledgeBase([Knowledge("The safe is closed.", "look", "open safe 1"),
        ...                       Knowledge("A pen is on the desk.", "look", "take pen 1")])
        >>> base.retrieve("the desk has a pen", 1)[0].action
        'take pen 1'
    """

    def __init__(self, entries: Iterable[Knowledge] = ()):
        self._entries = list(entries)
        self._index: _Index | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Knowledge]:
        return iter(self._entries)

    def add(self, entry: Knowledge) -> None:
        """Remember one more state."""
        self._entries.append(entry)
        self._index = None

    def retrieve(self, knowledge: str, k: int) -> list[Knowledge]:
        """Return the `k` entries most like a state, most like first, the older of equals first.

        A base with no more entries returns them all.
        """
        if not self._entries or k < 1:
            return []
        if self._index is None:
            self._index = _Index([entry.knowledge for entry in self._entries])
        likeness = self._index.likeness(knowledge)
        order = np.argsort(-likeness, kind="stable")[:k]
        return [self._entries[place] for place in order]

    def save(self, path: Path) -> None:
        """Write the entries, one line of JSON each: the whole new file or none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".part")
        with draft.open("w", encoding="utf-8") as file:
            for entry in self._entries:
                file.write(seal(json.dumps(entry._asdict(), ensure_ascii=True)) + "\n")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> KnowledgeBase:
        """Read what `save` wrote.

        Raises:
            DataNotFound: There is no such file.
            DataCorrupt: A line was changed or is no entry; the message says which.
        """
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise DataNotFound(
                f"cannot read a knowledge base at {path}: {error.strerror}"
            ) from error
        return cls(_entry(line, f"{path}, line {number}") for number, line in enumerate(lines, 1))

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Iterable[Trajectory],
        tell: Callable[[Query], str] = belief_knowledge,
    ) -> KnowledgeBase:
        """Return the knowledge of episodes: an entry for each real action.

        Args:
            trajectories: Episodes worth imitating, such as an expert's.
            tell: Puts the state before an action into words. It must be how the agent puts the
                present into words (`WKMConfig.state_knowledge`): see `gather_knowledge` for a
                language model's.
        """
        return cls(
            Knowledge(tell(query), query.history[-1].action or "", query.action)
            for trajectory in trajectories
            for query, _ in transitions_of(trajectory)
        )


def _entry(line: bytes, where: str) -> Knowledge:
    try:
        record = unseal(line)
        values = [record[key] for key in _KEYS]
        if not all(isinstance(value, str) for value in values):
            raise TypeError("a value is no text")
        return Knowledge(*values)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DataCorrupt(
            f"{where}: expected an object with the texts {', '.join(_KEYS)}, found "
            f"{type(error).__name__}: {error}"
        ) from error


class _Index:
    """Texts as bags of words, by word: which texts have it, with which weight."""

    def __init__(self, texts: Sequence[str]):
        bags = [Counter(_WORD.findall(text.lower())) for text in texts]
        self._size = len(texts)
        shared = Counter(word for bag in bags for word in bag)
        self._weight = {
            word: math.log((1 + self._size) / (1 + count)) + 1 for word, count in shared.items()
        }
        postings: dict[str, tuple[list[int], list[float]]] = {}
        for place, bag in enumerate(bags):
            for word, value in self._unit(bag).items():
                places, values = postings.setdefault(word, ([], []))
                places.append(place)
                values.append(value)
        self._postings = {
            word: (np.array(places, dtype=np.intp), np.array(values))
            for word, (places, values) in postings.items()
        }

    def likeness(self, text: str) -> NDArray[np.float64]:
        """Return the cosine of a text with each of the texts."""
        found = np.zeros(self._size)
        for word, value in sorted(self._unit(Counter(_WORD.findall(text.lower()))).items()):
            if word in self._postings:
                places, values = self._postings[word]
                found[places] += value * values
        rounded: NDArray[np.float64] = found.round(9)
        return rounded  # equal texts are equally like, whatever the order of summing

    def _unit(self, bag: Counter[str]) -> dict[str, float]:
        rare = math.log(1 + self._size) + 1
        raw = {word: count * self._weight.get(word, rare) for word, count in bag.items()}
        norm = math.sqrt(math.fsum(value * value for value in raw.values()))
        return {word: value / norm for word, value in raw.items()}
