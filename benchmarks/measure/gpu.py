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
from typing import Any

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
HEADS = {"tiny": (2, 2, 32), "0.6b": (16, 8, 128), "4b": (32, 8, 128)}
EPISODES = int(os.environ.get("EPISODES", "64"))
PAW = {"groups": EPISODES // 8, "members": 8, "concurrency": EPISODES, "max_episode_steps": 6}
PAW |= {"draft_tokens": 24, "evaluation_tasks": 0, "save_updates": 0, "updates": 2}
ROUND_STEPS = int(os.environ.get("ROUND_STEPS", "4"))
ROUND = {
    "tasks_per_round": EPISODES // 2,
    "rounds": 1,
    "concurrency": EPISODES // 2,
    "decoding": "masked",
    "predict_tokens": 48,
    "reflect_tokens": 64,
}
ROUND |= {
    "reflection_init": False,
    "entry_tasks": 0,
    "evaluation_tasks": 0,
    "frozen_transitions": 0,
    "diagnosed": 0,
}
ROUND |= {"demonstrations": EPISODES // 4, "policy_epochs": 1, "world_model_epochs": 1}


def folder(shape: str) -> Path:
    return Path(os.environ.get("MODELS", "/dev/shm/models"), shape)


def build(shape: str) -> dict[str, Any]:
    """Save a model with random weights, and a tokenizer that has a word for each row of its embedding."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from comap.agents.create import corpus
    from comap.lm.tiny import tokenizer_of

    sizes = {"vocab_size": 151_936, **SHAPES[shape]}
    heads, shared, size = HEADS[shape]
    letters = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    words = "".join(f" z{word} z{word}" for word in itertools.islice(letters, sizes["vocab_size"]))
    tokenizer = tokenizer_of([*corpus(episodes=60), words], sizes["vocab_size"], 32_768)
    assert len(tokenizer) == sizes["vocab_size"]
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        **sizes,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=size,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=None,
        **ends,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if base.DEVICE == "cuda" else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder(shape))
    tokenizer.save_pretrained(folder(shape))
    return {"parameters": model.num_parameters(), **base.describe(str(folder(shape)))}


def memory() -> float | None:
    import torch

    return torch.cuda.max_memory_allocated() / 1e9 if base.DEVICE == "cuda" else None


def rollouts(shape: str, context: str, cache_mb: str) -> dict[str, Any]:
    """Play games of 12 steps and replies of 12 tokens; twice, of which the second time counts."""
    from comap.agents import create_agent, run_episodes
    from comap.lm import HFLanguageModel

    lm = HFLanguageModel(
        folder(shape),
        device=base.DEVICE,
        cache_mb=int(cache_mb),
    )
    concat = {"context": "concat", **base.ASKS}
    agent = (
        create_agent("paw", **concat) if context == "concat" else create_agent("react", **base.ASKS)
    )
    tasks = base.make("train").get_wrapper_attr("tasks").ids
    found: dict[str, Any] = {}
    for some in (tasks[:EPISODES], tasks[EPISODES : 2 * EPISODES]):
        before, begun = copy.copy(lm.usage), time.perf_counter()
        played = run_episodes(partial(base.make, "train"), agent, some, lm=lm, concurrency=EPISODES)
        seconds = time.perf_counter() - begun
        told = {name: getattr(lm.usage, name) - getattr(before, name) for name in _USAGE}
        steps = sum(len(one.steps) for one in played)
        found = {
            "seconds": seconds,
            "episodes": len(played),
            "steps": steps,
            **told,
            "peak_gb": memory(),
        }
    return found


_USAGE = ("prompt_tokens", "completion_tokens")


def update(shape: str, way: str, weights: str = "full", kl: str = "0.01") -> dict[str, Any]:
    """Do two updates of GRPO, with PaW or without; what each takes."""
    from comap.trainers import Environments, paw_preset, train_paw

    make_env = Environments(
        base.ENV, {**base.OPTIONS, "max_episode_steps": PAW["max_episode_steps"]}
    )
    found: dict[str, Any] = {"settings": PAW, "updates": []}

    def tell(event: Any) -> None:
        if event["event"] == "update":
            found["updates"].append(dict(event))
            show(found)

    changes = {**PAW, "paw": way == "paw", "weights": weights, "kl": float(kl)}
    with tempfile.TemporaryDirectory() as out:
        given = {"model": folder(shape), "make_env": make_env, "device": base.DEVICE}
        train_paw(paw_preset("paper", **changes), out=out, tell=tell, **given)
    return found


def comap(shape: str, weights: str = "lora") -> dict[str, Any]:
    """Do one round of CoMap; what each of its stages takes."""
    from comap.trainers import CoEvolution, Environments, open_models, preset, show_expert

    options = {**base.OPTIONS, "max_episode_steps": ROUND_STEPS}
    config, make_env = preset("paper", weights=weights, **ROUND), Environments(base.ENV, options)
    found: dict[str, Any] = {"settings": {**ROUND, "max_episode_steps": ROUND_STEPS}, "stages": {}}

    def tell(event: Any) -> None:
        name = event.get("stage", "")
        if event["event"] == "done" and name.startswith("round-1") and "eval" not in name:
            told = {
                key: value
                for key, value in event["result"].items()
                if key not in ("log", "weights")
            }
            found["stages"][name] = {**told, "peak_gb": memory()}
            show(found)

    with tempfile.TemporaryDirectory() as out:
        parts = (
            open_models(config, folder(shape)),
            make_env,
            show_expert(make_env, config),
            Path(out),
        )
        CoEvolution(config, *parts, warmed_up=True, about={"preset": "paper"}, tell=tell).run()
    return found


def trl(shape: str, whose: str) -> dict[str, Any]:
    """Do updates of GRPO with TRL's trainer, or with ours on the same tasks."""
    import rollouts_trl

    tasks = Path(tempfile.gettempdir(), f"tasks-{shape}.json")
    if whose == "comap":
        found = rollouts_trl.train_comap(str(folder(shape)))
        tasks.write_text(json.dumps(found["tasks"]))
    else:
        found = rollouts_trl.train_trl(str(folder(shape)), json.loads(tasks.read_bytes()))
    return {**found, "tasks": None, "peak_gb": memory()}


def show(found: dict[str, Any]) -> None:
    """Print what is known so far: what is known at the time limit counts."""
    print(json.dumps({"found": found}, default=str), flush=True)


def work(job: str) -> None:
    shape, name, *more = job.split("/")
    jobs = {"build": build, "rollouts": rollouts, "update": update, "comap": comap, "trl": trl}
    show(jobs[name](shape, *more) | {"whole": True})


def main(out: Path, jobs: list[str]) -> None:
    from comap.benchmarks.record import circumstances

    about = {
        "benchmark": "gpu",
        "program": "benchmarks/measure/gpu.py",
        **circumstances(base.PACKAGES),
    }
    about |= {"gpu": device(), "jobs": json.loads(out.read_bytes())["jobs"] if out.exists() else {}}
    for job in jobs:
        begun = time.perf_counter()
        with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
            limit, words = (
                float(os.environ.get("LIMIT", "200")),
                [sys.executable, __file__, "--job", job],
            )
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, timeout=limit)
            log.seek(0)
            lines = log.read().splitlines()
        known = [json.loads(line)["found"] for line in lines if line.startswith('{"found"')]
        found = known[-1] if known else {"error": lines[-8:]}
        about["jobs"][job] = {**found, "process_seconds": round(time.perf_counter() - begun, 1)}
        out.write_text(json.dumps(about, indent=1) + "\n")
        print(job, json.dumps(about["jobs"][job])[:600], flush=True)


def device() -> str:
    if base.DEVICE == "cpu":
        return "none"
    words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.check_output(words, encoding="utf-8").strip()


if __name__ == "__main__":
    if sys.argv[1] == "--job":
        work(sys.argv[2])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
