"""The result of `comap bench paw`: every run that has ended, means over seeds, paired differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .paw_bench_arms import ARMS, PACKAGES, VARIED
from .paw_bench_pairs import over_seeds, paired
from .paw_bench_plays import further_plays
from .paw_bench_run import read_run
from .paw_bench_starts import PaWBench
from .record import circumstances

__all__ = ["collect"]

_COMMON = ("settings", "env")
_SPEED = ("live", "micro_batch_rows", "micro_batch_tokens", "save_updates")  # of no other effect
_NUMBERS = ("training_last", "training_mean")


def collect(
    bench: PaWBench, seeds: Sequence[int], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all that was measured so far as one result.

    Args:
        bench: Where runs are; both cases are looked for, the usual start and the one that hardly
            ever wins, whose results are under ``sparse``.
        seeds: The seeds to look for; runs that have not ended are left out.
        before: An earlier result, whose other runs are kept.

    Raises:
        OptionError: Runs, or the earlier result's, have other settings than the rest.
        DataCorrupt: A file is not what a training writes.

    Example:
        >>> collect(PaWBench(out="nowhere"), [0])["arms"]
        []
    """
    before = before or {}
    result = {
        "benchmark": "PaW and the algorithms under it, small policies on "
        + bench.env_id.rpartition("/")[2].rpartition("-v")[0],
        **_case(bench.in_case(False), seeds, before),
    }
    sparse = _case(bench.in_case(True), seeds, before.get("sparse") or {})
    if sparse["arms"]:
        result["sparse"] = sparse
    return {**result, **circumstances(PACKAGES)}


def _case(bench: PaWBench, seeds: Sequence[int], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of all arms that begin with one kind of start."""
    common = {name: before[name] for name in _COMMON if before.get(name)}
    if "settings" in common:
        common["settings"] = _without(common["settings"], _SPEED)
    starts = dict(before.get("starts") or {})
    known = {arm["arm"]: arm for arm in before.get("arms", ())}
    arms = []
    for arm in ARMS:
        earlier = known.get(arm.name, {"settings": None, "seeds": ()})
        found, settings = [], earlier["settings"]
        for seed in seeds:
            folder = bench.place_of(arm.name, seed)
            one = read_run(folder, seed, further_plays(bench, arm.name, seed))
            if one is None:
                continue
            own = one.pop("config")
            settings = {name: own[name] for name in VARIED if name != "seed"}
            shared = _without(own, (*VARIED, *_SPEED))
            _agree(common, {"settings": shared, "env": one.pop("env")}, folder)
            start = one["start"]
            name = f"{start['name']} {start['sha256'][:12]}"
            starts[name] = start
            found.append({**one, "start": name})
        done = {one["seed"] for one in found}
        found += [one for one in earlier["seeds"] if one["seed"] not in done]
        found.sort(key=lambda one: int(one["seed"]))
        if found:
            told = {"arm": arm.name, "told": arm.told, "settings": settings, "seeds": found}
            arms.append({**told, "over_seeds": _means(found), "gain": _gain(found)})
    for told in arms:
        told["differences"] = _differences(told, arms)
    return {**{name: common.get(name) for name in _COMMON}, "starts": starts, "arms": arms}


def _agree(common: dict[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    """Take over what all runs have in common, or refuse a run that has not."""
    own = json.loads(json.dumps(own))
    for name, value in own.items():
        known = common.setdefault(name, value)
        if known == value:
            continue
        keys = sorted(k for k in {*known, *value} if known.get(k) != value.get(k))
        told = ", ".join(f"{k} {known.get(k)!r:.80} and {value.get(k)!r:.80}" for k in keys)
        raise OptionError(
            f"expected the {name} of {folder} to be those of the other runs, found {told}; give "
            "--out and --result of their own to runs with other settings"
        )


def _without(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _means(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and spread over seeds of what tables show."""
    values: dict[str, list[float | None]] = {}
    for one in found:
        told = {
            f"success.{end}.{name}": rate["rate"]
            for end, rates in one["success"].items()
            for name, rate in rates.items()
        }
        for end, scores in (one.get("score") or {}).items():
            told |= {f"score.{end}.{name}": value for name, value in (scores or {}).items()}
        told |= {name: one[name] for name in _NUMBERS}
        for name, value in told.items():
            values.setdefault(name, []).append(value)
    return {name: over_seeds(some) for name, some in values.items()}


def _gain(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how much more the trained policies win than those that they began as."""
    kinds = ("tasks", "plays", "stopped_after")
    first = found[0]
    alike = [one["won"] for one in found if all(one.get(k) == first.get(k) for k in kinds)]
    final, start = (["".join(won[end].values()) for won in alike] for end in ("final", "start"))
    return paired(final, start, found[0]["plays"])


def _differences(arm: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how an arm does against each that it is compared with, on the seeds of both."""
    compared = next(one.compared for one in ARMS if one.name == arm["arm"])
    others = {one["arm"]: one["seeds"] for one in arms}
    found = {}
    for name in compared:
        seeds = {one["seed"]: one for one in others.get(name, ())}
        pairs = [(one, seeds[one["seed"]]) for one in arm["seeds"] if one["seed"] in seeds]
        pairs = [pair for pair in pairs if _alike(*pair)]
        if pairs:
            found[name] = _difference(pairs)
    return found


def _alike(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Return whether two runs began with the same policy and were evaluated alike.

    That is on the same tasks, after as many updates: one that was stopped early is not compared.
    """
    return all(one.get(k) == two.get(k) for k in ("start", "tasks", "plays", "stopped_after"))


def _difference(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    plays = pairs[0][0]["plays"]
    pairs = [pair for pair in pairs if pair[0]["plays"] == plays]
    mine, theirs = (["".join(p[side]["won"]["final"].values()) for p in pairs] for side in (0, 1))
    told: dict[str, Any] = {
        "of_seeds": [one["seed"] for one, _ in pairs],
        **paired(mine, theirs, plays),
    }
    for name in ("training_last", "training_mean"):
        told[name] = over_seeds([one[name] - two[name] for one, two in pairs])
    scores = [
        [((one.get("score") or {}).get("final") or {}).get("all") for one in p] for p in pairs
    ]
    known = [one - two for one, two in scores if one is not None and two is not None]
    if known:
        told["score"] = over_seeds(known)
    spent = [[(one.get("cpu_seconds") or {}).get("updates") for one in pair] for pair in pairs]
    ratios = [one / two for one, two in spent if one and two]
    return {**told, "update_cpu": over_seeds(ratios)}
