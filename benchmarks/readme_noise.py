"""The README's table of noise gradients (METHODS.md 2.9; PaW, Figure 2c)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["noise_section"]

_SHARES = ("count", "ce", "mae", "cmae")


def noise_section(groups: Mapping[str, Sequence[Mapping[str, Any]]], told: str) -> str:
    """Return one row for each group of policies, as Markdown.

    Args:
        groups: For each row's title what ``comap bench noise-gradients`` wrote, a result for each
            policy.
        told: When and on what they were measured.

    Example:
        >>> share = {"share": 0.25, "low": 0.2, "high": 0.3}
        >>> one = {"shares": dict.fromkeys(("count", "ce", "mae", "cmae"), share), "transitions": 9}
        >>> one["probabilities"] = {"noisy": {"mean": 0.5}, "other": None}
        >>> print(noise_section({"zoo": [one]}, "today").splitlines()[2].partition("| 9 |")[2])
         25.0 [20.0, 30.0] | 25.0 [20.0, 30.0] | 25.0 [20.0, 30.0] | 25.0 [20.0, 30.0] | 0.500 | – |
    """
    lines = [
        "| noise, and who played | transitions | of tokens | of CE's gradient | of MAE's | "
        "of clipped MAE's | p of noise | p of the rest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for title, found in groups.items():
        transitions = " + ".join(str(one["transitions"]) for one in found)
        cells = [_cell([one["shares"][name] for one in found]) for name in _SHARES]
        cells += [_probability(found, tokens) for tokens in ("noisy", "other")]
        lines.append(f"| {title} | {transitions} | {' | '.join(cells)} |")
    lines += [
        "",
        "Percent that fall on noise. Of one policy with a 95 % interval over its transitions, of "
        "several the mean ± standard deviation over policies. p: mean probability that the policy "
        f"gives such a token. {told}",
    ]
    return "\n".join(lines)


def _cell(shares: Sequence[Mapping[str, float]]) -> str:
    values = [100 * one["share"] for one in shares]
    if len(values) > 1:
        return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
    return f"{values[0]:.1f} [{100 * shares[0]['low']:.1f}, {100 * shares[0]['high']:.1f}]"


def _probability(found: Sequence[Mapping[str, Any]], tokens: str) -> str:
    """Return the mean probability of some tokens, over policies; a dash where it is not known."""
    told = [one.get("probabilities", {}).get(tokens) for one in found]
    if None in told:
        return "–"
    return f"{statistics.mean(one['mean'] for one in told):.3f}"
