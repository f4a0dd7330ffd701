"""What a GPU would wait for, counted on a CPU: passes, tensor operations and host synchronizations.

``python benchmarks/measure/operations.py MODEL --out FILE [--only JOB ...]`` makes a narrow copy of MODEL,
a folder such as `smollm2_model.py` writes: its layers, tokenizer and vocabulary, 64 wide, random weights.
The jobs generate with the backend ``hf``, train CoMap's warm-up, and do updates of GRPO with and without
PaW. Counts do not depend on how busy the machine is. CPU seconds, of updates alone, are of other
times, in which nothing is counted. Prompts are the brief ones, so that all takes about 5 CPU minutes.

The checkout that is measured is the one that PYTHONPATH has as ``comap``, so that the same program measures
an earlier one, too. Counted are operations of ATen: those of the forward passes, of autograd and of the
optimizer. A view costs the host time but launches nothing on a GPU: launches are operations without views.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import gymnasium
import torch
from rollouts import describe
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from comap.agents import ReActConfig, create_agent, run_episodes
from comap.benchmarks.record import circumstances, commit, write_result
from comap.lm import Completion, Generate, HFLanguageModel, Sampling, Usage
from comap.lm.base import BaseLanguageModel
from comap.lm.engine.passes import Engine
from comap.trainers.paw.config import PolicyOptimization

PROGRAM = "benchmarks/measure/operations.py (not in the package)"
PACKAGES = ("torch", "transformers", "trl", "peft", "gymnasium")
ENV = "comap/ALFWorld-v0"
REPLY_TOKENS = 24
GENERATED_ROWS = 64
SAMPLED = Sampling(max_new_tokens=REPLY_TOKENS, temperature=1.0, top_p=0.9)
GREEDY = Sampling(max_new_tokens=REPLY_TOKENS)

WIDTH = 64
NARROW = {
    "hidden_size": WIDTH,
    "intermediate_size": 3 * WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": WIDTH // 4,
}

SYNCHRONIZING = {
    "_local_scalar_dense",  # item(), int(), float() and bool()
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
}
"""Operations whose result has a shape or a value that the host must wait for."""

TRANSFERS = {"tolist", "cpu", "numpy"}
"""Methods of tensors that read a GPU's memory; on a CPU they are no operation."""


class Transfers(TorchFunctionMode):
    """Counts the methods that bring a tensor to the host."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts
        self.on_host: Any = None  # what was brought last: to read it once more is no wait

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        name = getattr(func, "__name__", "")
        # Not copies: those are of weights that are saved, after the work.
        is_to_host = name == "to" and "cpu" in (*args[1:2], options.get("device"))
        is_to_host = is_to_host and not options.get("copy")
        if (name in TRANSFERS or is_to_host) and args[0] is not self.on_host:
            self.counts.synchronizations["to host" if is_to_host else name] += 1
        if name == "cpu" or is_to_host:
            self.on_host = result
        return result


class Operations(TorchDispatchMode):
    """Counts ATen's operations, whoever calls them."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts.add(func, args)
        return func(*args, **(kwargs or {}))


@dataclass
class Counts:
    """What was counted.

    Attributes:
        passes: Calls of the model beneath the head.
        positions: Tokens that these read, padding included.
        launches: Operations that are no views, by name.
        views: How many are views.
        synchronizations: Waits for the device, by what waits.
        uploads: Tensors made of Python's numbers: each is copied to the device.
        before: Operations before the first pass; None until there is one.
        inside: Operations within passes, without those of the backward pass.
        is_in_optimizer: Whether a step of the optimizer is under way. It reads counters of its own, which
            are on the CPU with a GPU, too: that is no wait.
    """

    passes: int = 0
    positions: int = 0
    launches: Counter[str] = field(default_factory=Counter)
    views: int = 0
    synchronizations: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    before: int | None = None
    inside: int = 0
    is_in_optimizer: bool = False

    @property
    def operations(self) -> int:
        return self.launches.total() + self.views

    def add(self, operation: Any, args: Sequence[Any]) -> None:
        """Count an operation."""
        name = operation.overloadpacket.__name__
        if name == "lift_fresh":
            self.uploads += 1
        elif operation.is_view or name in ("detach", "alias", "_unsafe_view"):
            self.views += 1
        else:
            self.launches[name] += 1

        if name in SYNCHRONIZING and not self.is_in_optimizer:
            self.synchronizations[name] += 1
        elif name in ("index", "index_put_", "index_put") and has_mask(args[1]):
            self.synchronizations["index by mask"] += 1

    def to_json(self, tokens: int) -> dict[str, Any]:
        """Return the counts, and what they are for a pass and for 1,000 tokens."""
        totals = {
            "operations": self.operations,
            "launches": self.launches.total(),
            "synchronizations": self.synchronizations.total(),
        }
        return {
            "tokens": tokens,
            "passes": self.passes,
            "positions": self.positions,
            **totals,
            "uploads": self.uploads,
            "before_the_first_pass": self.before,
            "inside_passes": self.inside,
            "by_kind": dict(self.synchronizations.most_common()),
            "most": dict(self.launches.most_common(12)),
            "per_pass": per(totals, self.passes),
            "per_1000_tokens": per({"passes": self.passes, **totals}, tokens / 1000),
        }


def per(totals: dict[str, int], divisor: float) -> dict[str, float]:
    return {name: round(total / divisor, 1) for name, total in totals.items()}


def has_mask(indices: Any) -> bool:
    """Return whether one of an operation's indices is a mask, whose true places must be counted first."""
    masks = (torch.bool, torch.uint8)
    return any(index is not None and index.dtype in masks for index in indices)


@contextmanager
def counted(model: str, counts: Counts) -> Iterator[None]:
    """Count what happens in this block."""
    model_class = base_class(model)
    original_forward = model_class.forward

    @wraps(original_forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if tokens is None:
            tokens = kwargs["inputs_embeds"][..., 0]
        if counts.before is None:
            counts.before = counts.operations
        counts.passes += 1
        counts.positions += tokens.numel()
        operations_before = counts.operations
        try:
            return original_forward(self, *args, **kwargs)
        finally:
            counts.inside += counts.operations - operations_before

    def enter_optimizer(*_: Any) -> None:
        counts.is_in_optimizer = True

    def leave_optimizer(*_: Any) -> None:
        counts.is_in_optimizer = False

    model_class.forward = forward
    hooks = [
        register_optimizer_step_pre_hook(enter_optimizer),
        register_optimizer_step_post_hook(leave_optimizer),
    ]
    try:
        with Transfers(counts), Operations(counts):
            yield
    finally:
        model_class.forward = original_forward
        for hook in hooks:
            hook.remove()


def base_class(model: str) -> Any:
    """Return the class of a model's part beneath its head, whose calls are the passes."""
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        return type(AutoModel.from_config(AutoConfig.from_pretrained(model)))


def narrow_copy(model: str, folder: str) -> None:
    """Save a model of the same layers, tokenizer and vocabulary, but narrow, with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(model)
    for name, size in NARROW.items():
        setattr(config, name, size)
    torch.manual_seed(0)
    narrow = AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    # Its next tokens shall be as uncertain as a trained model's: some hundred are nearly all of the
    # probability. Random signs in the last norm, since with a tied head a token would follow itself.
    with torch.no_grad():
        narrow.get_input_embeddings().weight.normal_(std=0.5)
        norm = narrow.base_model.norm.weight
        norm.copy_(torch.randint(0, 2, norm.shape) * 2.0 - 1.0)
    narrow.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


class Scripted(BaseLanguageModel):
    """Answers at once about as a policy does, and stores what it was asked.

    It goes to a place that the prompt names, and says so in a form. Replies have tokens and made-up
    log-probabilities.
    """

    name = "scripted"
    capabilities = frozenset({"generate"})

    def __init__(self, tokenizer: Any, form: str = "Action: go to {place}") -> None:
        self.tokenizer = tokenizer
        self.form = form
        self.requests: list[Generate] = []
        self.usage = Usage()

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        self.requests += requests
        return [self._reply(request) for request in requests]

    def _reply(self, request: Generate) -> Completion:
        prompt = request.messages[-1].content
        draw = random.Random(f"{request.sampling.seed}\n{prompt}")
        places = sorted(set(re.findall(r"\b[a-z]+ \d+\b", prompt))) or ["bed 1"]
        place = draw.choice(places)
        text = self.form.format(place=place)
        token_ids = (*self.tokenizer(text)["input_ids"], self.tokenizer.eos_token_id)
        logprobs = tuple(-2.0 * draw.random() for _ in token_ids)
        return Completion(text, token_ids, logprobs, "stop", 0, len(token_ids))

    def count_tokens(self, text: str) -> int:
        return len(self.tokenizer(text)["input_ids"])

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


def make_env(split: str = "train", **options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(ENV, split=split, source="generated", **options)


def tokenizer_of(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


@cache
def questions(model: str, count: int) -> Sequence[Generate]:
    """Return what ReAct asks in the third step of so many episodes."""
    asked = Scripted(tokenizer_of(model))
    tasks = make_env().get_wrapper_attr("tasks").ids[:count]
    agent = create_agent("react", prompts="brief")
    list(
        run_episodes(
            partial(make_env, max_episode_steps=3), agent, tasks, lm=asked, concurrency=count
        )
    )
    return asked.requests[-count:]


def generation(
    model: str,
    sampling: Sampling = SAMPLED,
    lora: bool = False,
    masked: bool = False,
    for_gpu: bool = False,
) -> dict[str, Any]:
    """Answer 64 requests of ReAct in one call of the backend ``hf``, all in one batch as on a GPU.

    With `for_gpu` it chooses tokens, normalizes and adds adapters as it does there in half precision.
    """
    dtype = "bfloat16" if for_gpu else "float32"
    lm = HFLanguageModel(model, dtype=dtype, batch_rows=GENERATED_ROWS, batch_tokens=2**18)
    if for_gpu:
        lm._engine.for_gpu = True
    if lora:
        torch.manual_seed(0)
        lm.add_adapter("agent", adapter())
    changes: dict[str, Any] = {"sampling": sampling, "adapter": "agent" if lora else None}
    if masked:
        changes["choices"] = tuple(f"Action: go to shelf {number}" for number in range(1, 31))

    # The first call makes what is made once. Its requests are others: the cache must not know them.
    requests = [replace(request, **changes) for request in questions(model, GENERATED_ROWS + 2)]
    for index, request in enumerate(requests):
        seeded = replace(request.sampling, seed=index)
        requests[index] = replace(request, sampling=seeded)
    lm.generate(requests[:2])
    counts = Counts()
    with counted(model, counts):
        replies = lm.generate(requests[2:])

    tokens = sum(len(reply.token_ids) for reply in replies)
    texts = hashlib.sha256("\n".join(reply.text for reply in replies).encode()).hexdigest()[:16]
    prompt_tokens = sum(reply.prompt_tokens for reply in replies)
    return {**counts.to_json(tokens), "prompt_tokens": prompt_tokens, "texts": texts}


def adapter() -> Any:
    """Return the settings of an adapter as CoMap has them."""
    from peft import LoraConfig

    layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return LoraConfig(
        r=8, lora_alpha=16, target_modules=[*layers], init_lora_weights=False, task_type="CAUSAL_LM"
    )


def comap_rows(model: str, rows: int) -> dict[str, Any]:
    """Count what CoMap's warm-up does with so many rows."""
    counts = Counts()
    fit = warmed_up(model, rows, counted(model, counts))
    padding = round(1 - fit.tokens / counts.positions, 3)
    return {**counts.to_json(fit.tokens), "rows": rows, "updates": fit.updates, "padding": padding}


def warmed_up(
    model: str,
    rows: int,
    watch: AbstractContextManager[Any],
    prompts: str = "brief",
    precision: str = "float32",
) -> Any:
    """Warm up a policy as CoMap does (preset ``paper``, LoRA), on so many steps of demonstrations.

    Args:
        model: The folder of the model.
        rows: How many steps.
        watch: Is open while the steps are learned.
        prompts: Of the agent.
        precision: Of the training.

    Returns:
        What the stage says of itself.
    """
    from comap.trainers import Environments, SFTRun, SFTTraining, open_models, show_expert
    from comap.trainers.sft import imitation_samples

    fits: list[Any] = []

    class FewRows(SFTRun):
        def imitate(self, stage: Any, role: str, epochs: int, rate: float) -> Any:
            count_tokens = self.counting.count_tokens
            samples = imitation_samples(self.demos, self.agent, count_tokens=count_tokens)
            with watch:
                fit = self.fit(stage, role, [list(samples)[:rows]] * epochs, rate)
            assert fit.rows == rows, f"expected {rows} rows, found {fit.rows}"
            fits.append(fit)
            return replace(fit, weights=self.save_weights(stage, role))

    config = SFTTraining(
        agent=ReActConfig(prompts=prompts),
        epochs=1,
        demonstrations=2 + rows // 5,
        evaluation_tasks=0,
        precision=precision,
    )
    environments = Environments(ENV, {"source": "generated"})
    demonstrations = show_expert(environments, config)
    with tempfile.TemporaryDirectory() as out:
        roles = open_models(config, model)
        FewRows(config, roles, environments, demonstrations, out).run()
    return fits[0]


@cache
def episode_rows(
    model: str,
    groups: int,
    members: int,
    steps: int,
    prompts: str = "brief",
    form: str = "Action: go to {place}",
) -> Sequence[Any]:
    """Return the rows of scripted episodes, half of which win."""
    from comap.trainers.paw.rollouts import groups_of, roll_out
    from comap.trainers.paw.rows import Serializer

    tokenizer = tokenizer_of(model)
    tasks = make_env().get_wrapper_attr("tasks").ids
    rollouts = roll_out(
        partial(make_env, max_episode_steps=steps),
        create_agent("paw", prompts=prompts),
        groups_of(tasks, groups, members, 0, 0),
        Serializer(tokenizer, ends=[tokenizer.eos_token_id]),
        reward=half_wins,
        lm=Scripted(tokenizer, form),
        concurrency=groups * members,
    )
    return rollouts.rows


def paw_update(model: str, paw: bool, **settings: Any) -> dict[str, Any]:
    """Do an update of GRPO, with PaW or without, on rows that scripted episodes make."""
    rows = episode_rows(model, **FEW)
    counts = Counts()
    with counted(model, counts):
        gradient_norm = updated(model, rows, paw, settings)

    # The least of three: on a busy machine a process's own seconds may be several times as many.
    seconds = []
    for _ in range(3):
        start = time.process_time()
        updated(model, rows, paw, settings)
        seconds.append(time.process_time() - start)

    tokens = {
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "response_tokens": sum(len(row.response_ids) for row in rows),
        "observation_tokens": sum(len(row.observation_ids) for row in rows),
    }
    return {
        **counts.to_json(tokens["prompt_tokens"] + tokens["response_tokens"]),
        **tokens,
        "rows": len(rows),
        "gradient_norm": gradient_norm,
        "cpu_seconds": round(min(seconds), 1),
    }


def updated(model: str, rows: Sequence[Any], paw: bool, settings: Mapping[str, Any]) -> float:
    """Do an update on rows, and return the norm of its gradient, which is the same for the same rows."""
    from transformers import AutoModelForCausalLM

    from comap.trainers import paw_preset
    from comap.trainers.paw.trainer import make_trainer

    sizes = {"groups": FEW["groups"], "members": FEW["members"], "save_updates": 0}
    config = paw_preset("paper", paw=paw, precision="float32", **sizes, **settings)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    lines: list[Any] = []
    with tempfile.TemporaryDirectory() as out:
        trainer = make_trainer(
            config,
            loaded,
            tokenizer_of(model),
            lambda update: rows,
            out,
            updates=1,
            tell=lines.append,
            device="cpu",
        )
        trainer.fit()
    return float(lines[-1]["grad_norm"])


def half_wins(trajectory: Any) -> list[float]:
    """Return rewards of an episode that is won or lost by its seed, so that groups are mixed."""
    rewards = [0.0] * len(trajectory.steps)
    rewards[-1] = 10.0 * (trajectory.seed % 2)
    return rewards


FEW = {"groups": 4, "members": 4, "steps": 4}
JOBS: dict[str, Callable[[str], dict[str, Any]]] = {
    "hf/sampled": generation,
    "hf/greedy": partial(generation, sampling=GREEDY),
    "hf/choices": partial(generation, masked=True),
    "hf/sampled/lora": partial(generation, lora=True),
    "hf/greedy/lora": partial(generation, sampling=GREEDY, lora=True),
    "hf/choices/lora": partial(generation, masked=True, lora=True),
    "comap/18": partial(comap_rows, rows=18),
    "comap/136": partial(comap_rows, rows=136),
    "grpo": partial(paw_update, paw=False),
    "grpo+paw": partial(paw_update, paw=True),
}
if hasattr(Engine, "for_gpu"):
    for name, job in list(JOBS.items()):
        if name.startswith("hf/"):
            JOBS[f"{name}/gpu"] = partial(job, for_gpu=True)
if "trees" in (setting.name for setting in fields(PolicyOptimization)):
    # On a CPU rows are read as trees; on a GPU each row by itself, which earlier checkouts could not.
    JOBS["grpo/rows"] = partial(paw_update, paw=False, trees=False)
    JOBS["grpo+paw/rows"] = partial(paw_update, paw=True, trees=False)


def paw_share(grpo: dict[str, Any], with_paw: dict[str, Any]) -> dict[str, float]:
    """Return what PaW adds to an update of GRPO, as shares of that."""
    names = ("passes", "positions", "operations", "synchronizations", "cpu_seconds")
    return {name: round(with_paw[name] / grpo[name] - 1, 3) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("--only", nargs="*", choices=JOBS, default=list(JOBS), metavar="JOB")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    result: dict[str, Any] = {"benchmark": "operations", "program": PROGRAM, "commit": commit()}
    result |= circumstances(PACKAGES)
    jobs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        narrow_copy(options.model, folder)
        result |= {"model": describe(folder), "settings": FEW, "jobs": jobs}
        for job in options.only:
            jobs[job] = JOBS[job](folder)
            print(job, json.dumps(jobs[job]), flush=True)
            write_result(options.out, result)

    for name, way in (("paw_adds", ""), ("paw_adds_to_rows", "/rows")):
        if {f"grpo{way}", f"grpo+paw{way}"} <= jobs.keys():
            result[name] = paw_share(jobs[f"grpo{way}"], jobs[f"grpo+paw{way}"])
    write_result(options.out, result)


if __name__ == "__main__":
    main()
