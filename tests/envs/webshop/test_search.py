"""How text becomes search terms."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.envs.webshop import search
from comap.envs.webshop.analyzer import LONGEST_TOKEN, analyze, stem, tokens
from comap.envs.webshop.search import (
    IndexWriter,
    SearchIndex,
    length_of_norm,
    load_array,
    norm_of_length,
)

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))


def index_of(folder: Path, texts: list[str], run: int = 1 << 20) -> SearchIndex:
    folder.mkdir(exist_ok=True)
    writer = IndexWriter(folder, run)
    for text in texts:
        writer.add(analyze(text))
    ranks = np.arange(len(texts), dtype=np.uint32)[::-1]  # the last one comes first in a tie
    return SearchIndex(folder, writer.finish()["documents"], ranks)


def made_up(number: int, seed: int = 0) -> list[str]:
    """Texts of few words, so that there are ties, and some empty ones."""
    draws = random.Random(seed)
    words = [f"w{rank}" for rank in range(60) for _ in range(60 // (rank + 1))]
    return [" ".join(draws.choices(words, k=draws.randrange(80))) for _ in range(number)]


@pytest.mark.parametrize("whole", [20_000, 0], ids=["whole", "pruned"])
def test_lists_are_lucenes(catalog, shared, monkeypatch, whole):
    monkeypatch.setattr(search, "_MOST_SCORED", whole)
    monkeypatch.setattr(search, "_MOST_IN_MEMORY", 2 * whole)
    ranks = load_array(catalog.folder, "ranks")
    index = SearchIndex(catalog.folder, catalog.manifest["documents"], ranks)
    assert (index._ranked is None) is (index._words is None) is (whole == 0)
    recorded_searches = list(shared.rows("dev/search_top50.jsonl"))
    assert len(recorded_searches) == 200
    for row in recorded_searches:
        places = index.search(row["query"], 50)
        assert [catalog.asin(place) for place in places] == row["asins"], row["query"]


def test_scores_are_lucenes(catalog, shared):
    """To the four decimals that are recorded: a single wrong token in the catalogue would show."""
    index = catalog.index
    errors = []
    for row in shared.rows("dev/search_top50.jsonl"):
        words = Counter(analyze(row["query"]))
        counts = {index._number(word): count for word, count in words.items()}
        counts.pop(-1, None)
        sums = np.zeros(len(catalog))
        for term in index._terms_of(counts):
            rows, scores = index._list(term)
            sums[rows] += scores
        rows = [catalog.row(asin) for asin in row["asins"]]
        errors += [abs(sums[r] - s) for r, s in zip(rows, row["scores"], strict=True)]
    assert len(errors) > 8000 and max(errors) < 6e-5


def naive(texts: list[str], query: str, k: int) -> list[int]:
    """BM25 as it is written in books, with lengths rounded as Lucene does."""
    bags = [Counter(analyze(text)) for text in texts]
    lengths = [length_of_norm(norm_of_length(bag.total())) for bag in bags]
    totals = [bag.total() for bag in bags if bag]
    mean = sum(totals) / len(totals)
    scores = Counter[int]()
    for word, boost in Counter(analyze(query)).items():
        holders = [row for row, bag in enumerate(bags) if word in bag]
        idf = math.log(1 + (len(totals) - len(holders) + 0.5) / (len(holders) + 0.5))
        for row in holders:
            count, norm = bags[row][word], 0.9 * (0.6 + 0.4 * lengths[row] / mean)
            scores[row] += boost * idf * count / (count + norm)
    return sorted(scores, key=lambda row: (-round(scores[row], 5), -row))[:k]


def test_search_is_bm25(tmp_path):
    texts = made_up(300)
    index = index_of(tmp_path, texts)
    draws = random.Random(1)
    for _ in range(60):
        query = " ".join(draws.choices([f"w{rank}" for rank in range(60)], k=draws.randrange(1, 9)))
        assert index.search(query, 40) == naive(texts, query, 40), query


@pytest.mark.parametrize("k", [1, 7, 50, 5000])
def test_pruning_changes_nothing(tmp_path, monkeypatch, k):
    index = index_of(tmp_path, made_up(3000))
    draws = random.Random(2)
    queries = [
        " ".join(draws.choices([f"w{r}" for r in range(60)], k=n % 12 + 1)) for n in range(60)
    ]
    whole = [index.search(query, k) for query in queries]
    monkeypatch.setattr(search, "_MOST_SCORED", 0)
    index = SearchIndex(tmp_path, index._documents, index._ranks)
    assert index._ranked is None
    assert [index.search(query, k) for query in queries] == whole
    assert [index.search(query, k) for query in queries] == whole


@pytest.mark.parametrize("texts", [[], [""], ["", "the of"], ["tea"]], ids=str)
def test_tiny_catalogues(tmp_path, texts):
    assert index_of(tmp_path, texts).search("green tea", 50) == ([0] if texts == ["tea"] else [])


TOKENS = CASES["tokens"]


@pytest.mark.parametrize("text", TOKENS)
def test_words_are_those_of_unicode(text: str) -> None:
    assert tokens(text) == TOKENS[text]


def test_terms_are_filtered_and_stemmed() -> None:
    assert analyze("The boss's Machines are NOT of \u0130stanbul; men\u2019s") == (
        ["boss", "machin", "istanbul", "men"]
    )


STEMS = CASES["stems"]


@pytest.mark.parametrize("word", STEMS)
def test_stems_are_lucenes(word: str) -> None:
    assert stem(word) == STEMS[word]


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=60))
def test_any_text_has_words(text: str) -> None:
    position = 0
    for word in tokens(text):
        position = text.index(word, position) + len(word)  # in order, without overlap
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
