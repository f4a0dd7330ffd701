"""`comap bench runner`: what the runner costs, and what playing many episodes at once gains."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from ..agents import Agent, create_agent, run_episodes
from ..errors import LanguageModelError, OptionError
from ..lm import LanguageModel
from ..trajectory import Trajectory
from .record import circumstances, spread, write_result
from .runner_parts import ConstantLanguageModel, OneCallAgent, TimedEnv

__all__ = ["add_parser", "main", "overhead", "run", "throughput"]

_ENV = "comap/ALFWorld-v0"
_PACKAGES = ("gymnasium", "numpy", "torch", "transformers")
_WHAT = (
    "overhead: processor seconds of run_episodes, less those inside env.reset, env.step and the "
    "making of environments, for each decision of an agent that makes one Generate a decision, with "
    "a language model that answers a constant at once. Building views, running the agent, gathering "
    "and handing out requests, and records are all counted. throughput: episodes a second by the "
    "clock, environments and all, with a tiny model; the same tasks many at once and one at a time, "
    "in turns, the one first and then the other; ratio: the two of the same turn. one-call asks for "
    "16 tokens after a prompt of some 50, another one in each episode; react is comap's agent as it "
    "comes, greedy, whose prompts are some 1,000 tokens long: reading them takes most of the time, "
    "and on a processor a batch is read little faster than its prompts one by one; react_brief is "
    "the same agent with brief prompts and the belief as state text, as small models use it. "
    "same: whether the "
    "trajectories were the same both ways."
)


class _Played(NamedTuple):
    """What playing took, and what came of it."""

    seconds: float
    processor_seconds: float
    spent: float
    trajectories: list[Trajectory]

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [trajectory.to_json() for trajectory in self.trajectories]


def run(
    *,
    episodes: int = 64,
    live: int = 32,
    repeats: int = 5,
    steps: int = 8,
    react_steps: int = 2,
    model: str | Path | None = None,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure the runner's overhead, and the gain of playing many episodes at once.

    Args:
        episodes: Episodes in each measurement.
        live: How many at once; of react's episodes as many are played.
        repeats: How often everything is measured.
        steps: Length of the episodes that the tiny model plays; the overhead is of whole episodes.
        react_steps: Length of react's episodes; 0 leaves them out.
        model: Folder of a tiny model; None builds one.
        out: File for the result, or None.
        progress: Told of each measurement.

    Returns:
        The result, as written to `out`, with the spread of all numbers.

    Raises:
        OptionError: A number is less than 1.
        MissingExtra: The extra ``train`` is not installed.
    """
    for name, value in {"episodes": episodes, "live": live, "repeats": repeats}.items():
        if value < 1:
            raise OptionError(f"{name} must be at least 1, not {value}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cost: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        lm = _tiny(Path(folder) if model is None else Path(model), build=model is None)
        kinds = {"one-call": _Comparison(lm, OneCallAgent(), episodes, live, steps)}
        if react_steps:
            react = create_agent("react", temperature=0.0)
            kinds["react"] = _Comparison(lm, react, live, live, react_steps)
            brief = create_agent("react", prompts="brief", state_text="belief", temperature=0.0)
            kinds["react_brief"] = _Comparison(lm, brief, live, live, react_steps)
        overhead(episodes, live)  # warms up imports and caches
        for kind in kinds.values():
            kind.warm_up()
        for number in range(1, repeats + 1):
            cost.append(overhead(episodes, live))
            for name, kind in kinds.items():
                kind.measure(many_first=number % 2 == 1)
                progress(f"{number}/{repeats} {name}: {kind}")
    main_kind = kinds["one-call"].result()
    result = circumstances(_PACKAGES) | {
        "what": _WHAT,
        "settings": {
            "episodes": episodes,
            "live": live,
            "repeats": repeats,
            "steps": steps,
            "react_steps": react_steps,
        },
        "load_average_before": load,
        "model": lm.config(),
        "overhead_microseconds": spread([1e6 * value for value in cost]),
        **main_kind,
        "react": kinds["react"].result() if react_steps else None,
        "react_brief": kinds["react_brief"].result() if react_steps else None,
    }
    if out is not None:
        write_result(Path(out), result)
    return result


class _Comparison:
    """The same episodes, many at once and one at a time."""

    def __init__(self, lm: LanguageModel, agent: Agent, episodes: int, live: int, steps: int):
        self._lm, self._agent = lm, agent
        self._episodes, self._live, self._steps = episodes, live, steps
        self._rates: dict[int, list[float]] = {live: [], 1: []}
        self._ratios: list[float] = []
        self._same = True

    def warm_up(self) -> None:
        """Play a few steps both ways, so that nothing is done for the first time later."""
        for live in (self._live, 1):
            _play(self._lm, self._agent, min(2, self._episodes), live, max_episode_steps=1)

    def measure(self, many_first: bool) -> None:
        """Play everything both ways, in this order."""
        ways = [self._live, 1] if many_first else [1, self._live]
        played = {live: self._play(live) for live in ways}
        rates = {live: self._episodes / found.seconds for live, found in played.items()}
        if self._live != 1:
            self._same = self._same and played[self._live].lines == played[1].lines
        for live, rate in rates.items():
            self._rates[live].append(rate)
        self._ratios.append(rates[self._live] / rates[1])

    def result(self) -> dict[str, Any]:
        """Return the rates, their ratio, and whether the work was the same."""
        return {
            "episodes_per_second": {
                f"live {live}": spread(rates) for live, rates in self._rates.items()
            },
            "ratio": spread(self._ratios),
            "same": self._same,
        }

    def __str__(self) -> str:
        rates = ", ".join(f"{rates[-1]:.2f} at live {n}" for n, rates in self._rates.items())
        return f"episodes a second {rates}, ratio {self._ratios[-1]:.2f}"

    def _play(self, live: int) -> _Played:
        return _play(self._lm, self._agent, self._episodes, live, max_episode_steps=self._steps)


def overhead(episodes: int, live: int) -> float:
    """Return the processor seconds that a decision costs beside the environment's own.

    Example:
        >>> overhead(2, 2) < 0.01
        True
    """
    played = _play(ConstantLanguageModel(), OneCallAgent(), episodes, live)
    decisions = sum(len(trajectory.steps) for trajectory in played.trajectories)
    return (played.processor_seconds - played.spent) / decisions


def throughput(lm: LanguageModel, episodes: int, live: int, steps: int) -> float:
    """Return the episodes a second, by the clock, that a language model plays.

    Example:
        >>> throughput(ConstantLanguageModel(), 2, 2, steps=4) > 1
        True
    """
    played = _play(lm, OneCallAgent(), episodes, live, max_episode_steps=steps)
    return episodes / played.seconds


def _play(lm: LanguageModel, agent: Agent, episodes: int, live: int, **options: Any) -> _Played:
    """Play episodes; `options` are the environment's."""
    spent = [0.0]

    def make_env() -> gymnasium.Env[str, str]:
        start = time.process_time()
        env = TimedEnv(gymnasium.make(_ENV, source="generated", **options), spent)
        spent[0] += time.process_time() - start
        return env

    env = make_env()
    ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
    env.close()
    tasks = [ids[number % len(ids)] for number in range(episodes)]
    spent[0] = 0.0
    start, processor = time.perf_counter(), time.process_time()
    played = run_episodes(make_env, agent, tasks, lm=lm, live=live)
    seconds, used = time.perf_counter() - start, time.process_time() - processor
    faults = [trajectory.error for trajectory in played if trajectory.error]
    if faults:
        raise LanguageModelError(f"expected episodes without faults, found: {faults[0]:.200}")
    return _Played(seconds, used, spent[0], played)


def _tiny(folder: Path, build: bool) -> LanguageModel:
    from ..agents.corpus import tiny_folder
    from ..lm.hf import HFLanguageModel

    return HFLanguageModel(tiny_folder(folder, _ENV) if build else folder, name="tiny")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `runner`; `main` is set as its default ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["runner", "--live", "8"]).live
        8
    """
    parser = subparsers.add_parser("runner", help="what the runner costs, and what batches gain")
    parser.set_defaults(run=main)
    numbers = (
        ("episodes", 64, "in each measurement"),
        ("live", 32, "episodes at once"),
        ("repeats", 5, "measurements of each kind"),
        ("steps", 8, "of the tiny model's episodes"),
        ("react-steps", 2, "of the episodes that react plays; 0 leaves them out"),
    )
    for name, default, text in numbers:
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    parser.add_argument("--model", metavar="DIR", help="folder of a tiny model (default: built)")
    parser.add_argument("--out", metavar="FILE", help="write the result to this file, as JSON")


def main(args: argparse.Namespace) -> int:
    """Run `comap bench runner` with parsed arguments and return the exit status.

    Example:
        >>> main(argparse.Namespace(live=32))  # doctest: +SKIP
        0
    """
    result = run(
        episodes=args.episodes,
        live=args.live,
        repeats=args.repeats,
        steps=args.steps,
        react_steps=args.react_steps,
        model=args.model,
        out=args.out,
        progress=lambda line: print(line, file=sys.stderr),
    )
    cost = result["overhead_microseconds"]
    print(f"overhead: {cost['median']:.1f} us a decision ({cost['min']:.1f} to {cost['max']:.1f})")
    for name, found in (
        ("one-call", result),
        ("react", result["react"]),
        ("react_brief", result["react_brief"]),
    ):
        if found is None:
            continue
        rates = {live: values["median"] for live, values in found["episodes_per_second"].items()}
        told = ", ".join(f"{rate:.2f} at {live}" for live, rate in rates.items())
        gain, same = found["ratio"], "the same" if found["same"] else "NOT the same"
        print(f"{name}: episodes a second {told}; trajectories {same}")
        print(f"{name}: ratio {gain['median']:.2f} ({gain['min']:.2f} to {gain['max']:.2f})")
    return 0
