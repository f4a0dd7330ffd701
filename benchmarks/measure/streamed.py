"""Streamed rollouts beside the blocking call, on one vLLM engine in this process.

``python benchmarks/measure/streamed.py MODEL --out FILE [--tasks N] [--episodes N]``; vLLM is installed.
Both play the same tasks, 16 in flight, and take turns; before each the engine forgets its
prompts. They differ in whether an episode waits for the longest reply of its round. Passes are steps of the
engine: their number does not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from comap.agents import create_agent, run_episodes
from comap.benchmarks.record import circumstances, write_result
from comap.lm import VLLMLanguageModel
from comap.lm.base import BaseLanguageModel

STEPS = 8
ASKS = {
    "prompts": "brief",
    "state_text": "belief",
    "draft_tokens": 48,
    "temperature": 1.0,
    "top_p": 1.0,
}
CONTEXT = 2048
PROGRAM = "benchmarks/measure/streamed.py (not in the package)"
make = partial(gymnasium.make, "comap/ALFWorld-v0", source="generated", max_episode_steps=STEPS)


class Blocking(BaseLanguageModel):
    """A language model whose requests are answered in batches alone."""

    def __init__(self, lm: VLLMLanguageModel):
        self._lm = lm
        self.name = lm.name
        self.capabilities = lm.capabilities
        self.usage = lm.usage
        self.context = lm.context

    def count_tokens(self, text: str) -> int:
        return self._lm.count_tokens(text)

    def config(self) -> dict[str, Any]:
        return self._lm.config()

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        return self._lm._answer(requests)


class Passes:
    """Counts an engine's steps, and the sequences in each."""

    def __init__(self, lm: VLLMLanguageModel):
        self.engine = lm.transport._engine  # type: ignore[attr-defined]
        self.step = self.engine.step
        self.engine.step = self.counted
        self.sequences: list[int] = []

    def counted(self) -> Any:
        self.sequences.append(self.engine.get_num_unfinished_requests())
        return self.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--episodes", type=int, default=16, help="in flight")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    engine_options = {
        "max_num_seqs": options.episodes,
        "max_num_batched_tokens": options.episodes * CONTEXT,
    }
    lm = VLLMLanguageModel(
        options.model, max_length=CONTEXT, eager=True, engine_options=engine_options
    )
    passes = Passes(lm)
    variants = {"blocking": Blocking(lm), "streamed": lm}
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for repeat in range(options.repeats):
        for name, variant in variants.items():
            passes.engine.reset_prefix_cache()
            measured[name].append(play(variant, options.tasks, options.episodes, passes))
            print(repeat, name, measured[name][-1], flush=True)

    first = [row["actions"] for row in measured["blocking"]]
    ratios = {}
    for unit in ("passes", "cpu_seconds", "seconds"):
        pairs = zip(measured["blocking"], measured["streamed"], strict=True)
        ratios[unit] = statistics.median(blocked[unit] / row[unit] for blocked, row in pairs)
    for row in (*measured["blocking"], *measured["streamed"]):
        row["same_actions"] = row.pop("actions") == first[0]
    result = {
        "benchmark": "streamed",
        "program": PROGRAM,
        "model": lm.config(),
        "tasks": options.tasks,
        "episodes": options.episodes,
        "steps": STEPS,
        "asks": ASKS,
        "blocking_divided_by_streamed": ratios,
        "measured": measured,
        "load_average": round(os.getloadavg()[0], 2),
        **circumstances(("vllm", "torch", "transformers", "gymnasium")),
    }
    write_result(options.out, result)
    print(f"written: {options.out}")


def play(lm: Any, number: int, episodes: int, passes: Passes) -> dict[str, Any]:
    """Play a number of tasks once, and return what it took."""
    tasks = make().get_wrapper_attr("tasks").ids[:number]
    passes.sequences = []
    began = time.perf_counter()
    began_cpu = time.process_time()
    trajectories = run_episodes(
        make, create_agent("react", **ASKS), tasks, lm=lm, concurrency=episodes, seed=0
    )
    cpu_seconds = time.process_time() - began_cpu
    calls = [call for episode in trajectories for step in episode.steps for call in step.calls]
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "passes": len(passes.sequences),
        "sequences_a_pass": round(statistics.mean(passes.sequences), 2),
        "reply_tokens": sum(call.completion_tokens for call in calls),
        "errors": sum(episode.error is not None for episode in trajectories),
        "actions": [[step.action for step in episode.steps] for episode in trajectories],
    }


if __name__ == "__main__":
    main()
