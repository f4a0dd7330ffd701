"""The README's part about co-evolution, written from its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["coevolution_section"]

_COLUMNS = (
    ("success.valid_seen", "seen", 100),
    ("success.valid_unseen", "unseen", 100),
    ("delta_f1.frozen.all", "frozen", 1),
    ("delta_f1.frozen.nonempty", "changes", 1),
    ("delta_f1.frozen.predictable", "predictable", 1),
    ("delta_f1.frozen.unpredictable", "unpredictable", 1),
    ("delta_f1.on_policy.all", "on-policy", 1),
    ("delta_f1.on_policy.nonempty", "its changes", 1),
    ("change_token_nll.frozen", "NLL", None),
    ("opened", "gate open", 100),
    ("refused", "refused", 100),
    ("urr", "URR", None),
    ("hrr", "HRR", None),
    ("brp", "BRP", None),
)


def coevolution_section(record: Mapping[str, Any]) -> str:
    """Return the table of rows, and how often the world-state gate opened, as Markdown.

    Args:
        record: What `comap bench coevolution` wrote.

    Example:
        >>> print(coevolution_section({"rows": [], "settings": {"rounds": 2}}).splitlines()[0][:20])
        | row | seeds | seen
    """
    titles = " | ".join(title for _, title, _ in _COLUMNS)
    lines = [f"| row | seeds | {titles} |", "|---|---:|" + "---:|" * len(_COLUMNS)]
    for row in record["rows"]:
        over = row["over_seeds"]
        cells = " | ".join(_cell(over.get(name), scale) for name, _, scale in _COLUMNS)
        lines.append(f"| {row['told']} | {len(row['seeds'])} | {cells} |")
    adoption = _adoption(record["rows"])
    if adoption:
        lines += ["", *adoption]
    lines += _redraws(record["rows"])
    return "\n".join(lines)


def _cell(told: Mapping[str, Any] | None, scale: float | None) -> str:
    if told is None or told["mean"] is None:
        return "–"
    digits, times = (2, 1.0) if scale is None else (1, scale)
    spread = "" if told["sd"] is None else f" ± {times * told['sd']:.{digits}f}"
    return f"{times * told['mean']:.{digits}f}{spread}"


def _redraws(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the environment would refuse where CoMap's action gate opened."""
    over: Mapping[str, Any] = next((r["over_seeds"] for r in rows if r["row"] == "comap"), {})
    told = {
        kind: over.get(f"redraws.{kind}.refused")
        for kind in ("drafts", "revised", "redrawn", "others")
    }
    if any(value is None for value in told.values()):
        return []
    draft, revised, redrawn, others = (_cell(value, 100) for value in told.values())
    return [
        "",
        "Where CoMap's action gate opened, the environment would have refused (percent of the actions) "
        f"{draft} of the drafts, {revised} of the revised actions, and {redrawn} of drafts that the "
        f"policy drew anew without reflection, {others} of those that were not the draft again.",
    ]


def _adoption(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of Figure 5: CoMap's adoption in each round, for each threshold."""
    seeds = [one for row in rows if row["row"] == "comap" for one in row["seeds"]]
    if not seeds:
        return []
    rounds = [point["round"] for point in seeds[0]["adoption"]]
    lines = [
        "| threshold | " + " | ".join(f"round {number}" for number in rounds) + " |",
        "|---:|" + "---:|" * len(rounds),
    ]
    for tau in ("0.4", "0.6", "0.8"):
        cells = []
        for place in range(len(rounds)):
            known = [
                one["adoption"][place][tau]
                for one in seeds
                if len(one["adoption"]) > place and one["adoption"][place][tau] is not None
            ]
            told = " ".join(f"{100 * value:.1f}" for value in known)
            cells.append(told or "–")
        lines.append(f"| {tau} | {' | '.join(cells)} |")
    return lines
