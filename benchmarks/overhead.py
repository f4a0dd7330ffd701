"""`comap bench paw-overhead`: what PaW adds to an update's time and memory (PaW, Figure 5)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import MissingExtra, OptionError
from ..lm.create import hush
from ..trainers.paw.config import PaWTraining, preset
from ..trainers.paw.rows import PaWRow
from .record import circumstances, spread, write_result

QWEN: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}

_TOKENS = {"tiny": (72, 5, 17), "qwen2.5-1.5b": (600, 120, 60)}
"""Mean tokens of prompts, responses and observations: of brief belief prompts, and of PaW's."""
_SPREADS = (16.0, 4.0, 2.0)  # shapes of the gamma distributions of these lengths
_LONGEST = 2048
_WON = 0.4  # share of episodes that win, so that advantages are not all 0
_PHASES = ("old_logps", "advantages", "update", "all", "cpu")
_TINY: dict[str, Any] = {
    "max_episode_steps": 30,
    "prompts": "brief",
    "state_text": "belief",
    "old_logprobs": "sampled",
    "mini_batch_rows": 256,
    "micro_batch_tokens": 8192,
    "learning_rate": 1e-4,
    "kl": 0.01,
    "entropy_bonus": 0.001,
    "invalid_penalty": 0.1,
    "demonstrations": None,
    "warmup_tokens": 0,
}


@dataclass(frozen=True, kw_only=True)
class PaWOverhead:
    """What `run` measures."""

    architecture: Literal["tiny", "qwen2.5-1.5b"] = "tiny"
    """shape of the model"""
    device: str = "auto"
    """auto (a GPU where there is one), cpu or cuda"""
    rows: int = 2048
    """rows of an update"""
    groups: int = 16
    """tasks of an update"""
    members: int = 8
    """episodes of each task"""
    updates: int = 3
    """updates of each kind that are timed"""
    mini_batch_rows: int | None = None
    """rows of an optimizer step; 0 for all"""
    seed: int = 0
    """seed of weights and rows"""
    out: Path | None = None
    """write the result to this file, as JSON"""

    def __post_init__(self) -> None:
        for name in ("rows", "groups", "members", "updates"):
            if getattr(self, name) < 1:
                raise OptionError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.rows < self.groups * self.members:
            raise OptionError(
                f"expected a row for each of {self.groups * self.members} episodes at least, found "
                f"--rows {self.rows}"
            )

    def training(self) -> PaWTraining:
        """Return the settings: those of a small training with the tiny model, else of ALFWorld."""
        changed: dict[str, Any] = {"groups": self.groups, "members": self.members}
        if self.mini_batch_rows is not None:
            changed["mini_batch_rows"] = self.mini_batch_rows or None
        if self.architecture == "tiny":
            return preset("tiny", **{**_TINY, **changed, "save_updates": 0})
        half = {} if self.device == "cpu" else {"precision": "bfloat16"}
        return preset("alfworld", **half, **changed, save_updates=0)


def run(options: PaWOverhead) -> None:
    """Measure, print and write what was found."""
    if find_spec("trl") is None:
        raise MissingExtra.of("train", "measuring training")
    from ..trainers.setup import hardware

    hush()
    found = measure(options)
    found |= overhead_of(found["measured"])
    if options.out is not None:
        about: dict[str, Any] = {"benchmark": "PaW overhead", "architecture": options.architecture}
        about["rows"] = {name: getattr(options, name) for name in ("rows", "groups", "members")}
        about |= {"settings": options.training().describe(), "seed": options.seed}
        packages = ("torch", "transformers", "trl", "accelerate", "gymnasium", "numpy")
        gpus = {"gpus": hardware()["gpus"]}
        write_result(options.out, {**about, **found, **circumstances(packages), **gpus})
    # other processes take time, but no CPU time, from this one
    ratio = found["ratio"]["cpu" if found["device"] == "cpu" else "all"]
    print(
        f"{found['pairs']} pairs: update with PaW {ratio['median']:.3f} times that without "
        f"({ratio['min']:.3f} to {ratio['max']:.3f}), {found['extra_seconds']['median']:+.2f} s"
    )
    if (memory := found["peak_bytes"]) is not None:
        print(f"peak memory: {memory['on'] / 2**30:.2f} GiB, {memory['ratio']:.3f} times")


def measure(options: PaWOverhead) -> dict[str, Any]:
    """Return what updates of one trainer on the same rows cost, with PaW by turns on and off."""
    from ..lm.load import device_of
    from ..trainers.paw.trainer import make_trainer
    from ..trainers.paw.training import Policy

    pairs = [(False, True) if number % 2 else (True, False) for number in range(options.updates)]
    plan = [False, True, *(on for pair in pairs for on in pair)]  # the first two are warm-up
    config, rows = options.training(), episode_rows(options)
    device, marks, lines = device_of(options.device), list[Any](), list[Mapping[str, Any]]()

    def begin(number: int) -> Sequence[PaWRow]:
        marks.append(_mark(device))
        trainer.config = replace(config, paw=plan[number])
        return rows

    def score(update: Any) -> Any:
        scored = own_score(update)
        _wait(device)  # each phase is charged with its own work
        return scored

    with tempfile.TemporaryDirectory() as folder:
        model = _random_model(options, Path(folder, "model"), device)
        policy = Policy(config, model, device=options.device)
        checkpoints = Path(folder, "checkpoints")
        given: dict[str, Any] = {"tell": lines.append, "device": options.device}
        trainer = make_trainer(
            config, policy.model, policy.tokenizer, begin, checkpoints, updates=len(plan), **given
        )
        own_score, trainer._score = trainer._score, score
        trainer.fit()
        marks.append(_mark(device))
    measured = []
    for on, line, (before, after) in zip(plan, lines, pairwise(marks), strict=True):
        whole, cpu = after[0] - before[0], after[1] - before[1]
        old, advantages = line["seconds_old_logps"], line["seconds_advantages"]
        parts = {"old_logps": old, "advantages": advantages, "update": whole - old - advantages}
        read = {"peak_bytes": after[2], "observations_read": int(line.get("wm_rows") or 0)}
        measured.append({"paw": on, **parts, "all": whole, "cpu": cpu, **read})
    names = ("prompt", "response", "header", "observation", "footer")
    return {
        "parameters": sum(weight.numel() for weight in policy.model.parameters()),
        "device": str(device.type),
        "tokens": {name: sum(len(getattr(row, f"{name}_ids")) for row in rows) for name in names},
        "measured": measured[2:],
    }


def overhead_of(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what PaW adds, from updates with it and without it, in pairs."""
    some = [measured[at : at + 2] for at in range(0, len(measured), 2)]
    pairs = [sorted(pair, key=lambda line: bool(line["paw"])) for pair in some]
    result: dict[str, Any] = {"pairs": len(pairs), "ratio": {}, "peak_bytes": None}
    for name, side in (("seconds_off", 0), ("seconds_on", 1)):
        result[name] = {part: spread([pair[side][part] for pair in pairs]) for part in _PHASES}
    for part in _PHASES:
        ratios = [on[part] / off[part] for off, on in pairs if off[part]]
        result["ratio"][part] = spread(ratios) if ratios else None
    result["extra_seconds"] = spread([on["all"] - off["all"] for off, on in pairs])
    known = [[line["peak_bytes"] for line in pair] for pair in pairs]
    if all(all(pair) for pair in known):
        off, on = (max(side) for side in zip(*known, strict=True))
        result["peak_bytes"] = {"off": off, "on": on, "ratio": on / off}
    return result


def episode_rows(options: PaWOverhead) -> list[PaWRow]:
    """Return the rows of an update: random tokens, in episodes of equal length, with lengths that vary."""
    draw = np.random.default_rng(options.seed)
    means = _TOKENS[options.architecture]
    lengths = [
        np.clip(draw.gamma(shape, mean / shape, options.rows), 1, _LONGEST).astype(int)
        for shape, mean in zip(_SPREADS, means, strict=True)
    ]
    vocabulary = 320 if options.architecture == "tiny" else QWEN["vocab_size"]

    def ids(length: int) -> tuple[int, ...]:
        return tuple(draw.integers(5, vocabulary, size=length).tolist())  # below are special ones

    episodes = options.groups * options.members
    won = draw.random(episodes) < _WON
    rows: list[PaWRow] = []
    for episode in range(episodes):
        steps = options.rows // episodes + (episode < options.rows % episodes)
        success = bool(won[episode])
        for t in range(steps):
            prompt, response, observation = (int(some[len(rows)]) for some in lengths)
            rows.append(
                PaWRow(
                    group=episode // options.members,
                    trajectory=episode,
                    t=t,
                    prompt_ids=ids(prompt),
                    response_ids=ids(response),
                    header_ids=ids(4),  # what a chat template puts around an observation
                    observation_ids=ids(observation),
                    footer_ids=ids(2),
                    sampled_logprobs=tuple(-draw.exponential(size=response)),
                    reward=10.0 * success * (t == steps - 1),
                    anchor=f"observation {draw.integers(0, 40)}",
                    episode_return=10.0 * success,
                    episode_length=steps,
                    success=success,
                )
            )
    return rows


def _random_model(options: PaWOverhead, folder: Path, device: Any) -> Path:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ..agents.create import corpus
    from ..lm.tiny import build_tiny, tokenizer_of

    texts = corpus(episodes=8)
    if options.architecture == "tiny":
        return build_tiny(folder, texts, seed=options.seed)
    tokenizer = tokenizer_of(texts)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(options.seed)
    with torch.device(device):
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN, **ends, bos_token_id=None))
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _mark(device: Any) -> tuple[float, float, int | None]:
    """Return the time, the CPU time, and the most memory in use since the last mark."""
    _wait(device)
    peak: int | None = None
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if device.type == "cuda":
        import torch

        peak = int(torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)
    elif clear.exists():
        lines = status.read_text("ascii", "replace").splitlines()
        peak = next((1024 * int(line.split()[1]) for line in lines if "VmHWM" in line), None)
        clear.write_text("5", "ascii")  # Linux then forgets the peak of this process
    return time.perf_counter(), time.process_time(), peak
