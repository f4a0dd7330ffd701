"""The README's words about the viewer's speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["viewer_section"]


def viewer_section(record: Mapping[str, Any], told: str) -> str:
    """Return what ``comap bench viewer-speed`` measured, in a few sentences.

    Args:
        record: What it wrote.
        told: When and on what it was measured.

    Example:
        >>> spread = {"min": 300.0, "median": 400.0, "max": 500.0}
        >>> times = ("first_list", "first_step", "opening_cpu", "search", "search_cpu")
        >>> kept = {f"{name}_ms": spread for name in times}
        >>> kept |= {"view": {"cpu_seconds": 20.0, "peak_bytes": 8e7}}
        >>> kept |= {"steps": 50000, "page_bytes": 9e6}
        >>> kept |= {"load": 2.0}
        >>> record = {"episodes": 1000, "openings": 3, "kept": {"replies": kept}}
        >>> print(viewer_section(record, "today").splitlines()[0])
        A page of 1,000 episodes, 50,000 steps (replies kept; 9 MB), takes `comap view` 20 s of CPU
    """
    parts = [_page(record, keep, kept) for keep, kept in record["kept"].items()]
    parts.append(
        f"Medians of {record['openings']} openings by headless Chromium; other programs ran beside it, "
        f"which CPU times do\nnot depend on. ({told}, `comap bench viewer-speed`)"
    )
    return "\n".join(parts)


def _page(record: Mapping[str, Any], keep: str, kept: Mapping[str, Any]) -> str:
    view = kept["view"]
    median = {name: told["median"] for name, told in kept.items() if name.endswith("_ms")}
    first, opening = median["first_step_ms"] / 1000, median["opening_cpu_ms"] / 1000
    return (
        f"A page of {record['episodes']:,} episodes, {kept['steps']:,} steps ({keep} kept; "
        f"{kept['page_bytes'] / 1e6:.0f} MB), takes `comap view` {view['cpu_seconds']:.0f} s of CPU\n"
        f"and {view['peak_bytes'] / 2**20:.0f} MiB. Its list is there after "
        f"{median['first_list_ms'] / 1000:.2f} s and its first step after {first:.2f} s\n"
        f"({opening:.2f} s of CPU), at a load of {kept['load']}; the first search through all texts "
        f"takes {median['search_ms'] / 1000:.1f} s\n({median['search_cpu_ms'] / 1000:.1f} s of CPU)."
    )
