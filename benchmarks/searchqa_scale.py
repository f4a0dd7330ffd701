"""Search QA's indexes: how they are built, opened and searched, and what they find.

What is measured runs in fresh processes (see `comap.benchmarks.fresh_process`).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .fresh_process import in_fresh_process
from .record import resident_bytes, spread
from .searchqa_passages import CORPUS, QUERIES, write_passages

__all__ = [
    "DATASETS",
    "measure_build",
    "measure_episodes",
    "measure_recall",
    "measure_search",
    "quality",
    "scale",
]

DATASETS = ("hotpotqa", "2wikimultihopqa", "musique")
"""The data sets whose supporting passages are known: ``<name>_with_context.jsonl``."""

_CORPUS = "mini_corpus.jsonl"
_TOP = 3
_AGAIN = 5


def quality(data: str, kind: str, progress: Callable[[str], object]) -> dict[str, Any]:
    """Build an index of a real corpus and measure what it finds, and at what cost.

    Args:
        data: Folder with ``mini_corpus.jsonl`` and the questions of `DATASETS`.
        kind: Of the index.
        progress: Told of each part that is done.
    """
    with tempfile.TemporaryDirectory(prefix="comap-searchqa-") as folder:
        index = str(Path(folder, "index"))
        built = in_fresh_process(measure_build, str(Path(data, _CORPUS)), index, kind)
        progress(f"{kind}: {built['passages']:,} passages, {built['build_seconds']:.1f} s of CPU")
        found = in_fresh_process(measure_recall, index, data)
        return {"kind": kind, **built, **found}


def scale(passages: int, kind: str, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Write so many invented passages, index them, and measure building, opening and searching.

    Args:
        passages: How many.
        kind: Of the index.
        seed: Of the passages.
        progress: Told of each part that is done.
    """
    with tempfile.TemporaryDirectory(prefix="comap-searchqa-") as folder:
        write_passages(Path(folder), passages, seed=seed)
        progress(f"{passages:,} passages written")
        index = str(Path(folder, "index"))
        built = in_fresh_process(measure_build, str(Path(folder, CORPUS)), index, kind)
        progress(f"{kind}: {passages:,} passages, {built['build_seconds']:.0f} s of CPU")
        found = in_fresh_process(measure_search, index, str(Path(folder, QUERIES)))
        return {"kind": kind, **built, **found}


def measure_build(corpus: str, out: str, kind: str) -> dict[str, Any]:
    """Build an index, in a process that has done nothing else.

    Returns:
        ``passages``, ``build_seconds`` (CPU), ``build_wall_seconds``, ``bytes`` on disk, and
        ``peak_bytes``, the most memory held, None where the system does not tell.
    """
    from ..envs.searchqa.index import build_index, read_manifest

    wall, cpu = time.perf_counter(), time.process_time()
    folder = build_index(corpus, out, kind)
    return {
        "passages": read_manifest(folder)["passages"],
        "build_seconds": time.process_time() - cpu,
        "build_wall_seconds": time.perf_counter() - wall,
        "bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "peak_bytes": _peak(),
    }


def measure_search(index: str, queries: str) -> dict[str, Any]:
    """Open an index and search it, in a process that has done nothing else.

    Returns:
        ``open_seconds`` (wall clock), ``resident_bytes`` of the process ``imported``, ``opened`` and
        ``searched``, and ``query_seconds``, the spread over queries of CPU time for 3 passages.
    """
    asked: list[str] = json.loads(Path(queries).read_text(encoding="utf-8"))
    opened, told = _opened(index)
    _, spent = _search(opened, asked)
    held = told["resident_bytes"] | {"searched": resident_bytes()}
    return told | {"resident_bytes": held, "queries": len(asked), "query_seconds": spread(spent)}


def measure_recall(index: str, data: str) -> dict[str, Any]:
    """Search for real questions, in a process that has done nothing else.

    Returns:
        What `measure_search` does, and ``recall``: for each data set the mean share of supporting
        titles among the first three passages, with the number of questions; for fts5 also
        ``recall_plain``, where a word of a title counts as one of the text.
    """
    from ..envs.searchqa.fts5 import FTS5Retriever
    from ..envs.searchqa.index import read_manifest

    rows = {name: _lines(Path(data, f"{name}_with_context.jsonl")) for name in DATASETS}
    wanted = {one for found in rows.values() for row in found for one in _support(row)}
    titles = {}
    for row in _lines(Path(data, _CORPUS)):
        if row["id"] in wanted:
            titles[row["id"]] = row["contents"].split("\n")[0].strip('"')
    opened, told = _opened(index)
    recall, spent = _recall(opened, rows, titles)
    held = told["resident_bytes"] | {"searched": resident_bytes()}
    mean = sum(spent) / len(spent)
    if isinstance(opened, FTS5Retriever):
        plain = FTS5Retriever(Path(index), read_manifest(index), title_weight=1)
        told["recall_plain"], _ = _recall(plain, rows, titles)
    return told | {
        "resident_bytes": held,
        "queries": len(spent),
        "query_seconds": {**spread(spent), "mean": mean},
        "recall": recall,
    }


def _recall(
    opened: Any, rows: Mapping[str, list[dict[str, Any]]], titles: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], list[float]]:
    """Return the recall of each data set's questions, and the CPU time of each query."""
    recall, spent = {}, list[float]()
    for name, questions in rows.items():
        found, times = _search(opened, [row["question"] for row in questions])
        spent += times
        shares = []
        for row, hits in zip(questions, found, strict=True):
            support = {titles[one] for one in _support(row)}
            shares.append(len(support & {hit.title for hit in hits}) / len(support))
        recall[name] = {"recall": sum(shares) / len(shares), "questions": len(shares)}
    return recall, spent


def measure_episodes(steps: int, seed: int) -> dict[str, Any]:
    """Play the expert's episodes on embedded tasks, in a process that has done nothing else.

    Args:
        steps: How many steps, at least.
        seed: Of the choice of tasks.

    Returns:
        CPU seconds of a step when episodes are played for the ``first`` time and ``again``, and of a
        ``reset``; ``episodes`` and ``steps``.
    """
    import gymnasium

    def make() -> Any:
        return gymnasium.make("comap/SearchQA-v0", split="all", source="generated")

    plans, env = list[tuple[str, list[str]]](), make()
    env.reset(seed=seed)
    while sum(len(actions) for _, actions in plans) < steps:
        _, info = env.reset()
        actions, over = list[str](), False
        while not over:
            actions.append(env.unwrapped.expert_action())
            _, _, terminated, truncated, _ = env.step(actions[-1])
            over = terminated or truncated
        plans.append((info["task"], actions))
    _forget()
    env, passes, resets = make(), list[float](), 0.0
    env.reset(seed=seed)
    env.step("<search>a first search</search>")
    total = sum(len(actions) for _, actions in plans)
    for _ in range(1 + _AGAIN):
        spent = 0.0
        for task, actions in plans:
            started = time.process_time()
            env.reset(options={"task": task})
            ready = time.process_time()
            for action in actions:
                env.step(action)
            spent += time.process_time() - ready
            resets += ready - started
        passes.append(spent / total)
    return {
        "first": passes[0],
        "again": sum(passes[1:]) / _AGAIN,
        "reset": resets / len(passes) / len(plans),
        "episodes": len(plans),
        "steps": total,
    }


def _forget() -> None:
    """Forget all searches of this process."""
    from ..envs.searchqa import choice

    choice._shared.cache_clear()


def _opened(index: str) -> tuple[Any, dict[str, Any]]:
    """Return an index and what opening it cost."""
    from ..envs.searchqa import open_index

    held = {"imported": resident_bytes()}
    started = time.perf_counter()
    opened = open_index(index)
    told: dict[str, Any] = {"open_seconds": time.perf_counter() - started}
    return opened, told | {"resident_bytes": held | {"opened": resident_bytes()}}


def _search(opened: Any, asked: list[str]) -> tuple[list[Any], list[float]]:
    """Return what queries find, and the CPU time of each."""
    found, spent = [], []
    for query in asked:
        started = time.process_time()
        found.append(opened.search([query], _TOP)[0])
        spent.append(time.process_time() - started)
    return found, spent


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON lines.

    Raises:
        DataNotFound, DataCorrupt: It is not there, or something else.
    """
    from ..errors import DataCorrupt, DataNotFound

    try:
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except FileNotFoundError as error:
        raise DataNotFound(f"expected {path.name} in {path.parent}, found nothing") from error
    except ValueError as error:
        raise DataCorrupt(f"expected JSON lines in {path}, found: {error}") from error


def _support(row: Mapping[str, Any]) -> list[str]:
    found: list[str] = row["metadata"]["supporting_ids"]
    return found


def _peak() -> int | None:
    """Return the most memory that this process held, where the system tells.

    ``getrusage`` is of no use: on Linux it also counts what the process held that started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else None
