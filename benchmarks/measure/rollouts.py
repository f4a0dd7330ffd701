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

ENV = "comap/ALFWorld-v0"
STEPS = 12
REPLY = 12
OPTIONS = {"source": "generated", "difficulty": "r6-7.o8-11.f1", "max_episode_steps": STEPS}
ASKS = {
    "prompts": "brief",
    "form": "asked",
    "draft_tokens": REPLY,
    "state_text": "history",
    "max_length": 1500,
    "temperature": 1.0,
    "top_p": 1.0,
}
GROUPS = 12
MEMBERS = 8
DEVICE = os.environ.get("DEVICE", "cpu")
# On a busy machine the processor's seconds are the truer ones; they do not count what a GPU does.
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
    options = parser.parse_args()

    # Where each variant's code is imported from; "" is this checkout.
    paths = {"against": options.against} if options.against else {}
    paths |= {"comap": "", "concat": ""}
    measured: dict[str, dict[str, list[Any]]] = {}
    for job in options.jobs:
        measured[job] = {variant: [] for variant in paths}
    head = {
        "benchmark": "rollouts",
        "program": PROGRAM,
        "units": "CPU seconds of one thread",
        "options": OPTIONS,
        "asks": ASKS,
        "groups": GROUPS,
        "members": MEMBERS,
        "against": commit_of(options.against),
        "model": describe(options.model),
    }

    # Variants take turns within a repeat: what slows the machine down for a while slows them all down.
    for repeat in range(1, options.repeats + 1):
        for job, variants in measured.items():
            for variant, repeats in variants.items():
                context = "concat" if variant == "concat" else "summary"
                words = [__file__, job, options.model, context]
                repeats.append(in_process(words, paths[variant]))
                print(repeat, variant, job, repeats[-1], file=sys.stderr)
        summaries = {job: summary(**repeats) for job, repeats in measured.items()}
        extend(options.out, head, summaries)


def extend(file: Path, head: dict[str, Any], jobs: dict[str, Any]) -> None:
    """Write jobs into a file, beside those that it has."""
    from comap.benchmarks.record import circumstances, write_result

    earlier_jobs = json.loads(file.read_bytes())["jobs"] if file.exists() else {}
    write_result(file, {**head, **circumstances(PACKAGES), "jobs": earlier_jobs | jobs})


def commit_of(folder: str | None) -> str | None:
    if not folder:
        return None
    words = ["git", "-C", f"{folder}/comap", "rev-parse", "HEAD"]
    return subprocess.check_output(words, encoding="utf-8").strip()


def summary(**variants: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each variant's repeats, their median, and how many times as fast as the first it is."""
    from comap.benchmarks.record import spread

    seconds_of_variants = {}
    for variant, repeats in variants.items():
        seconds_of_variants[variant] = [repeat["seconds"] for repeat in repeats]
    first_seconds = next(iter(seconds_of_variants.values()))

    medians = {}
    ratios = {}
    for variant, seconds in seconds_of_variants.items():
        medians[variant] = statistics.median(seconds)
        # Ratios of pairs, each measured one after the other: the load of that moment drops out.
        pairs = zip(first_seconds, seconds, strict=True)
        ratios[variant] = spread([first / second for first, second in pairs])
    return {"median": medians, "ratio": ratios, "repeats": variants}


def in_process(words: list[str], path: str = "") -> dict[str, Any]:
    """Run a job in a fresh process; return what it measured, and the machine's load before it."""
    load = round(os.getloadavg()[0], 2)
    paths = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
    process = subprocess.run(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    return {**json.loads(process.stdout.splitlines()[-1]), "load_average": load}


def describe(model: str) -> dict[str, Any]:
    """Return the sizes of a model."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    description = {"parameters": loaded.num_parameters(), "dtype": str(loaded.dtype)}
    for name in ("hidden_size", "num_hidden_layers", "vocab_size", "model_type"):
        description[name] = getattr(loaded.config, name)
    return description


def make(split: str) -> gymnasium.Env[str, str]:
    return gymnasium.make(ENV, split=split, **OPTIONS)


def _play(model: str, context: str, number: int) -> dict[str, Any]:
    """Play a number of tasks once each."""
    from comap.agents import create_agent, run_episodes
    from comap.lm import HFLanguageModel

    lm = HFLanguageModel(model, device=DEVICE, batch_rows=128, batch_tokens=200_000)
    # PaW's agent is the one whose prompt can be a conversation that goes on; else it acts as ReAct.
    if context == "concat":
        agent = create_agent("paw", context="concat", **ASKS)
    else:
        agent = create_agent("react", **ASKS)
    tasks = make("train").get_wrapper_attr("tasks").ids[:number]

    start = clock()
    episodes = run_episodes(partial(make, "train"), agent, tasks, lm=lm, concurrency=128)
    seconds = clock() - start

    # A digest of all actions shows whether both checkouts played the same games.
    actions = [[step.action for step in episode.steps] for episode in episodes]
    return {
        "seconds": seconds,
        "episodes": number,
        "steps": sum(map(len, actions)),
        "actions": hashlib.sha256(json.dumps(actions).encode()).hexdigest()[:16],
    }


def _update(model: str, context: str) -> dict[str, Any]:
    """Do two updates of GRPO with PaW; the second one's time is that of an update."""
    from comap.trainers import paw_preset, train_paw

    changes = {
        **ASKS,
        "context": context,
        "groups": GROUPS,
        "members": MEMBERS,
        "updates": 2,
        "concurrency": GROUPS * MEMBERS,
        "micro_batch_tokens": 20_000,
        "max_episode_steps": STEPS,
        "history_turns": None,
        "kl": 0.0,
        "warmup_tokens": 0,
        "evaluation_tasks": 0,
        "save_updates": 0,
    }
    ends: list[float] = []

    def tell(event: Any) -> None:
        if event["event"] == "update":
            ends.append(clock())

    with tempfile.TemporaryDirectory() as out:
        config = paw_preset("tiny", **changes)
        train_paw(config, model=model, make_env=make, out=out, device=DEVICE, tell=tell)
    return {"seconds": ends[1] - ends[0], "episodes": GROUPS * MEMBERS}


def _work(job: str, *words: str) -> dict[str, Any]:
    """Do a job in a process of its own, by what is public: another checkout must understand it too."""
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
