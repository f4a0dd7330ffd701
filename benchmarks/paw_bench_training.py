"""One run of `comap bench paw`: an arm with a seed, in a folder of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..checksums import seal, unseal
from ..trainers.paw.journal import EVALUATIONS, METRICS, read_lines
from .paw_bench_arms import PACKAGES, VARIED, Arm, training_of
from .paw_bench_starts import PaWBench, described_start, start_folder
from .record import circumstances

__all__ = ["CPU", "has_ended", "last_update", "run_arm", "take_over_first_evaluation"]

CPU = "cpu.jsonl"
"""The file in a run's folder that tells how much CPU time each update and evaluation took."""


def last_update(run: Mapping[str, Any]) -> int:
    """Return the update that a run ends with: its last, or the one that it was told to stop after.

    Args:
        run: What its ``run.json`` says.

    Example:
        >>> last_update({"described": {"config": {"updates": 30}}, "sessions": [{"max_updates": 8}]})
        8
    """
    updates: int = run["described"]["config"]["updates"]
    return min(updates, run["sessions"][-1].get("max_updates") or updates)


def has_ended(folder: Path) -> bool:
    """Return whether a run has done all its updates, or those asked for, and its evaluations.

    Raises:
        DataCorrupt: A file is not what a training writes.

    Example:
        >>> has_ended(Path("no/such/run"))
        False
    """
    run = folder / "run.json"
    if not run.is_file():
        return False
    told = unseal(run.read_bytes())
    config, last = told["described"]["config"], last_update(told)
    done = {line["update"] for line in read_lines(folder / METRICS)}
    found = {(line["update"], line["split"]) for line in read_lines(folder / EVALUATIONS)}
    wanted = {(at, split) for at in (0, last) for split in config["evaluation_splits"]}
    return done >= set(range(1, last + 1)) and found >= wanted


def run_arm(
    arm: Arm,
    seed: int,
    bench: PaWBench,
    tell: Callable[[Mapping[str, Any]], object] = lambda event: None,
) -> Path:
    """Run an arm with a seed, unless that was done, and return its folder.

    A run that was stopped goes on. What the policy wins before the first update is the same in all
    arms of a seed, and is taken over from another one where that was measured.

    Args:
        arm: The arm.
        seed: The seed: of the start, of the tasks' order and of everything that is sampled.
        bench: Where, on what, and with which settings.
        tell: Told what happens.

    Raises:
        OptionError: The start is not there, or the folder has a run with other settings.
    """
    from ..trainers.paw.training import train
    from ..trainers.setup import hardware

    out = bench.place_of(arm.name, seed)
    config = training_of(arm, seed, bench.settings)
    if has_ended(out) and _as_far(out, config.max_updates):
        return out
    make_env = bench.environments(config.max_episode_steps)
    start = start_folder(bench, seed)
    about = {
        "arm": arm.name,
        "row": config.row,
        "env": make_env.describe((config.train_split, *config.evaluation_splits)),
        "model": described_start(start),
    }
    take_over_first_evaluation(out, {"method": "paw", "config": config.describe(), **about})
    session = circumstances(PACKAGES)
    session["hardware"] |= hardware()
    session["max_updates"] = config.max_updates
    train(
        config,
        model=start,
        make_env=make_env,
        out=out,
        tell=_Clock(out, tell),
        about=about,
        session=session,
        device=bench.device,
    )
    return out


def _as_far(folder: Path, most: int | None) -> bool:
    """Return whether a run that has ended has done as many updates as are asked for now."""
    run = unseal((folder / "run.json").read_bytes())
    updates: int = run["described"]["config"]["updates"]
    return last_update(run) >= min(updates, most or updates)


def take_over_first_evaluation(out: Path, described: Mapping[str, Any]) -> None:
    """Write down what another arm measured of the same policy on the same tasks, if one did.

    Before the first update, runs that differ in `VARIED` alone play the very same episodes.

    Args:
        out: The folder of a run that has not begun, beside those of the others.
        described: What the run is, as its ``run.json`` will say.
    """
    if (out / EVALUATIONS).exists():
        return
    wanted = _but_varied(described)
    splits = set(described["config"]["evaluation_splits"])
    for other in sorted(out.parent.glob(f"*-{described['config']['seed']}/run.json")):
        known = unseal(other.read_bytes())["described"]
        lines = [line for line in read_lines(other.with_name(EVALUATIONS)) if not line["update"]]
        if _but_varied(known) == wanted and {line["split"] for line in lines} == splits:
            out.mkdir(parents=True, exist_ok=True)
            draft = out / f"{EVALUATIONS}.part"
            draft.write_text("".join(f"{seal(json.dumps(line))}\n" for line in lines), "ascii")
            draft.replace(out / EVALUATIONS)
            return


def _but_varied(described: Mapping[str, Any]) -> Any:
    """Return what a run is, without that in which arms differ."""
    config = {k: v for k, v in described["config"].items() if k not in (*VARIED, "max_updates")}
    kept = {k: v for k, v in described.items() if k not in ("arm", "row")}
    return json.loads(json.dumps({**kept, "config": config}))


class _Clock:
    """Writes down the CPU time of each update and evaluation, and passes on what is told."""

    def __init__(self, out: Path, tell: Callable[[Mapping[str, Any]], object]):
        self._file, self._tell, self._last = out / CPU, tell, time.process_time()

    def __call__(self, event: Mapping[str, Any]) -> None:
        if event["event"] in ("update", "evaluated"):
            now = time.process_time()
            line = {"update": event["update"], "split": event.get("split")}
            with self._file.open("a", encoding="ascii") as file:
                file.write(json.dumps({**line, "cpu_seconds": round(now - self._last, 2)}) + "\n")
            self._last = now
        self._tell(event)
