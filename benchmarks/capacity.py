"""`comap bench capacity`: what 1,000 and 100,000 episodes at a time need, on paper.

What a step costs is measured: the environments' time is that of the recorded speed benchmarks,
memory, tokens and bytes are measured in one run. Throughputs of models and prices are taken for
granted, and are told as such (``templates/capacity.json``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .capacity_measure import measure_pool, measure_texts
from .capacity_model import Costs, assumptions, demand
from .fresh_process import in_fresh_process
from .many_environments import measure_environments
from .readme_capacity import capacity_section
from .record import circumstances, write_result

__all__ = ["add_parser", "run"]

_TIMES = {
    "comap/ALFWorld-v0": ("alfworld_speed", "ours.mean.step", "ours.mean.next_reset"),
    "comap/WebShop-v0": ("webshop_speed", "ours.first", "ours.reset"),
    "comap/ScienceWorld-v0": (
        "scienceworld_speed",
        "players.jpype_lazy.cpu.step",
        "players.jpype_lazy.reset_cpu",
    ),
    "comap/StableToolBench-v0": ("stabletoolbench_speed", "ours.step", "ours.reset"),
    "comap/SearchQA-v0": ("searchqa_speed", "ours.first", "ours.reset"),
}
"""Of each environment the recorded result, and where in it the times of a step and a reset are."""

_SLOW = "comap/ScienceWorld-v0"  # its memory is that of a JVM for each: see its own benchmark
_PACKAGES = ("gymnasium", "numpy", "ray")


def run(
    *,
    environments: Sequence[str] = tuple(_TIMES),
    episodes: Sequence[int] = (1_000, 100_000),
    played: int = 16,
    many: int = 32,
    assumed: dict[str, Any] | None = None,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure what steps cost, and return what many episodes need.

    Args:
        environments: Ids, of `comap`'s five.
        episodes: How many at a time.
        played: Episodes of each environment from which texts are measured.
        many: Environments in a process from which memory is measured.
        assumed: In place of `assumptions`.
        out: File for the result, or None.
        progress: Told of each environment.

    Raises:
        OptionError: There is no such environment, or a number cannot be.
    """
    given = assumptions() if assumed is None else assumed
    for env_id in environments:
        if env_id not in _TIMES:
            raise OptionError(f"expected one of {', '.join(_TIMES)}, found {env_id!r:.80}")
    if min((played, many - 1, *episodes)) < 1:
        raise OptionError("expected episodes and played of at least 1, and many of at least 2")
    rows = {}
    pool = in_fresh_process(measure_pool, 25 * played)["seconds"]
    progress(f"a result from Ray: {1e3 * pool:.2f} ms")
    for env_id in environments:
        costs, told = _costs(env_id, played, many, int(given["thought_tokens"]), pool)
        progress(f"{env_id}: {costs.prompt_tokens:,.0f} tokens in a prompt")
        rows[env_id] = {
            "costs": asdict(costs),
            "measured": told,
            "demands": [
                demand(costs, given, number, cached=cached)
                for number in episodes
                for cached in (False, True)
            ],
        }
    result = circumstances(_PACKAGES) | {
        "benchmark": "capacity",
        "units": "CPU seconds, bytes, tokens (characters / 4), and the currency of what is assumed",
        "assumptions": given,
        "environments": rows,
    }
    if out is not None:
        write_result(Path(out), result)
    return result


def _costs(
    env_id: str, played: int, many: int, thought: int, pool: float
) -> tuple[Costs, dict[str, Any]]:
    """Return what an environment's episodes cost, and what was measured for that now."""
    name, step, reset = _TIMES[env_id]
    record = _result(name)
    texts = in_fresh_process(measure_texts, env_id, {}, 4 if env_id == _SLOW else played, thought)
    if env_id == _SLOW:
        held = record["memory"]["jpype"]
        first, further = held["first_bytes"], held["further_bytes"]
    else:
        one, all_ = (
            in_fresh_process(measure_environments, env_id, {}, number)["resident_bytes"]
            for number in (1, many)
        )
        first, further = one, max(all_ - one, 0) / (many - 1)
    keys = Costs.__dataclass_fields__
    costs = Costs(
        step_seconds=_inside(record, step),
        reset_seconds=_inside(record, reset),
        runner_seconds=1e-6 * _result("runner_speed")["overhead_microseconds"]["median"],
        pool_seconds=pool,
        first_bytes=first,
        further_bytes=further,
        **{key: value for key, value in texts.items() if key in keys},
    )
    return costs, {"times_of": name, "generated": texts["generated"], "many": many, **texts}


def _result(name: str) -> dict[str, Any]:
    text = files(__package__).joinpath(f"results/{name}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _inside(record: Any, place: str) -> float:
    for key in place.split("."):
        record = record[key]
    return float(record)


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench capacity``."""
    parser = kinds.add_parser(
        "capacity",
        help="what 1,000 and 100,000 episodes at a time need, on paper",
        description="Compute from measured costs of a step what many concurrent episodes need: cores, "
        "memory, tokens a second, network, money. What is taken for granted can be replaced.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    parser.add_argument("--env", nargs="+", default=list(_TIMES), metavar="ID", help="which")
    parser.add_argument("--episodes", type=int, nargs="+", default=[1_000, 100_000], metavar="N")
    parser.add_argument("--played", type=int, default=16, metavar="N", help="episodes to measure")
    parser.add_argument("--many", type=int, default=32, metavar="N", help="environments likewise")
    parser.add_argument(
        "--assume",
        action="append",
        metavar="NAME=VALUE",
        help="another throughput or price: see templates/capacity.json (repeatable)",
    )
    parser.add_argument("--out", metavar="FILE", help="where to write the result")


def _run(options: argparse.Namespace) -> int:
    from .options import pairs

    given = assumptions()
    for name, value in pairs(options.assume, "--assume").items():
        if name not in given:
            raise OptionError(
                f"nothing named {name!r:.80} is assumed; there are {', '.join(given)}"
            )
        if type(value) is not type(given[name]) and not (
            isinstance(given[name], int | float) and type(value) in (int, float) and value > 0
        ):
            raise OptionError(f"--assume {name} must be like {given[name]!r}, not {value!r:.80}")
        given[name] = value
    found = run(
        environments=options.env,
        episodes=options.episodes,
        played=options.played,
        many=options.many,
        assumed=given,
        out=options.out,
        progress=lambda line: print(line, flush=True),
    )
    print(capacity_section(found, "now"))
    return 0
