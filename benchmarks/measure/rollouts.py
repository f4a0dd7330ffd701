"""Rollouts and updates of a small model: CPU seconds, beside another checkout of comap.

``python benchmarks/measure/rollouts.py MODEL --out FILE [--against FOLDER]``; the folder is one in
which another checkout lies as ``comap``. Each number is of a fresh process with one thread, and these take
turns; ratios are of pairs. The tasks are those of lab-paw: small generated rooms, 12 steps; prompts have
the history. MODEL is a tiny policy that has learned them. ``concat`` is this code where the prompt is a
conversation that goes on, which the other checkout does not have for such models. With DEVICE=cuda in the
environment the seconds are of the clock.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

ENV, STEPS, REPLY = "comap/ALFWorld-v0", 12, 12
OPTIONS = {"source": "generated", "difficulty": "r6-7.o8-11.f1", "max_episode_steps": STEPS}
ASKS = {"prompts": "brief", "form": "asked", "draft_tokens": REPLY, "state_text": "history"}
ASKS |= {"max_length": 1500, "temperature": 1.0, "top_p": 1.0}
GROUPS, MEMBERS = 12, 8
DEVICE = os.environ.get("DEVICE", "cpu")
clock = time.process_time if DEVICE == "cpu" else time.perf_counter
PROGRAM = "benchmarks/measure/rollouts.py and rollouts_trl.py (not in the package)"
PACKAGES = ("torch", "transformers", "trl", "gymnasium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--against", help="folder in which another checkout lies as comap")
    parser.add_argument("--jobs", nargs="*", default=["rollouts", "evaluation", "update"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()

    ways = {"against": given.against} if given.against else {}
    ways |= {"comap": "", "concat": ""}
    measured: dict[str, dict[str, list[Any]]] = {
        job: {name: [] for name in ways} for job in given.jobs
    }
    result = {"benchmark": "rollouts", "program": PROGRAM, "units": "CPU seconds of one thread"}
    result |= {"options": OPTIONS, "asks": ASKS, "groups": GROUPS, "members": MEMBERS}
    result |= {"against": _commit(given.against), "model": describe(given.model)}
    for repeat in range(1, given.repeats + 1):
        for job, some in measured.items():
            for name, found in some.items():
                words = [__file__, job, given.model, "concat" if name == "concat" else "summary"]
                found.append(in_process(words, ways[name]))
                print(repeat, name, job, found[-1], file=sys.stderr)
        extend(given.out, result, {job: summary(**some) for job, some in measured.items()})


def extend(file: Path, about: dict[str, Any], jobs: dict[str, Any]) -> None:
    """Write jobs into a file, beside those that it has."""
    from comap.benchmarks.record import circumstances, write_result

    known = json.loads(file.read_bytes())["jobs"] if file.exists() else {}
    write_result(file, {**about, **circumstances(PACKAGES), "jobs": known | jobs})


def _commit(folder: str | None) -> str | None:
    words = ["git", "-C", f"{folder}/comap", "rev-parse", "HEAD"]
    return subprocess.check_output(words, encoding="utf-8").strip() if folder else None


def summary(**found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the repeats of each way, their medians, and how many times the first way's speed each has."""
    from comap.benchmarks.record import spread

    first, *_ = seconds = [[one["seconds"] for one in some] for some in found.values()]
    ratios = [[a / b for a, b in zip(first, some, strict=True)] for some in seconds]
    return {
        "median": dict(zip(found, map(statistics.median, seconds), strict=True)),
        "ratio": dict(zip(found, map(spread, ratios), strict=True)),
        "repeats": found,
    }


def in_process(words: list[str], path: str = "") -> dict[str, Any]:
    """Run a job in a fresh process; return what it measured, and the machine's load before it."""
    load = round(os.getloadavg()[0], 2)
    paths = os.pathsep.join(part for part in (path, os.environ.get("PYTHONPATH")) if part)
    done = subprocess.run(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    return {**json.loads(done.stdout.splitlines()[-1]), "load_average": load}


def describe(model: str) -> dict[str, Any]:
    """Return the sizes of a model."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    sizes = ("hidden_size", "num_hidden_layers", "vocab_size", "model_type")
    return {"parameters": loaded.num_parameters(), "dtype": str(loaded.dtype)} | {
        name: getattr(loaded.config, name) for name in sizes
    }


def make(split: str) -> gymnasium.Env[str, str]:
    return gymnasium.make(ENV, split=split, **OPTIONS)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = clock()
    found = work()
    return clock() - begun, found


def _play(model: str, context: str, number: int) -> dict[str, Any]:
    """Play a number of tasks once each."""
    from comap.agents import create_agent, run_episodes
    from comap.lm import HFLanguageModel

    lm = HFLanguageModel(model, device=DEVICE, batch_rows=128, batch_tokens=200_000)
    concat = {"context": "concat", **ASKS}
    agent = create_agent("paw", **concat) if context == "concat" else create_agent("react", **ASKS)
    tasks = make("train").get_wrapper_attr("tasks").ids[:number]
    env = partial(make, "train")
    seconds, played = _timed(lambda: run_episodes(env, agent, tasks, lm=lm, concurrency=128))
    actions = [[step.action for step in one.steps] for one in played]
    return {
        "seconds": seconds,
        "episodes": number,
        "steps": sum(map(len, actions)),
        "actions": hashlib.sha256(json.dumps(actions).encode()).hexdigest()[:16],
    }


def _update(model: str, context: str) -> dict[str, Any]:
    """Do two updates of GRPO with PaW; the second one's time is that of an update."""
    from comap.trainers import paw_preset, train_paw

    changes = {**ASKS, "context": context, "groups": GROUPS, "members": MEMBERS, "updates": 2}
    changes |= {"concurrency": GROUPS * MEMBERS, "micro_batch_tokens": 20_000}
    changes |= {"max_episode_steps": STEPS, "history_turns": None}
    changes |= {"kl": 0.0, "warmup_tokens": 0, "evaluation_tasks": 0, "save_updates": 0}
    ended: list[float] = []

    def tell(event: Any) -> None:
        if event["event"] == "update":
            ended.append(clock())

    with tempfile.TemporaryDirectory() as out:
        config = paw_preset("tiny", **changes)
        train_paw(config, model=model, make_env=make, out=out, device=DEVICE, tell=tell)
    return {"seconds": ended[1] - ended[0], "episodes": GROUPS * MEMBERS}


def _work(job: str, *words: str) -> dict[str, Any]:
    """Do a job in a process of its own: from here on everything is public interface."""
    importlib.import_module("comap")
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "rollouts": lambda: _play(*words, 128),
        "evaluation": lambda: _play(*words, 800),
        "update": lambda: _update(*words),
    }
    return jobs[job]()


if __name__ == "__main__":
    if sys.argv[1:2] in (["rollouts"], ["evaluation"], ["update"]):
        print(json.dumps(_work(*sys.argv[1:])))
    else:
        main()
