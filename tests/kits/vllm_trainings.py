"""Trainings that the real vLLM samples for: their commands, and what they leave behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CLOSE = 1e-4
"""Nats between float32 of vLLM and of transformers: 3.6e-5 is the largest difference seen."""


def paw(model: Path, out: Path, engine: str, *extra_words: str) -> list[str]:
    """Return the command of a training with PaW in few and short rows."""
    return [
        *(sys.executable, "-m", "comap", "train", "paw", "--preset", "tiny"),
        *("--model", str(model), "--out", str(out), "--engine", engine, "--precision", "float32"),
        *("--groups", "1", "--members", "2", "--max-episode-steps", "2", "--warmup-tokens", "0"),
        *("--agent.draft-tokens", "16", "--agent.max-length", "512", "--kl", "0"),
        *("--evaluation-tasks", "0", "--save-updates", "1", *extra_words),
    ]


def comap(model: Path, out: Path, engine: str, *extra_words: str) -> list[str]:
    """Return the command of a training of CoMap whose three roles are adapters."""
    lengths = ("--agent.draft-tokens", "8", "--agent.reflect-tokens", "8", "--predict-tokens", "8")
    return [
        *(sys.executable, "-m", "comap", "train", "comap", "--preset", "tiny", "--engine", engine),
        *("--model", str(model), "--out", str(out), "--precision", "float32", "--weights", "lora"),
        *("--lora.r", "4", "--lora.alpha", "8", "--lora.dropout", "0", "--concurrency", "8"),
        *("--agent.p-source", "head", "--agent.decoding", "free", "--agent.max-length", "512"),
        *(*lengths, "--env-option", "max_episode_steps=3", "--demonstrations", "2"),
        *("--warmup-rollouts", "2", "--reflection-tasks", "2", "--tasks-per-round", "2"),
        *("--rounds", "2", "--entry-tasks", "0", "--frozen-transitions", "4", "--diagnosed", "2"),
        *("--evaluation-tasks", "1", "--warmup-epochs", "1", "--policy-epochs", "1"),
        *("--world-model-epochs", "1", *extra_words),
    ]


def updates_of(out: Path) -> list[dict[str, Any]]:
    """Return the metrics of the updates of PaW that are done."""
    path = out / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def check_updates(out: Path, number: int) -> None:
    """Check that each update is there once, and that vLLM sampled with the weights of each."""
    updates = updates_of(out)
    assert [line["update"] for line in updates] == list(range(1, number + 1))
    assert max(line["sampling_error"] for line in updates) < CLOSE
    assert "vllm (named)" in (out / "run.json").read_text("utf-8")


def check_stages(out: Path, *names: str) -> None:
    """Check that vLLM sampled with the weights of each stage of CoMap, these among them."""
    errors = {}
    for path in sorted(out.glob("stages/*/done.json")):
        result = json.loads(path.read_text("utf-8"))
        if "sampling_error" in result:
            errors[result["stage"]] = result["sampling_error"]
    assert set(names) <= errors.keys()
    assert max(errors.values()) < CLOSE
