"""The README's words about what PaW adds to an update (PaW, Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["overhead_section"]


def overhead_section(record: Mapping[str, Any], told: str) -> str:
    """Return what ``comap bench paw-overhead`` measured, in a sentence or two.

    Args:
        record: What it wrote.
        told: When and on what it was measured.

    Example:
        >>> spread = {"median": 1.25, "min": 1.2, "max": 1.3}
        >>> record = {"parameters": 9, "rows": {"rows": 4}, "pairs": 3, "device": "cpu"}
        >>> record |= {"tokens": {"prompt": 6, "response": 2, "observation": 2}}
        >>> record |= {"ratio": {"all": spread}, "peak_bytes": {"ratio": 1.1}}
        >>> print(overhead_section(record, "today").splitlines()[0])
        An update of 4 rows (9 parameters; 6 tokens of prompts, 2 of replies, 2 of observations) takes
    """
    took, tokens = record["ratio"]["all"], record["tokens"]
    return (
        f"An update of {record['rows']['rows']:,} rows ({record['parameters']:,} parameters; "
        f"{tokens['prompt']:,} tokens of prompts, {tokens['response']:,} of replies, "
        f"{tokens['observation']:,} of observations) takes\n"
        f"{took['median']:.2f} times as long with PaW on the {record['device']} "
        f"({took['min']:.2f} to {took['max']:.2f}, {record['pairs']} pairs), rollouts left out, and "
        f"{record['peak_bytes']['ratio']:.2f} times the memory at its peak. ({told}, `comap bench "
        "paw-overhead`)"
    )
