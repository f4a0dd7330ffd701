"""What `comap verify` shows: a table of what was checked, and the first difference in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .marks import one_line
from .tables import Table
from .verify import AGREES, DIFFERS, NOT_CHECKED, OTHER

__all__ = ["first_difference", "reasons", "verify_table"]

_MOST = 8  # reasons that are told


def verify_table(result: Mapping[str, Any]) -> Table:
    """Return for each file how many of its episodes came to what, and how its numbers stand.

    Example:
        >>> files = [{"file": "a/t.jsonl", "status": "agrees", "trajectories": 3}]
        >>> episode = {"file": "a/t.jsonl", "status": "agrees", "steps": 9}
        >>> verify_table({"results": "a", "files": files, "episodes": [episode]}).rows
        (('a/t.jsonl', 3, 1, 9, 1, 0, 0, 0, 'agrees'),)
    """
    rows = []
    for file in result["files"]:
        mine = [entry for entry in result["episodes"] if entry["file"] == file["file"]]
        said = Counter(entry["status"] for entry in mine)
        counts = (said[status] for status in (AGREES, DIFFERS, OTHER, NOT_CHECKED))
        steps = sum(entry["steps"] for entry in mine)
        shown = one_line(file["file"], 80)
        rows.append((shown, file["trajectories"], len(mine), steps, *counts, file["status"]))
    columns = ("file", "recorded", "checked", "steps", "agree", "differ")
    return Table(
        f"verification of {one_line(result['results'], 80)}",
        (*columns, "other version", "not checked", "numbers"),
        tuple(rows),
    )


def first_difference(result: Mapping[str, Any]) -> str:
    """Return the first difference in full; empty where there is none.

    Example:
        >>> first_difference({"episodes": [], "files": []})
        ''
    """
    for entry in (*result["episodes"], *result["files"]):
        found = entry["difference"]
        if found is None:
            continue
        place = one_line(entry["file"], 200)
        if "task" in entry:
            task = one_line(str(entry["task"]), 200)
            place += f", line {entry['line']}: task {task}, step {found['step']}"
        told = [
            f"first difference: {place}, {one_line(found['field'], 200)}",
            f"  expected: {one_line(found['expected'], 700)}",
            f"  found:    {one_line(found['found'], 700)}",
        ]
        other = entry.get("other") or entry["reason"]
        if other:
            told.append(f"  recorded elsewhere: {one_line(other, 700)}")
        return "\n".join(told)
    return ""


def reasons(result: Mapping[str, Any]) -> list[str]:
    """Return why what was not checked, and what was recorded by another version though it agrees.

    Example:
        >>> reasons({"episodes": [], "files": []})
        []
    """
    entries = (*result["episodes"], *result["files"])
    skipped = Counter(one_line(e["reason"], 400) for e in entries if e["status"] == NOT_CHECKED)
    other = Counter(
        one_line(e["other"], 400) for e in entries if e.get("other") and e["status"] == AGREES
    )
    recalled = sum(entry.get("recalled", 0) for entry in entries)
    imagined = sum(entry.get("imagined", 0) for entry in entries)
    told = [f"not checked: {why} ({count})" for why, count in skipped.most_common(_MOST)]
    told += [f"recorded elsewhere: {what} ({count})" for what, count in other.most_common(_MOST)]
    if recalled:
        told.append(f"{recalled:,} answers of sources outside were taken from the record")
    if imagined:
        told.append(
            f"{imagined:,} steps were imagined: their facts were read again from the recorded text"
        )
    return told
