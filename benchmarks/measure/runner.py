"""What the runner costs: CPU time a decision, and episodes a second at 32 and at 1 at a time.

``python benchmarks/measure/runner.py --out FILE [--against FOLDER] [--repeats N]``; the folder is one in
which another checkout lies as ``comap``. Each number is of a fresh process with one thread, and these take
turns. A decision asks a model that answers at once, and costs what a run takes beyond the same actions in a
bare loop. Episodes are those of a tiny model that this program builds (random weights, double precision);
their trajectories must be the same to the byte however many are played at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium
from rollouts import commit_of, describe, in_process

from comap.agents import Decision, create_agent, run_episodes
from comap.agents.create import corpus
from comap.benchmarks.record import circumstances, spread, write_result
from comap.lm import Completion, Generate, HFLanguageModel, Message, Usage
from comap.lm.base import BaseLanguageModel
from comap.lm.tiny import build_tiny

ACTION = "look"
AT_A_TIME = 32
PROGRAM = "benchmarks/measure/runner.py (not in the package)"
make = partial(gymnasium.make, "comap/ALFWorld-v0", source="generated", split="valid_seen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", help="folder in which another checkout lies as comap")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    paths = {"comap": ""} | ({"against": options.against} if options.against else {})
    result: dict[str, Any] = {"benchmark": "runner", "program": PROGRAM}
    result |= {"units": "CPU seconds of one thread, and episodes per such second"}
    result |= {"repeats": options.repeats, "against": commit_of(options.against)}
    processes: dict[str, list[dict[str, Any]]] = {name: [] for name in paths}
    with tempfile.TemporaryDirectory() as folder:
        model = str(build_tiny(folder, corpus(episodes=2), dtype="float64"))
        result |= {"model": describe(model), **circumstances(("gymnasium", "torch"))}
        for number in range(1, options.repeats + 1):
            for name, path in paths.items():
                processes[name].append(in_process([__file__, "work", model], path))
                print(number, name, json.dumps(processes[name][-1]), flush=True)

    result["measured"] = {}
    for name, rows in processes.items():
        costs = {key: [row["costs"][key] for row in rows] for key in rows[0]["costs"]}
        result["measured"][name] = {key: spread(values) for key, values in costs.items()}
    all_rows = list(chain.from_iterable(processes.values()))
    result["load_average"] = max(row["load_average"] for row in all_rows)
    result["same_trajectories"] = all(row["same_trajectories"] for row in all_rows)
    result["same_actions"] = len({row["actions"] for row in all_rows}) == 1
    write_result(options.out, result)
    print(f"written: {options.out}")


def work(model: str) -> dict[str, Any]:
    """Measure in a process of its own, by what is public: another checkout must understand it too."""
    agent = create_agent("react", prompts="brief", state_text="belief", draft_tokens=16)
    costs = {"decision": decision_seconds()}
    records = []
    for concurrency in (AT_A_TIME, 1):
        # Another model each time: a prompt that it has read before would be a part of the time saved.
        options: dict[str, Any] = {"lm": HFLanguageModel(model), "concurrency": concurrency}
        play(agent, ids()[-1:], 4, **options)  # pays for what is made once
        start = time.process_time()
        episodes = play(agent, ids()[:AT_A_TIME], 4, **options)
        costs[f"episodes, {concurrency} at a time"] = AT_A_TIME / (time.process_time() - start)

        records.append([json.dumps(episode.to_json()) for episode in episodes])

    # Checkouts may write their settings otherwise, but must act alike.
    actions = [[step.action for step in episode.steps] for episode in episodes]
    digest = hashlib.sha256(json.dumps(actions).encode()).hexdigest()[:16]
    return {"costs": costs, "same_trajectories": records[0] == records[1], "actions": digest}


def decision_seconds(steps: int = 50) -> float:
    """Return the CPU seconds of a decision: of views, requests, batches and records."""
    tasks = ids()[:400]
    seconds = []
    for _ in range(4):  # after the first time all texts are known to the environments
        start = time.process_time()
        episodes = play(Asks(), tasks, steps, lm=Answers(), concurrency=AT_A_TIME)
        middle = time.process_time()
        envs = [make(max_episode_steps=steps) for _ in range(AT_A_TIME)]
        for number, task in enumerate(tasks):
            env = envs[number % AT_A_TIME]
            env.reset(options={"task": task})
            for _ in range(steps):
                env.step(ACTION)
        seconds.append((middle - start) - (time.process_time() - middle))
    return statistics.median(seconds[1:]) / sum(len(episode.steps) for episode in episodes)


def ids() -> Sequence[str]:
    return list(make().get_wrapper_attr("tasks").ids)


def play(agent: Any, tasks: Sequence[str], steps: int, **options: Any) -> Sequence[Any]:
    return list(run_episodes(partial(make, max_episode_steps=steps), agent, tasks, **options))


class Asks:
    """Asks once a decision, in a prompt of its own."""

    name = "asks"
    asks_world_model = False

    def decide(self, view: Any) -> Generator[Any, Any, Decision]:
        reply = yield Generate((Message("user", f"{view.task} {view.step}"),))
        return Decision(reply.text)


class Answers(BaseLanguageModel):
    """Answers the same at once."""

    name, capabilities, usage = "answers", frozenset({"generate"}), Usage()

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        return [Completion(ACTION)] * len(requests)

    def count_tokens(self, text: str) -> int:
        return len(text) // 4

    def config(self) -> dict[str, Any]:
        return {}


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        print(json.dumps(work(sys.argv[2])))
    else:
        main()
