"""A world model that remembers transitions and answers with the nearest one, its names replaced."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz, process

from ..errors import DataCorrupt, DataNotFound, WorldModelError
from ..jsonl import write
from .base import Prediction, Query, Transition
from .templates import Situation

_FAMILIAR = 60.0
"""The least token ratio (of 100) at which an action counts as like a known one."""

_FORMAT = "comap retrieval world model 1"


def _checked(transition: Any) -> Transition:
    """Return a transition; raise `WorldModelError` where it is none."""
    if isinstance(transition, tuple) and len(transition) == 2:
        query, observation = transition
        if isinstance(query, Query) and isinstance(observation, str):
            return Transition(query, observation)

    raise WorldModelError(
        f"expected transitions (a Query and the text that followed), found {transition!r:.80}; "
        "take those of comap.worldmodel.transitions_of(trajectory)"
    )


class RetrievalWorldModel:
    """Learns from transitions by heart, without a GPU, and generalises by substitution.

    Each transition is kept with its names taken out (`Situation`): the action, what the belief says
    of the names in it, and the text that followed. A query is answered by the nearest kept one, by
    rapidfuzz's token ratio of the beliefs among those of the same action (or, if there is none, of
    the most similar action), with the query's names put in. Of several texts for one situation the
    most frequent is taken. An action like none that is known gets the text without names that
    answered the most different actions: the environment's way of saying no.

    Args:
        path: A file that `save` wrote, or None for an empty model.
        name: The predictions' ``source``.

    Raises:
        DataNotFound, DataCorrupt: There is no such file, or it is not a saved model.

    Example:
        >>> from comap.facts import State
        >>> before = State(frozenset({("at", "agent", "safe 1"), ("closed", "safe 1")}))
        >>> query = Query("id", "goal", (), before, "open safe 1")
        >>> model = RetrievalWorldModel()
        >>> model.fit([Transition(query, "You open the safe 1. It is empty.")])
        >>> other = State(frozenset({("at", "agent", "safe 7"), ("closed", "safe 7")}))
        >>> model.predict([Query("id", "goal", (), other, "open safe 7")])[0].observation
        'You open the safe 7. It is empty.'
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, name: str = "retrieval"):
        self.name = name
        self._texts: dict[str, dict[str, dict[str, Counter[str]]]] = {}
        self._size = 0
        self._sorted = True
        self._refusal = ""
        self._path: Path | None = None
        if path is not None:
            self._read(Path(path))

    def __len__(self) -> int:
        return self._size

    def fit(self, transitions: Iterable[Transition]) -> None:
        """Learn transitions, beside those already known.

        Raises:
            WorldModelError: Something is no transition.
        """
        for transition in transitions:
            query, observation = _checked(transition)

            # A tree of three keys, the most telling first: the action, the kinds of its names, the belief.
            situation = Situation.of(query.action, query.state)
            counter = self._counter(situation.action, "|".join(situation.kinds), situation.context)
            counter[situation.abstract(observation)] += 1
            self._size += 1
            self._sorted = False
            self._path = None  # the file no longer holds all of it

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the nearest known transition's text for each query, with the query's names.

        Raises:
            WorldModelError: Nothing was learnt yet.
        """
        if not self._texts:
            raise WorldModelError(
                "the retrieval world model has learnt nothing; call fit(transitions), or load one "
                "with RetrievalWorldModel(path)"
            )
        if not self._sorted:
            self._sort()
        return [self._predict(query) for query in queries]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file: JSON, one situation a line, after a head."""
        target = Path(path)
        head = {"format": _FORMAT, "name": self.name, "size": self._size}
        write(target, [head, *self._situations()])
        self._path = target

    def _situations(self) -> Iterator[list[Any]]:
        """Yield the lines of a file: action, kinds, context, and the counted texts."""
        for action, by_kinds in sorted(self._texts.items()):
            for kinds, by_context in sorted(by_kinds.items()):
                for context, texts in sorted(by_context.items()):
                    yield [action, kinds, context, sorted(texts.items())]

    def config(self) -> dict[str, Any] | None:
        """Return what makes an equal model: its file; None where it was not saved."""
        if self._path is None:
            return None
        return {"id": "retrieval", "path": str(self._path), "name": self.name}

    def _counter(self, action: str, kinds: str, context: str) -> Counter[str]:
        """Return the texts of one situation, none yet where it is new."""
        by_context = self._texts.setdefault(action, {}).setdefault(kinds, {})
        return by_context.setdefault(context, Counter())

    def _sort(self) -> None:
        """Sort what is known, so that ties do not depend on the order of learning; count refusals."""
        sorted_texts: dict[str, dict[str, dict[str, Counter[str]]]] = {}
        for action, by_kinds in sorted(self._texts.items()):
            sorted_texts[action] = {}
            for kinds, by_context in sorted(by_kinds.items()):
                sorted_texts[action][kinds] = dict(sorted(by_context.items()))
        self._texts = sorted_texts

        # A text without names that many different actions got is how the environment says no.
        actions_by_text: Counter[str] = Counter()
        for by_kinds in self._texts.values():
            nameless_texts: set[str] = set()
            for by_context in by_kinds.values():
                for texts in by_context.values():
                    nameless_texts |= {
                        text for text in texts if "{" not in text and "[" not in text
                    }
            actions_by_text.update(nameless_texts)

        self._refusal = min(
            actions_by_text, key=lambda text: (-actions_by_text[text], text), default=""
        )
        self._sorted = True

    def _predict(self, query: Query) -> Prediction:
        """Return the most frequent text of the nearest situation, with the query's names."""
        situation = Situation.of(query.action, query.state)

        # Down the tree: at each level the same key, or else the most similar one.
        likeness = 1.0
        level: Any = self._texts
        for key in (situation.action, "|".join(situation.kinds), situation.context):
            if key not in level:
                key, score, _ = process.extractOne(
                    key, level.keys(), scorer=fuzz.token_sort_ratio, processor=None
                )
                likeness *= score / 100  # the confidence: 1 where all three keys are the same
                if level is self._texts and score < _FAMILIAR:
                    return Prediction(self._refusal, likeness, source=self.name)
            level = level[key]

        # A text of a similar situation may have more variables than this one has names.
        texts: Counter[str] = level
        fitting = [text for text in texts if situation.has_names_for(text)]
        template = min(fitting, key=lambda text: (-texts[text], text), default=self._refusal)
        return Prediction(situation.fill(template), likeness, source=self.name)

    def _read(self, path: Path) -> None:
        """Read a file that `save` wrote."""
        try:
            lines = path.read_text("utf-8").removesuffix("\n").split("\n")
        except OSError as error:
            raise DataNotFound(
                f"expected a saved retrieval world model at {path}: {error.strerror}; write one with "
                "RetrievalWorldModel.save"
            ) from error
        except UnicodeDecodeError:
            lines = [""]  # a file of bytes: no head, so it is refused below

        try:
            head = json.loads(lines[0])
            if head["format"] != _FORMAT:
                raise ValueError("another format")
            self.name = str(head["name"])
            self._size = int(head["size"])

            # The head's size guards against a file that was cut at the end of a line.
            total = 0
            for line in lines[1:]:
                action, kinds, context, texts = json.loads(line)
                counts = {str(text): int(count) for text, count in texts}
                if not counts or min(counts.values()) < 1:
                    raise ValueError("a situation without texts")
                self._counter(str(action), str(kinds), str(context)).update(counts)
                total += sum(counts.values())

            if total != self._size:
                raise ValueError(f"{total} of {self._size} transitions")
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise DataCorrupt(
                f"expected a saved retrieval world model at {path}, found another file; "
                "write one with RetrievalWorldModel.save"
            ) from error

        self._path = path
        self._sorted = False
