"""The official cache of responses, read only: one file an API, keyed by the written arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import DataNotFound
from .backends import BackendFault, Hit, Request
from .names import file_part, folder_of_category
from .values import NotJSON, canonical_json, read_json_text

__all__ = ["ResponseCache", "same_arguments"]

_MOST_BYTES = 64 * 2**20
_LONGEST_KEY = 20_000


class ResponseCache:
    """Answers from files ``<category>/<tool>_for_<category>/<api>.json``.

    A file is a dictionary from arguments, written as Python writes them, to answers. The exact key
    counts first; then arguments that are equal as data, whatever their order, and whether numbers are
    written as texts. Nothing is ever written here, and no name leads out of the folder.

    Args:
        folder: ``tool_response_cache``.

    Raises:
        DataNotFound: There is no such folder.
    """

    name = "cache"

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataNotFound(f"expected a folder of cached responses at {folder}, found none")
        self._root = self.folder.resolve()

    def answer(self, request: Request) -> Hit | None:
        """Return the cached answer; None where there is none.

        Raises:
            BackendFault: The file is broken.
        """
        path = self.path_of(request)
        if path is None:
            return None
        try:
            stat = path.stat()
        except (OSError, ValueError):
            return None
        entries, known = _read(path, stat.st_mtime_ns, stat.st_size)
        found = entries.get(str(dict(request.arguments)))
        if found is None:
            key = known.get(same_arguments(request.arguments))
            found = None if key is None else entries[key]
        return None if found is None else _hit(found, path)

    def path_of(self, request: Request) -> Path | None:
        """Return the file that would have the answer; None where a name may not be part of a path."""
        category = folder_of_category(request.category)
        parts = (category, f"{request.tool}_for_{category}", f"{request.api}.json")
        names = [file_part(part) for part in (request.tool, request.api, *parts)]
        if None in names:
            return None
        path = self.folder.joinpath(*parts)
        try:
            inside = path.resolve().is_relative_to(self._root)
        except (OSError, ValueError, RuntimeError):
            return None
        return path if inside else None


def same_arguments(arguments: Mapping[str, Any]) -> str:
    """Return a key that is the same for arguments that mean the same.

    Example:
        >>> same_arguments({"a": 1, "b": True}) == same_arguments({"b": "true", "a": "1"})
        True
    """
    return canonical_json({str(name): _plain(value) for name, value in arguments.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str):
        text = value.strip()
        return text.lower() if text in ("True", "False") else text
    return str(value)


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, size: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return the entries of a file, and their keys by what their arguments mean."""
    if size > _MOST_BYTES:
        raise BackendFault(f"{path.name} has {size:,} bytes")
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BackendFault(f"{path.name} is broken ({type(error).__name__})") from error
    if not isinstance(entries, dict):
        raise BackendFault(f"{path.name} is no dictionary")
    known: dict[str, str] = {}
    for key in entries:
        arguments = _arguments(key)
        if arguments is not None:
            known.setdefault(same_arguments(arguments), key)
    return entries, known


def _arguments(key: str) -> dict[str, Any] | None:
    """Return the arguments that a key writes, as Python's literals or as JSON; nothing is evaluated."""
    import ast

    if len(key) > _LONGEST_KEY:
        return None
    try:
        data = ast.literal_eval(key)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        try:
            data = read_json_text(key)
        except NotJSON:
            return None
    return data if isinstance(data, dict) else None


def _hit(found: Any, path: Path) -> Hit:
    if not isinstance(found, dict) or "response" not in found:
        raise BackendFault(f"an entry of {path.name} has no response")
    error = found.get("error") or ""
    return Hit(error if isinstance(error, str) else json.dumps(error), found["response"], "cache")
