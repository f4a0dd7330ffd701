"""The README's words about steps through servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["serving_section"]


def serving_section(record: Mapping[str, Any], told: str) -> str:
    """Return what ``comap bench serving`` measured, as a table.

    Args:
        record: What it wrote.
        told: When and on what it was measured.

    Example:
        >>> ms = {"median": 0.5, "p95": 0.75, "turns": [0.5, 0.4]}
        >>> way = {"ms": ms, "server_cpu_ms": None, "same": True, "steps": 9}
        >>> record = {"ways": {"MCP": way}, "episodes": 2, "env": "x", "load_average": 1.0}
        >>> print(serving_section(record, "today").splitlines()[2])
        | MCP | 0.50 | 0.40 to 0.50 | 0.75 | – |
    """
    lines = [
        "| | a step, ms | medians of turns | 95 % of steps below | CPU of the server, ms |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, way in record["ways"].items():
        ms, spent = way["ms"], way["server_cpu_ms"]
        cells = (
            name,
            f"{ms['median']:.2f}",
            f"{min(ms['turns']):.2f} to {max(ms['turns']):.2f}",
            f"{ms['p95']:.2f}",
            "–" if spent is None else f"{spent:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    same = all(way["same"] for way in record["ways"].values())
    steps = max(way["steps"] for way in record["ways"].values())
    lines += [
        "",
        f"`{record['env']}`, the expert's actions in {record['episodes']} episodes, texts seen before, "
        f"{steps:,} steps in all, all ways in turns: {'the same' if same else 'NOT the same'} "
        "observations each way. By the clock, client included (our own, OpenEnv's, the official one of "
        "MCP), on this machine; the server's CPU time has the resets in it. "
        f"({told}, load average {record['load_average']}, `comap bench serving`)",
    ]
    return "\n".join(lines)
