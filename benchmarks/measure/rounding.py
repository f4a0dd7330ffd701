"""How far log-probabilities of vLLM are from those of a training, and whose rounding it is.

``python benchmarks/measure/rounding.py MODEL --out FILE --samples FOLDER``; vLLM is installed. Each engine
samples replies in a process of its own, once: FOLDER keeps them. Models of transformers compute the
log-probabilities of the same tokens again, as trainings do. Differences are in nats a token. An engine that
was given changed weights is compared with one that was started with them.

A head in single precision multiplies the same half numbers, and does not round the logits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from comap.benchmarks.record import circumstances, commit, write_result
from comap.lm import Generate, Message, Sampling, VLLMLanguageModel

PROGRAM = "benchmarks/measure/rounding.py (not in the package)"
PACKAGES = ("vllm", "torch", "transformers")
CONTEXT = 1024
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SINGLE_HEAD = {"hf_overrides": {"head_dtype": "float32"}}

ENGINES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, head float32": {"dtype": "bfloat16", "engine_options": SINGLE_HEAD},
    "float32": {"dtype": "float32"},
}
"""The settings of each engine."""

HANDED_OVER = ("handed over", "started with them")
"""How an engine in bfloat16 comes to the changed weights."""

QUESTIONS = (
    "Where do you look for a clean mug?",
    "You see a fridge 1, a shelf 1 and a drawer 1. What do you open, and why?",
    "Write a short story of a robot that tidies a kitchen.",
    "List three things that are often on a desk.",
    "How is an egg boiled?",
    "Explain what a world model is to a child.",
    "You are in a bedroom. Find the alarm clock. What is your first action?",
    "What happens if the microwave is opened while it runs?",
)

EXACT = "float32, weights of bfloat16"
"""The model that rounds nothing but its weights, as all that compute in bfloat16 do."""


def main() -> None:
    """Run the engines, then the models, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True)
    parser.add_argument("--replies", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--changed", action="store_true", help="also hand changed weights over")
    parser.add_argument("--sample", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        write_result(options.out, sampled(options, options.sample))
        return

    samples = {name: in_a_process(options, name) for name in options.engines}
    logprobs = {
        name: recomputed(options.model, sample["replies"]) for name, sample in samples.items()
    }
    first_engine = options.engines[0]
    result = {
        "benchmark": "rounding",
        "program": PROGRAM,
        "commit": commit(),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        "model": Path(options.model).name,
        "replies": options.replies,
        "tokens": {name: len(flat(sample["replies"])) for name, sample in samples.items()},
        "engines": {
            engine: {
                model: differences(flat(samples[engine]["replies"]), numbers)
                for model, numbers in models.items()
            }
            for engine, models in logprobs.items()
        },
        "models": {
            f"{first} | {second}": differences(
                logprobs[first_engine][first], logprobs[first_engine][second]
            )
            for first, second in combinations(logprobs[first_engine], 2)
        },
        **circumstances(PACKAGES),
    }
    if options.changed:
        changed = [in_a_process(options, name)["replies"] for name in HANDED_OVER]
        tokens_of_replies = [[reply["tokens"] for reply in replies] for replies in changed]
        result["changed_weights"] = {
            "same_tokens": tokens_of_replies[0] == tokens_of_replies[1],
            **differences(*map(flat, changed)),
        }
    write_result(options.out, result)
    print(json.dumps(result, indent=1))


def in_a_process(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Return what an engine samples in a process of its own, or has sampled there."""
    out = options.samples / f"{engine}.json"
    if not out.exists():
        words = [sys.executable, __file__, options.model, "--samples", str(options.samples)]
        words += ["--replies", str(options.replies), "--tokens", str(options.tokens)]
        subprocess.run([*words, "--out", str(out), "--sample", engine], check=True)
    sample: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return sample


def sampled(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Return an engine's replies: the tokens of prompt and reply, and their log-probabilities."""
    folder = options.samples / "changed"
    source = str(folder) if engine == HANDED_OVER[1] else options.model
    settings = ENGINES.get(engine, ENGINES["bfloat16"])
    requests = [
        Generate(
            (Message("user", QUESTIONS[number % len(QUESTIONS)]),),
            Sampling(options.tokens, temperature=1.0, seed=number),
        )
        for number in range(options.replies)
    ]
    lm = VLLMLanguageModel(source, max_length=CONTEXT, eager=True, **settings)
    if engine == HANDED_OVER[0]:
        lm.generate(requests[:2])  # with the weights before
        lm.transport.load_weights(write_changed(options.model, folder))

    replies = lm.generate(requests)
    return {
        "replies": [
            {
                "prompt": list(lm.prompt_tokens(request)),
                "tokens": list(reply.token_ids),
                "logprobs": list(reply.logprobs),
            }
            for request, reply in zip(requests, replies, strict=True)
        ],
    }


def write_changed(source: str, folder: Path) -> Any:
    """Return a model whose weights are changed, all of them a little, and write it into a folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 0.05 * torch.randn_like(weight))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return model


def recomputed(source: str, replies: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the log-probabilities of all tokens by each kind of model."""
    from transformers import AutoModelForCausalLM

    single = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to(DEVICE).eval()
    half = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).to(DEVICE).eval()
    numbers = {"float32": logprobs_of(single, replies)}
    for name, model, is_mixed in (("bfloat16", half, False), ("autocast", single, True)):
        numbers[name] = logprobs_of(model, replies, is_mixed=is_mixed)
        numbers[f"{name}, head float32"] = logprobs_of(
            model, replies, is_mixed=is_mixed, single_head=True
        )
    numbers[EXACT] = logprobs_of(half.float(), replies)
    return numbers


def logprobs_of(
    model: Any,
    replies: Sequence[Mapping[str, Any]],
    *,
    is_mixed: bool = False,
    single_head: bool = False,
) -> list[float]:
    """Return the log-probabilities of all tokens by a model, each reply read in one pass.

    Args:
        model: A model of transformers.
        replies: Prompts and tokens.
        is_mixed: Whether it computes in bfloat16 by autocast, as a training with `precision` bfloat16 does.
        single_head: Whether logits are not rounded to bfloat16.
    """
    values: list[float] = []
    for reply in replies:
        prompt = reply["prompt"]
        targets = torch.tensor(reply["tokens"], device=DEVICE)
        token_ids = torch.tensor([[*prompt, *reply["tokens"]]], device=DEVICE)
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=is_mixed):
            hidden = model.base_model(input_ids=token_ids).last_hidden_state
            states = hidden[0, len(prompt) - 1 : -1]
            head = model.get_output_embeddings()
            logits = unrounded(states, head.weight) if single_head else head(states)
            logprobs = logits.float().log_softmax(-1)
        values += logprobs.gather(1, targets[:, None])[:, 0].tolist()
    return values


def unrounded(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return logits in single precision of states and weights in half."""
    with torch.autocast(DEVICE, enabled=False):
        halves = (states.bfloat16().float(), weight.bfloat16().float())
        return torch.nn.functional.linear(*halves)


def differences(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Return how far two lists of log-probabilities are apart: `bias` is the mean of first - second."""
    gaps = [one - other for one, other in zip(first, second, strict=True)]
    return {
        "mean": statistics.fmean(map(abs, gaps)),
        "bias": statistics.fmean(gaps),
        "bias_error": statistics.stdev(gaps) / len(gaps) ** 0.5,
        "largest": max(map(abs, gaps)),
    }


def flat(replies: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the log-probabilities of all replies, one after the other."""
    return [logprob for reply in replies for logprob in reply["logprobs"]]


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
