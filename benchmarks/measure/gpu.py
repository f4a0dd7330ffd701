"""Cost of rollouts, of updates with and without PaW and of a CoMap round on a GPU.

``python benchmarks/measure/gpu.py OUT JOB...`` runs each job in a fresh process and writes OUT after
each. A job is ``SHAPE/WORK/...``, as in ``0.6b/rollouts/concat/1000``. Models have the shape of Qwen3 and
random weights: they end hardly any text, so that each reply has all the tokens it may have. Their tokens
are words, one token each.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import string
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("DEVICE", "cuda")
sys.path.insert(0, str(Path(__file__).parent))
import rollouts as base

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "vocab_size": 8192,
    },
    "0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36},
}


class Heads(NamedTuple):
    """The attention of a shape: heads, those of keys and values, which share, and the size of each."""

    heads: int
    key_value_heads: int
    size: int


HEADS = {"tiny": Heads(2, 2, 32), "0.6b": Heads(16, 8, 128), "4b": Heads(32, 8, 128)}

EPISODES = int(os.environ.get("EPISODES", "64"))
PAW = {
    "groups": EPISODES // 8,
    "members": 8,
    "concurrency": EPISODES,
    "max_episode_steps": 6,
    "draft_tokens": 24,
    "evaluation_tasks": 0,
    "save_updates": 0,
    "updates": 2,
}
ROUND_STEPS = int(os.environ.get("ROUND_STEPS", "4"))
ROUND = {
    "tasks_per_round": EPISODES // 2,
    "rounds": 1,
    "concurrency": EPISODES // 2,
    "decoding": "masked",
    "predict_tokens": 48,
    "reflect_tokens": 64,
    "reflection_init": False,
    "entry_tasks": 0,
    "evaluation_tasks": 0,
    "frozen_transitions": 0,
    "diagnosed": 0,
    "demonstrations": EPISODES // 4,
    "policy_epochs": 1,
    "world_model_epochs": 1,
}
_USAGE = ("prompt_tokens", "completion_tokens")


def folder(shape: str) -> Path:
    """Return the folder of a shape's model: in memory, since each job reads it anew in its time."""
    return Path(os.environ.get("MODELS", "/dev/shm/models"), shape)


def build(shape: str) -> dict[str, Any]:
    """Save a model with random weights, and a tokenizer that has a word for each row of its embedding."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from comap.agents.create import corpus
    from comap.lm.tiny import tokenizer_of

    sizes = {"vocab_size": 151_936, **SHAPES[shape]}
    heads = HEADS[shape]
    # Each word stands twice, since the tokenizer learns no token from what it saw once.
    letters = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    words = "".join(f" z{word} z{word}" for word in itertools.islice(letters, sizes["vocab_size"]))
    tokenizer = tokenizer_of([*corpus(episodes=60), words], sizes["vocab_size"], 32_768)
    assert len(tokenizer) == sizes["vocab_size"]

    config = Qwen3Config(
        **sizes,
        num_attention_heads=heads.heads,
        num_key_value_heads=heads.key_value_heads,
        head_dim=heads.size,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if base.DEVICE == "cuda" else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder(shape))
    tokenizer.save_pretrained(folder(shape))
    return {"parameters": model.num_parameters(), **base.describe(str(folder(shape)))}


def peak_memory() -> float | None:
    """Return the most GPU memory that tensors of this process have had, in GB; None on a CPU."""
    import torch

    return torch.cuda.max_memory_allocated() / 1e9 if base.DEVICE == "cuda" else None


def rollouts(shape: str, context: str, cache_mb: str) -> dict[str, Any]:
    """Play games of 12 steps and replies of 12 tokens; twice, of which the second time counts."""
    from comap.agents import create_agent, run_episodes
    from comap.lm import HFLanguageModel

    lm = HFLanguageModel(folder(shape), device=base.DEVICE, cache_mb=int(cache_mb))
    if context == "concat":
        agent = create_agent("paw", context="concat", **base.ASKS)
    else:
        agent = create_agent("react", **base.ASKS)
    all_tasks = base.make("train").get_wrapper_attr("tasks").ids

    # The first time kernels are chosen and memory is taken. Its tasks are others: the cache of the second
    # time must not know them.
    measured: dict[str, Any] = {}
    for tasks in (all_tasks[:EPISODES], all_tasks[EPISODES : 2 * EPISODES]):
        usage_before = copy.copy(lm.usage)
        start = time.perf_counter()
        episodes = run_episodes(
            partial(base.make, "train"), agent, tasks, lm=lm, concurrency=EPISODES
        )
        seconds = time.perf_counter() - start
        usage = {name: getattr(lm.usage, name) - getattr(usage_before, name) for name in _USAGE}
        measured = {
            "seconds": seconds,
            "episodes": len(episodes),
            "steps": sum(len(episode.steps) for episode in episodes),
            **usage,
            "peak_gb": peak_memory(),
        }
    return measured


def update(shape: str, objective: str, weights: str = "full", kl: str = "0.01") -> dict[str, Any]:
    """Do two updates of GRPO, with PaW or without; what each takes."""
    from comap.trainers import Environments, paw_preset, train_paw

    make_env = Environments(
        base.ENV, {**base.OPTIONS, "max_episode_steps": PAW["max_episode_steps"]}
    )
    measured: dict[str, Any] = {"settings": PAW, "updates": []}

    def tell(event: Any) -> None:
        if event["event"] == "update":
            measured["updates"].append(dict(event))
            show(measured)

    config = paw_preset("paper", **PAW, paw=objective == "paw", weights=weights, kl=float(kl))
    with tempfile.TemporaryDirectory() as out:
        train_paw(
            config,
            out=out,
            tell=tell,
            model=folder(shape),
            make_env=make_env,
            device=base.DEVICE,
        )
    return measured


def comap(shape: str, weights: str = "lora") -> dict[str, Any]:
    """Do one round of CoMap; what each of its stages takes."""
    from comap.trainers import CoEvolution, Environments, open_models, preset, show_expert

    config = preset("paper", weights=weights, **ROUND)
    make_env = Environments(base.ENV, {**base.OPTIONS, "max_episode_steps": ROUND_STEPS})
    settings = {**ROUND, "max_episode_steps": ROUND_STEPS}
    measured: dict[str, Any] = {"settings": settings, "stages": {}}

    def tell(event: Any) -> None:
        stage = event.get("stage", "")
        if event["event"] == "done" and stage.startswith("round-1") and "eval" not in stage:
            # Without the curves of the training and the list of its files.
            counts = {
                name: value
                for name, value in event["result"].items()
                if name not in ("log", "weights")
            }
            measured["stages"][stage] = {**counts, "peak_gb": peak_memory()}
            show(measured)

    with tempfile.TemporaryDirectory() as out:
        CoEvolution(
            config,
            open_models(config, folder(shape)),
            make_env,
            show_expert(make_env, config),
            Path(out),
            warmed_up=True,
            about={"preset": "paper"},
            tell=tell,
        ).run()
    return measured


def trl(shape: str, trainer: str) -> dict[str, Any]:
    """Do updates of GRPO with TRL's trainer, or with ours on the same tasks."""
    import rollouts_trl

    # Ours runs first and draws the tasks; the process that has TRL's reads them here.
    tasks_file = Path(tempfile.gettempdir(), f"tasks-{shape}.json")
    model = str(folder(shape))
    if trainer == "comap":
        measured = rollouts_trl.train_comap(model)
        tasks_file.write_text(json.dumps(measured["tasks"]))
    else:
        measured = rollouts_trl.train_trl(model, json.loads(tasks_file.read_bytes()))
    return {**measured, "tasks": None, "peak_gb": peak_memory()}


def show(measured: dict[str, Any]) -> None:
    """Print what was measured so far: what is printed at the time limit counts."""
    print(json.dumps({"measured": measured}, default=str), flush=True)


def work(job: str) -> None:
    """Do a job in this process."""
    shape, name, *arguments = job.split("/")
    jobs = {"build": build, "rollouts": rollouts, "update": update, "comap": comap, "trl": trl}
    show(jobs[name](shape, *arguments) | {"whole": True})


def main(out: Path, jobs: list[str]) -> None:
    from comap.benchmarks.record import circumstances

    result = {
        "benchmark": "gpu",
        "program": "benchmarks/measure/gpu.py",
        **circumstances(base.PACKAGES),
        "gpu": device(),
        "jobs": json.loads(out.read_bytes())["jobs"] if out.exists() else {},
    }
    for job in jobs:
        result["jobs"][job] = in_process(job)
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(job, json.dumps(result["jobs"][job])[:600], flush=True)


def in_process(job: str) -> dict[str, Any]:
    """Run a job in a fresh process, and return the last that it printed, within its time limit or at it."""
    limit = float(os.environ.get("LIMIT", "200"))
    start = time.perf_counter()
    # A file and not a pipe: what was printed is there even where the process is killed at its limit.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        words = [sys.executable, __file__, "--job", job]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, timeout=limit)
        log.seek(0)
        lines = log.read().splitlines()

    measured = [line for line in lines if line.startswith('{"measured"')]
    result = json.loads(measured[-1])["measured"] if measured else {"error": lines[-8:]}
    return {**result, "process_seconds": round(time.perf_counter() - start, 1)}


def device() -> str:
    """Return the GPU's name, memory and driver."""
    if base.DEVICE == "cpu":
        return "none"
    words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.check_output(words, encoding="utf-8").strip()


if __name__ == "__main__":
    if sys.argv[1] == "--job":
        work(sys.argv[2])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
