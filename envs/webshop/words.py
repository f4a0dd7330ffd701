"""Lists of words, from ``data/words.json``."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

__all__ = ["table"]


@cache
def table(name: str) -> dict[str, int]:
    """Return a list of words, each with its place; in the list's order.

    Args:
        name: ``"stop_words"`` (Lucene's), ``"function_words"`` (no nouns) or ``"colors"`` (the
            names that WebShop looks for in option values).

    Example:
        >>> "the" in table("stop_words"), list(table("colors"))[:2]
        (True, ['alabaster', 'apricot'])
    """
    lists = json.loads(files(__package__).joinpath("data/words.json").read_text("utf-8"))
    return {word: place for place, word in enumerate(lists[name].split())}
