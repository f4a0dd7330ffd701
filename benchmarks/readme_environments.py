"""The README's table of what environments cost and how well world models know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["environments_section"]

_SHOWN = ("null", "retrieval", "oracle")


def environments_section(records: Mapping[str, Mapping[str, Any]], told: Mapping[str, str]) -> str:
    """Return one row for each environment, as Markdown.

    Args:
        records: For each id what ``comap bench speed`` and ``comap demo`` wrote: ``"speed"`` and
            ``"demo"``.
        told: For each id when and on what its models were measured, and by which command.

    Example:
        >>> report = {"mean": 0.5, "n": 9}
        >>> demo = {"one_step": {"all": {"null": report}}, "config": {"test_tasks": 3}}
        >>> speed = {"env": "webshop", "ours": {"first": 1e-4}, "ratios": {"first": 374.0}}
        >>> records = {"comap/WebShop-v0": {"speed": speed, "demo": demo}}
        >>> print(environments_section(records, {}).splitlines()[2])
        | `comap/WebShop-v0` | 10,000 | 374 (recorded) | 50.0 | – | – | 9 of 3 tasks |
    """
    lines = [
        "| environment | steps a second | original's time / ours | null | retrieval | oracle | "
        "transitions |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for env_id, record in records.items():
        reports = record["demo"]["one_step"]["all"]
        scores = [
            f"{100 * reports[name]['mean']:.1f}" if name in reports else "–" for name in _SHOWN
        ]
        first = next(iter(reports.values()))
        tasks = record["demo"]["config"]["test_tasks"]
        cells = [
            f"`{env_id}`",
            *_speed_of(record["speed"]),
            *scores,
            f"{first['n']:,} of {tasks} tasks",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "One processor, texts not seen before; Delta-F1 in percent, on transitions of tasks that the "
        f"retrieval model has not learnt from. {' '.join(told.values())}",
    ]
    return "\n".join(lines)


def _speed_of(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return steps for each CPU second, and how many times longer the original takes."""
    if record["env"] == "alfworld":
        return (
            f"{1 / record['ours']['mean']['step']:,.0f}",
            f"{record['ratios']['of_totals']['step']:,.0f}",
        )
    if record["env"] == "stabletoolbench":
        return f"{1 / record['ours']['step']:,.0f}", "–"
    if record["env"] == "webshop":
        ours, known = record["ours"], record["ratios"]
        steps, longer = f"{1 / ours['first']:,.0f}", f"{known['first']:,.0f}"
        if "page_first" in known:
            steps += f"; {1 / ours['page_first']:,.0f} without state facts"
            longer += f"; {known['page_first']:,.0f} without them, as it is"
        return steps, f"{longer} (recorded)"
    if record["env"] == "searchqa":  # the original needs a server and, for E5, a GPU or 60 GB
        return f"{1 / record['ours']['first']:,.0f}", "–"
    players, ratios = record["players"], record["ratios"]["cpu"]
    rates = [f"{1 / players[name]['cpu']['step']:,.0f}" for name in ("jpype_lazy", "jpype_full")]
    times = [f"{ratios[name]:,.1f}" for name in ("jpype_lazy", "jpype_full")]
    return (
        f"{rates[0]}; {rates[1]} with all that the original tells",
        f"{times[0]}; {times[1]} with all that it tells",
    )
