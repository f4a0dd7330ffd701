"""Indexes on disk: built once from a corpus, opened at once, and known to be whole."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checksums import sums_of, unseal
from ...errors import DataCorrupt, DataNotFound, OptionError, suggest
from ..storage import QUICK, Listener, changed_file, on_disk, replacing, silent, write_json
from .fts5 import FTS5Retriever, build_fts5
from .passages import write_passages, written
from .retriever import Retriever

if TYPE_CHECKING:
    from .encoders import Encoder

__all__ = [
    "FORMAT",
    "KINDS",
    "MANIFEST",
    "build_index",
    "check_index",
    "open_index",
    "read_manifest",
]

FORMAT = 1
"""The version of the form of indexes."""

MANIFEST = "index.json"
"""The file that says what an index is; it is written last."""

KINDS = ("fts5", "bm25s", "dense")
"""The kinds of indexes."""

_BUILD = "comap data build searchqa CORPUS"


def build_index(
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    kind: str = "fts5",
    *,
    encoder: Encoder | str | None = None,
    faiss: str | None = None,
    progress: Listener = silent,
) -> Path:
    r"""Build an index of a corpus.

    It is made in a folder beside `out` and takes its place once it is whole: whoever opens `out` meets
    the old index, or the new one, or none. Memory does not grow with the corpus, but with the kind
    ``bm25s``, whose library holds all words at once.

    Args:
        corpus: JSON lines, ``{"id", "contents"}``, where contents are a title in quotes and, on the
            next lines, a text.
        out: The folder to make; an index that is there is replaced.
        kind: ``"fts5"`` (SQLite), ``"bm25s"`` (extra ``search``) or ``"dense"`` (extra ``dense``).
        encoder: Of the kind ``dense``: an `Encoder`, or the name or folder of a model for
            `TransformerEncoder`; None for ``intfloat/e5-base-v2``.
        faiss: Of the kind ``dense``: FAISS's factory string, such as ``"Flat"`` or ``"HNSW64"``; None
            compares with all vectors, by numpy.
        progress: Told how far it is.

    Returns:
        The folder.

    Raises:
        DataNotFound, DataCorrupt: There is no corpus, or a line is no passage, or ids repeat.
        OptionError: There is no such kind, or `out` is there and is no index.
        MissingExtra: The kind needs a package that is not installed.
        DownloadError: The disk is full or may not be written to.

    Example:
        >>> import json, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     corpus = Path(folder, "corpus.jsonl")
        ...     passage = {"id": "1", "contents": '"Emma"\nA novel by Jane Austen.'}
        ...     size = corpus.write_text(json.dumps(passage))
        ...     index = open_index(build_index(corpus, Path(folder, "index")))
        ...     index.search(["Who wrote the novel Emma?"])[0][0].title
        'Emma'
    """
    if kind not in KINDS:
        raise OptionError(f"there is no index of kind {kind!r}; {suggest(str(kind), KINDS)}")
    if (encoder is not None or faiss is not None) and kind != "dense":
        raise OptionError(
            f"encoder and faiss are for an index of kind 'dense', not {kind!r}; leave them out"
        )
    target = Path(out).absolute()
    taken = target.exists() and not (target / MANIFEST).is_file()
    if taken and (not target.is_dir() or any(target.iterdir())):
        raise OptionError(
            f"expected a new folder or an index at {target}, found other files; name a folder that "
            "does not exist yet"
        )
    with on_disk(target), written(target), replacing(target) as folder:
        figures = write_passages(folder, Path(corpus), progress)
        total = figures["passages"]
        if kind == "fts5":
            figures |= build_fts5(folder, total, progress)
        elif kind == "bm25s":
            from .bm25 import build_bm25

            figures |= build_bm25(folder, total, progress)
        else:
            from .dense import build_dense

            figures |= build_dense(folder, total, encoder, faiss, progress)
        sums = sums_of(folder, [path.name for path in folder.iterdir()])
        sizes = {name: told["size"] for name, told in sums.items()}
        told = {"format": FORMAT, "kind": kind, "files": sizes, "digests": sums}
        write_json(folder / MANIFEST, told | figures)
    return target


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what an index says of itself, after a look at whether its files are all there.

    Raises:
        DataNotFound: There is no index, or one that was not finished.
        DataCorrupt: It is of another format, or a file is missing or of another size.
    """
    folder = Path(directory).absolute()
    try:
        manifest = unseal((folder / MANIFEST).read_text(encoding="utf-8"))
        kind, files = manifest["kind"], manifest["files"]
        if manifest["format"] != FORMAT or kind not in KINDS or not isinstance(files, dict):
            raise ValueError(f"format {manifest['format']!r:.40}, kind {kind!r:.40}")
        if not isinstance(manifest["sha256"], str) or type(manifest["passages"]) is not int:
            raise ValueError("figures that are none")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataNotFound(
            f"expected an index in {folder}, found no {MANIFEST}"
            + (" (one that was not finished?)" if folder.is_dir() else "")
            + "; run: comap data build searchqa CORPUS"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise _corrupt(folder, f"{MANIFEST} of format {FORMAT}", f"{error}") from error
    for name, size in files.items():
        path = folder / Path(str(name)).name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise _corrupt(folder, f"{path.name} of {size:,} bytes", f"{found}")
    return dict(manifest)


def check_index(directory: str | os.PathLike[str], *, most: float = math.inf) -> dict[str, Any]:
    """Return what an index says of itself, after all of its files were compared with their checksums.

    Args:
        directory: Its folder.
        most: The most bytes to read; files that have more together are not read.

    Raises:
        DataNotFound: There is no index, or one that was not finished.
        DataCorrupt: It is of another format, or a file is missing or was changed.
    """
    folder = Path(directory).absolute()
    manifest = read_manifest(folder)
    if wrong := changed_file(folder, manifest.get("digests", {}), most=most):
        raise DataCorrupt(f"{wrong} in {folder}; build it again: {_BUILD}")
    return manifest


def open_index(directory: str | os.PathLike[str], *, encoder: Encoder | None = None) -> Retriever:
    """Open an index that `build_index` made.

    The files of a small one (64 MiB) are compared with their checksums; of a large one their sizes are
    (`comap data verify searchqa` compares all).

    Args:
        directory: Its folder.
        encoder: Of the kind ``dense``: what encodes queries; None loads the model that it was built
            with, when the first query comes.

    Raises:
        DataNotFound: There is no index, or one that was not finished.
        DataCorrupt: It is broken, or of another format.
        MissingExtra: Its kind needs a package that is not installed.
        OptionError: `encoder` is of no use for its kind, or not the one it was built with.

    Example:
        >>> from comap.envs.searchqa.embedded import embedded_folder
        >>> index = open_index(embedded_folder() / "index")
        >>> len(index.search(["a town at a river"], k=2)[0])
        2
    """
    folder = Path(directory).absolute()
    manifest = check_index(folder, most=QUICK)
    if encoder is not None and manifest["kind"] != "dense":
        raise OptionError(
            f"expected no encoder for an index of kind {manifest['kind']!r}; leave it out"
        )
    if manifest["kind"] == "fts5":
        return FTS5Retriever(folder, manifest)
    if manifest["kind"] == "bm25s":
        from .bm25 import BM25Retriever

        return BM25Retriever(folder, manifest)
    from .dense import DenseRetriever

    return DenseRetriever(folder, manifest, encoder)


def _corrupt(folder: Path, expected: str, found: str) -> DataCorrupt:
    return DataCorrupt(
        f"expected {expected} in {folder}, found {found}; build the index again: {_BUILD}"
    )
