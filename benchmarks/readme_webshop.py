"""The README's part about WebShop, written from its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["webshop_section"]

_TIMES = {
    "page_first": "step as the original tells it, without state facts, first time",
    "page_again": "the same, again",
    "first": "step, first time",
    "again": "step, again",
    "reset": "reset",
}


def webshop_section(record: Mapping[str, Any], told: str) -> str:
    """Return the tables of WebShop's speed and search, as Markdown.

    Args:
        record: What ``comap bench speed webshop`` wrote.
        told: When and on what it was measured.

    Example:
        >>> record = {"episodes": 1, "steps": 2, "ours": {"first": 1e-4, "again": 5e-5, "reset": 1e-5}}
        >>> record |= {"memory": {}, "scale": []}
        >>> print(webshop_section(record, "today").splitlines()[2])
        | step, first time | 100.0 µs | – |
    """
    ours, ratios = record["ours"], record.get("ratios", {})
    lines = ["| CPU time | comap | original (recorded) / comap |", "|---|---:|---:|"]
    for name, title in _TIMES.items():
        if name not in ours:
            continue
        ratio = f"{ratios[name]:,.0f}" if name in ratios else "–"
        lines.append(f"| {title} | {ours[name] * 1e6:,.1f} µs | {ratio} |")
    lines += ["", "| products | open | resident before a query | query, median | upper quartile |"]
    lines.append("|---:|---:|---:|---:|---:|")
    for row in record["scale"]:
        query, held = row["query_seconds"], row["resident_bytes"]["opened"]
        cells = (
            f"{row['products']:,}",
            f"{row['open_seconds'] * 1e3:,.1f} ms",
            "–" if held is None else f"{held / 2**20:,.0f} MiB",
            f"{query['median'] * 1e3:,.2f} ms",
            f"{query['q3'] * 1e3:,.2f} ms",
        )
        lines.append(f"| {' | '.join(cells)} |")
    held = ", ".join(
        f"{count} {'environment' if int(count) == 1 else 'environments'} in one process "
        f"{one['one_process'] / 2**20:,.0f} MiB"
        for count, one in record["memory"].items()
        if one["one_process"] is not None
    )
    agree = ""
    if "steps_that_agree" in record:
        agree = f"; the same answers in {record['steps_that_agree']:,} of {record['steps']:,} steps"
    lines += [
        "",
        f"{record['episodes']} recorded sessions of the original, {record['steps']:,} steps{agree}. "
        f"{_spread(record)}The original's 37.4 ms of CPU a step were recorded on the same data "
        f"at another time, not beside ours. Products of the second table are synthetic. {held}. "
        f"({told}, `comap bench speed "
        "webshop --data-dir CATALOG --sessions FILE...`)",
    ]
    return "\n".join(lines)


def _spread(record: Mapping[str, Any]) -> str:
    """Return how much the first value differs between processes, where there were several."""
    if record.get("processes", 1) == 1:
        return ""
    first = record["spread"]["first"]
    median, most = first["median"] * 1e6, first["max"] * 1e6
    return (
        f"Fastest of {record['processes']} processes, one after another, since other programs add to a "
        f"process's CPU time and take nothing away (a step, first time: median {median:,.1f} µs, "
        f"slowest {most:,.1f} µs). "
    )
