"""The README's part about StableToolBench, written from its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["tools_section"]

_TITLES = {
    "open": "first environment, imports included",
    "reset": "reset",
    "step": "step, an embedded tool",
    "cached": "step, the official cache",
}


def tools_section(record: Mapping[str, Any], told: str) -> str:
    """Return the table of StableToolBench's speed, as Markdown.

    Args:
        record: What ``comap bench speed stabletoolbench`` wrote.
        told: When and on what it was measured.

    Example:
        >>> record = {"ours": {"step": 1e-4}, "spread": {"step": {"min": 1e-4, "max": 2e-4}}}
        >>> record |= {"processes": 5, "episodes": 9, "steps": 40, "resident_bytes": None}
        >>> print(tools_section(record, "today").splitlines()[2])
        | step, an embedded tool | 100.0 µs | 100.0 to 200.0 µs |
    """
    lines = ["| CPU time | median | over processes |", "|---|---:|---:|"]
    for name, seconds in record["ours"].items():
        fewest, most = (record["spread"][name][end] * 1e6 for end in ("min", "max"))
        cells = (_TITLES[name], f"{seconds * 1e6:,.1f} µs", f"{fewest:,.1f} to {most:,.1f} µs")
        lines.append(f"| {' | '.join(cells)} |")
    held = record["resident_bytes"]
    memory = "" if held is None else f" The first environment adds {held / 2**20:,.0f} MiB."
    lines += [
        "",
        f"The expert's {record['episodes']} episodes on generated tasks, {record['steps']:,} steps, in "
        f"each of {record['processes']} processes, one after another.{memory} ({told}, "
        "`comap bench speed stabletoolbench --data-dir DIR`)",
    ]
    return "\n".join(lines)
