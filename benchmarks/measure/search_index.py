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
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from comap.benchmarks.record import circumstances, spread, write_result
from comap.envs.searchqa import build_index, open_index
from comap.envs.searchqa.retriever import split_contents

REAL = Path(__file__).parents[3] / "shared" / "data" / "searchqa"
SETS = ("hotpotqa", "2wikimultihopqa", "musique")
WORDS, SHIFT, LENGTH, COMMON, QUERIES, BATCH = 500_000, 2.7, 100, 60, 200, 10_000
LETTERS = "bcdfghjklmnpqrtvwxz"
PROGRAM = "benchmarks/measure/search_index.py (not in the package)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="*", default=["fts5", "tantivy"])
    parser.add_argument("--passages", nargs="*", type=int, default=[100_000])
    given = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "search_index", "program": PROGRAM}
    result |= circumstances(("tantivy",)) | {"load": psutil.getloadavg(), "rows": []}
    for size in [*([0] if REAL.is_dir() else []), *given.passages]:
        with tempfile.TemporaryDirectory() as folder:
            corpus, queries = (Path(folder, name) for name in ("corpus.jsonl", "queries.json"))
            if size:
                invent(corpus, queries, size)
            else:
                corpus = REAL / "mini_corpus.jsonl"
            for kind in given.kinds:
                index = Path(folder, kind)
                row = {"kind": kind} | alone(build, corpus, index, kind)
                row |= alone(search, index, queries) if size else alone(recall, index)
                result["rows"].append(row)
                write_result(given.out, result)
                print(json.dumps(row), flush=True)


def alone(function: Any, *words: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, words)


def build(corpus: Path, index: Path, kind: str) -> dict[str, Any]:
    wall = time.perf_counter()
    build_index(corpus, index, kind)
    return {
        "passages": json.loads((index / "index.json").read_text())["passages"],
        "build_cpu_seconds": round(time.process_time(), 1),
        "build_wall_seconds": round(time.perf_counter() - wall, 1),
        "build_peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "disk_mib": round(sum(path.stat().st_size for path in index.iterdir()) / 2**20, 1),
    }


def search(index: Path, queries: Path) -> dict[str, Any]:
    return asked(index, json.loads(queries.read_text()))[0]


def asked(index: Path, queries: list[str]) -> tuple[dict[str, Any], list[Any]]:
    opened = open_index(index)
    opened.search(["warm up"])
    found, wall, cpu = [], [], []
    for query in queries:
        start, spent = time.perf_counter(), time.process_time()
        found += opened.search([query])
        wall.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - spent))
    memory = psutil.Process().memory_info()
    mib = round((memory.rss - memory.shared) / 2**20)
    times = {"query_ms": spread(wall), "query_cpu_ms": spread(cpu)}
    told = {"queries": len(queries), **times, "own_memory_mib": mib}
    return told, found


def recall(index: Path) -> dict[str, Any]:
    passages = map(json.loads, (REAL / "mini_corpus.jsonl").open())
    titles = {row["id"]: split_contents(row["contents"])[0] for row in passages}
    sets = {
        name: [json.loads(line) for line in (REAL / f"{name}_with_context.jsonl").open()]
        for name in SETS
    }
    told, found = asked(index, [row["question"] for rows in sets.values() for row in rows])
    hits = iter(found)
    told["recall"] = {}
    for name, rows in sets.items():
        shares = []
        for row in rows:
            wanted = {titles[one] for one in row["metadata"]["supporting_ids"]}
            shares.append(len(wanted & {hit.title for hit in next(hits)}) / len(wanted))
        told["recall"][name] = {
            "recall": round(sum(shares) / len(shares), 4),
            "questions": len(rows),
        }
    return told


def invent(corpus: Path, queries: Path, size: int) -> None:
    """Write passages and queries, 4 to 11 rarer words of a passage each."""
    draws = np.random.default_rng(0)
    limits = np.cumsum(1 / (np.arange(WORDS) + 1 + SHIFT))
    words = [word(rank) for rank in range(WORDS)]
    texts = []
    with corpus.open("w") as file:
        for start in range(0, size, BATCH):
            count = min(BATCH, size - start)
            lengths = np.maximum(20, draws.normal(LENGTH, 18, count).astype(int))
            drawn = np.searchsorted(limits, draws.random(int(lengths.sum())) * limits[-1])
            for number, ranks in enumerate(np.split(drawn, np.cumsum(lengths)[:-1]), start):
                said = [words[rank] for rank in ranks.tolist()]
                contents = f'"{" ".join(said[:3])}"\n{" ".join(said[3:])}'
                file.write(json.dumps({"id": f"{number:08d}", "contents": contents}) + "\n")
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
