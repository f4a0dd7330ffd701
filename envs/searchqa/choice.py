"""Which retriever an environment gets."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import DataNotFound, OptionError, suggest
from ..storage import comap_home
from .embedded import embedded_folder
from .hybrid import HybridRetriever
from .index import KINDS, MANIFEST, open_index, read_manifest
from .protocol import Style
from .remembering import RememberingRetriever
from .retriever import CallableRetriever, Retriever
from .tasks import questions_home

__all__ = ["RETRIEVERS", "choose_retriever", "has_data", "index_home"]

RETRIEVERS = ("auto", *KINDS, "hybrid")
"""The names of retrievers; any other text is the URL of a server."""


def index_home() -> Path:
    """Return the folder where an index is looked for if none is named.

    Example:
        >>> index_home().name
        'index'
    """
    return comap_home() / "searchqa" / "index"


def has_data(
    data_dir: str | os.PathLike[str] | None, questions: str | os.PathLike[str] | None
) -> bool:
    """Return whether questions are named, or found by themselves.

    Example:
        >>> has_data(None, "questions.jsonl")
        True
    """
    return data_dir is not None or questions is not None or questions_home().is_dir()


def choose_retriever(
    wanted: Any,
    data_dir: str | os.PathLike[str] | None,
    generated: bool = False,
    seed: int = 0,
    timeout: float = 10.0,
    style: Style = "search_r1",
) -> Retriever:
    """Return the retriever that an option names.

    Args:
        wanted: One of `RETRIEVERS`, a URL, a `Retriever` or a function.
        data_dir: Folder of an index, or for ``hybrid`` of several.
        generated: Whether to take the index of the generated encyclopedia.
        seed: Of that.
        timeout: Seconds that a server may take.
        style: Whose wire format a server is asked in: verl-agent's has one query, Search-R1's several.

    Raises:
        OptionError: There is no such retriever, or the index is of another kind.
        DataNotFound, DataCorrupt: There is no index, or it is broken.

    Example:
        >>> choose_retriever("fts5", None, generated=True).identity[:5]
        'fts5:'
    """
    if not isinstance(wanted, str):
        return wanted if isinstance(wanted, Retriever) else CallableRetriever(wanted)
    if wanted.startswith(("http://", "https://")):
        from .remote import RemoteRetriever

        return RemoteRetriever(wanted, "query" if style == "verl" else "queries", timeout)
    if wanted not in RETRIEVERS:
        raise OptionError(
            f"retriever cannot be {wanted!r:.80}; {suggest(wanted, RETRIEVERS)}, or a URL, an object "
            "with search(queries, k), or a function"
        )
    if generated:
        folder = embedded_folder(seed) / "index"
    else:
        folder = index_home() if data_dir is None else Path(data_dir)
    if wanted == "hybrid":
        return _hybrid(folder)
    kind = read_manifest(folder)["kind"]
    if wanted not in ("auto", kind):
        raise OptionError(
            f"expected an index of kind {wanted!r} in {folder}, found {kind!r}; build one: "
            f"comap data build searchqa CORPUS --kind {wanted}, or leave retriever out"
        )
    return _opened(folder.absolute())


def _hybrid(folder: Path) -> Retriever:
    """Return all indexes of a folder as one."""
    found = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if len(found) < 2:
        raise DataNotFound(
            f"expected two indexes or more in folders of {folder}, found {len(found)}; build them: "
            f"comap data build searchqa CORPUS --out {folder}/KIND --kind KIND"
        )
    return HybridRetriever([_opened(path.absolute()) for path in found])


def _opened(folder: Path) -> Retriever:
    """Return an index that many environments share, with a memory of answers."""
    stamp = (folder / MANIFEST).stat() if (folder / MANIFEST).is_file() else None
    return _shared(folder, 0 if stamp is None else stamp.st_mtime_ns)


@lru_cache(maxsize=8)
def _shared(folder: Path, changed: int) -> Retriever:
    return RememberingRetriever(open_index(folder))
