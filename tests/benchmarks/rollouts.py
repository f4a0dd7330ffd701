"""Rollouts and updates of a small model: CPU seconds, beside another checkout of comap.

``python tests/benchmarks/rollouts.py MODEL --out FILE [--against FOLDER]``; the folder is one in
which another checkout lies as ``comap``. Each number is of a fresh process with one thread, and these take
turns. The tasks are those of the pilot world: small generated rooms, 15 steps, prompts with the history.
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

ENV, STEPS, REPLY = "comap/ALFWorld-v0", 15, 12
OPTIONS = {"source": "generated", "difficulty": "r6-7.o3-6.f14", "max_episode_steps": STEPS}
ASKS = {"state_text": "history", "max_length": 1500, "temperature": 1.0, "top_p": 1.0}
GROUPS, MEMBERS = 12, 8
PACKAGES = ("torch", "transformers", "trl", "gymnasium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--against", help="folder in which another checkout lies as comap")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    from comap.benchmarks.record import circumstances, write_result

    ways = {"comap": ""} | ({"against": given.against} if given.against else {})
    jobs = [(name, job) for job in ("rollouts", "evaluation", "update") for name in ways]
    measured: dict[str, list[dict[str, Any]]] = {}
    for _ in range(given.repeats):
        for name, job in jobs:
            found = _in_process(job, given.model, ways.get(name, ""))
            measured.setdefault(f"{name} {job}", []).append(found)
            print(name, job, found, file=sys.stderr)
    result = {"benchmark": "rollouts", "repeats": given.repeats, "options": OPTIONS}
    result |= {"units": "CPU seconds of one thread, medians", **circumstances(PACKAGES)}
    result["measured"] = {
        name: {**some[0], "seconds": statistics.median(one["seconds"] for one in some)}
        for name, some in measured.items()
    }
    write_result(given.out, result)


def _in_process(job: str, model: str, against: str) -> dict[str, Any]:
    path = [part for part in (against, os.environ.get("PYTHONPATH")) if part]
    done = subprocess.run(
        [sys.executable, __file__, job, model],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _make(split: str) -> gymnasium.Env[str, str]:
    return gymnasium.make(ENV, split=split, **OPTIONS)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    found = work()
    return time.process_time() - begun, found


def _play(model: str, number: int) -> dict[str, Any]:
    """Play a number of tasks once each."""
    from comap.agents import create_agent, run_episodes
    from comap.lm import HFLanguageModel

    lm = HFLanguageModel(model, device="cpu", batch_rows=128, batch_tokens=200_000)
    agent = create_agent("react", prompts="brief", form="given", draft_tokens=REPLY, **ASKS)
    tasks = _make("train").get_wrapper_attr("tasks").ids[:number]
    make = partial(_make, "train")
    seconds, played = _timed(lambda: run_episodes(make, agent, tasks, lm=lm, concurrency=128))
    actions = [[step.action for step in one.steps] for one in played]
    return {
        "seconds": seconds,
        "episodes": number,
        "steps": sum(map(len, actions)),
        "actions": hashlib.sha256(json.dumps(actions).encode()).hexdigest()[:16],
    }


def _update(model: str) -> dict[str, Any]:
    """Do two updates of GRPO with PaW; the second one's time is that of an update."""
    from comap.trainers import paw_preset, train_paw

    changes = {"prompts": "brief", "form": "given", "draft_tokens": REPLY, **ASKS}
    changes |= {"groups": GROUPS, "members": MEMBERS, "max_episode_steps": STEPS, "updates": 2}
    changes |= {
        "concurrency": GROUPS * MEMBERS,
        "micro_batch_tokens": 20_000,
        "history_turns": None,
    }
    changes |= {"kl": 0.0, "warmup_tokens": 0, "evaluation_tasks": 0, "save_updates": 0}
    ended: list[float] = []

    def tell(event: Any) -> None:
        if event["event"] == "update":
            ended.append(time.process_time())

    with tempfile.TemporaryDirectory() as out:
        config = paw_preset("tiny", **changes)
        train_paw(config, model=model, make_env=_make, out=out, device="cpu", tell=tell)
    return {"seconds": ended[1] - ended[0], "episodes": GROUPS * MEMBERS}


def _work(job: str, model: str) -> dict[str, Any]:
    """Do a job in a process of its own: from here on everything is public interface."""
    importlib.import_module("comap")
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "rollouts": lambda: _play(model, 128),
        "evaluation": lambda: _play(model, 800),
        "update": lambda: _update(model),
    }
    return jobs[job]()


if __name__ == "__main__":
    if sys.argv[1:2] in (["rollouts"], ["evaluation"], ["update"]):
        print(json.dumps(_work(*sys.argv[1:])))
    else:
        main()
