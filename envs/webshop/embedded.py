"""The embedded catalogue: generated from a seed when it is first asked for, and kept."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from ...errors import CoMapError, DownloadError
from ..generated import code_digest
from ..storage import comap_home, locked
from .build import MANIFEST, build_catalog
from .catalog import Catalog
from .generate import HUMAN_FILE, INSTRUCTIONS_FILE, PRODUCTS_FILE, generate_catalog

__all__ = ["embedded_catalog"]

_WAIT = 300.0
_TEMPORARY: list[tempfile.TemporaryDirectory[str]] = []


@lru_cache(maxsize=4)
def embedded_catalog(seed: int = 0) -> Catalog:
    """Return the generated catalogue of a seed; made in about a second, and then kept.

    It is kept in ``COMAP_HOME/webshop-generated``, in a folder named by the code that makes it;
    where that cannot be written, it is made anew in each process, in a temporary folder.

    Args:
        seed: The generator's seed.

    Example:
        >>> len(embedded_catalog()) > 100
        True
    """
    kept = comap_home() / "webshop-generated" / f"{code_digest(__package__)[:16]}-{seed}"
    if not (kept / MANIFEST).is_file():
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with locked(kept.parent / f"{kept.name}.lock", wait=_WAIT):
                if not (kept / MANIFEST).is_file():
                    _make(kept, seed)
        except (OSError, DownloadError):
            return _temporary(seed)
    try:
        return Catalog.open(kept)
    except CoMapError:
        return _temporary(seed)


def _temporary(seed: int) -> Catalog:
    """Return a catalogue that is removed when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="comap-webshop-", ignore_cleanup_errors=True)
    _TEMPORARY.append(folder)
    _make(Path(folder.name, "shop"), seed)
    return Catalog.open(Path(folder.name, "shop"))


def _make(target: Path, seed: int) -> None:
    """Generate the files and build the catalogue."""
    with tempfile.TemporaryDirectory(prefix="comap-webshop-") as source:
        generate_catalog(Path(source), seed=seed)
        build_catalog(
            Path(source, PRODUCTS_FILE),
            target,
            Path(source, INSTRUCTIONS_FILE),
            Path(source, HUMAN_FILE),
            seed=seed,
            nouns="lexical",
        )
