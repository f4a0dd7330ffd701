"""What every result says beside its numbers: versions, hardware, date, and a folder's journal."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import OptionError
from ..jsonl import append, replacing_file
from ..redaction import public_words

JOURNAL = "journal.jsonl"
"""The file of a folder with a line for each session of a command that wrote there."""

_PACKAGES = ("gymnasium", "numpy", "torch", "transformers", "trl")


def circumstances(packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return when, with which versions and on what machine a benchmark runs."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": {
            "comap": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "hardware": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "system": platform.system(),
        },
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return smallest, quartiles and largest of one or more values."""
    if len(values) > 1:
        quartiles = statistics.quantiles(values, n=4, method="inclusive")
    else:
        quartiles = [values[0]] * 3  # which statistics refuses to take of one value

    first_quartile, median, third_quartile = quartiles
    return {
        "min": min(values),
        "q1": first_quartile,
        "median": median,
        "q3": third_quartile,
        "max": max(values),
    }


def write_result(path: Path, result: object) -> None:
    """Write a result as JSON so that a reader finds the old file or the new one, whole."""
    with replacing_file(path) as file:
        file.write((json.dumps(result, indent=2, ensure_ascii=False) + "\n").encode())


def version(package: str) -> str | None:
    """Return the version of a package that is installed; None where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """Return the processor's name, as Linux or else Python tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


class Session:
    """A session under way."""

    exit = 70  # of a fault within the program (sysexits.h), unless the command says otherwise


@contextmanager
def journal(words: Sequence[str], folder: Path) -> Iterator[Session]:
    """Add a line to the folder's journal when the block ends, however it does: what was done."""
    # A link might lead anywhere; said now, not when all is done.
    path = folder / JOURNAL
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OptionError(
            f"expected a plain file at {path}, found a link or something else; remove it, or choose "
            "another folder"
        )
    session = Session()
    started = circumstances()["date"]
    try:
        yield session
    finally:
        # Of the processes of one training (torchrun's RANK) the first one writes.
        if folder.is_dir() and os.environ.get("RANK", "0") == "0":
            session_circumstances = circumstances(_PACKAGES)
            line = {
                "started": started,
                "ended": session_circumstances.pop("date"),
                "exit": session.exit,
                "command": public_words(words),
                "commit": commit(),
                **session_circumstances,
            }
            with suppress(OSError):  # a full disk must not hide what ended the command
                append(path, [line])


@cache
def commit() -> str | None:
    """Return the commit that this comap is, with ``-dirty`` where files were changed; None if unknown."""
    root = Path(__file__).parents[1]
    if (root / ".git").exists():
        # Without any tag (--exclude=*) what describes a commit is its number.
        words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
        with suppress(OSError, subprocess.SubprocessError):
            process = subprocess.run(
                [*words, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
            )
            return process.stdout.strip() or None
        return None

    # pip writes down the commit that it installed from a repository.
    with suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        source = metadata.distribution("comap").read_text("direct_url.json")
        return str(json.loads(source or "{}")["vcs_info"]["commit_id"])
    return None
