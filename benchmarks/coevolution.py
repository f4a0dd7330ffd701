"""What co-evolution does for small models on the official ALFWorld games: ``comap bench coevolution``.

For each seed a policy and a world model are warmed up on demonstrations (`coevolution_models`); then
CoMap, training on its own transitions without self-distillation, and ablations begin with the same
models (`coevolution_rows`). A row is a training of `comap.trainers.coevolution` in a folder of its own,
which goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..agents.run_summary import recorded
from ..checksums import unseal
from ..errors import OptionError
from ..trajectory import Trajectory
from .coevolution_models import PARTS, WarmUp, shown_by_experts, warm_up
from .coevolution_redraws import redraw
from .coevolution_rows import BASE, ROWS, SETTINGS, Row, run_row, training_of
from .record import circumstances, write_result
from .small_training import PACKAGES

__all__ = ["add_parser", "collect"]

_SPLITS = ("valid_seen", "valid_unseen")
_GROUPS = ("all", "nonempty", "predictable", "unpredictable")
_SHARED_UP_TO = "round-0-evaluation"
_REDRAWS = "redraws.json"
_REDRAWN = ("comap", "more-reflection")  # rows whose policy drafts anew where its gate opened


def collect(
    out: Path,
    seeds: Sequence[int],
    before: Mapping[str, Any] | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """Return all that was measured so far as one result.

    Args:
        out: The benchmark's folder.
        seeds: The seeds to look for; those that have not ended are left out.
        before: An earlier result, whose other seeds are kept.
        steps: The step limit of episodes; None for the environment's.
    """
    rows = []
    known = {row["row"]: row["seeds"] for row in (before or {}).get("rows", ())}
    for row in ROWS:
        found = [one for seed in seeds if (one := _one(out / "rows" / f"{row.name}-{seed}", seed))]
        own = {one["seed"] for one in found}
        found += [one for one in known.get(row.name, ()) if one["seed"] not in own]
        found.sort(key=lambda one: one["seed"])
        if found:
            rows.append({"row": row.name, "told": row.told, "seeds": found, **_means(found)})
    return {
        "benchmark": "co-evolution of small models on ALFWorld",
        "env": "comap/ALFWorld-v0",
        "settings": training_of(BASE, 0).describe(),
        "max_episode_steps": steps,
        "warmup": {**(before or {}).get("warmup", {}), **_warm_ups(out, seeds)},
        "rows": rows,
        **circumstances(PACKAGES),
    }


def _one(folder: Path, seed: int) -> dict[str, Any] | None:
    """Return what a row gave with a seed; None where it has not ended."""
    path = folder / "summary.json"
    if not path.is_file():
        return None
    stages = unseal(path.read_bytes())["stages"]
    rounds = [value for name, value in stages.items() if name.endswith("-evaluation")]
    last = rounds[-1]
    final = f"round-{last['round']}-evaluation"
    won = {split: _won(folder, final, split) for split in _SPLITS}
    everything = "".join(won.values())
    return {
        "seed": seed,
        "success": {
            **{split: _rate(text) for split, text in won.items()},
            "all": _rate(everything),
        },
        "won": won,
        "world_model": last["world_model"],
        "revisions": last["revisions"],
        "revised": _revised(folder, final),
        "redraws": _redraws(folder),
        "gates": last["gates"],
        "rounds": [_point(value) for value in rounds],
        "adoption": [
            {"round": name.split("-")[1], **value["gates"]["adoption"]}
            for name, value in stages.items()
            if name.endswith("-rollouts") and name.startswith("round-")
        ],
        "samples": {name: value["samples"] for name, value in stages.items() if "samples" in value},
        "updates": {name: value["updates"] for name, value in stages.items() if "updates" in value},
        "cpu_seconds": _cpu(stages),
    }


def _played(folder: Path, stage: str, split: str) -> list[Trajectory]:
    files = sorted(folder.glob(f"stages/*-{stage}/{split}-0/rank-*/trajectories.jsonl"))
    return [one for path in files for one in recorded(path)]


def _revised(folder: Path, stage: str) -> dict[str, int]:
    """Return how many steps an evaluation had, and at how many the action gate opened.

    Of the latter, ``refused`` says at how many the environment refused the revised action as well.
    """
    steps = [
        step for split in _SPLITS for one in _played(folder, stage, split) for step in one.steps
    ]
    opened = [step for step in steps if step.notes.get("gate")]
    refused = sum(step.invalid_action for step in opened)
    return {"steps": len(steps), "opened": len(opened), "refused": refused}


def _redraws(folder: Path) -> dict[str, Any] | None:
    path = folder / _REDRAWS
    found: dict[str, Any] | None = json.loads(path.read_bytes()) if path.is_file() else None
    return found


def _refused(redraws: Mapping[str, Any] | None) -> dict[str, float]:
    """Return which share of each kind of action the environment would have refused."""
    found: dict[str, float] = {}
    if redraws is None:
        return found
    for kind in ("drafts", "revised", "redrawn", "others"):
        n, refused = (
            sum(told[kind][name] for told in redraws.values()) for name in ("n", "refused")
        )
        if n:
            found[f"redraws.{kind}.refused"] = refused / n
    return found


def _redraw(folder: Path, warm: WarmUp) -> None:
    """Let the policy of a row that has ended draft anew where its gate opened, unless it did."""
    from ..lm import HFLanguageModel

    if (folder / _REDRAWS).is_file():
        return
    last = unseal((folder / "summary.json").read_bytes())["stages"]
    final = next(name for name in reversed(last) if name.endswith("-evaluation"))
    lm = HFLanguageModel(str(folder / "models" / "agent"), device="cpu", dtype="float32")
    found = {
        split: redraw(_played(folder, final, split), partial(warm.env, split), lm)
        for split in _SPLITS
    }
    write_result(folder / _REDRAWS, found)


def _won(folder: Path, stage: str, split: str) -> str:
    """Return one digit for each task of a split, in the order of their ids."""
    episodes = _played(folder, stage, split)
    return "".join("01"[one.success] for one in sorted(episodes, key=lambda one: one.task))


def _rate(won: str) -> dict[str, Any]:
    return {"n": len(won), "rate": round(won.count("1") / max(len(won), 1), 4)}


def _point(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's evaluation in short, for curves."""
    return {
        "round": value["round"],
        "success": {
            split: {"n": told["episodes"], "rate": round(told["success"], 4)}
            for split, told in value["splits"].items()
        },
        "delta_f1": {
            name: {group: scores[group]["delta_f1"] for group in _GROUPS}
            for name, scores in value["world_model"].items()
        },
        "change_token_nll": {
            name: scores["change_token_nll"]["nll"] for name, scores in value["world_model"].items()
        },
        "revisions": value["revisions"],
    }


def _cpu(stages: Mapping[str, Any]) -> dict[str, float]:
    """Return CPU seconds: of what all rows of a seed share, of evaluation, and of the rest."""
    spent = {"shared": 0.0, "evaluation": 0.0, "own": 0.0}
    shared = _SHARED_UP_TO in stages and any(name.startswith("round-1") for name in stages)
    for name, value in stages.items():
        kind = "shared" if shared else "own"
        if name.endswith("-evaluation") and name != _SHARED_UP_TO:
            kind = "evaluation"
        spent[kind] += value.get("cpu_seconds", 0.0)
        if name == _SHARED_UP_TO:
            shared = False
    return {name: round(value, 1) for name, value in spent.items()}


def _means(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation over seeds of what tables show."""
    values: dict[str, list[float | None]] = {}
    for one in found:
        told = {f"success.{name}": rate["rate"] for name, rate in one["success"].items()}
        for name, scores in one["world_model"].items():
            told |= {f"delta_f1.{name}.{g}": scores[g]["delta_f1"] for g in _GROUPS}
            told[f"change_token_nll.{name}"] = scores["change_token_nll"]["nll"]
        steps, opened, refused = (one["revised"][n] for n in ("steps", "opened", "refused"))
        told |= {
            "opened": opened / steps if steps else None,
            "refused": refused / opened if opened else None,
            **_refused(one.get("redraws")),
        }
        for name in ("urr", "hrr", "brp"):
            told[name] = (one["revisions"] or {}).get(name)
        for name, value in told.items():
            values.setdefault(name, []).append(value)
    return {"over_seeds": {name: _spread(some) for name, some in values.items()}}


def _spread(some: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in some if value is not None]
    return {
        "n": len(known),
        "mean": round(statistics.mean(known), 4) if known else None,
        "sd": round(statistics.stdev(known), 4) if len(known) > 1 else None,
    }


def _warm_ups(out: Path, seeds: Sequence[int]) -> dict[str, Any]:
    found = {}
    for part in PARTS:
        for seed in seeds:
            path = out / f"{part}-{seed}" / "training.json"
            if path.is_file():
                told = json.loads(path.read_bytes())
                wanted = ("parameters", "rows", "trained_tokens", "epochs", "cpu_seconds", "losses")
                found[f"{part}-{seed}"] = {key: told.get(key) for key in wanted}
    return found


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench coevolution``."""
    parser = kinds.add_parser(
        "coevolution", help="train CoMap and its ablations with small models on ALFWorld"
    )
    add = parser.add_argument
    add("--data-dir", required=True, help="folder with the official games")
    add("--demos", required=True, help="file of demonstrations (.jsonl or .xz)")
    add("--out", default="runs/coevolution", help="folder for models and trainings")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds")
    add("--rows", nargs="+", default=[row.name for row in ROWS], help="rows to run")
    add("--max-episode-steps", type=int, default=30, help="step limit of episodes")
    add("--collect", action="store_true", help="run nothing, only collect what is there")
    add("--result", help="the result's file; seeds that are there already are kept")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    steps = options.max_episode_steps
    warm = WarmUp(options.out, options.data_dir, options.demos, max_episode_steps=steps)
    known = {row.name: row for row in ROWS}
    for name in options.rows:
        if name not in known:
            raise OptionError(f"there is no row {name!r}; there are {', '.join(known)}")
    if not options.collect:
        shown = shown_by_experts(warm)
        for seed in options.seeds:
            for part in PARTS:
                print(f"warmed up: {warm_up(part, seed, warm, shown)}", flush=True)
            wanted = [known[name] for name in options.rows]
            for row in sorted(wanted, key=lambda row: row is not BASE):
                print(f"row: {_told(row, seed, warm, shown)}", flush=True)
    target = Path(options.result or Path(options.out) / "result.json")
    before = json.loads(target.read_bytes()) if target.is_file() else None
    result = collect(Path(options.out), options.seeds, before, steps)
    write_result(target, result)
    print(json.dumps({row["row"]: row["over_seeds"] for row in result["rows"]}, indent=1))
    return 0


def _told(row: Row, seed: int, warm: WarmUp, shown: Sequence[Trajectory]) -> Path:
    start = time.monotonic()

    def tell(event: Mapping[str, Any]) -> None:
        if event["event"] in ("stage", "done"):
            spent = time.monotonic() - start
            print(
                f"{spent:7.1f} s  {row.name}-{seed}: {event['event']} {event['stage']}", flush=True
            )

    folder = run_row(row, seed, warm, shown, SETTINGS, tell)
    if row.name in _REDRAWN:
        _redraw(folder, warm)
    return folder
