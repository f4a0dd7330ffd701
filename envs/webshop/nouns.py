"""The nouns of product titles, which the reward compares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import DataNotFound, MissingExtra, OptionError, suggest
from .words import table

__all__ = ["NOUN_RULES", "NounRule", "noun_rule"]

NOUN_RULES = ("auto", "spacy", "lexical")
"""``"auto"`` is spaCy where it and its model are installed, and the lexical rule otherwise."""

NounRule = Callable[[Sequence[tuple[str, str]]], list[tuple[str, ...]]]
"""Maps pairs of ASIN and title to the nouns of each title, lower case, in order, with repeats."""

_MODEL = "en_core_web_sm"
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


def noun_rule(name: str, given: Mapping[str, Sequence[str]] | None = None) -> tuple[str, NounRule]:
    """Return a rule's full name, for fingerprints, and the rule.

    The lexical rule takes as nouns all words of a title that have a letter, two characters, and are
    no function words (``data/words.json``). That is broader than a tagger: adjectives count.

    Args:
        name: One of `NOUN_RULES`.
        given: Nouns known by ASIN; the rule is asked for the other titles only.

    Raises:
        OptionError: There is no such rule.
        MissingExtra, DataNotFound: ``"spacy"`` is asked for, and it or its model is not installed.

    Example:
        >>> said, rule = noun_rule("lexical")
        >>> said, rule([("B0", "Men's Tuxedo T-Shirt, Size 8 (Pack of 2)")])
        ('lexical-1', [("men's", 'tuxedo', 't-shirt', 'size', 'pack')])
    """
    if name not in NOUN_RULES:
        raise OptionError(f"there is no noun rule {name!r}; {suggest(str(name), NOUN_RULES)}")
    said, rule = ("lexical-1", _lexical) if name == "lexical" else _spacy(name)
    if given is None:
        return said, rule

    def known_first(titles: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
        rest = [pair for pair in titles if pair[0] not in given]
        found = dict(zip((asin for asin, _ in rest), rule(rest), strict=True))
        return [tuple(given[asin]) if asin in given else found[asin] for asin, _ in titles]

    return f"given+{said}", known_first


def _lexical(titles: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    return [tuple(_words(title)) for _, title in titles]


def _words(title: str) -> Iterable[str]:
    dull = table("function_words")
    for word in _WORD.findall(title.lower()):
        if len(word) > 1 and word not in dull and any(letter.isalpha() for letter in word):
            yield word


def _spacy(name: str) -> tuple[str, NounRule]:
    """Return WebShop's own rule; the lexical one for ``"auto"`` where it cannot be had."""
    try:
        import spacy
    except ImportError as error:
        if name == "auto":
            return "lexical-1", _lexical
        raise MissingExtra.of("webshop", "the noun rule 'spacy'") from error
    try:
        tagger: Any = spacy.load(_MODEL, disable=["parser", "ner"])
    except OSError as error:
        if name == "auto":
            return "lexical-1", _lexical
        raise DataNotFound(
            f"expected spaCy's model {_MODEL}, found none; run: python -m spacy download {_MODEL}"
        ) from error

    def tagged(titles: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
        parsed = tagger.pipe(title for _, title in titles)
        return [
            tuple(token.text.lower() for token in text if token.pos_ in ("NOUN", "PROPN"))
            for text in parsed
        ]

    return f"spacy-{spacy.__version__}-{_MODEL}-{tagger.meta['version']}", tagged
