"""What search QA's indexes cost and find.

``python benchmarks/measure/search_index.py --out FILE [--kinds KIND ...] [--passages N ...]``.

Real questions where ``../shared/data/searchqa`` is: the share of supporting titles among the first three
passages. Invented passages of some hundred words, by a Zipf-Mandelbrot law, for the cost by size. Each
index is built and searched in a process of its own; queries are asked once, after one other query.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from comap.benchmarks.record import circumstances, spread, write_result
from comap.envs.searchqa import build_index, open_index
from comap.envs.searchqa.retriever import Hit, split_contents

REAL = Path(__file__).parents[3] / "shared" / "data" / "searchqa"
SETS = ("hotpotqa", "2wikimultihopqa", "musique")

# Of the invented passages: how many words there are, the shift of the law of their frequencies, words of a
# passage, and how many of the commonest words no query has.
WORDS = 500_000
SHIFT = 2.7
LENGTH = 100
COMMON = 60
QUERIES = 200
BATCH = 10_000

LETTERS = "bcdfghjklmnpqrtvwxz"
PROGRAM = "benchmarks/measure/search_index.py (not in the package)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="*", default=["fts5", "tantivy"])
    parser.add_argument("--passages", nargs="*", type=int, default=[100_000])
    options = parser.parse_args()

    result: dict[str, Any] = {
        "benchmark": "search_index",
        "program": PROGRAM,
        **circumstances(("tantivy",)),
        "load": psutil.getloadavg(),
        "rows": [],
    }
    if REAL.is_dir():
        for kind in options.kinds:
            with tempfile.TemporaryDirectory() as folder:
                index = Path(folder, kind)
                row = {"kind": kind, **alone(build, REAL / "mini_corpus.jsonl", index, kind)}
                add_row(options.out, result, row | alone(recall, index))

    for size in options.passages:
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder, "corpus.jsonl")
            queries = Path(folder, "queries.json")
            invent(corpus, queries, size)
            for kind in options.kinds:
                index = Path(folder, kind)
                row = {"kind": kind, **alone(build, corpus, index, kind)}
                add_row(options.out, result, row | alone(search, index, queries))


def add_row(out: Path, result: dict[str, Any], row: dict[str, Any]) -> None:
    """Add a row to the result, and write it: a large index takes hours, which must not be lost."""
    result["rows"].append(row)
    write_result(out, result)
    print(json.dumps(row), flush=True)


def alone(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call a function in a process of its own, whose memory and time are then its alone."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def build(corpus: Path, index: Path, kind: str) -> dict[str, Any]:
    """Build an index, and return what that took; of the processor all since the process began."""
    start = time.perf_counter()
    build_index(corpus, index, kind)
    wall_seconds = time.perf_counter() - start
    return {
        "passages": json.loads((index / "index.json").read_text())["passages"],
        "build_cpu_seconds": round(time.process_time(), 1),
        "build_wall_seconds": round(wall_seconds, 1),
        "build_peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "disk_mib": round(sum(path.stat().st_size for path in index.iterdir()) / 2**20, 1),
    }


def search(index: Path, queries: Path) -> dict[str, Any]:
    """Return what the queries of a file take."""
    return search_one_by_one(index, json.loads(queries.read_text())).costs


class Answers(NamedTuple):
    """What queries took, and the passages that each found."""

    costs: dict[str, Any]
    hits_of_queries: list[list[Hit]]


def search_one_by_one(index: Path, queries: list[str]) -> Answers:
    """Search for each query by itself, and return what that took and what was found."""
    # The first search opens files and fills caches: it is not measured.
    retriever = open_index(index)
    retriever.search(["warm up"])

    hits_of_queries: list[list[Hit]] = []
    wall_milliseconds = []
    cpu_milliseconds = []
    for query in queries:
        wall_start = time.perf_counter()
        cpu_start = time.process_time()
        hits_of_queries += retriever.search([query])
        wall_milliseconds.append(1e3 * (time.perf_counter() - wall_start))
        cpu_milliseconds.append(1e3 * (time.process_time() - cpu_start))

    # Without pages of files, which the system shares between processes and can take back.
    memory = psutil.Process().memory_info()
    own_bytes = memory.rss - memory.shared
    costs = {
        "queries": len(queries),
        "query_ms": spread(wall_milliseconds),
        "query_cpu_ms": spread(cpu_milliseconds),
        "own_memory_mib": round(own_bytes / 2**20),
    }
    return Answers(costs, hits_of_queries)


def recall(index: Path) -> dict[str, Any]:
    """Return what real questions take, and the share of supporting titles that they find."""
    passages = map(json.loads, (REAL / "mini_corpus.jsonl").open())
    titles = {row["id"]: split_contents(row["contents"])[0] for row in passages}
    rows_of_sets = {}
    questions = []
    for name in SETS:
        rows = [json.loads(line) for line in (REAL / f"{name}_with_context.jsonl").open()]
        rows_of_sets[name] = rows
        questions += [row["question"] for row in rows]

    answers = search_one_by_one(index, questions)
    hits_of_questions = iter(answers.hits_of_queries)
    recalls = {}
    for name, rows in rows_of_sets.items():
        shares = []
        for row in rows:
            supporting = {titles[passage_id] for passage_id in row["metadata"]["supporting_ids"]}
            hit_titles = {hit.title for hit in next(hits_of_questions)}
            shares.append(len(supporting & hit_titles) / len(supporting))
        recalls[name] = {"recall": round(sum(shares) / len(shares), 4), "questions": len(rows)}
    return {**answers.costs, "recall": recalls}


def invent(corpus: Path, queries: Path, size: int) -> None:
    """Write passages and queries, 4 to 11 rarer words of a passage each."""
    draws = np.random.default_rng(0)
    # Zipf and Mandelbrot: the frequency of a word falls with its rank, of the first ones more slowly.
    limits = np.cumsum(1 / (np.arange(WORDS) + 1 + SHIFT))
    words = [word(rank) for rank in range(WORDS)]

    texts: list[str] = []
    with corpus.open("w") as file:
        for start in range(0, size, BATCH):
            count = min(BATCH, size - start)
            lengths = np.maximum(20, draws.normal(LENGTH, 18, count).astype(int))
            all_ranks = np.searchsorted(limits, draws.random(int(lengths.sum())) * limits[-1])
            ranks_of_passages = np.split(all_ranks, np.cumsum(lengths)[:-1])
            for number, ranks in enumerate(ranks_of_passages, start):
                passage = [words[rank] for rank in ranks.tolist()]
                contents = f'"{" ".join(passage[:3])}"\n{" ".join(passage[3:])}'
                file.write(json.dumps({"id": f"{number:08d}", "contents": contents}) + "\n")

                # Queries are spread evenly over the passages.
                if number % max(size // QUERIES, 1) == 0 and len(texts) < QUERIES:
                    rare = [words[rank] for rank in ranks.tolist() if rank >= COMMON]
                    texts.append(" ".join(draws.permutation(rare)[: draws.integers(4, 12)]))
    queries.write_text(json.dumps(texts))


def word(rank: int) -> str:
    """Return a made-up word, another for each rank; stemming leaves it alone."""
    letters = ""
    while True:
        rank, place = divmod(rank, len(LETTERS))
        letters += LETTERS[place]
        if not rank:
            return f"{letters}{len(letters)}"


if __name__ == "__main__":
    main()
