"""The journal of a folder: a line for each session of a command that wrote there.

``run.json`` tells what is run and with what; the journal tells what else one wants to know later: which
command it was, when it began and ended and how, of which commit. A session that was killed leaves no
line.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from .record import circumstances

__all__ = ["JOURNAL", "Session", "commit", "journal", "public_words", "read_journal"]

JOURNAL = "journal.jsonl"
"""The file's name."""

_PACKAGES = ("gymnasium", "numpy", "torch", "transformers", "trl")
_SECRET = re.compile(r"key|token$|secret|password|credential", re.IGNORECASE)
_PLACE = re.compile(r"(?:(?<=[=,\[\"'(])|^)(?:~|/|[A-Za-z]:[\\/])[^,\"'\])=]*")
_URL = re.compile(r"(\w+://)(?:[^/@\s]*@)?([^?\s]*)(?:\?\S*)?")


class Session:
    """A session under way.

    Attributes:
        folder: Where it writes; None, or a folder that is not there at the end, for no journal.
        exit: The exit status; that of a fault until it is set.
    """

    def __init__(self, folder: Path | None):
        self.folder, self.exit = folder, 70


@contextmanager
def journal(words: Sequence[str], folder: Path | None = None) -> Iterator[Session]:
    """Write down, when the block ends, what was done: a line in the folder's journal.

    A folder that cannot be written goes without.

    Args:
        words: The command line.
        folder: See `Session`; it may be set later.

    Example:
        >>> with journal(["run", "--out", "/home/me/runs"], Path(".")) as session:
        ...     session.exit = 0
        >>> [(line["command"], line["exit"]) for line in read_journal(Path("."))]
        [(['run', '--out', '.../runs'], 0)]
    """
    session, started = Session(folder), _now()
    try:
        yield session
    finally:
        place = session.folder
        if place is not None and place.is_dir() and os.environ.get("RANK", "0") == "0":
            told = circumstances(_PACKAGES)
            line = {
                "started": started,
                "ended": told.pop("date"),
                "exit": session.exit,
                "command": public_words(words),
                "commit": commit(),
                **told,
            }
            with suppress(OSError):
                _append(place / JOURNAL, json.dumps(line))


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Return the sessions of a folder, the oldest first; half a line, left by a kill, is none.

    Example:
        >>> read_journal(Path("nowhere"))
        []
    """
    path, found = folder / JOURNAL, []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                found.append(entry)
    return found


def public_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command without secrets, and of machine paths only the last name.

    Example:
        >>> public_words(["--model-option", "api_key=abc", "--data-dir=/home/me/data", "--seed", "1"])
        ['--model-option', 'api_key=***', '--data-dir=.../data', '--seed', '1']
        >>> public_words(["--base-url", "http://me:word@host:1/v1?key=abc", "--token", "abc"])
        ['--base-url', 'http://host:1/v1', '--token', '***']
    """
    shown, hide = [], False
    for word in words:
        name, equals, value = word.partition("=")
        bare = name.lstrip("-").replace("-", "_")
        secret = "://" not in name and bool(_SECRET.search(bare)) and not bare.endswith("_env")
        if hide and not word.startswith("--"):
            shown.append("***")
        elif equals and value and secret:
            shown.append(f"{name}=***")
        elif "://" in word:
            shown.append(_URL.sub(r"\1\2", word))
        else:
            shown.append(_PLACE.sub(_last_name, word))
        hide = word.startswith("--") and not equals and secret
    return shown


@cache
def commit() -> str | None:
    """Return the commit that this comap is, with ``-dirty`` where files were changed; None if unknown.

    Example:
        >>> (commit() or "0" * 40)[:40].isalnum()
        True
    """
    root = Path(__file__).parents[1]
    if (root / ".git").exists():
        words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [*words, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
            )
            return done.stdout.strip() or None
        return None
    with suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        told = metadata.distribution("comap").read_text("direct_url.json")
        return str(json.loads(told or "{}")["vcs_info"]["commit_id"])
    return None


def _last_name(found: re.Match[str]) -> str:
    name = re.split(r"[\\/]", found[0].rstrip("\\/"))[-1]
    return f".../{name}" if name not in ("", "~") else "..."


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _append(path: Path, line: str) -> None:
    """Add a line in one piece; what a kill has left unfinished before it ends there."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        broken = False
        if end:
            file.seek(end - 1)
            broken = file.read(1) != b"\n"
        file.write(("\n" if broken else "").encode() + line.encode() + b"\n")
