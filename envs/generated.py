"""Data that are generated and kept: told apart by the code that generates them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["code_digest"]

_FOLDER = "data"


@lru_cache(maxsize=8)
def code_digest(package: str) -> str:
    """Return the SHA-256 of a package's modules and JSON data: other code may generate other data.

    Args:
        package: Its name; packages within it are no part of it, but its folder ``data`` is.

    Example:
        >>> len(code_digest(__package__))
        64
    """
    digest = hashlib.sha256()

    def take(folder: Any) -> None:
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.is_dir() and path.name == _FOLDER:
                take(path)
            elif path.name.endswith((".py", ".json")):
                digest.update(path.name.encode() + path.read_bytes())

    take(files(package))
    return digest.hexdigest()
