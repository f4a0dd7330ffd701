"""Porter's stemmer (1980) as Lucene has it.

It differs from the paper in three places: words of up to two letters stay, the suffix ``bli`` becomes
``ble`` (the paper has ``abli``), and ``logi`` becomes ``log``.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["stem"]

_Pairs = tuple[tuple[str, str], ...]
_PAIRS_2: _Pairs = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
)
_PAIRS_3: _Pairs = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_SUFFIXES_4 = (
    *("ement", "ance", "ence", "able", "ible", "ment", "sion", "tion"),
    *("ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize", "al", "er", "ic", "ou"),
)
_ENDS_2, _ENDS_3 = (tuple(suffix for suffix, _ in pairs) for pairs in (_PAIRS_2, _PAIRS_3))
_VOWELS = bytes(ord("v") if chr(code) in "aeiou" else ord("c") for code in range(256))


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return the stem of a lower-case word.

    Example:
        >>> [stem(word) for word in ("machines", "relational", "washable", "is")]
        ['machin', 'relat', 'washabl', 'is']
    """
    if len(word) <= 2:
        return word
    word = _past(_plural(word))
    if word[-1] == "y" and b"v" in _kinds(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _PAIRS_2, _ENDS_2)
    word = _replace(word, _PAIRS_3, _ENDS_3)
    return _final(_fourth(word))


def _plural(word: str) -> str:
    """Step 1a."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word[-1] == "s" and word[-2] != "s":
        return word[:-1]
    return word


def _past(word: str) -> str:
    """Step 1b."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        if not word.endswith(suffix):
            continue
        rest = word[: -len(suffix)]
        kinds = _kinds(rest)
        if b"v" not in kinds:
            continue
        if rest.endswith(("at", "bl", "iz")):
            return rest + "e"
        if rest[-1:] == rest[-2:-1] and kinds.endswith(b"c"):
            return rest if rest[-1] in "lsz" else rest[:-1]
        return rest + "e" if kinds.count(b"vc") == 1 and _short(rest) else rest
    return word


def _replace(word: str, pairs: _Pairs, ends: tuple[str, ...]) -> str:
    """Steps 2 and 3: the first suffix that fits decides, whether it is replaced or not."""
    if not word.endswith(ends):
        return word
    suffix, other = next(pair for pair in pairs if word.endswith(pair[0]))
    rest = word[: -len(suffix)]
    return rest + other if _measure(rest) else word


def _fourth(word: str) -> str:
    """Step 4."""
    if not word.endswith(_SUFFIXES_4):
        return word
    suffix = next(suffix for suffix in _SUFFIXES_4 if word.endswith(suffix))
    length = 3 if suffix in ("sion", "tion") else len(suffix)
    rest = word[:-length]
    return rest if _measure(rest) > 1 else word


def _final(word: str) -> str:
    """Step 5."""
    if word[-1] == "e":
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def _kinds(word: str) -> bytes:
    """Return ``v`` for each vowel and ``c`` for each consonant; y is a vowel after a consonant."""
    kinds = word.encode("latin-1", "replace").translate(_VOWELS)  # one byte a letter
    if "y" not in word:
        return kinds
    marks = bytearray(kinds)
    for place, letter in enumerate(word):
        if letter == "y" and place and marks[place - 1] == ord("c"):
            marks[place] = ord("v")
    return bytes(marks)


def _measure(word: str) -> int:
    """Return how often a vowel is followed by a consonant (Porter's m)."""
    return _kinds(word).count(b"vc")


def _short(word: str) -> bool:
    """Return whether the word ends consonant, vowel, consonant other than w, x, y."""
    return len(word) > 2 and _kinds(word).endswith(b"cvc") and word[-1] not in "wxy"
