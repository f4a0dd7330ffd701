"""The overlay: what live servers and simulators answered, kept beside the official cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ...checksums import seal, unseal
from ...errors import CoMapError, DataCorrupt
from ..storage import append_lines, locked, on_disk
from .backends import Backend, BackendFault, Hit, Request
from .cache import same_arguments
from .facts import error_kind
from .values import NotJSON, canonical_json, read_json_text

__all__ = ["Overlay", "Recording"]

_WAIT = 30.0
_PASSING = frozenset(("rate", "timeout", "not_working", "unauthorized", "unsubscribed", "request"))


class Overlay:
    """Answers from a file of JSON lines, which grows; many processes may write to it at once.

    Of two answers to one call the first that was written counts, for every process, so that a run that
    is repeated gets the same answers. A line that a killed process left unfinished is skipped, and so
    is one that was changed, as its checksum tells; both are counted as `broken`, and asked for again.

    Args:
        path: The file; it is made when something is first kept.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     overlay = Overlay(Path(folder, "overlay.jsonl"))
        ...     request = Request("Food", "cocktails", "by_id", {"id": 7})
        ...     kept = overlay.keep(request, Hit("", "Daiquiri", "sim"))
        ...     overlay.keep(request, Hit("", "Mojito", "sim")).response
        'Daiquiri'
    """

    name = "overlay"

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.broken = 0
        self._hits: dict[str, Hit] = {}
        self._read = 0

    def answer(self, request: Request) -> Hit | None:
        """Return what was kept; its source tells who answered first.

        Raises:
            BackendFault: The file cannot be read.
        """
        key = _key(request)
        found = self._hits.get(key)
        if found is None:
            try:
                self._catch_up()
            except OSError as error:
                raise BackendFault(f"the overlay cannot be read ({type(error).__name__})") from None
            found = self._hits.get(key)
        return found

    def keep(self, request: Request, hit: Hit) -> Hit:
        """Keep an answer and return the one that counts.

        Raises:
            BackendFault: It cannot be written.
        """
        key = _key(request)
        entry = {
            "key": key,
            "category": request.category,
            "tool": request.tool,
            "api": request.api,
            "error": hit.error,
            "response": hit.response,
            "source": hit.source,
        }
        line = f"{seal(json.dumps(entry, default=str))}\n".encode()
        try:
            with on_disk(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_name(f"{self.path.name}.lock"), wait=_WAIT):
                self._catch_up()
                if key not in self._hits:
                    append_lines(self.path, line)
                    self._catch_up()
        except (CoMapError, OSError) as error:
            raise BackendFault(f"the overlay cannot be written ({type(error).__name__})") from None
        return self._hits[key]

    def sha256(self) -> str:
        """Return the SHA-256 of the answers that are kept, in order of their keys."""
        try:
            self._catch_up()
        except OSError:
            return "unreadable"
        told = "".join(
            f"{key}\n{canonical_json(list(self._hits[key]))}\n" for key in sorted(self._hits)
        )
        return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()

    def _catch_up(self) -> None:
        """Read the whole lines that were added since the last time."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry: Any = unseal(line.decode(), read_json_text)
            key, error, source = entry["key"], entry["error"], entry["source"]
            if not (isinstance(key, str) and isinstance(error, str) and isinstance(source, str)):
                raise NotJSON("no entry")
            self._hits.setdefault(key, Hit(error, entry["response"], source))
        except (NotJSON, DataCorrupt, UnicodeDecodeError, KeyError, TypeError):
            self.broken += bool(line.strip())


class Recording:
    """A backend whose answers are kept.

    Answers that tell of a passing fault of the server are given, but not kept.

    Args:
        backend: Who answers.
        overlay: Where answers are kept.
    """

    def __init__(self, backend: Backend, overlay: Overlay):
        self.backend, self.overlay = backend, overlay
        self.name = backend.name

    def answer(self, request: Request) -> Hit | None:
        """Return what counts: the answer that is kept.

        Raises:
            BackendFault: The backend cannot answer, or its answer cannot be kept.
        """
        hit = self.backend.answer(request)
        if hit is None or error_kind(hit.error) in _PASSING:
            return hit
        return self.overlay.keep(request, hit)


def _key(request: Request) -> str:
    return (
        canonical_json(
            [request.category, request.tool, request.api, same_arguments(request.arguments)]
        )
        .encode("utf-8", "replace")
        .decode()
    )
