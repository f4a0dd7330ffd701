"""Retrieval by vectors: inner products with all passages, or FAISS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataCorrupt, MissingExtra, OptionError
from ..storage import Listener, Progress
from .encoders import Encoder, TransformerEncoder, Vectors
from .passages import PASSAGES, PassageStore
from .retriever import Hit, check_queries, contents_of

__all__ = ["DenseRetriever", "build_dense", "encoder_of"]

_VECTORS, _FAISS = "vectors.npy", "vectors.faiss"
_BATCH = 256
_BLOCK = 65_536


class DenseRetriever:
    """Finds passages whose vectors have the greatest inner product with the query's.

    Vectors are mapped into memory. An index that was built with FAISS is searched by FAISS.

    Args:
        folder: The index.
        manifest: What `open_index` read of it.
        encoder: What encodes queries; None for the model that encoded the passages.

    Raises:
        OptionError: The encoder is another than the passages', or must be given and is not.
        MissingExtra: FAISS is needed and not installed.
        DataCorrupt: The index is broken.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], encoder: Encoder | None = None):
        told = manifest.get("encoder")
        if not isinstance(told, dict) or not isinstance(told.get("name"), str):
            raise DataCorrupt(f"expected the encoder's name in {folder}, found {told!r:.80}")
        if encoder is None:
            if not isinstance(told.get("config"), dict):
                raise OptionError(
                    f"the index in {folder} was built with an encoder of yours, {told['name']!r:.80}; "
                    "pass it: open_index(..., encoder=...)"
                )
            encoder = TransformerEncoder(**told["config"])
        if encoder.name != told["name"]:
            raise OptionError(
                f"expected the encoder {told['name']!r:.80}, with which {folder} was built, found "
                f"{encoder.name!r:.80}; pass that one"
            )
        self._made_of = (folder, manifest, encoder)
        self.encoder = encoder
        self.identity = f"dense:{manifest['sha256'][:16]}:{encoder.name}"
        self._store = PassageStore(folder / PASSAGES)
        self._faiss: Any = None
        if (folder / _FAISS).is_file():
            self._faiss = _faiss().read_index(str(folder / _FAISS))
            return
        try:
            self._vectors = np.load(folder / _VECTORS, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataCorrupt(f"expected vectors in {folder}, found: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return DenseRetriever, self._made_of

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        if not queries:
            return []
        vectors = self.encoder.encode(queries, "query")
        rows, scores = self._nearest(vectors, k)
        found = []
        for numbers, fits in zip(rows, scores, strict=True):
            order = np.lexsort((numbers, -fits))
            chosen = [int(number) for number in numbers[order] if number >= 0][:k]
            passages = self._store.passages(chosen)
            ranked = [float(fits[place]) for place in order if numbers[place] >= 0]
            found.append([Hit(*one, fit) for one, fit in zip(passages, ranked, strict=False)])
        return found

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
            order = np.argsort(-best, axis=1, kind="stable")[:, :k]  # rows ascend: ties by id
            best = np.take_along_axis(best, order, 1)
            best_rows = np.take_along_axis(best_rows, order, 1)
        return best_rows, best


def encoder_of(encoder: Encoder | str | None) -> Encoder:
    """Return an encoder, or that of a model's name.

    Raises:
        OptionError: It is neither.

    Example:
        >>> encoder_of(None).name[:8]
        'intfloat'
    """
    if encoder is None:
        return TransformerEncoder()
    if isinstance(encoder, str):
        return TransformerEncoder(encoder)
    if isinstance(encoder, Encoder):
        return encoder
    raise OptionError(
        f"expected an encoder with name and encode(texts, side), found {type(encoder).__name__}"
    )


def build_dense(
    folder: Path,
    total: int,
    encoder: Encoder | str | None,
    faiss: str | None,
    progress: Listener,
) -> dict[str, Any]:
    """Add the vectors of all passages to an index under construction.

    Args:
        folder: It; the passages are there.
        total: How many.
        encoder: An encoder, or a model's name.
        faiss: A factory string such as ``"Flat"`` or ``"HNSW64"``; None for plain vectors.
        progress: Told how far it is.

    Raises:
        MissingExtra: A package is not installed.
        OptionError: FAISS knows no such factory string, or the encoder's vectors are none.
    """
    coder = encoder_of(encoder)
    parts = _encoded(folder, coder, total, progress)
    first = next(parts)
    width = int(first.shape[1])
    told: dict[str, Any] = {"name": coder.name}
    if isinstance(coder, TransformerEncoder):
        told["config"] = coder.config()
    if faiss is not None:
        package = _faiss()
        try:
            index = package.index_factory(width, faiss, package.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise OptionError(f"FAISS has no index {faiss!r:.40}: {str(error)[-120:]}") from error
        if not index.is_trained:
            raise OptionError(
                f"an index {faiss!r:.40} must be trained first; take 'Flat' or 'HNSW64'"
            )
        index.add(first)
        for part in parts:
            index.add(part)
        package.write_index(index, str(folder / _FAISS))
        return {"encoder": told, "faiss": faiss, "width": width}
    vectors = np.lib.format.open_memmap(
        folder / _VECTORS, mode="w+", dtype=np.float32, shape=(total, width)
    )
    vectors[: len(first)] = first
    done = len(first)
    for part in parts:
        vectors[done : done + len(part)] = part
        done += len(part)
    vectors.flush()
    del vectors
    return {"encoder": told, "width": width}


def _encoded(folder: Path, coder: Encoder, total: int, progress: Listener) -> Iterator[Vectors]:
    """Yield the vectors of all passages, some at a time."""
    store = PassageStore(folder / PASSAGES)
    texts = (contents_of(title, text) for title, text in store.texts())
    done = 0
    while batch := list(islice(texts, _BATCH)):
        vectors = np.ascontiguousarray(coder.encode(batch, "passage"), np.float32)
        if vectors.ndim != 2 or len(vectors) != len(batch) or not np.isfinite(vectors).all():
            raise OptionError(
                f"expected {len(batch)} vectors of finite numbers from {coder.name!r:.80}, found an "
                f"array of shape {vectors.shape}"
            )
        yield vectors
        done += len(batch)
        progress(Progress("encoding", done, total))
    store.close()


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra.of("dense", "an index of FAISS") from error
    return faiss
