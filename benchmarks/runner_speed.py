"""`comap bench runner`: what the runner costs, and what playing many episodes at once gains."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import Agent, Decision, Reply, Request, View, run_episodes
from ..errors import LanguageModelError, OptionError
from ..lm import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    Message,
    Sampling,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
)
from .record import circumstances, spread, write_result

__all__ = ["ConstantLanguageModel", "OneCallAgent", "TimedEnv", "add_parser", "main", "run"]

_ENV = "comap/ALFWorld-v0"
_PACKAGES = ("gymnasium", "numpy", "torch", "transformers")
_WHAT = (
    "overhead: seconds of run_episodes, less those inside env.reset and env.step, for each decision "
    "of an agent that makes one Generate a decision, with a language model that answers a constant "
    "at once. Building views, running the agent, gathering and handing out requests, and records "
    "are all counted, and so is the making of environments. throughput: episodes a second with a "
    "tiny model, many at once and one at a time in turns; ratio: the one by the other of the same "
    "turn."
)


class ConstantLanguageModel:
    """Answers every request for text with one text, at once: what is left is the runner's time.

    Example:
        >>> ConstantLanguageModel().generate([Generate(())])[0].text
        'look'
    """

    name = "constant"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.usage = Usage()
        self._reply = Completion("look", prompt_tokens=64, completion_tokens=2)

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Return the constant for each."""
        return [self._reply for _ in requests]

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Return errors."""
        return [LanguageModelError("it answers with text alone") for _ in requests]

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return errors."""
        return [LanguageModelError("it answers with text alone") for _ in requests]

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return errors."""
        return [LanguageModelError("it answers with text alone") for _ in requests]

    def count_tokens(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())

    def config(self) -> dict[str, Any]:
        """Return what this is."""
        return {"kind": "constant"}


class OneCallAgent:
    """Makes one request a decision, and then takes admissible actions in turn, whatever the reply.

    Args:
        tokens: The most tokens of the reply.

    Example:
        >>> OneCallAgent().name
        'one-call'
    """

    name = "one-call"

    def __init__(self, tokens: int = 16):
        self._sampling = Sampling(tokens)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Ask once, then act."""
        text = f"{view.goal}\n{view.history[-1].observation}"
        yield Generate((Message("user", text),), self._sampling)
        actions = view.admissible_actions or ("look",)
        return Decision(actions[view.step % len(actions)])


class TimedEnv(gymnasium.Wrapper[str, str, str, str]):
    """Adds up the seconds inside an environment.

    Args:
        env: The environment.
        spent: The seconds are added to its first item.

    Example:
        >>> import comap
        >>> spent = [0.0]
        >>> observation, info = TimedEnv(gymnasium.make("comap/ALFWorld-v0"), spent).reset(seed=0)
        >>> spent[0] > 0
        True
    """

    def __init__(self, env: gymnasium.Env[str, str], spent: list[float]):
        super().__init__(env)
        self._spent = spent

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        start = time.perf_counter()
        answer = self.env.reset(**options)
        self._spent[0] += time.perf_counter() - start
        return answer

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        start = time.perf_counter()
        answer = self.env.step(action)
        self._spent[0] += time.perf_counter() - start
        return answer


def run(
    *,
    episodes: int = 64,
    live: int = 32,
    repeats: int = 7,
    steps: int = 8,
    model: str | Path | None = None,
    out: str | Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure the runner's overhead, and the gain of playing many episodes at once.

    Args:
        episodes: Episodes in each measurement.
        live: How many at once.
        repeats: How often everything is measured, the one kind after the other.
        steps: Length of the episodes that the tiny model plays; the overhead is of whole episodes.
        model: Folder of a tiny model; None builds one.
        out: File for the result, or None.
        progress: Told of each measurement.

    Returns:
        The result, as written to `out`: seconds by the clock, with their spread.

    Raises:
        OptionError: A number is less than 1.
        MissingExtra: The extra ``train`` is not installed.
    """
    for name, value in {"episodes": episodes, "live": live, "repeats": repeats}.items():
        if value < 1:
            raise OptionError(f"{name} must be at least 1, not {value}")
    with tempfile.TemporaryDirectory() as folder:
        lm = _tiny(Path(folder) if model is None else Path(model), build=model is None)
        rows: dict[str, list[float]] = {name: [] for name in ("overhead", "many", "one", "ratio")}
        overhead(episodes, live)  # warms up imports and caches
        throughput(lm, live, live, steps)
        for number in range(1, repeats + 1):
            rows["overhead"].append(overhead(episodes, live))
            rows["many"].append(throughput(lm, episodes, live, steps))
            rows["one"].append(throughput(lm, episodes, 1, steps))
            rows["ratio"].append(rows["many"][-1] / rows["one"][-1])
            latest = {name: round(values[-1], 6) for name, values in rows.items()}
            progress(f"{number}/{repeats} {latest}")
    result = circumstances(_PACKAGES) | {
        "what": _WHAT,
        "settings": {"episodes": episodes, "live": live, "repeats": repeats, "steps": steps},
        "model": lm.config(),
        "overhead_microseconds": spread([1e6 * value for value in rows["overhead"]]),
        "episodes_per_second": {
            f"live {live}": spread(rows["many"]),
            "live 1": spread(rows["one"]),
        },
        "ratio": spread(rows["ratio"]),
    }
    if out is not None:
        write_result(Path(out), result)
    return result


def overhead(episodes: int, live: int) -> float:
    """Return the seconds that a decision costs beside the environment's own.

    Example:
        >>> overhead(2, 2) < 0.01
        True
    """
    spent = [0.0]
    seconds, decisions = _play(ConstantLanguageModel(), OneCallAgent(), episodes, live, spent)
    return (seconds - spent[0]) / decisions


def throughput(lm: LanguageModel, episodes: int, live: int, steps: int) -> float:
    """Return the episodes a second that a language model plays.

    Example:
        >>> throughput(ConstantLanguageModel(), 2, 2, steps=4) > 1
        True
    """
    options = {"max_episode_steps": steps}
    return episodes / _play(lm, OneCallAgent(), episodes, live, [0.0], **options)[0]


def _play(
    lm: LanguageModel,
    agent: Agent,
    episodes: int,
    live: int,
    spent: list[float],
    **options: Any,
) -> tuple[float, int]:
    """Return the seconds that episodes took, and how many decisions were made in them."""

    def make_env() -> gymnasium.Env[str, str]:
        return TimedEnv(gymnasium.make(_ENV, source="generated", **options), spent)

    ids: tuple[str, ...] = make_env().get_wrapper_attr("tasks").ids
    tasks = [ids[number % len(ids)] for number in range(episodes)]
    start = time.perf_counter()
    played = run_episodes(make_env, agent, tasks, lm=lm, live=live)
    seconds = time.perf_counter() - start
    faults = [trajectory.error for trajectory in played if trajectory.error]
    if faults:
        raise LanguageModelError(f"expected episodes without faults, found: {faults[0]:.200}")
    return seconds, sum(len(trajectory.steps) for trajectory in played)


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
        ("repeats", 7, "measurements of each kind"),
        ("steps", 8, "of the tiny model's episodes"),
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
        model=args.model,
        out=args.out,
        progress=lambda line: print(line, file=sys.stderr),
    )
    cost, gain = result["overhead_microseconds"], result["ratio"]
    rates = {name: values["median"] for name, values in result["episodes_per_second"].items()}
    print(f"overhead: {cost['median']:.1f} us a decision ({cost['min']:.1f} to {cost['max']:.1f})")
    print("; ".join(f"{name}: {rate:.2f} episodes/s" for name, rate in rates.items()))
    print(f"ratio: {gain['median']:.2f} ({gain['min']:.2f} to {gain['max']:.2f})")
    return 0
