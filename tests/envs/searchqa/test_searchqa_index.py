"""Indexes: what they find, in which order, and that broken ones are known."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from comap.cli import main
from comap.envs.searchqa import (
    HybridRetriever,
    TransformerEncoder,
    build_index,
    open_index,
)
from comap.envs.searchqa.lexical import PASSAGES
from comap.envs.searchqa.retriever import CallableRetriever
from comap.envs.searchqa.tasks import choose_retriever
from comap.errors import DataCorrupt, DataNotFound, EngineError, OptionError
from kits.books import write_book
from kits.tiny_encoder import write_tiny_encoder


class Letters:
    """An encoder that counts letters."""

    name = "letters"

    def encode(self, texts, side):
        rows = np.array(
            [[text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        )
        rows = rows.astype(np.float32) + 1e-3
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def built_index(kind: str, corpus: Path, out: Path):
    if kind == "tantivy":
        pytest.importorskip("tantivy")
    encoder = Letters() if kind == "dense" else None
    return open_index(build_index(corpus, out, kind, encoder=encoder), encoder=encoder)


@pytest.mark.parametrize("kind", ["fts5", "tantivy", "dense"])
def test_each_kind_finds_and_orders(kind: str, book: Path, tmp_path: Path) -> None:
    index = built_index(kind, book, tmp_path / kind)
    (novel_hits,) = index.search(["Who wrote the novel Emma?"], k=2)
    if kind != "dense":
        assert novel_hits[0].title == "Emma (novel)" and novel_hits[0].id == "c"
        assert novel_hits[0].text == "Emma is a novel by Jane Austen about youthful pride."
        assert index.search(["", "?!", "zzzz"]) == [[], [], []]
    assert [hit.score for hit in novel_hits] == sorted(
        (hit.score for hit in novel_hits), reverse=True
    )
    assert len(index.search(["river"], k=50)[0]) <= 5
    hits_by_query = index.search(["river", "novel"], k=3)
    for hits, query in zip(hits_by_query, ("river", "novel"), strict=True):
        alone = index.search([query], k=3)[0]
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone])
    assert index.identity.startswith(kind)


@pytest.mark.parametrize("kind", ["fts5", "tantivy", "dense"])
def test_ties_are_broken_by_id(kind: str, tmp_path: Path) -> None:
    """Twelve equal passages, in no order, of which three are asked for."""
    names = [f"p{number:02d}" for number in range(12)]
    mixed = sorted(names, key=lambda name: name[::-1])
    corpus = write_book(tmp_path, [(name, "Same", "equal words") for name in mixed])
    index = built_index(kind, corpus, tmp_path / kind)
    for k in (1, 3, 12, 100):
        assert [hit.id for hit in index.search(["equal words"], k)[0]] == names[:k]


@pytest.mark.parametrize("kind", ["fts5", "tantivy"])
def test_queries_are_words_and_not_syntax(kind: str, book: Path, tmp_path: Path) -> None:
    index = built_index(kind, book, tmp_path / kind)
    for query in ('emma" OR "', "title: emma", "NEAR(emma)", "emma*", "\x00emma\ud83d", "'; DROP"):
        for hits in index.search([query, "-emma AND (", "emma " * 5000], k=3):
            assert all(hit.id in "abcde" for hit in hits)
    assert index.search(["EMMA'S novels"])[0][0].title == "Emma (novel)"


BAD = {
    "no JSON": b"{",
    "no object": b"3",
    "no id": b'{"contents": "x"}',
    "no text": b'{"id": "1", "contents": 3}',
    "an id that is none": b'{"id": true, "contents": "x"}',
    "half a character": b'{"id": "1", "contents": "\\ud800"}',
    "other bytes": b'\xff\xfe{"id"',
    "deep": b"[" * 100_000,
    "a repeated id": b'{"id": "a", "contents": "x"}\n{"id": "a", "contents": "y"}',
    "nothing": b"\n\n",
    "a line without end": b'{"id": "' + b"x" * (4 * 2**20) + b'"}',
}


@pytest.mark.parametrize("name", BAD)
def test_a_corpus_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(BAD[name])
    with pytest.raises(DataCorrupt, match="expected"):
        build_index(corpus, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_what_cannot_be_built(book: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'fts5'"):
        build_index(book, tmp_path / "out", "fts")
    with pytest.raises(OptionError, match="kind 'dense'"):
        build_index(book, tmp_path / "out", encoder="e5")
    with pytest.raises(DataNotFound):
        build_index(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(OptionError, match="other files"):
        build_index(book, tmp_path)
    assert book.is_file()


def test_an_index_is_replaced_as_a_whole(book: Path, tmp_path: Path) -> None:
    out = build_index(book, tmp_path / "out")
    before = open_index(out)
    assert before.search(["emma"])[0]
    build_index(write_book(tmp_path, [("z", "Other", "things")]), out)
    assert (
        open_index(out).search(["things"])[0][0].id == "z"
        and not open_index(out).search(["emma"])[0]
    )
    write_book(tmp_path, [("z", "Other", "things"), ("z", "x", "y")])
    with pytest.raises(DataCorrupt):
        build_index(tmp_path / "corpus.jsonl", out)
    assert open_index(out).search(["things"])[0]
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "out"}


def test_half_an_index_is_detected(index: Path, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="comap data build searchqa"):
        open_index(tmp_path / "nothing")
    copy = tmp_path / "copy"
    future_index = json.dumps(
        json.loads((index / "index.json").read_text()) | {"format": 99}
    ).encode()
    for name, change, error in (
        ("index.json", None, DataNotFound),
        (PASSAGES, lambda content: content[:-4096], DataCorrupt),
        (PASSAGES, None, DataCorrupt),
        ("index.json", lambda content: future_index, DataCorrupt),
        ("index.json", lambda content: content[:50], DataCorrupt),
    ):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(index, copy)
        content = (copy / name).read_bytes()
        (copy / name).unlink()
        if change:
            (copy / name).write_bytes(change(content))
        with pytest.raises(error, match="comap data build searchqa"):
            open_index(copy)


@pytest.mark.parametrize("damage", ["other bytes", "other contents"])
def test_a_damaged_tantivy_index_is_told(
    damage: str, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    built_index("tantivy", book, folder)
    for file in (*folder.glob("*.term"), *folder.glob("*.idx"), *folder.glob("*.fast")):
        damaged = tmp_path / file.name
        damaged.write_bytes(bytes(file.stat().st_size))
        damaged.replace(
            file
        )  # a new file: a thread of Tantivy may still read the old one's mapping
    if damage == "other contents":  # of a large one only the sizes are compared
        monkeypatch.setattr("comap.envs.searchqa.index.QUICK", 0)
    with pytest.raises(DataCorrupt, match="build it again: comap data build searchqa"):
        open_index(folder)


def test_a_panic_of_tantivy_is_a_broken_index(book: Path, tmp_path: Path) -> None:
    """In large indexes, whose files are not compared, any byte may be wrong: Rust panics at some."""
    index = built_index("tantivy", book, tmp_path / "index")

    class PanicException(BaseException):
        """As pyo3 raises it."""

    def panic(*_: object, **__: object) -> None:
        raise PanicException("range end index 9 out of range")

    index._searcher = SimpleNamespace(search=panic)
    with pytest.raises(DataCorrupt, match=r"range end index 9.*build it again"):
        index.search(["emma"])

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    index._searcher = SimpleNamespace(search=stop)
    with pytest.raises(KeyboardInterrupt):
        index.search(["emma"])


def _searched(index, answers) -> None:
    answers.put(index.search(["emma"])[0][0].id)


def test_threads_and_forks_share_an_index(index: Path) -> None:
    opened = open_index(index)
    expected = opened.search(["emma", "river"])
    thread_results: list = []
    threads = [
        threading.Thread(target=lambda: thread_results.append(opened.search(["emma", "river"])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert thread_results == [expected] * 8
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_searched, args=(opened, answers))
    process.start()
    assert answers.get(timeout=30) == "c"
    process.join()


@pytest.mark.parametrize("faiss", [None, "Flat", "HNSW64"])
def test_a_transformer_encodes(faiss: str | None, book: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    if faiss:
        pytest.importorskip("faiss")
    model = write_tiny_encoder(tmp_path / "e5-tiny")
    encoder = TransformerEncoder(model)
    query_vector = encoder.encode(["Emma"], "query")
    out = build_index(book, tmp_path / "out", "dense", encoder=str(model), faiss=faiss)
    hits_by_query = open_index(out).search(["Emma", "river"], k=5)
    vectors = encoder.encode(
        ['"Emma (novel)"\nEmma is a novel by Jane Austen about youthful pride.'], "passage"
    )
    score = next(hit.score for hit in hits_by_query[0] if hit.id == "c")
    assert score == pytest.approx(float((query_vector @ vectors.T)[0, 0]), abs=1e-5)
    assert all(len(hits) == 5 for hits in hits_by_query)


class Wide:
    """Vectors of a hundred passages that take 26 MB; only their first number differs."""

    name = "wide"

    def encode(self, texts, side):
        vectors = np.ones((len(texts), 65_536), np.float32)
        vectors[:, 0] = [len(text) for text in texts]
        return vectors


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_an_index_of_faiss_is_no_more_in_memory_than_on_disk(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    corpus = tmp_path / "corpus.jsonl"
    rows = ({"id": str(n), "contents": f'"Town"\n{"a" * n}'} for n in range(100))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    out = build_index(corpus, tmp_path / "out", "dense", encoder=Wide(), faiss="Flat")

    def own_kilobytes() -> int:
        status = Path("/proc/self/status").read_text("ascii")
        return int(re.search(r"RssAnon:\s+(\d+)", status)[1])

    before = own_kilobytes()
    index = open_index(out, encoder=Wide())
    assert index.search(["Emma"])[0][0].id == "99"
    assert own_kilobytes() - before < 13_000


def test_fusion_by_rank(book: Path, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    built_index("fts5", book, folder / "one")
    built_index("fts5", book, folder / "two")
    hybrid = choose_retriever("hybrid", folder)
    assert isinstance(hybrid, HybridRetriever) and hybrid.search(["emma"])[0][0].id == "c"

    def ranks(*names):
        return CallableRetriever(lambda queries, k: [[{"id": n, "contents": n} for n in names]])

    fused = HybridRetriever([ranks("a", "b", "c"), ranks("c", "d")]).search(["?"], k=4)[0]
    assert [hit.id for hit in fused] == ["c", "a", "b", "d"]
    assert fused[0].score == pytest.approx(1 / 63 + 1 / 61)
    with pytest.raises(DataNotFound, match="two indexes"):
        choose_retriever("hybrid", folder / "one")
    with pytest.raises(OptionError, match="two retrievers"):
        HybridRetriever([hybrid])


def test_any_function_is_a_retriever() -> None:
    calls = []

    def engine(queries, k):
        calls.append((tuple(queries), k))
        return [
            [{"title": "T", "text": q}, {"id": 3, "contents": "U"}, {"contents": "V"}]
            for q in queries
        ]

    hits_by_query = CallableRetriever(engine, "mine").search(["a", "b"], 2)
    assert calls == [(("a", "b"), 2)] and [len(hits) for hits in hits_by_query] == [2, 2]
    assert hits_by_query[1][0] == ("", "T", "b", 1.0) and hits_by_query[1][1] == ("3", "U", "", 0.5)
    for broken in (
        lambda q, k: [],
        lambda q, k: [[3]],
        lambda q, k: None,
        lambda q, k: [[{"id": "1"}]],
    ):
        with pytest.raises(EngineError):
            CallableRetriever(broken).search(["a"])
    with pytest.raises(OptionError):
        CallableRetriever(3)  # type: ignore[arg-type]


LEAST = {"hotpotqa": 0.65, "2wikimultihopqa": 0.62, "musique": 0.49}


def test_recall_on_real_passages(shared, mini: Path) -> None:
    """The share of supporting titles among the first three, question as query."""
    index = open_index(mini)
    titles = {
        row["id"]: row["contents"].split("\n")[0].strip('"')
        for row in shared.rows("mini_corpus.jsonl")
    }
    assert len(titles) == 25_595
    for name, least in LEAST.items():
        shares = []
        for row in shared.rows(f"{name}_with_context.jsonl"):
            supporting_titles = {
                titles[supporting_id] for supporting_id in row["metadata"]["supporting_ids"]
            }
            found_titles = {hit.title for hit in index.search([row["question"]], 3)[0]}
            shares.append(len(supporting_titles & found_titles) / len(supporting_titles))
        assert sum(shares) / len(shares) >= least, name


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from comap.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs limits of file sizes")
def test_a_full_disk_leaves_the_old_index_whole(tmp_path: Path) -> None:
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    rows = ({"id": str(n), "contents": f'"Town {n}"\n{"A river. " * 40}'} for n in range(200))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    words = ["data", "build", "searchqa", str(corpus), "--out", str(index)]
    assert main(words) == 0
    before = {file.name: file.read_bytes() for file in index.iterdir()}
    command = [sys.executable, "-c", LIMITED, "30000", *words]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1 and "Traceback" not in process.stderr
    error_line = process.stderr.splitlines()[-1]
    assert "expected to read and write" in error_line and "is the disk full?" in error_line
    assert {file.name: file.read_bytes() for file in index.iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.jsonl", "index"]
