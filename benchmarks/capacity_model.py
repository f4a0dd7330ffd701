"""What many concurrent episodes need, on paper: from measured costs, and what is taken for granted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

__all__ = ["Costs", "assumptions", "demand"]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an environment's episodes cost, as measured.

    Example:
        >>> Costs(**dict.fromkeys(Costs.__dataclass_fields__, 1.0)).steps
        1.0
    """

    steps: float
    """Steps of an episode, an expert's."""
    step_seconds: float
    """Processor time of a step."""
    reset_seconds: float
    """Processor time of a reset, with loading the task."""
    runner_seconds: float
    """The runner's own processor time for a decision."""
    record_seconds: float
    """Processor time of the process that records, for a step that a worker told of."""
    pool_seconds: float
    """Processor time of the same process to get an episode from Ray."""
    first_bytes: float
    """Memory of a process with one environment."""
    further_bytes: float
    """Memory of each further one."""
    prompt_tokens: float
    """Tokens of a prompt, on average over an episode's steps."""
    new_tokens: float
    """Those of them that the prompt of the step before did not begin with."""
    action_tokens: float
    """Tokens of an action."""
    request_bytes: float
    """Bytes of a request to a model's server."""
    record_bytes: float
    """Bytes of a step in what a worker tells."""


def assumptions() -> dict[str, Any]:
    """Return what is taken for granted: throughputs and prices, with their date.

    Example:
        >>> assumptions()["currency"]
        'USD'
    """
    text = files(__package__).joinpath("templates/capacity.json").read_text("utf-8")
    told: dict[str, Any] = json.loads(text)
    return told


def demand(
    costs: Costs, assumed: Mapping[str, Any], episodes: int, *, cached: bool
) -> dict[str, Any]:
    """Return what so many episodes at the same time need.

    Each waits for its model most of the time: a decision takes ``seconds_per_decision``.

    Args:
        costs: What was measured.
        assumed: See `assumptions`.
        episodes: How many there are at a time.
        cached: Whether the servers keep what they computed of the beginning of a prompt.

    Returns:
        Rates, needs, costs of an hour, what each costs of that, and what is the narrowest.

    Example:
        >>> costs = Costs(**dict.fromkeys(Costs.__dataclass_fields__, 1.0))
        >>> demand(costs, assumptions(), 1000, cached=True)["steps_per_second"]
        250.0
    """
    rate = episodes / float(assumed["seconds_per_decision"])
    cpu = costs.step_seconds + costs.reset_seconds / costs.steps + costs.runner_seconds
    processes = math.ceil(episodes / int(assumed["environments_per_process"]))
    memory = processes * (costs.first_bytes - costs.further_bytes) + episodes * costs.further_bytes
    recording = rate * (costs.record_seconds + costs.pool_seconds / costs.steps)
    reply = float(assumed["thought_tokens"]) + costs.action_tokens
    read = costs.new_tokens if cached else costs.prompt_tokens
    held = episodes * (costs.prompt_tokens + reply) * float(assumed["kv_bytes_per_token"])
    by_speed = rate * (
        read / float(assumed["prompt_tokens_per_second"])
        + reply / float(assumed["reply_tokens_per_second"])
    )
    by_memory = held / (1e9 * float(assumed["gpu_kv_gigabytes"]))
    need = {
        "cores": rate * cpu / float(assumed["core_use"]) + recording,
        "memory_bytes": memory,
        "gpus_by_speed": by_speed,
        "gpus_by_memory": by_memory,
        "gpus": math.ceil(max(by_speed, by_memory) - 1e-9),
        "recorders": recording,
        "request_bytes_per_second": rate * costs.request_bytes,
        "record_bytes_per_second": rate * costs.record_bytes,
    }
    spent = _spent(need, assumed)
    total = sum(spent.values())
    return {
        "episodes": episodes,
        "cached": cached,
        "steps_per_second": rate,
        "episodes_per_hour": 3600 * rate / costs.steps,
        "prompt_tokens_per_second": rate * costs.prompt_tokens,
        "computed_prompt_tokens_per_second": rate * read,
        "reply_tokens_per_second": rate * reply,
        "need": need,
        "cost_per_hour": {**spent, "all": total},
        "cost_per_million_steps": 1e6 * total / (3600 * rate),
        "bottleneck": _narrowest(need, spent),
    }


def _spent(need: Mapping[str, Any], assumed: Mapping[str, Any]) -> dict[str, float]:
    """Return what each part costs in an hour."""
    sent = need["request_bytes_per_second"] + need["record_bytes_per_second"]
    return {
        "gpus": need["gpus"] * float(assumed["price_gpu_hour"]),
        "cores": math.ceil(need["cores"]) * float(assumed["price_core_hour"]),
        "memory": need["memory_bytes"] / 1e9 * float(assumed["price_gigabyte_hour"]),
        "network": 3600 * sent / 1e9 * float(assumed["price_network_gigabyte"]),
    }


def _narrowest(need: Mapping[str, Any], spent: Mapping[str, float]) -> str:
    """Return what limits: one process that records first, else what costs most."""
    if need["recorders"] > 1:
        return "recording"
    dearest = max(spent, key=lambda name: spent[name])
    if dearest == "gpus":
        by_memory = need["gpus_by_memory"] > need["gpus_by_speed"]
        return "GPU memory" if by_memory else "GPU speed"
    return dearest
