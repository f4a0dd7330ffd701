"""The README's words about what many concurrent episodes need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["capacity_section"]

_HEADS = (
    "| environment | episodes | steps/s | cores | memory, GB | prompt tokens/s (computed with a cache) "
    "| reply tokens/s | GPUs (without a cache) | network, MB/s | $ an hour | $ a million steps "
    "| bottleneck |"
)


def capacity_section(record: Mapping[str, Any], told: str) -> str:
    """Return what ``comap bench capacity`` computed, as a table and what stands behind it.

    Args:
        record: What it wrote.
        told: When and on what it was measured.

    Example:
        >>> from comap.benchmarks.capacity_model import Costs, assumptions, demand
        >>> costs = Costs(**dict.fromkeys(Costs.__dataclass_fields__, 1.0))
        >>> both = [demand(costs, assumptions(), 1000, cached=cached) for cached in (False, True)]
        >>> rows = {"comap/X-v0": {"costs": vars(costs), "demands": both}}
        >>> text = capacity_section({"environments": rows, "assumptions": assumptions()}, "today")
        >>> text.splitlines()[2].startswith("| X | 1,000 | 250 |")
        True
    """
    lines = [_HEADS, "|---|" + "---:|" * 10 + "---|"]
    for env_id, row in record["environments"].items():
        demands = row["demands"]
        for plain, cached in zip(demands[::2], demands[1::2], strict=True):
            lines.append(_row(env_id.removeprefix("comap/").removesuffix("-v0"), plain, cached))
    return "\n".join([*lines, "", f"{_MEASURED} {_assumed(record['assumptions'])} ({told})"])


_MEASURED = (
    "On paper. Measured: what a step costs (the times of the speed benchmarks above, and the runner's; "
    "memory of environments in one process; prompts of ReAct with whole histories, of an expert's "
    "embedded episodes, in characters / 4; bytes that workers tell; CPU time to get episodes from Ray "
    "and to record them, without the disk's own)."
)


def _assumed(given: Mapping[str, Any]) -> str:
    """Return in words what is taken for granted."""
    return (
        f"**Assumed** ({given['date']}): a decision takes {given['seconds_per_decision']:g} s, nearly "
        f"all of it waiting, and a thought {given['thought_tokens']} tokens; {given['model']}, on "
        f"{given['gpu']} reads {given['prompt_tokens_per_second']:,} and writes "
        f"{given['reply_tokens_per_second']:,} tokens/s and has {given['gpu_kv_gigabytes']} GB for "
        f"keys and values; ${given['price_gpu_hour']:g} a GPU-hour, ${given['price_core_hour']:g} a "
        f"core-hour, ${given['price_gigabyte_hour']:g} a GB-hour of memory, "
        f"${given['price_network_gigabyte']:g} a GB sent; cores used to "
        f"{100 * given['core_use']:.0f} %. Numbers outside of brackets, and money, are with a cache of "
        "prompts' beginnings. *recording*: one process cannot record all that is played; tasks have to "
        "be shared among several runs. `--assume NAME=VALUE` computes with other prices and speeds."
    )


def _row(name: str, plain: Mapping[str, Any], cached: Mapping[str, Any]) -> str:
    need, spent = cached["need"], cached["cost_per_hour"]
    sent = (need["request_bytes_per_second"] + need["record_bytes_per_second"]) / 1e6
    cells = (
        name,
        f"{cached['episodes']:,}",
        f"{cached['steps_per_second']:,.0f}",
        f"{need['cores']:,.1f}",
        f"{need['memory_bytes'] / 1e9:,.1f}",
        f"{cached['prompt_tokens_per_second']:,.0f} "
        f"({cached['computed_prompt_tokens_per_second']:,.0f})",
        f"{cached['reply_tokens_per_second']:,.0f}",
        f"{need['gpus']:,} ({plain['need']['gpus']:,})",
        f"{sent:,.1f}",
        f"{spent['all']:,.0f}",
        f"{cached['cost_per_million_steps']:,.2f}",
        _told(cached),
    )
    return f"| {' | '.join(cells)} |"


def _told(demand: Mapping[str, Any]) -> str:
    """Return the bottleneck, and of recording how many processes it takes."""
    what: str = demand["bottleneck"]
    if what == "recording":
        return f"recording ({demand['need']['recorders']:.1f} processes)"
    return what
