"""What is otherwise drawn or derived, read from files: prices, price caps and nouns of titles."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound

__all__ = ["Given", "read_given"]

_File = str | os.PathLike[str]


@dataclass(frozen=True)
class Given:
    """Values that are fixed.

    Attributes:
        prices: Purchase prices by ASIN, in dollars.
        caps: Price caps of synthetic goals by ASIN.
        human_caps: Price caps of human goals by place in WebShop's shuffle.
        nouns: Nouns of titles by ASIN; None where no file was given.
    """

    prices: Mapping[str, float] = field(default_factory=dict)
    caps: Mapping[str, float] = field(default_factory=dict)
    human_caps: Mapping[int, float] = field(default_factory=dict)
    nouns: Mapping[str, tuple[str, ...]] | None = None


def read_given(
    prices: _File | None = None, price_caps: _File | None = None, title_nouns: _File | None = None
) -> Given:
    """Return what the files fix; see `build_catalog` for their forms.

    Raises:
        DataNotFound, DataCorrupt: A file is missing, or of another form.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "prices.json")
        ...     written = path.write_text('{"prices": {"B0": 5}}')
        ...     read_given(path).prices
        {'B0': 5.0}
    """
    fixed, caps = _object(prices), _object(price_caps)
    human: dict[int, float] = {}
    for entry in caps.get("human", ()):
        if not isinstance(entry, dict) or type(entry.get("goal_index")) is not int:
            raise _corrupt(price_caps, "objects with 'goal_index' and 'price_upper'", entry)
        human[entry["goal_index"]] = _number(price_caps, entry.get("price_upper"))
    nouns = None
    if title_nouns is not None:
        nouns = {asin: _texts(title_nouns, texts) for asin, texts in _object(title_nouns).items()}
    return Given(
        _numbers(prices, fixed.get("prices", fixed)),
        _numbers(price_caps, caps.get("synthetic", {})),
        human,
        nouns,
    )


def _object(path: _File | None) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one for no file."""
    if path is None:
        return {}
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataNotFound(
            f"expected a JSON file at {path}, found nothing; give another path, or none"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, "JSON", error) from error
    if not isinstance(content, dict):
        raise _corrupt(path, "a JSON object", content)
    return content


def _numbers(path: _File | None, content: Any) -> dict[str, float]:
    if not isinstance(content, dict):
        raise _corrupt(path, "numbers by ASIN", content)
    return {asin: _number(path, value) for asin, value in content.items()}


def _number(path: _File | None, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _corrupt(path, "a number of dollars", value)
    return float(value)


def _texts(path: _File, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _corrupt(path, "lists of texts by ASIN", value)
    return tuple(value)


def _corrupt(path: _File | None, expected: str, found: Any) -> DataCorrupt:
    told = str(found) if isinstance(found, Exception) else repr(found)
    return DataCorrupt(f"expected {expected} in {path}, found {told:.80}; mend the file")
