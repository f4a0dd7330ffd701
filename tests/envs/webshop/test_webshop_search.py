"""Search: Lucene's lists, for small and large catalogues."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from comap.envs.webshop import search
from comap.envs.webshop.analyzer import analyze
from comap.envs.webshop.postings import IndexWriter, length_of_norm, norm_of_length
from comap.envs.webshop.search import SearchIndex
from comap.envs.webshop.texts import load_array


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
    monkeypatch.setattr(search, "_WHOLE", whole)
    monkeypatch.setattr(search, "_FEW_TERMS", 2 * whole)
    ranks = load_array(catalog.folder, "ranks")
    index = SearchIndex(catalog.folder, catalog.manifest["documents"], ranks)
    assert (index._ranked is None) is (index._words is None) is (whole == 0)
    asked = list(shared.recorded("search_top50.jsonl"))
    assert len(asked) == 200
    for row in asked:
        found = index.search(row["query"], 50)
        assert [catalog.asin(place) for place in found] == row["asins"], row["query"]


def test_scores_are_lucenes(catalog, shared):
    """To the four decimals that are recorded: a single wrong token in the catalogue would show."""
    index = catalog.index
    errors = []
    for row in shared.recorded("search_top50.jsonl"):
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


def test_catalog_search_gives_asins(catalog):
    assert catalog.search("red shoes", k=3) == [
        catalog.asin(row) for row in catalog.search_rows("red shoes", 50)[:3]
    ]
    assert catalog.search("zzzqqxx") == catalog.search("") == catalog.search("red", k=0) == []
    assert len(catalog.search("the red shoes", k=5000)) > 50


def naive(texts: list[str], query: str, k: int) -> list[int]:
    """BM25 as it is written in books, with lengths rounded as Lucene does."""
    bags = [Counter(analyze(text)) for text in texts]
    lengths = [length_of_norm(norm_of_length(bag.total())) for bag in bags]
    known = [bag.total() for bag in bags if bag]
    mean = sum(known) / len(known)
    scores = Counter[int]()
    for word, boost in Counter(analyze(query)).items():
        holders = [row for row, bag in enumerate(bags) if word in bag]
        idf = math.log(1 + (len(known) - len(holders) + 0.5) / (len(holders) + 0.5))
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
    monkeypatch.setattr(search, "_WHOLE", 0)
    index = SearchIndex(tmp_path, index._documents, index._ranks)
    assert index._ranked is None
    assert [index.search(query, k) for query in queries] == whole
    assert [index.search(query, k) for query in queries] == whole


def test_an_interrupted_search_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "_WHOLE", 0)
    index = index_of(tmp_path, made_up(300))
    before = index.search("w1 w2 w3", 10)

    def stop(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "concatenate", stop)
        with pytest.raises(KeyboardInterrupt):
            index.search("w1 w2 w3", 10)
    assert index.search("w1 w2 w3", 10) == before


def test_runs_do_not_matter(tmp_path):
    texts = made_up(200)
    index_of(tmp_path / "one", texts)
    index_of(tmp_path / "many", texts, run=100)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "many").iterdir())
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


@pytest.mark.parametrize("texts", [[], [""], ["", "the of"], ["tea"]], ids=str)
def test_tiny_catalogues(tmp_path, texts):
    assert index_of(tmp_path, texts).search("green tea", 50) == ([0] if texts == ["tea"] else [])


def test_lengths_are_rounded_as_lucene_does():
    lengths = [*range(2_000), *range(2_000, 100_000, 61)]
    kept = [length_of_norm(norm_of_length(length)) for length in lengths]
    assert kept[:40] == list(range(40))
    assert all(
        0 <= length - rounded <= length / 8 for length, rounded in zip(lengths, kept, strict=True)
    )
    assert norm_of_length(2**31 - 1) == 255
