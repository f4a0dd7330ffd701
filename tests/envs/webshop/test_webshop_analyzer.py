"""How text becomes search terms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.envs.webshop.analyzer import LONGEST_TOKEN, analyze, tokens
from comap.envs.webshop.porter import stem

TOKENS = {
    "'em O'Neil's dog's": ["em", "O'Neil's", "dog's"],
    "e.l.f. T.V. stand 3.5mm 1,000 8.5; 5'10\"": (
        ["e.l.f", "T.V", "stand", "3.5mm", "1,000", "8.5", "5'10"]
    ),
    "title:shoe a_b __c x__ wi-fi": ["title:shoe", "a_b", "__c", "x__", "wi", "fi"],
    "½ ¼ … — ! $$": [],
    "men\u2019s \uff07x": ["men\u2019s", "x"],
    "日本語版 tea ひら カタカナ": ["日", "本", "語", "版", "tea", "ひ", "ら", "カタカナ"],
    "한국어 ไทย": ["한국어", "ไทย"],
    "★ ❤️ ® 🎄🎄 👩\u200d👧 1️⃣ #️⃣ 🇩🇪🇫🇷": (
        ["★", "❤️", "®", "🎄", "🎄", "👩\u200d👧", "1️⃣", "#️⃣", "🇩🇪", "🇫🇷"]
    ),
    "cafe\u0301 na\u00efve": ["cafe\u0301", "na\u00efve"],
    "ש'ה א\"ב ٣٤": ["ש'ה", 'א"ב', "٣٤"],
}


@pytest.mark.parametrize("text", TOKENS)
def test_words_are_those_of_unicode(text: str) -> None:
    assert tokens(text) == TOKENS[text]


def test_terms_are_filtered_and_stemmed() -> None:
    assert analyze("The boss's Machines are NOT of \u0130stanbul; men\u2019s") == (
        ["boss", "machin", "istanbul", "men"]
    )


STEMS = {
    "caresses": "caress",
    "ponies": "poni",
    "cats": "cat",
    "ss": "ss",
    "agreed": "agre",
    "feed": "feed",
    "hopping": "hop",
    "falling": "fall",
    "filing": "file",
    "sky": "sky",
    "happy": "happi",
    "rational": "ration",
    "conditional": "condit",
    "possibly": "possibl",  # Lucene's bli -> ble
    "analogy": "analog",
    "archaeology": "archaeolog",  # Lucene's logi -> log
    "triplicate": "triplic",
    "adoption": "adopt",
    "replacement": "replac",
    "controlling": "control",
    "probate": "probat",
    "is": "is",
    "la\u00f1ed": "la\u00f1e",
    "\u65e5s": "\u65e5s",
}


@pytest.mark.parametrize("word", STEMS)
def test_stems_are_lucenes(word: str) -> None:
    assert stem(word) == STEMS[word]


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_any_text_has_words(text: str) -> None:
    at = 0
    for word in tokens(text):
        at = text.index(word, at) + len(word)  # in order, without overlap
        assert word.strip()
    analyze(text)


@settings(deadline=None, max_examples=300)
@given(st.text("abZ09_.,:;'-! ", max_size=30))
def test_the_short_rule_for_ascii_is_the_long_one(text: str) -> None:
    assert tokens(text) == tokens(f"{text} \u00e9")[:-1]


@pytest.mark.parametrize(
    "text", ["_", "a.", "a_", "'", "1,", "e\u0301_", "\u00e9\u200d", "🎄\u200d"]
)
def test_long_texts_cost_little_more_than_their_length(text: str) -> None:
    assert all(len(word) <= LONGEST_TOKEN for word in tokens(text * 50_000))
