"""The README's words about faults and load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["reliability_section"]


def reliability_section(record: Mapping[str, Any], told: str) -> str:
    """Return what ``comap bench reliability`` found, as a table.

    Args:
        record: What it wrote.
        told: When and on what it was measured.

    Example:
        >>> part = {"counts": {"actions": 9, "episodes": 1}, "lost": 0, "seconds_taken": 3.0}
        >>> record = {"parts": {"actions": part | {"scale": 1, "load_average": 4.0}}, "lost": 0}
        >>> print(reliability_section(record, "today").splitlines()[2])
        | random, mutated and hostile actions | 1 | 9 actions, 1 episodes; no growth told | 0 |
    """
    lines = ["| what was done | scale | how often | lost |", "|---|---:|---|---:|"]
    for name, part in record["parts"].items():
        cells = (_TITLES[name], f"{part['scale']:g}", _DID[name](part), f"{part['lost']:,}")
        lines.append(f"| {' | '.join(cells)} |")
    seconds = sum(part["seconds_taken"] for part in record["parts"].values())
    loads = [part["load_average"] for part in record["parts"].values() if part["load_average"]]
    beside = f" (load average up to {max(loads)})" if loads else ""
    lines += [
        "",
        "Scale 1 is a million actions, 60 processes of each kind, 100 full disks, 2,000 files of each "
        "kind, an hour of load and 200 clients. All of it took "
        f"{seconds / 60:.0f} minutes, beside other work{beside}. "
        "Lost is what a fault cost beyond itself: a crash, an error of another kind, a wrong answer, a "
        f"record that is gone. ({told}, `comap bench reliability`)",
    ]
    return "\n".join(lines)


def _counts(part: Mapping[str, Any], *names: str) -> str:
    counts = part["counts"]
    return ", ".join(f"{counts[name]:,} {name}" for name in names if name in counts)


def _growth(parts: Mapping[str, Mapping[str, Any]]) -> str:
    grown = [one.get("memory_growth_mb") for one in parts.values()]
    known = [value for value in grown if value is not None]
    return f"memory {max(known):+.1f} MB at most" if known else "no growth told"


def _actions(part: Mapping[str, Any]) -> str:
    return f"{_counts(part, 'actions', 'episodes')}; {_growth(part.get('environments', {}))}"


def _engines(part: Mapping[str, Any]) -> str:
    return _counts(
        part,
        "simulators killed",
        "workers killed",
        "runs killed",
        "Ray workers killed",
        "vector workers on Ray killed",
    )


def _disk(part: Mapping[str, Any]) -> str:
    numbers = {
        name.removesuffix(_FULL): number
        for name, number in part["counts"].items()
        if name.endswith(_FULL)
    }
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items())


def _corruption(part: Mapping[str, Any]) -> str:
    counts = part["counts"]
    kinds = sum(bool(one["counts"]) for one in part["kinds"].values())
    cut = counts.get("shorter by whole lines", 0)
    shorter = f", {cut:,} shorter by whole lines" if cut else ""
    silent = counts.get("other content, without a checksum", 0)
    return (
        f"{counts['damaged']:,} files of {kinds} kinds: {counts.get('told', 0):,} told, "
        f"{counts.get('read right', 0):,} read right{shorter}, {silent:,} with other content that no "
        "checksum guards"
    )


def _load(part: Mapping[str, Any]) -> str:
    numbered = {str(number): one for number, one in enumerate(part["processes"])}
    told = _counts(part, "environments", "steps", "episodes")
    return f"{told} in {part['seconds']:.0f} s on two cores; {_growth(numbered)}"


def _servers(part: Mapping[str, Any]) -> str:
    wrong = ("malformed bodies", "hostile requests", "broken connections", "wrong requests")
    number = sum(part["counts"].get(name, 0) for name in wrong)
    each = part["counts"]["clients"] // len(part["servers"])
    played = _counts(part, "episodes played")
    return (
        f"{len(part['servers'])} servers, {each} clients each: "
        f"{part['counts']['well-formed requests']:,} requests answered"
        f"{f' ({played})' if played else ''}, {number:,} malformed or hostile; "
        f"{_growth(part['servers'])}"
    )


_FULL = " that met a full disk"
_TITLES = {
    "actions": "random, mutated and hostile actions",
    "engines": "processes killed at random moments",
    "disk": "disks that filled while something was written",
    "corruption": "files cut, emptied, changed, zeroed",
    "load": "many environments for long",
    "servers": "servers under many clients, malformed requests among them",
}
_DID = {
    "actions": _actions,
    "engines": _engines,
    "disk": _disk,
    "corruption": _corruption,
    "load": _load,
    "servers": _servers,
}
