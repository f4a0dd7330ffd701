"""How text becomes search terms: the tokens, filters and stems of Lucene's English analyzer."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache, lru_cache

from ..storage import packaged

_WORDS = packaged(__package__, "words")
_SUFFIXES_2: dict[str, str] = _WORDS["suffixes_2"]
_SUFFIXES_3: dict[str, str] = _WORDS["suffixes_3"]
_SUFFIXES_4 = tuple(_WORDS["suffixes_4"])
_ENDS_2 = tuple(_SUFFIXES_2)
_ENDS_3 = tuple(_SUFFIXES_3)
_VOWELS = bytes(ord("v") if chr(code) in "aeiou" else ord("c") for code in range(256))


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return Porter's stem of a word, with the changes that Lucene made to his rules."""
    if len(word) <= 2:
        return word

    word = _past(_plural(word))
    if word[-1] == "y" and b"v" in _kinds(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _SUFFIXES_2, _ENDS_2)
    word = _replace(word, _SUFFIXES_3, _ENDS_3)
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


def _replace(word: str, suffixes: dict[str, str], ends: tuple[str, ...]) -> str:
    """Steps 2 and 3: the first suffix that fits decides, whether it is replaced or not."""
    if not word.endswith(ends):
        return word
    suffix = next(suffix for suffix in ends if word.endswith(suffix))
    rest = word[: -len(suffix)]
    return rest + suffixes[suffix] if _measure(rest) else word


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
    for index, letter in enumerate(word):
        if letter == "y" and index and marks[index - 1] == ord("c"):
            marks[index] = ord("v")
    return bytes(marks)


def _measure(word: str) -> int:
    """Return how often a vowel is followed by a consonant (Porter's m)."""
    return _kinds(word).count(b"vc")


def _short(word: str) -> bool:
    """Return whether the word ends consonant, vowel, consonant other than w, x, y."""
    return len(word) > 2 and _kinds(word).endswith(b"cvc") and word[-1] not in "wxy"


@cache
def table(name: str) -> dict[str, int]:
    """Return a list of words, each with its index; in the list's order."""
    return {word: index for index, word in enumerate(_WORDS[name].split())}


LONGEST_TOKEN = 255
"""Longer runs of letters are cut, as in Lucene."""

_APOSTROPHES = ("'s", "\u2019s", "\uff07s", "'S", "\u2019S", "\uff07S")
_REMEMBERED = 50_000
# On ASCII text the word rule comes down to this: letters join over : . ', digits over , ; . '
_ASCII = re.compile(
    r"(?<!_)_*(?:[0-9]+(?:(?:_*|[,;.'])[0-9]+)*|[A-Za-z]+(?:(?:_*|[:.'])[A-Za-z]+)*)+"
    r"(?:_+(?:[0-9]+(?:(?:_*|[,;.'])[0-9]+)*|[A-Za-z]+(?:(?:_*|[:.'])[A-Za-z]+)*)+)*_*"
)


def analyze(text: str) -> list[str]:
    """Return the search terms of a text, in order, with repeats."""
    return list(filter(None, map(_term, tokens(text))))


def tokens(text: str) -> list[str]:
    """Return the words of a text, as Unicode's rules for word breaks (UAX 29) find them."""
    if text.isascii():
        words = _ASCII.findall(text)
    else:
        classes = _classes()
        kinds = text.translate(classes)
        if len(classes) > _REMEMBERED:
            _classes.cache_clear()
        words = [text[match.start() : match.end()] for match in _WORD.finditer(kinds)]
    if max(map(len, words), default=0) <= LONGEST_TOKEN:
        return words

    parts = []
    for word in words:
        for start in range(0, len(word), LONGEST_TOKEN):
            parts.append(word[start : start + LONGEST_TOKEN])
    return parts


@lru_cache(maxsize=200_000)
def _term(token: str) -> str:
    """Return the search term of a word; empty for a stop word."""
    if token.endswith(_APOSTROPHES):
        token = token[:-2]

    # Lucene lowers each character by itself: no final sigma, no combining dot.
    token = token.lower() if token.isascii() else "".join(sign.lower()[:1] for sign in token)
    return "" if token in table("stop_words") else stem(token)


class _Classes(dict[int, str]):
    """Maps a character's number to a letter for its class; ``-`` for those that end a word."""

    def __init__(self) -> None:
        super().__init__()
        tables = packaged(__package__, "word_break")
        spans = []
        for name, ranges in tables["classes"].items():
            for span in ranges.split():
                first, _, last = span.partition("-")
                spans.append((int(first, 16), int(last or first, 16), name))

        spans.sort(key=lambda span: (span[0], span[2] == "pictographic"))
        self._starts = [first for first, _, _ in spans]
        self._spans = spans
        self._letters = tables["letters"]

        # The joiner, the variation selector, and what emoji are combined with.
        self.update({0x200D: "Z", 0xFE0F: "V", 0x20E3: "T", 0x23: "Y", 0x2A: "Y"})

    def __missing__(self, number: int) -> str:
        # Spans of the class "pictographic" may overlap others, whose class counts.
        end = bisect_right(self._starts, number)
        kind = "-"
        for first, last, name in reversed(self._spans[max(0, end - 3) : end]):
            if first <= number <= last:
                kind = self._letters[name]
                if name != "pictographic":
                    break
        self[number] = kind
        return kind


_classes = lru_cache(maxsize=1)(_Classes)


def _word_rule() -> re.Pattern[str]:
    """Return the word rule, over letters for classes of characters."""
    # After any character its marks and joiners belong to it (UAX 29, rule WB4).
    rest = "[EVTZ]*"
    joiner = f"J{rest}"
    number = f"N{rest}"
    katakana = f"K{rest}"
    letter = f"[LH]{rest}"
    in_word = f"[MBQ]{rest}"
    in_number = f"[UBQ]{rest}"
    quoted = f"(?<=H)D{rest}H{rest}"
    run = (
        f"(?:{katakana}(?:(?:{joiner})*{katakana})*"
        f"|(?:{number}(?:(?:(?:{joiner})*|{in_number}){number})*"
        f"|{letter}(?:(?:(?:{joiner})*|{in_word}){letter}|{quoted})*(?:(?<=H)Q{rest})?)+)"
    )
    rules = (
        f"R{rest}R{rest}",
        "YV?T",
        f"P{rest}(?:(?<=Z)P{rest})*",
        f"(?<!J)(?:{joiner})*{run}(?:(?:{joiner})+{run})*(?:{joiner})*",
        f"(?:S{rest})+",
        f"[CG]{rest}",
    )
    return re.compile("|".join(rules))


_WORD = _word_rule()
