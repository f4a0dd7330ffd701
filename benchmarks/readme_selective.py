"""The README's words about selective imagination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .selective import pooled

__all__ = ["opening_section", "selective_section"]

_HEADS = (
    "| looks ahead | world-model calls saved | success | difference | gate opened | policy calls |",
    "|---|---:|---:|---:|---:|---:|",
)


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
    rows = (_row(name, arm) for name, arm in record["arms"].items())
    return "\n".join([*_HEADS, *rows, "", _words(record, told)])


def opening_section(records: Sequence[Mapping[str, Any]], told: str) -> str:
    """Return what was measured with policies whose gate opens, all of them together.

    Args:
        records: What ``comap bench selective`` wrote, of each policy; one at least, of the same arms.
        told: When and on what it was measured.

    Raises:
        KeyError: An arm of the first record is missing in another.

    Example:
        >>> rate = {"value": 0.5, "low": 0.2, "high": 0.8, "n": 2}
        >>> counts = dict.fromkeys(("errors", "questions", "reflections", "opened", "policy_calls"), 0)
        >>> arm = {**counts, "steps": 8, "calls": 4, "won": ["10"], "seconds": [1.0], "success": rate}
        >>> overlap = {"ratio": {"median": 0.9}, "pairs": 1}
        >>> record = {"arms": {"always": arm, "never": arm}, "overlap": overlap, "fitted": 20}
        >>> print(opening_section([record, record], "today").splitlines()[2])
        | always | 0.0 | 50.0 [15.0, 85.0] | +0.0 [+0.0, +0.0] | 0.0 | 0.0 |
    """
    arms = pooled([record["arms"] for record in records])
    last = records[-1]
    each = arms["always"]["success"]["n"] // len(records)
    alone = [
        f"{100 * record['arms']['always']['success']['value']:.1f} and "
        f"{100 * record['arms']['never']['success']['value']:.1f}"
        for record in records
    ]
    ratios = " and ".join(f"{record['overlap']['ratio']['median']:.2f}" for record in records)
    words = (
        f"As above; {len(records)} policies and their world models, trained with seeds of their own, "
        f"{each} episodes each,\nthe gates' histories of {last['fitted']} tasks. Always and never "
        f"looking ahead, each policy by itself: {'; '.join(alone)}.\nIntervals are over episodes and "
        f"tasks, for these policies: they do not say how others would differ. Overlapped\nrounds, "
        f"beside other work: {ratios} times as fast ({last['overlap']['pairs']} pair each).\n"
        f"({told}, `comap bench selective`)"
    )
    return "\n".join([*_HEADS, *(_row(name, arm) for name, arm in arms.items()), "", words])


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
