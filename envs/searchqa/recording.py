"""Writing down what a retriever returns, and returning it again without the retriever."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...checksums import seal, unseal
from ...errors import DataCorrupt, DataNotFound, EngineError
from ..storage import append_lines, locked
from .retriever import Hit, Retriever, check_queries, hit_of

__all__ = ["RecordingRetriever", "ReplayRetriever"]

_FORMAT = "comap searches 1"
_STARTS = (b'{"format": "comap searches ', b'{"query": ')
_WAIT = 30.0


class RecordingRetriever:
    """Passes searches on to another retriever and writes each down, in a file of JSON lines.

    The file is appended to; several processes may write to it, each of which holds the lock beside it
    meanwhile.

    Args:
        retriever: The other.
        path: The file; it is made if need be.

    Raises:
        DataCorrupt: The file is there and is no such recording.
        EngineError: It cannot be written.

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
        self._append([])

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordingRetriever, (self.retriever, self.path)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return what the other returns.

        Raises:
            EngineError: The other fails, or the file cannot be written.
        """
        check_queries(queries, k)
        found = self.retriever.search(queries, k)
        self._append(
            {"query": query, "k": k, "hits": [hit._asdict() for hit in hits]}
            for query, hits in zip(queries, found, strict=True)
        )
        return found

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        """Append records, and before them the head where there is none."""
        lines = [seal(json.dumps(record)) for record in records]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with (
                self._lock,
                locked(self.path.with_name(f"{self.path.name}.lock"), wait=_WAIT),
            ):
                if not self._begun():
                    head = {"format": _FORMAT, "identity": self.identity}
                    lines.insert(0, seal(json.dumps(head)))
                if lines:
                    append_lines(self.path, "".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            raise EngineError(
                f"expected to write searches down in {self.path}, found: {error.strerror or error}; "
                "name a file that can be written"
            ) from error

    def _begun(self) -> bool:
        """Return whether the file has its head; what is no recording is refused."""
        return self.path.is_file() and next(_records(self.path), None) is not None


class ReplayRetriever:
    """Answers from a recording; what was not recorded is an error.

    Lines that a killed process left unfinished are skipped.

    Args:
        path: What `RecordingRetriever` wrote. Of a query that was asked twice the first answer
            counts; one with more passages than are asked for serves as well.

    Raises:
        DataNotFound, DataCorrupt: There is no such file, or it is no recording.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        records = _records(self.path)
        head = next(records, None)
        if head is None:
            raise DataCorrupt(
                f"expected recorded searches in {self.path}, found nothing; record them with "
                "RecordingRetriever"
            )
        self.identity = f"replay:{head['identity']}"
        self._known: dict[str, tuple[int, list[Hit]]] = {}
        for record in records:
            query, k = record["query"], record["k"]
            if query not in self._known or self._known[query][0] < k:
                self._known[query] = (k, record["hits"])

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


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the head of a recording, if it has one, and its searches; unfinished lines are left out.

    Raises:
        DataNotFound, DataCorrupt: There is no such file, or it is no recording.
    """
    number, begun = 0, False
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                record = _whole(line)
                if record is None:
                    continue
                if "query" in record and begun:
                    yield _search_of(record)
                    continue
                _check_head(record)
                if not begun:
                    yield record
                begun = True
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


def _check_head(record: dict[str, Any]) -> None:
    """Refuse what is no head; that of a process which began at the same time is one."""
    if record["format"] != _FORMAT or not isinstance(record["identity"], str):
        raise ValueError(f"the format {record['format']!r:.40}")


def _search_of(record: dict[str, Any]) -> dict[str, Any]:
    query, k = record["query"], record["k"]
    if not isinstance(query, str) or type(k) is not int:
        raise TypeError("a query that is no text")
    return {"query": query, "k": k, "hits": [hit_of(hit) for hit in record["hits"]]}


def _whole(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None where a killed writer left it unfinished."""
    try:
        record: Any = unseal(line)
    except DataCorrupt:
        raise  # written to its end, and changed since
    except ValueError:
        if not any(line.startswith(start[: len(line.strip())]) for start in _STARTS):
            raise
        return None
    if not isinstance(record, dict):
        raise TypeError(f"{type(record).__name__}")
    return record
