"""The README's part about StableToolBench, written from its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["expert_line", "tools_section"]

_TITLES = {
    "open": "first environment, imports included",
    "reset": "reset",
    "step": "step, an embedded tool",
    "cached": "step, the official cache",
}


_FACTS = ("status", "retlen", "ret", "entity", "db")
_MODELS = ("null", "retrieval", "oracle")


def tools_section(
    record: Mapping[str, Any], told: str, demo: Mapping[str, Any], expert: str = ""
) -> str:
    """Return the tables of StableToolBench's speed, and of what models know of answers, as Markdown.

    Args:
        record: What ``comap bench speed stabletoolbench`` wrote.
        told: When and on what it was measured.
        demo: What ``comap demo --env comap/StableToolBench-v0`` wrote.
        expert: What `expert_line` says, put first.

    Example:
        >>> record = {"ours": {"step": 1e-4}, "spread": {"step": {"min": 1e-4, "max": 2e-4}}}
        >>> record |= {"processes": 5, "episodes": 9, "steps": 40, "resident_bytes": None}
        >>> demo = {"one_step": {"all": {}}}
        >>> print(tools_section(record, "today", demo).splitlines()[2])
        | step, an embedded tool | 100.0 µs | 100.0 to 200.0 µs |
    """
    lines = [expert, ""] if expert else []
    lines += ["| CPU time | median | over processes |", "|---|---:|---:|"]
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
    return "\n".join([*lines, "", *_known(demo["one_step"]["all"])])


def expert_line(record: Mapping[str, Any], told: str) -> str:
    """Return what ``comap bench experts stabletoolbench`` found, in a paragraph.

    Example:
        >>> counts = {"won": 9, "tasks": 9, "steps": 30, "longest": 6, "beliefs": 12}
        >>> counts |= {"false beliefs": 0, "untold changes": 1}
        >>> expert_line({"total": counts}, "today")[:57]
        'The expert solves 9 of 9 embedded tasks in 30 steps, none'
    """
    total = record["total"]
    return (
        f"The expert solves {total['won']:,} of {total['tasks']:,} embedded tasks in "
        f"{total['steps']:,} steps, none in more than {total['longest']}. Of {total['beliefs']:,} "
        f"beliefs about what calls changed on the way {total['false beliefs']:,} are false, and "
        f"{total['untold changes']:,} changes are told by no fact. ({told}, "
        "`comap bench experts stabletoolbench`)"
    )


def _known(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the table of F1 by predicate, of those that a call alone does not tell."""
    lines = [f"| F1 of facts, percent | {' | '.join(_FACTS)} |", "|---|" + "---:|" * len(_FACTS)]
    for name in _MODELS:
        if name in reports:
            scores = reports[name]["by_predicate"]
            cells = [f"{100 * scores[fact]['f1']:.1f}" for fact in _FACTS]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Of the transitions above: how calls went, lengths of lists, values, identifiers, and changes "
        "of tables; the retrieval model has never seen the test worlds' values.",
    ]
