"""`comap data verify webshop | searchqa`: whether what `comap data build` made is as it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .envs.downloads import data_path

__all__ = ["BUILT", "verify_built"]

BUILT = ("searchqa", "webshop")
"""What can be verified of what is built on this machine."""


def verify_built(name: str, path: str | None) -> str:
    """Compare all files of an index or a catalogue with their checksums; return what was found.

    Args:
        name: One of `BUILT`.
        path: Its folder; None for comap's.

    Raises:
        DataNotFound: There is none.
        DataCorrupt: A file is missing or was changed; the message says which.

    Example:
        >>> from comap.envs.webshop.embedded import embedded_catalog
        >>> verify_built("webshop", str(embedded_catalog().folder))  # doctest: +ELLIPSIS
        '...: ... files, ... bytes, all as they were made'
    """
    folder, manifest = (_index if name == "searchqa" else _catalogue)(path)
    sums = manifest.get("digests")
    if not sums:
        return f"{folder}: it has no checksums, as older ones; build it again to get some"
    size = sum(told["size"] for told in sums.values())
    return f"{folder}: {len(sums)} files, {size:,} bytes, all as they were made"


def _index(path: str | None) -> tuple[Path, dict[str, Any]]:
    from .envs.searchqa.choice import index_home
    from .envs.searchqa.index import check_index

    folder = index_home() if path is None else Path(path)
    return folder, check_index(folder)


def _catalogue(path: str | None) -> tuple[Path, dict[str, Any]]:
    from .envs.webshop.catalog import Catalog, check_files

    folder = data_path("webshop") if path is None else Path(path)
    manifest = Catalog.open(folder).manifest
    check_files(folder, manifest)
    return folder, manifest
