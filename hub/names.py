"""Which files may go to a repository and come from it, and what has to be in them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from ..errors import DataCorrupt

__all__ = ["allowed", "check_content", "parameters_in", "without_places"]

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")
_SUFFIXES = frozenset({".json", ".jsonl", ".safetensors", ".parquet", ".txt", ".md", ".jinja"})
_DEPTH = 4
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
_MOST_HEADER = 100 * 2**20  # what the format's own library allows
_PLACES = ("base_model_name_or_path", "_name_or_path", "name_or_path")


def allowed(name: object) -> bool:
    """Return whether a file of this name may go to a repository, or come from one.

    A name is relative, of few plain parts, and ends as JSON, safe tensors, Parquet or plain text do.

    Example:
        >>> [allowed(name) for name in ("agent/model.safetensors", "../a.json", "/a.json", "a.bin")]
        [True, False, False, False]
    """
    if not isinstance(name, str) or len(name) > 240:
        return False
    parts = name.split("/")
    return (
        len(parts) <= _DEPTH
        and all(_PART.fullmatch(part) and not part.endswith(".") for part in parts)
        and not any(_DEVICES.fullmatch(part) for part in parts)
        and Path(name).suffix in _SUFFIXES
    )


def check_content(path: Path, name: str) -> None:
    """Do nothing, if a file is what its name says.

    Args:
        path: The file.
        name: Its name in the repository.

    Raises:
        DataCorrupt: It is something else; a pickle under another name, say.
    """
    suffix = Path(name).suffix
    try:
        if suffix == ".json":
            json.loads(path.read_bytes())
        elif suffix == ".safetensors":
            parameters_in(path)
        elif suffix == ".parquet":
            with path.open("rb") as file:
                if file.read(4) != b"PAR1":
                    raise ValueError("it does not begin as Parquet does")
        else:
            path.read_text("utf-8")
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(
            f"expected {suffix[1:]} in {name}, found something else ({error!s:.120}); push it again, "
            "or ask those who did"
        ) from error


def parameters_in(path: Path) -> int:
    """Return the number of values in a file of safe tensors, after a look at its header alone.

    Raises:
        DataCorrupt: It is no such file.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            rest = path.stat().st_size - 8 - size
            if rest < 0 or size > _MOST_HEADER:
                raise ValueError("its header does not fit into it")
            header = json.loads(file.read(size))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        for entry in tensors:
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= rest:
                raise ValueError("a tensor lies outside of it")
        return sum(math.prod(entry["shape"]) for entry in tensors)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataCorrupt(
            f"expected safe tensors in {path.name}, found something else ({error!s:.120})"
        ) from error


def without_places(value: Any) -> Any:
    """Return JSON data in which names of models tell no place on a machine.

    Example:
        >>> without_places({"_name_or_path": "/home/me/base", "peft_type": "LORA"})
        {'_name_or_path': 'base', 'peft_type': 'LORA'}
    """
    if isinstance(value, list):
        return [without_places(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: re.split(r"[\\/]", part.rstrip("\\/"))[-1]
        if key in _PLACES and isinstance(part, str) and re.match(r"[\\/~.]|[A-Za-z]:[\\/]", part)
        else without_places(part)
        for key, part in value.items()
    }
