"""The words of a query."""

from __future__ import annotations

import re

__all__ = ["MOST_WORDS", "all_words", "query_words"]

MOST_WORDS = 64
"""Different words of a query that count; the rest of a longer one is left out."""

_WORD = re.compile(r"[^\W_]+")
_LONGEST = 64
_STOP = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "he",
        "her",
        "his",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "she",
        "that",
        "the",
        "their",
        "they",
        "this",
        "to",
        "was",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
    ]
)


def all_words(text: str) -> list[str]:
    """Return the words of a text, lower case.

    Example:
        >>> all_words("Emma, a novel")
        ['emma', 'a', 'novel']
    """
    return [word[:_LONGEST] for word in _WORD.findall(text.lower())]


def query_words(query: str) -> list[str]:
    """Return the different words of a query, lower case, in order, without the commonest ones.

    Where there are only common words, these are returned.

    Example:
        >>> query_words("Who wrote Emma?"), query_words("Who are they?")
        (['wrote', 'emma'], ['who', 'are', 'they'])
    """
    found = dict.fromkeys(all_words(query))
    words = [word for word in found if word not in _STOP] or list(found)
    return words[:MOST_WORDS]
