"""Writing down what a retriever returns, and returning it again without the retriever."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound, EngineError
from .retriever import Hit, Retriever, check_queries, hit_of

__all__ = ["RecordingRetriever", "ReplayRetriever"]

_FORMAT = "comap searches 1"


class RecordingRetriever:
    """Passes searches on to another retriever and writes each down, in a file of JSON lines.

    The file is appended to, a line at a time; several processes may write to it.

    Args:
        retriever: The other.
        path: The file.

    Raises:
        DataCorrupt: The file is there and is no such recording.

    Example:
        >>> import tempfile
        >>> from comap.envs.searchqa.retriever import CallableRetriever
        >>> engine = CallableRetriever(lambda queries, k: [[{"id": "7", "contents": "Emma"}]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     recorded = RecordingRetriever(engine, Path(folder, "searches.jsonl"))
        ...     found = recorded.search(["who?"])
        ...     ReplayRetriever(Path(folder, "searches.jsonl")).search(["who?"]) == found
        True
    """

    def __init__(self, retriever: Retriever, path: str | os.PathLike[str]):
        self.retriever, self.path = retriever, Path(path)
        self.identity = retriever.identity
        self._lock = threading.Lock()
        if self.path.is_file() and self.path.stat().st_size:
            _lines(self.path, first_only=True)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"format": _FORMAT, "identity": self.identity})

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordingRetriever, (self.retriever, self.path)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return what the other returns."""
        check_queries(queries, k)
        found = self.retriever.search(queries, k)
        for query, hits in zip(queries, found, strict=True):
            self._append({"query": query, "k": k, "hits": [hit._asdict() for hit in hits]})
        return found

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record) + "\n"
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(line)


class ReplayRetriever:
    """Answers from a recording; what was not recorded is an error.

    Args:
        path: What `RecordingRetriever` wrote. Of a query that was asked twice the first answer
            counts; one with more passages than are asked for serves as well.

    Raises:
        DataNotFound, DataCorrupt: There is no such file, or it is no recording.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        head, *rows = _lines(self.path)
        self.identity = f"replay:{head['identity']}"
        self._known: dict[str, tuple[int, list[Hit]]] = {}
        for query, k, hits in rows:
            if query not in self._known or self._known[query][0] < k:
                self._known[query] = (k, hits)

    def __len__(self) -> int:
        return len(self._known)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return what was recorded.

        Raises:
            EngineError: A query was not recorded, or with fewer passages.
        """
        check_queries(queries, k)
        return [self._one(query, k) for query in queries]

    def _one(self, query: str, k: int) -> list[Hit]:
        known = self._known.get(query)
        if known is None or known[0] < k:
            found = "none" if known is None else f"one of {known[0]} passages"
            raise EngineError(
                f"expected a recorded search for {query!r:.80} with {k} passages in {self.path}, found "
                f"{found}; record it with RecordingRetriever"
            )
        return known[1][:k]


def _lines(path: Path, first_only: bool = False) -> list[Any]:
    """Return the head of a recording, and its searches as query, number and passages."""
    found: list[Any] = []
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                record = json.loads(line)
                if number == 1:
                    if record["format"] != _FORMAT:
                        raise ValueError(f"the format {record['format']!r:.40}")
                    found.append({"identity": str(record["identity"])})
                    if first_only:
                        break
                    continue
                query, k = record["query"], record["k"]
                if not isinstance(query, str) or type(k) is not int:
                    raise TypeError("a query that is no text")
                found.append((query, k, [hit_of(hit) for hit in record["hits"]]))
        if not found:
            raise ValueError("nothing")
    except OSError as error:
        raise DataNotFound(
            f"expected recorded searches at {path}, found: {error.strerror}; record them with "
            "RecordingRetriever"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupt(
            f"expected recorded searches in {path}, found another thing in line {number} ({error}); "
            "remove what is not whole, or record them anew"
        ) from error
    return found
