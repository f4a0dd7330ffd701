"""How text becomes search terms: the tokens, filters and stems of Lucene's English analyzer.

Words are those of Unicode's UAX #29 as Lucene's `StandardTokenizer` reads it (numbers and words join
over ``_``, ``.``, ``'`` and the like; Han and Hiragana give one token a character; pictographs are
tokens, other signs are not). Then come possessives, lower case, stop words and Porter's stemmer.
Nothing but the standard library and a table of Unicode properties (``data/word_break.json``) is used.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from functools import lru_cache
from importlib.resources import files

from .porter import stem
from .words import table

__all__ = ["LONGEST_TOKEN", "analyze", "tokens"]

LONGEST_TOKEN = 255
"""Longer runs of letters are cut, as in Lucene."""

_APOSTROPHES = ("'s", "\u2019s", "\uff07s", "'S", "\u2019S", "\uff07S")
_LETTERS = {
    "letter": "L",
    "hebrew": "H",
    "numeric": "N",
    "katakana": "K",
    "mid_letter": "M",
    "mid_number_letter": "B",
    "single_quote": "Q",
    "double_quote": "D",
    "mid_number": "U",
    "joiner": "J",
    "extend": "E",
    "han": "C",
    "hiragana": "G",
    "southeast_asian": "S",
    "pictographic": "P",
    "regional": "R",
}
_REMEMBERED = 50_000
# On ASCII text the word rule comes down to this: letters join over : . ', digits over , ; . '
_ASCII = re.compile(
    r"(?<!_)_*(?:[0-9]+(?:(?:_*|[,;.'])[0-9]+)*|[A-Za-z]+(?:(?:_*|[:.'])[A-Za-z]+)*)+"
    r"(?:_+(?:[0-9]+(?:(?:_*|[,;.'])[0-9]+)*|[A-Za-z]+(?:(?:_*|[:.'])[A-Za-z]+)*)+)*_*"
)


def analyze(text: str) -> list[str]:
    """Return the search terms of a text, in order, with repeats.

    Example:
        >>> analyze("The boss's machine-washable T-Shirts, size 8.5!")
        ['boss', 'machin', 'washabl', 't', 'shirt', 'size', '8.5']
    """
    return list(filter(None, map(_term, tokens(text))))


def tokens(text: str) -> list[str]:
    """Return the words of a text as they stand in it.

    Example:
        >>> tokens("Wi-Fi e.l.f. 1,000 \u2605 caf\u00e9")
        ['Wi', 'Fi', 'e.l.f', '1,000', '\u2605', 'caf\u00e9']
    """
    if text.isascii():
        found = _ASCII.findall(text)
    else:
        classes = _classes()
        kinds = text.translate(classes)
        if len(classes) > _REMEMBERED:
            _classes.cache_clear()
        found = [text[match.start() : match.end()] for match in _WORD.finditer(kinds)]
    if max(map(len, found), default=0) <= LONGEST_TOKEN:
        return found
    return [
        token[start : start + LONGEST_TOKEN]
        for token in found
        for start in range(0, len(token), LONGEST_TOKEN)
    ]


@lru_cache(maxsize=200_000)
def _term(token: str) -> str:
    """Return the term of a token, empty where it is a stop word."""
    if token.endswith(_APOSTROPHES):
        token = token[:-2]
    token = token.lower() if token.isascii() else "".join(map(_lower, token))
    return "" if token in table("stop_words") else stem(token)


def _lower(character: str) -> str:
    """Lower one character by itself, as Lucene does: no final sigma, no combining dot."""
    return character.lower()[:1]


class _Classes(dict[int, str]):
    """Maps a character's number to a letter for its class; ``-`` for those that end a word."""

    def __init__(self) -> None:
        super().__init__()
        read = json.loads(files(__package__).joinpath("data/word_break.json").read_text("utf-8"))
        spans = []
        for name, ranges in read["classes"].items():
            for span in ranges.split():
                first, _, last = span.partition("-")
                spans.append((int(first, 16), int(last or first, 16), name))
        spans.sort(key=lambda span: (span[0], span[2] == "pictographic"))
        self._starts = [first for first, _, _ in spans]
        self._spans = spans
        self.update({0x200D: "Z", 0xFE0F: "V", 0x20E3: "T", 0x23: "Y", 0x2A: "Y"})

    def __missing__(self, number: int) -> str:
        at = bisect_right(self._starts, number)
        kind = "-"
        for first, last, name in reversed(self._spans[max(0, at - 3) : at]):
            if first <= number <= last:
                kind = _LETTERS[name]
                if name != "pictographic":
                    break
        self[number] = kind
        return kind


_classes = lru_cache(maxsize=1)(_Classes)


def _word_rule() -> re.Pattern[str]:
    """Return the word rule, over letters for classes of characters."""
    rest = "[EVTZ]*"
    joiner, number, katakana, letter = f"J{rest}", f"N{rest}", f"K{rest}", f"[LH]{rest}"
    in_word, in_number = f"[MBQ]{rest}", f"[UBQ]{rest}"
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
