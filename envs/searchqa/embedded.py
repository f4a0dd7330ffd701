"""The embedded corpus and its questions: generated from a seed when first asked for, and kept."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import lru_cache
from pathlib import Path

from ...errors import CoMapError, DownloadError
from ..generated import code_digest
from ..storage import comap_home, locked
from .encyclopedia import Encyclopedia, generate_encyclopedia
from .index import build_index, read_manifest
from .questions import Question
from .quiz import generate_questions
from .retriever import contents_of

__all__ = ["CORPUS", "embedded_folder", "embedded_questions", "write_corpus"]

CORPUS = "corpus.jsonl"
"""The corpus in `embedded_folder`, beside ``index``."""

_WAIT = 300.0
_ID = 12
_TEMPORARY: list[tempfile.TemporaryDirectory[str]] = []


@lru_cache(maxsize=4)
def embedded_questions(seed: int = 0) -> dict[str, Question]:
    """Return the questions about the encyclopedia of a seed, by id.

    Example:
        >>> questions = embedded_questions()
        >>> len(questions), questions["1hop/0"].text.endswith("?")
        (3000, True)
    """
    return {question.id: question for question in generate_questions(generate_encyclopedia(seed))}


@lru_cache(maxsize=4)
def embedded_folder(seed: int = 0) -> Path:
    """Return the folder with corpus and index of a seed; made in about a second, and then kept.

    It is kept in ``COMAP_HOME/searchqa-generated``, in a folder named by the code that makes it; where
    that cannot be written, it is made anew in each process, in a temporary folder.

    Args:
        seed: The generator's seed.

    Example:
        >>> sorted(path.name for path in embedded_folder().iterdir())
        ['corpus.jsonl', 'index']
    """
    kept = comap_home() / "searchqa-generated" / f"{code_digest(__package__)[:16]}-{seed}"
    try:
        if not _is_whole(kept):
            kept.parent.mkdir(parents=True, exist_ok=True)
            with locked(kept.parent / f"{kept.name}.lock", wait=_WAIT):
                if not _is_whole(kept):
                    _make(kept, seed)
        return kept
    except (OSError, DownloadError):
        return _temporary(seed)


def write_corpus(book: Encyclopedia, path: Path) -> None:
    """Write an encyclopedia as a corpus; ids are the beginnings of MD5 sums, as is usual.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_corpus(generate_encyclopedia(3, 0.05), Path(folder, "corpus.jsonl"))
        ...     sorted(json.loads(Path(folder, "corpus.jsonl").read_text().splitlines()[0]))
        ['contents', 'id']
    """
    with path.open("w", encoding="utf-8") as file:
        for article in book.articles.values():
            contents = contents_of(article.title, article.text)
            name = hashlib.md5(contents.encode(), usedforsecurity=False).hexdigest()[:_ID]
            file.write(json.dumps({"id": name, "contents": contents}) + "\n")


def _is_whole(folder: Path) -> bool:
    try:
        read_manifest(folder / "index")
    except CoMapError:
        return False
    return True


def _temporary(seed: int) -> Path:
    """Return a folder that is removed when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="comap-searchqa-", ignore_cleanup_errors=True)
    _TEMPORARY.append(folder)
    _make(Path(folder.name), seed)
    return Path(folder.name)


def _make(folder: Path, seed: int) -> None:
    """Generate the corpus and build the index."""
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(generate_encyclopedia(seed), folder / CORPUS)
    build_index(folder / CORPUS, folder / "index")
