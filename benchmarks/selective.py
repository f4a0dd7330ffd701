"""`comap bench selective`: how many calls of a world model can be saved, and what success that costs.

CoMap's agent plays the same tasks looking ahead always, never, and where it pays by several criteria
(`comap.agents.selective`), and with a cache before the world model (`comap.worldmodel.cache`). The
gate's history is of other tasks, of the split ``train``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..agents import run_episodes
from ..agents.gate_history import GateHistory
from ..agents.run import Run
from ..errors import OptionError
from ..metrics import success_rate
from ..trajectory import Trajectory
from ..worldmodel import CachedWorldModel
from .paw_bench_pairs import paired
from .record import circumstances, write_result
from .run_setup import PACKAGES, setup
from .selective_overlap import measure_overlap
from .tables import Table
from .terminal import print_table

__all__ = ["ARMS", "add_parser", "measure_selection", "pooled", "selective_table"]

ARMS: Mapping[str, tuple[str, ...]] = {
    "always": (),
    "never": ("--adoption", "1"),
    "surprisal > 0.01": ("--surprisal", "0.01"),
    "surprisal > 0.1": ("--surprisal", "0.1"),
    "surprisal > 0.3": ("--surprisal", "0.3"),
    "history > 0.02": ("--adoption", "0.02"),
    "history > 0.1": ("--adoption", "0.1"),
    "history > 0.25": ("--adoption", "0.25"),
    "history > 0.1, or 2 tries": ("--adoption", "0.1", "--tried", "2"),
    "surprisal > 0.1 and history > 0.02": (
        *("--surprisal", "0.1", "--adoption", "0.02"),
        *("--when", "all"),
    ),
    "always, queries cached": ("--world-model-cache", "query"),
    "always, beliefs cached": ("--world-model-cache", "belief"),
    "surprisal > 0.1, beliefs cached": ("--surprisal", "0.1", "--world-model-cache", "belief"),
}
"""What is compared: options of `comap run --agent comap-selective`. The first is what CoMap does."""

_DIGITS = 4


def measure_selection(
    words: Sequence[str],
    episodes: int,
    fitted: int,
    seeds: Sequence[int] = (0,),
    live: int = 16,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Play all arms and return what each called and won, as plain data.

    Args:
        words: Options of `comap run` that say environment, models and how they are asked.
        episodes: How many tasks are played, the same by all arms.
        fitted: How many tasks of ``train`` the gate's history is of.
        seeds: The seeds.
        live: How many episodes run at the same time.
        progress: Told what is done next.

    Raises:
        CoMapError: The options are not right, or a model is missing.

    Example:
        >>> words = ["--env", "comap/ALFWorld-v0", "--env-option", "source=generated"]
        >>> found = measure_selection(words, 2, 2)  # doctest: +SKIP
        >>> found["arms"]["always"]["saved"]  # doctest: +SKIP
        0.0
    """
    with tempfile.TemporaryDirectory(prefix="comap-selective-") as folder:
        place = Path(folder)
        told = [_seed(words, episodes, fitted, seed, live, place, progress) for seed in seeds]
    return {
        "arms": pooled([arms for arms, _ in told]),
        "history": [{"seen": dict(h.seen), "opened": dict(h.opened)} for _, h in told],
        "fitted": fitted,
        "seeds": list(seeds),
    }


def pooled(found: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return arms that were played several times, with other seeds or models, as one.

    Args:
        found: The arms of each time, such as ``arms`` of what `measure_selection` returned; one at
            least, with an arm ``always``.

    Returns:
        For each arm the counts of all times together, ``success`` (a share, with Wilson's 95 %
        interval), ``saved`` (the share of *always*'s world-model calls in a step that it did not
        make; None where *always* made none) and ``difference`` from *always* (see
        `comap.benchmarks.paw_bench_pairs.paired`).

    Raises:
        KeyError: An arm of the first time is missing in another.

    Example:
        >>> counts = dict.fromkeys(("errors", "questions", "reflections", "opened", "policy_calls"), 0)
        >>> one = {"always": {**counts, "won": ["10"], "steps": 8, "calls": 4, "seconds": [1.0]}}
        >>> arm = pooled([one, one])["always"]
        >>> arm["calls"], arm["success"]["value"], arm["saved"]
        (8, 0.5, 0.0)
    """
    arms = {name: _merged([one[name] for one in found]) for name in found[0]}
    base = arms["always"]
    for arm in arms.values():
        calls = arm["calls"] / max(arm["steps"], 1)
        always = base["calls"] / max(base["steps"], 1)
        arm["saved"] = round(1 - calls / always, _DIGITS) if always else None
        arm["difference"] = paired(arm["won"], base["won"])
    return arms


def selective_table(found: Mapping[str, Any]) -> Table:
    """Return what was measured as a table.

    Args:
        found: What `measure_selection` returned.
    """
    rows = []
    for name, arm in found["arms"].items():
        rate, gap = arm["success"], arm["difference"]
        rows.append(
            (
                name,
                "—" if arm["saved"] is None else f"{100 * arm['saved']:.1f}",
                f"{100 * rate['value']:.1f} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]",
                f"{100 * gap['mean']:+.1f} [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]",
                f"{100 * arm['opened'] / max(arm['reflections'], 1):.1f}",
                f"{arm['policy_calls'] / max(arm['steps'], 1):.2f}",
                f"{arm['steps']:,}",
            )
        )
    heads = (
        "looks ahead",
        "world-model calls saved",
        "success",
        "difference",
        "gate opened",
        "policy calls",
        "steps",
    )
    note = (
        "Percent; calls saved are of calls in a step, policy calls are in a step. Differences are from "
        "'always', on the same tasks, with bootstrap intervals over tasks."
    )
    return Table("Selective imagination", heads, tuple(rows), note)


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench selective``."""
    parser = kinds.add_parser(
        "selective",
        help="world-model calls saved against success lost, where CoMap looks ahead only if it pays",
        description="Play CoMap's agent with several criteria for looking ahead, and with caches. "
        "What follows -- goes to comap run: which models play, and how they are asked.",
        epilog="example: comap bench selective --episodes 60 --result selective.json "
        "-- --env comap/ALFWorld-v0 --env-option source=generated",
        allow_abbrev=False,
    )
    parser.set_defaults(run=_run)
    add = parser.add_argument
    add("--episodes", type=int, default=60, metavar="N", help="tasks (default: %(default)s)")
    add("--fitted", type=int, default=40, metavar="N", help="tasks of the gate's history")
    add("--seeds", type=int, nargs="+", default=[0], metavar="N", help="seeds (default: 0)")
    add("--live", type=int, default=16, metavar="N", help="episodes at the same time")
    add("--pairs", type=int, default=3, metavar="N", help="timed pairs for overlapped rounds")
    latency = (
        "seconds that each batch waits in the timed pairs, as of a server (default: %(default)s)"
    )
    add("--latency", type=float, default=0.2, metavar="S", help=latency)
    add("--result", metavar="FILE", help="write the result to this file, as JSON")
    add("words", nargs="*", metavar="WORD", help="options of comap run, behind --")


def _run(options: argparse.Namespace) -> int:
    for name in ("episodes", "fitted", "live", "pairs"):
        if getattr(options, name) < 1:
            raise OptionError(f"--{name} must be at least 1, not {getattr(options, name)}")
    if not 0 <= options.latency <= 60:
        raise OptionError(f"--latency must be from 0 to 60 seconds, not {options.latency}")
    words = options.words or ["--env", "comap/ALFWorld-v0", "--env-option", "source=generated"]

    def progress(line: str) -> None:
        print(line, flush=True)

    found = measure_selection(
        words, options.episodes, options.fitted, options.seeds, options.live, progress
    )
    with tempfile.TemporaryDirectory(prefix="comap-selective-") as folder:
        run = _prepared(words, (), options.live, options.seeds[0], Path(folder))
        overlap = measure_overlap(run, options.live, options.pairs, options.latency)
    about = circumstances(PACKAGES)
    result = {"benchmark": "selective", "words": words, **about, **found, "overlap": overlap}
    if options.result is not None:
        write_result(Path(options.result), result)
    print_table(selective_table(found))
    print(
        f"\noverlapped rounds: {overlap['ratio']['median']:.2f} times as fast as rounds, with "
        f"{overlap['latency']} s of waiting in each batch ({overlap['episodes']} episodes)"
    )
    return 0


def _seed(
    words: Sequence[str],
    episodes: int,
    fitted: int,
    seed: int,
    live: int,
    place: Path,
    progress: Callable[[str], object],
) -> tuple[dict[str, dict[str, Any]], GateHistory]:
    """Return what all arms did with one seed, and the history that they were given."""
    progress(f"seed {seed}: the gate's history, of {fitted} tasks")
    train = _prepared([*words, "--split", "train"], (), fitted, seed, place)
    history = GateHistory.of(_play(train, live))
    history.save(place / f"history-{seed}.json")
    arms = {}
    for name, more in ARMS.items():
        given = ("--agent-option", f"history={place / f'history-{seed}.json'}")
        arm = _prepared(words, (*more, *given), episodes, seed, place)
        begun = time.perf_counter()
        played = _play(arm, live)
        arms[name] = _told(played, arm) | {"seconds": [round(time.perf_counter() - begun, 1)]}
        progress(f"seed {seed}: {name}: {arms[name]['seconds'][0]} s")
    return arms, history


def _prepared(
    words: Sequence[str], more: Sequence[str], episodes: int, seed: int, place: Path
) -> Run:
    """Return the run that words of `comap run` describe."""
    from .run_options import RunParser, declare

    parser = RunParser("comap run", allow_abbrev=False)
    declare(parser)
    own = ["--agent", "comap-selective", "--episodes", str(episodes), "--seed", str(seed)]
    return setup(parser.parse_args([*own, *words, *more]), place)


def _play(run: Run, live: int) -> list[Trajectory]:
    return run_episodes(
        run.make_env,
        run.agent,
        run.tasks,
        lm=run.lm,
        world_model=run.world_model,
        live=live,
        seed=run.seed,
    )


def _told(played: Sequence[Trajectory], run: Run) -> dict[str, Any]:
    """Return what an arm called and won with one seed."""
    steps = [step for episode in played for step in episode.steps]
    asked = sum(step.notes.get("predicted_next_state") is not None for step in steps)
    cached = isinstance(run.world_model, CachedWorldModel)
    reflected = [step for step in steps if step.notes.get("path") == "reflected"]
    return {
        "won": ["".join(str(int(episode.success)) for episode in played)],
        "errors": sum(episode.error is not None for episode in played),
        "steps": len(steps),
        "questions": asked,
        "calls": run.world_model.statistics().misses if cached else asked,  # type: ignore[union-attr]
        "reflections": len(reflected),
        "opened": sum(bool(step.notes.get("gate")) for step in reflected),
        "policy_calls": sum(call.purpose != "world model" for step in steps for call in step.calls),
    }


_COUNTS = ("errors", "steps", "questions", "calls", "reflections", "opened", "policy_calls")


def _merged(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what an arm called and won in all, and how often it won."""
    won = [digits for one in told for digits in one["won"]]
    counts = {name: sum(one[name] for one in told) for name in _COUNTS}
    rate = success_rate([digit == "1" for digits in won for digit in digits])
    success = {"value": rate.value, "low": rate.low, "high": rate.high, "n": rate.n}
    seconds = [taken for one in told for taken in one["seconds"]]
    return {**counts, "won": won, "success": success, "seconds": seconds}
