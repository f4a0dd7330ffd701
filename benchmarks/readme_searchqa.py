"""The README's part about search QA, written from its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..envs.searchqa.fts5 import TITLE_WEIGHT

__all__ = ["searchqa_section"]

_TITLES = {"hotpotqa": "HotpotQA", "2wikimultihopqa": "2Wiki", "musique": "MuSiQue"}


def searchqa_section(record: Mapping[str, Any], told: str) -> str:
    """Return the tables of search QA's speed and indexes, as Markdown.

    Args:
        record: What ``comap bench speed searchqa`` wrote.
        told: When and on what it was measured.

    Example:
        >>> record = {"episodes": 1, "steps": 2, "ours": {"first": 1e-3, "again": 5e-5, "reset": 1e-5}}
        >>> record |= {"memory": {"1": 2**20}, "retrieval": [], "scale": [], "processes": 1}
        >>> print(searchqa_section(record, "today").splitlines()[2])
        | step, first time | 1,000.0 µs |
    """
    ours = record["ours"]
    lines = ["| CPU time | comap |", "|---|---:|"]
    for name, title in (
        ("first", "step, first time"),
        ("again", "step, again"),
        ("reset", "reset"),
    ):
        lines.append(f"| {title} | {ours[name] * 1e6:,.1f} µs |")
    head = "| index | passages | build | peak of it | on disk | open | resident, opened | query |"
    rows = [_row(row) for row in (*record["retrieval"], *record["scale"])]
    lines += [
        "",
        f"{head} {' | '.join(_TITLES.values())} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]
    held = ", ".join(
        f"{count} {'environment' if int(count) == 1 else 'environments'} in one process "
        f"{_mib(size)}"
        for count, size in record["memory"].items()
    )
    lines += [
        "",
        f"Steps are those of the expert's {record['episodes']} episodes ({record['steps']:,} steps) on "
        "the generated encyclopedia, a search in most of them; medians of "
        f"{record['processes']} processes, one after another. Queries: median CPU time of three "
        "passages. The last columns: share of the "
        "supporting titles among the first three passages, the question as query; 25,595 passages are "
        "real (a slice of Wikipedia, in which questions are easier than in all of it), the others are "
        f"invented. {_plainly(record['retrieval'])}{held}. ({told}, `comap bench speed "
        "searchqa --data-dir DIR`)",
    ]
    return "\n".join(lines)


def _plainly(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence on what titles add, where it was measured."""
    for row in rows:
        if "recall_plain" in row:
            shares = [f"{row['recall_plain'][name]['recall']:.3f}" for name in _TITLES]
            return (
                f"That titles count {TITLE_WEIGHT:g} times in {row['kind']} was chosen on these very "
                f"questions, among seven weights; where they count once the columns are "
                f"{', '.join(shares[:-1])} and {shares[-1]}. "
            )
    return ""


def _row(row: Mapping[str, Any]) -> str:
    recall = row.get("recall", {})
    cells = (
        row["kind"],
        f"{row['passages']:,}",
        f"{row['build_seconds']:,.1f} s",
        _mib(row["peak_bytes"]),
        _mib(row["bytes"]),
        f"{row['open_seconds'] * 1e3:,.1f} ms",
        _mib(row["resident_bytes"]["opened"]),
        f"{row['query_seconds']['median'] * 1e3:,.2f} ms",
        *(f"{recall[name]['recall']:.3f}" if name in recall else "–" for name in _TITLES),
    )
    return f"| {' | '.join(cells)} |"


def _mib(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**20:,.0f} MiB"
