"""The README's part about ScienceWorld, written from its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["scienceworld_section"]

_PLAYERS = {
    "jpype_lazy": "JPype, observation and score",
    "jpype_full": "JPype, with look, inventory and valid actions",
    "py4j_lazy": "py4j, observation and score",
    "py4j_full": "py4j, with look, inventory and valid actions",
    "upstream": "upstream's `ScienceWorldEnv.step`, which tells all that",
}


def scienceworld_section(
    speed: Mapping[str, Any], beliefs: Mapping[str, Any], told: tuple[str, str]
) -> str:
    """Return the tables of ScienceWorld's speed and of its beliefs, as Markdown.

    Args:
        speed: What ``comap bench speed scienceworld`` wrote.
        beliefs: What ``comap bench beliefs scienceworld`` wrote.
        told: When and on what each was measured.

    Example:
        >>> player = {"wall": {"step": 0.002}, "cpu": {"step": 0.003}}
        >>> ratios = {"wall": {"jpype_lazy": 20.0}, "cpu": {"jpype_lazy": 15.0}}
        >>> speed = {"players": {"jpype_lazy": player}, "ratios": ratios, "games": 4, "steps": 9}
        >>> play = {"beliefs": 7, "false beliefs": 0, "changes": 4, "told": 3, "share told": 0.75}
        >>> both = {"gold": play, "random": play}
        >>> beliefs = {"total": both, "tasks": {"boil": both}}
        >>> text = scienceworld_section(speed, beliefs, ("today", "today"))
        >>> print(text.splitlines()[2])
        | JPype, observation and score | 2.0 | 20.0 | 3.0 | 15.0 |
    """
    lines = ["| a step of | ms | upstream / it | ms of CPU | upstream / it |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, title in _PLAYERS.items():
        if name in speed["players"]:
            lines.append(f"| {title} | {' | '.join(_times(speed, name))} |")
    checked = sum(part["beliefs"] for part in beliefs["total"].values())
    false = sum(part.get("false beliefs", 0) for part in beliefs["total"].values())
    lines += [
        "",
        f"{speed['games']} tasks along their gold paths, {speed['steps']} steps, all players in turns; "
        f"by the wall's clock, and of all processors. {told[0]}",
        "",
        f"Of {checked:,} beliefs that the object tree speaks of, {false:,} were false. Of the changes "
        "that the tree shows, the answers' texts, and so beliefs, told:",
        "",
        "| task | gold path | random play |",
        "|---|---:|---:|",
    ]
    for name, row in {**beliefs["tasks"], "all": beliefs["total"]}.items():
        cells = [
            f"{100 * row[kind]['share told']:.0f} % of {row[kind]['changes']:,}" for kind in row
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", told[1]])


def _times(speed: Mapping[str, Any], name: str) -> list[str]:
    """Return a player's times, and upstream's in units of them."""
    cells = []
    for clock in ("wall", "cpu"):
        ratio = speed["ratios"][clock].get(name)
        cells.append(f"{1e3 * speed['players'][name][clock]['step']:.1f}")
        cells.append("–" if ratio is None else f"{ratio:.1f}")
    return cells
