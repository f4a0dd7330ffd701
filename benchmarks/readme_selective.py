"""The README's words about selective imagination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["selective_section"]


def selective_section(record: Mapping[str, Any], told: str) -> str:
    """Return what ``comap bench selective`` measured: a table, and what it is of.

    Args:
        record: What it wrote.
        told: When and on what it was measured.

    Example:
        >>> rate = {"value": 0.5, "low": 0.2, "high": 0.8, "n": 10}
        >>> gap = {"mean": 0.0, "low": 0.0, "high": 0.0}
        >>> arm = {"saved": 0.0, "success": rate, "difference": gap, "opened": 0, "reflections": 9}
        >>> arm |= {"steps": 100, "policy_calls": 500}
        >>> overlap = {"ratio": {"median": 1.2, "min": 1.1, "max": 1.3}, "latency": 0.2, "same": True}
        >>> overlap |= {"episodes": 16, "pairs": 3}
        >>> record = {"arms": {"always": arm}, "overlap": overlap, "fitted": 20, "seeds": [0]}
        >>> print(selective_section(record, "today").splitlines()[2])
        | always | 0.0 | 50.0 [20.0, 80.0] | +0.0 [+0.0, +0.0] | 0.0 | 5.0 |
    """
    lines = [
        "| looks ahead | world-model calls saved | success | difference | gate opened | policy calls |",
        "|---|---:|---:|---:|---:|---:|",
        *(_row(name, arm) for name, arm in record["arms"].items()),
        "",
        _words(record, told),
    ]
    return "\n".join(lines)


def _row(name: str, arm: Mapping[str, Any]) -> str:
    rate, gap, steps = arm["success"], arm["difference"], max(arm["steps"], 1)
    saved = "—" if arm["saved"] is None else f"{100 * arm['saved']:.1f}"
    cells = (
        name.replace("|", "\\|"),
        saved,
        f"{100 * rate['value']:.1f} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]",
        f"{100 * gap['mean']:+.1f} [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]",
        f"{100 * arm['opened'] / max(arm['reflections'], 1):.1f}",
        f"{arm['policy_calls'] / steps:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def _words(record: Mapping[str, Any], told: str) -> str:
    n = record["arms"]["always"]["success"]["n"]
    overlap = record["overlap"]
    ratio = overlap["ratio"]
    same = "the same episodes" if overlap["same"] else "other episodes"
    return (
        f"In percent; calls of the policy in a step. n = {n} episodes, seeds "
        f"{', '.join(map(str, record['seeds']))}; the gate's history is of {record['fitted']} tasks of "
        "`train`.\nDifferences are from *always*, paired by task, with bootstrap intervals. Overlapped "
        f"rounds, with {overlap['latency']} s of\nwaiting in each batch of either model: "
        f"{ratio['median']:.2f} times as fast ({ratio['min']:.2f} to {ratio['max']:.2f}; "
        f"{overlap['pairs']} pairs, {overlap['episodes']} episodes), {same}.\n"
        f"({told}, `comap bench selective`)"
    )
