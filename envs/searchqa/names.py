"""Names in texts: runs of words with a capital letter."""

from __future__ import annotations

import re

__all__ = ["names_in"]

_NAME = re.compile(
    r"[A-Z\u00c0-\u00de\u0100-\u017f][\w'’.-]*"
    r"(?:(?: (?:of|the|and|de|van|von|&))* [A-Z\u00c0-\u00de\u0100-\u017f0-9][\w'’.-]*)*"
)
_ASKING = frozenset(
    [
        "a",
        "an",
        "are",
        "at",
        "by",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "how",
        "if",
        "in",
        "is",
        "it",
        "of",
        "on",
        "the",
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
        "with",
    ]
)
_LONGEST = 20_000


def names_in(text: str) -> list[str]:
    """Return the names in a text, each once, in order; words that only begin a question are none.

    Example:
        >>> names_in("Who was the wife of Camille Paule, and where is The Hague?")
        ['Camille Paule', 'The Hague']
    """
    found = []
    for match in _NAME.finditer(text[:_LONGEST]):
        words = match[0].rstrip(".'’-").split()
        while words and words[0].lower() in _ASKING and (match.start() == 0 or len(words) == 1):
            words = words[1:]
        if words:
            found.append(" ".join(words).removesuffix("'s").removesuffix("’s"))
    return list(dict.fromkeys(found))
