"""Indexes on disk: built once from a corpus, opened at once, known to be whole; search by vectors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataCorrupt, DataNotFound, OptionError, needs_extra, suggest
from ...jsonl import digests_of
from ...lm.encoder import DEFAULT_MODEL, Encoder, TransformerEncoder, Vectors
from ..storage import (
    QUICK,
    Listener,
    Progress,
    changed_file,
    on_disk,
    replacing,
    silent,
    write_json,
)
from .lexical import (
    PASSAGES,
    FTS5Retriever,
    PassageStore,
    TantivyRetriever,
    build_fts5,
    build_tantivy,
    corrupt,
    write_passages,
    written,
)
from .retriever import Hit, Retriever, check_queries, contents_of

FORMAT = 1
MANIFEST = "index.json"
"""The file that says what an index is; it is written last."""

KINDS = ("fts5", "tantivy", "dense")


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
    the old index, or the new one, or none. Memory does not grow with the corpus.

    Args:
        corpus: JSON lines, ``{"id", "contents"}``, where contents are a title in quotes and, on the
            next lines, a text.
        out: The folder to make; an index that is there is replaced.
        kind: ``"fts5"`` (SQLite), ``"tantivy"`` (extra ``search``) or ``"dense"`` (extra ``dense``).
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
    is_occupied = target.exists() and not (target / MANIFEST).is_file()
    if is_occupied and (not target.is_dir() or any(target.iterdir())):
        raise OptionError(
            f"expected a new folder or an index at {target}, found other files; name a folder that "
            "does not exist yet"
        )

    with on_disk(target), written(target), replacing(target) as folder:
        figures = write_passages(folder, Path(corpus), progress)
        total = figures["passages"]
        if kind == "fts5":
            figures |= build_fts5(folder, total, progress)
        elif kind == "tantivy":
            figures |= build_tantivy(folder, total, progress)
        else:
            figures |= build_dense(folder, total, encoder, faiss, progress)

        # The manifest comes last: whatever folder has one is whole.
        sums = digests_of(folder, [path.name for path in folder.iterdir()])
        sizes = {name: entry["size"] for name, entry in sums.items()}
        head = {"format": FORMAT, "kind": kind, "files": sizes, "digests": sums}
        write_json(folder / MANIFEST, head | figures)
    return target


def read_manifest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what an index says of itself, after a look at whether its files are all there."""
    folder = Path(directory).absolute()
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        kind = manifest["kind"]
        files = manifest["files"]
        if manifest["format"] != FORMAT or kind not in KINDS or not isinstance(files, dict):
            raise ValueError(f"format {manifest['format']!r:.40}, kind {kind!r:.40}")
        if not isinstance(manifest["sha256"], str) or type(manifest["passages"]) is not int:
            raise ValueError("figures that are none")
    except (FileNotFoundError, NotADirectoryError) as error:
        guess = " (one that was not finished?)" if folder.is_dir() else ""
        raise DataNotFound(
            f"expected an index in {folder}, found no {MANIFEST}{guess}; "
            "run: comap data build searchqa CORPUS"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise corrupt(folder, f"{MANIFEST} of format {FORMAT}", f"{error}") from error

    for name, size in files.items():
        # The name alone: no manifest leads out of its folder.
        path = folder / Path(str(name)).name
        actual_size = path.stat().st_size if path.is_file() else None
        if actual_size != size:
            raise corrupt(folder, f"{path.name} of {size:,} bytes", f"{actual_size}")
    return dict(manifest)


def check_index(directory: str | os.PathLike[str], *, most: float = math.inf) -> dict[str, Any]:
    """Return what an index says of itself, after all of its files were compared with their SHA-256."""
    folder = Path(directory).absolute()
    manifest = read_manifest(folder)
    if wrong := changed_file(folder, manifest.get("digests", {}), most=most):
        raise DataCorrupt(f"{wrong} in {folder}; build it again: comap data build searchqa CORPUS")
    return manifest


def open_index(directory: str | os.PathLike[str], *, encoder: Encoder | None = None) -> Retriever:
    """Open an index that `build_index` made.

    The files of a small one (64 MiB) are compared with their SHA-256; of a large one their sizes are
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
        >>> from comap.envs.searchqa.generated import generated_folder
        >>> index = open_index(generated_folder() / "index")
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
    if manifest["kind"] == "tantivy":
        return TantivyRetriever(folder, manifest)
    return DenseRetriever(folder, manifest, encoder)


_VECTORS = "vectors.npy"
_FAISS = "vectors.faiss"
_ENCODED_BATCH = 256
_BLOCK = 65_536  # vectors that are compared at once


class DenseRetriever:
    """Finds passages whose vectors have the greatest inner product with the query's."""

    def __init__(self, folder: Path, manifest: dict[str, Any], encoder: Encoder | None = None):
        recorded = manifest.get("encoder")
        if not isinstance(recorded, dict) or not isinstance(recorded.get("name"), str):
            raise DataCorrupt(f"expected the encoder's name in {folder}, found {recorded!r:.80}")

        if encoder is None:
            if not isinstance(recorded.get("config"), dict):
                raise OptionError(
                    f"the index in {folder} was built with an encoder of yours, {recorded['name']!r:.80}; "
                    "pass it: open_index(..., encoder=...)"
                )
            encoder = TransformerEncoder(**recorded["config"])
        if encoder.name != recorded["name"]:
            raise OptionError(
                f"expected the encoder {recorded['name']!r:.80}, with which {folder} was built, found "
                f"{encoder.name!r:.80}; pass that one"
            )

        self._made_of = (folder, manifest, encoder)
        self.encoder = encoder
        self.identity = f"dense:{manifest['sha256'][:16]}:{encoder.name}"
        self._store = PassageStore(folder / PASSAGES)

        self._faiss: Any = None
        if (folder / _FAISS).is_file():
            # Its pages are read when a search needs them, and shared by all processes: an index may be
            # larger than the memory.
            faiss = _faiss()
            self._faiss = faiss.read_index(str(folder / _FAISS), faiss.IO_FLAG_MMAP_IFC)
            return
        try:
            self._vectors = np.load(folder / _VECTORS, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataCorrupt(f"expected vectors in {folder}, found: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        # Maps of files and FAISS's objects cannot be pickled: another process opens its own.
        return DenseRetriever, self._made_of

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        if not queries:
            return []

        vectors = self.encoder.encode(queries, "query")
        all_rows, all_scores = self._nearest(vectors, k)
        answers = []
        for rows, scores in zip(all_rows, all_scores, strict=True):
            # FAISS fills up with rows of -1 where there are fewer passages.
            order = [index for index in np.lexsort((rows, -scores)) if rows[index] >= 0][:k]
            passages = self._store.passages([int(rows[index]) for index in order])
            hits = []
            for passage, index in zip(passages, order, strict=True):
                hits.append(Hit(*passage, float(scores[index])))
            answers.append(hits)
        return answers

    def _nearest(self, vectors: Vectors, k: int) -> tuple[Any, Any]:
        """Return rows and scores of the best passages for each vector, in any order."""
        if self._faiss is not None:
            scores, rows = self._faiss.search(np.ascontiguousarray(vectors), k)
            return rows, scores

        best_rows = np.zeros((len(vectors), 0), np.int64)
        best = np.zeros((len(vectors), 0), np.float32)
        for first in range(0, len(self._vectors), _BLOCK):
            part = vectors @ np.asarray(self._vectors[first : first + _BLOCK], np.float32).T
            numbers = np.broadcast_to(np.arange(first, first + part.shape[1]), part.shape)
            best = np.concatenate([best, part], axis=1)
            best_rows = np.concatenate([best_rows, numbers], axis=1)

            # Rows ascend, in the order of ids: a stable order leaves ties by id.
            order = np.argsort(-best, axis=1, kind="stable")[:, :k]
            best = np.take_along_axis(best, order, 1)
            best_rows = np.take_along_axis(best_rows, order, 1)
        return best_rows, best


def build_dense(
    folder: Path, total: int, encoder: Encoder | str | None, faiss: str | None, progress: Listener
) -> dict[str, Any]:
    """Add the vectors of all passages to an index under construction."""
    coder = encoder
    if coder is None or isinstance(coder, str):
        coder = TransformerEncoder(coder or DEFAULT_MODEL)
    if not isinstance(coder, Encoder):
        raise OptionError(
            f"expected an encoder with name and encode(texts, side), found {type(coder).__name__}"
        )

    parts = _encoded(folder, coder, total, progress)
    first = next(parts)  # only its vectors tell how long vectors are
    width = int(first.shape[1])
    figures: dict[str, Any] = {"encoder": {"name": coder.name}, "width": width}
    if isinstance(coder, TransformerEncoder):
        figures["encoder"]["config"] = coder.config()
    if faiss is not None:
        _write_faiss(folder / _FAISS, faiss, width, chain([first], parts))
        return figures | {"faiss": faiss}

    vectors = np.lib.format.open_memmap(
        folder / _VECTORS, mode="w+", dtype=np.float32, shape=(total, width)
    )
    row_count = 0
    for part in chain([first], parts):
        vectors[row_count : row_count + len(part)] = part
        row_count += len(part)
    vectors.flush()
    return figures


def _write_faiss(path: Path, factory: str, width: int, parts: Iterator[Vectors]) -> None:
    """Write the index of FAISS that a factory string names."""
    package = _faiss()
    try:
        index = package.index_factory(width, factory, package.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise OptionError(f"FAISS has no index {factory!r:.40}: {str(error)[-120:]}") from error
    if not index.is_trained:
        raise OptionError(
            f"an index {factory!r:.40} must be trained first; take 'Flat' or 'HNSW64'"
        )

    for part in parts:
        index.add(part)
    package.write_index(index, str(path))


def _encoded(folder: Path, coder: Encoder, total: int, progress: Listener) -> Iterator[Vectors]:
    """Yield the vectors of all passages, a batch at a time."""
    store = PassageStore(folder / PASSAGES)
    texts = (contents_of(title, text) for title, text in store.texts())
    encoded_count = 0
    while batch := list(islice(texts, _ENCODED_BATCH)):
        # An encoder may be a user's own: what it returns is checked before it is written.
        vectors = np.ascontiguousarray(coder.encode(batch, "passage"), np.float32)
        if vectors.ndim != 2 or len(vectors) != len(batch) or not np.isfinite(vectors).all():
            raise OptionError(
                f"expected {len(batch)} vectors of finite numbers from {coder.name!r:.80}, found an "
                f"array of shape {vectors.shape}"
            )
        yield vectors
        encoded_count += len(batch)
        progress(Progress("encoding", encoded_count, total))
    store.close()


def _faiss() -> Any:
    with needs_extra("dense", "an index of FAISS"):
        import faiss
    return faiss
