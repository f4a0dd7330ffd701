"""What PaW does for small policies, on official ALFWorld games or elsewhere: ``comap bench paw``.

For each seed a policy is warmed up on demonstrations; then every arm (`paw_bench_arms`: GRPO, GiGPO,
RLOO and PPO, each without PaW and with it, and PaW with a part changed) trains it on the same tasks.
A run is a training of `comap.trainers.paw` in a folder of its own, which goes on where it was stopped;
several processes may each do some arms and seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .paw_bench_arms import (
    ALFWORLD,
    ARMS,
    SETTINGS,
    WARMUP,
    Arm,
    arm_of,
    settings_on,
    training_of,
    warmup_on,
)
from .paw_bench_plays import play_again
from .paw_bench_result import collect
from .paw_bench_starts import PaWBench, make_starts
from .paw_bench_training import run_arm
from .readme_paw import paw_plot, paw_section
from .record import write_result
from .run_models import hush
from .training_page import write_whole

__all__ = ["add_parser"]

_WEBSHOP = "comap/WebShop-v0"
_FIRST = ("grpo", "grpo+paw", "gigpo", "gigpo+paw")
_SETTINGS = {  # options that are settings of all arms, and what they are
    "updates": "updates of each run",
    "max_updates": "stop runs after so many of them, and evaluate; without it they go on",
    "groups": "tasks of an update",
    "members": "episodes of each task",
    "max_episode_steps": "step limit of episodes",
    "learning_rate": "learning rate of the policy, the same in all arms",
    "mini_batch_rows": "rows of an optimizer step; 0 for all of an update",
    "evaluation_tasks": "tasks of each split that are evaluated; 0 for all",
    "live": "episodes at the same time",
    "save_updates": "updates between two checkpoints",
}
_WARMUP = {  # options of the warm-up
    "warmup_tokens": "tokens of demonstrations to begin with",
    "sparse_tokens": "tokens of demonstrations to begin with under --sparse",
    "warmup_tasks": "tasks that the expert plays where no demonstrations are given",
    "warmup_recoveries": "tasks in which it is shown how to go on after random actions",
    "warmup_parameters": "size of the policy",
}


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench paw``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["paw", "--seeds", "1"]).arms
        ['grpo', 'grpo+paw', 'gigpo', 'gigpo+paw']
    """
    parser = kinds.add_parser(
        "paw",
        help="train small models by GRPO, GiGPO, RLOO and PPO, with PaW and without",
        epilog=f"arms: {', '.join(arm.name for arm in ARMS)}",
    )
    add = parser.add_argument
    add("--env", default=ALFWORLD, metavar="ID", help="where (default: %(default)s)")
    add("--data-dir", metavar="DIR", help="folder with official data (default: embedded tasks)")
    add("--demos", metavar="FILE", help="its demonstrations (default: the expert plays)")
    add("--out", default="runs/paw", metavar="DIR", help="folder for policies and runs")
    add("--starts", metavar="DIR", help="folder for the policies to begin with (default: in --out)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="seeds")
    add("--arms", nargs="+", default=list(_FIRST), metavar="ARM", help="arms to run (see below)")
    add("--sparse", action="store_true", help="begin with a policy that hardly ever wins")
    usual = {**SETTINGS, **WARMUP}
    for name, text in (_SETTINGS | _WARMUP).items():
        kind = float if isinstance(usual.get(name), float) else int
        default = (
            f" (default: {usual[name] or 0}{_elsewhere(name, usual)})" if name in usual else ""
        )
        told = f"{text}{default}"
        add(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=told)
    plays = "how often each evaluation task is played in all, 1 to 9 (default: %(default)s)"
    add("--plays", type=int, default=4, metavar="N", help=plays)
    add("--device", default="auto", help="auto (a GPU where there is one) or cpu")
    add("--collect", action="store_true", help="run nothing, only collect what is there")
    add("--result", metavar="FILE", help="the result's file; what it has of other seeds is kept")
    add("--plot", metavar="FILE", help="also draw the curves into this file, as SVG")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Run `comap bench paw` with parsed arguments and return the exit status."""
    bench, arms = _bench(options), [arm_of(name) for name in options.arms]
    target = Path(options.result or Path(options.out) / "result.json")
    if not 1 <= options.plays <= 9:
        raise OptionError(f"--plays must be 1 to 9, found {options.plays}")
    for arm in arms:  # a wrong setting is told before hours of work
        training_of(arm, 0, bench.settings)
    if not options.collect:
        hush()
        for start in make_starts(bench, options.seeds):
            print(f"start: {start}", flush=True)
        for arm in arms:
            for seed in options.seeds:
                tell = _teller(arm, seed)
                print(f"run: {run_arm(arm, seed, bench, tell)}", flush=True)
                play_again(bench, arm, seed, options.plays, tell)
                _write(bench, options, target)
    result = _write(bench, options, target)
    print(paw_section(result))
    if options.plot is not None:
        write_whole(Path(options.plot), paw_plot(result))
    return 0


def _elsewhere(name: str, usual: Mapping[str, Any]) -> str:
    """Return what is usual for an option on WebShop, where that is something else."""
    told = (settings_on(_WEBSHOP) | warmup_on(_WEBSHOP)).get(name, usual[name])
    return "" if told == usual[name] else f"; on WebShop {told}"


def _bench(options: argparse.Namespace) -> PaWBench:
    """Return where and on what to run; what is not given is as usual for the environment."""
    settings, warmup = settings_on(options.env), warmup_on(options.env)
    for kinds, found in ((_SETTINGS, settings), (_WARMUP, warmup)):
        given = {name: getattr(options, name) for name in kinds}
        found.update((name, value) for name, value in given.items() if value is not None)
    for name in ("mini_batch_rows", "evaluation_tasks"):
        if name in settings:
            settings[name] = settings[name] or None
    return PaWBench(
        out=options.out,
        env_id=options.env,
        data_dir=options.data_dir,
        demos=options.demos,
        sparse=options.sparse,
        starts=options.starts,
        warmup_tokens=warmup.pop("warmup_tokens"),
        sparse_tokens=warmup.pop("sparse_tokens"),
        warmup={name.removeprefix("warmup_"): value for name, value in warmup.items()},
        settings=settings,
        device=options.device,
    )


def _write(bench: PaWBench, options: argparse.Namespace, target: Path) -> dict[str, Any]:
    """Write down all that was measured so far, and return it."""
    before = json.loads(target.read_bytes()) if target.is_file() else None
    result = collect(bench, options.seeds, before)
    write_result(target, result)
    return result


def _teller(arm: Arm, seed: int) -> Callable[[Mapping[str, Any]], None]:
    """Return what prints a line for each update and evaluation."""
    start = time.monotonic()

    def tell(event: Mapping[str, Any]) -> None:
        if event["event"] == "update":
            told = f"update {event['update']}/{event['of']}: {100 * event['success']:.1f} % won"
        elif event["event"] == "evaluated":
            told = f"{event['split']} after {event['update']}: {100 * event['success']:.1f} % won"
        elif event["event"] == "played":
            told = f"{event['split']}, {event['end']}, again: {100 * event['success']:.1f} % won"
        else:
            return
        print(f"{time.monotonic() - start:7.1f} s  {arm.name}-{seed}: {told}", flush=True)

    return tell
