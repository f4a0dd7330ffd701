"""What comap does on a GPU beside vLLM alone and TRL: rollouts, updates of PaW, CoMap's rows and rounds.

    python benchmarks/measure/gpu.py MODEL --out FILE [--only JOB ...] [--minutes 12]
    python benchmarks/measure/gpu.py MODEL --out FILE --small

MODEL is the folder of SmolLM2-135M-Instruct, as `smollm2_model.py` writes it. Each job runs in a process
of its own, within a time limit. What it has measured is in FILE after each, and a job that fails or runs
out of time costs no other one. The most important ones come first. Those that compare or profile run side
by side, those that are timed alone. The same command goes on where FILE ends; a job that is named by
``--only`` is done again. `gpu.sh` does all of it on a lent machine.

With ``--small`` all jobs run on a CPU with tiny numbers, which mean nothing; those that need vLLM are left
out where it is not installed. ``--only cpu/engines`` plays with vLLM and with the backend ``hf`` on a CPU.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

IS_SMALL = "--small" in sys.argv
HAS_GPU = torch.cuda.is_available() and not IS_SMALL
os.environ.setdefault("DEVICE", "cuda" if HAS_GPU else "cpu")
sys.path.insert(0, str(Path(__file__).parent))
import operations  # noqa: E402 what it imports reads DEVICE
import rollouts as base  # noqa: E402

PROGRAM = "benchmarks/measure/gpu.py (not in the package)"
PACKAGES = ("torch", "transformers", "trl", "peft", "vllm", "gymnasium")
TAGS = "<think>I have not looked there yet.</think><action>go to {place}</action>"


@dataclass(frozen=True)
class Sizes:
    """How much each job does."""

    episodes: int = 256
    hf_episodes: int = 64
    steps: int = 10
    reply_tokens: int = 48
    groups: int = 8
    members: int = 8
    update_steps: int = 6
    rows: int = 136
    round_tasks: int = 32
    compared_prompts: int = 16
    profiled_rows: int = 16


FULL = Sizes()
SMALL = Sizes(
    episodes=2,
    hf_episodes=2,
    steps=1,
    reply_tokens=4,
    groups=1,
    members=2,
    update_steps=1,
    rows=2,
    round_tasks=2,
    compared_prompts=2,
    profiled_rows=2,
)
SIZES = SMALL if IS_SMALL else FULL


def show(measured: Mapping[str, Any]) -> None:
    """Print what a job has measured so far: the last that is printed counts."""
    print(json.dumps({"measured": measured}, default=str), flush=True)


# Models


def models_folder() -> Path:
    """Return where models are made: in memory, where there is one, since each job reads them anew."""
    memory = Path("/dev/shm")
    root = memory if memory.is_dir() else Path(tempfile.gettempdir())
    return Path(os.environ.get("MODELS", root / "comap-models"))


def model_of(shape: str, smollm2: str) -> str:
    """Return the folder of a model."""
    return smollm2 if shape == "135m" else str(models_folder() / shape)


def make_shape(smollm2: str, shape: str = "0.6b") -> dict[str, Any]:
    """Save a model of Qwen3-0.6B's shape with random weights, and a tokenizer of as many words.

    It ends hardly any text, so that each reply has all the tokens it may have.
    """
    from transformers import AutoModelForCausalLM, Qwen3Config

    from comap.agents.create import corpus
    from comap.lm.tiny import tokenizer_of

    vocabulary = 2048 if IS_SMALL else 151_936
    width = 64 if IS_SMALL else 1024
    # Each word stands twice, since the tokenizer learns no token from what it saw once.
    letters = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    words = "".join(f" z{word} z{word}" for word in itertools.islice(letters, vocabulary))
    tokenizer = tokenizer_of([*corpus(episodes=2 if IS_SMALL else 60), words], vocabulary, 32_768)

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2 if IS_SMALL else 28,
        num_attention_heads=2 if IS_SMALL else 16,
        num_key_value_heads=2 if IS_SMALL else 8,
        head_dim=32 if IS_SMALL else 128,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if HAS_GPU else "cpu"):
        dtype = torch.bfloat16 if HAS_GPU else torch.float32
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(model_of(shape, smollm2))
    tokenizer.save_pretrained(model_of(shape, smollm2))
    return {"parameters": model.num_parameters(), "vocabulary": vocabulary, "width": width}


def peak_memory() -> float | None:
    """Return the most GPU memory that torch's tensors had in this process, in GB; None on a CPU."""
    return round(torch.cuda.max_memory_allocated() / 1e9, 1) if HAS_GPU else None


# Rollouts


def open_vllm(model: str, **options: Any) -> tuple[Any, float]:
    """Return the model in vLLM, in this process, and how long it took to start."""
    from comap.lm import VLLMLanguageModel

    start = time.perf_counter()
    settings: dict[str, Any] = {"max_length": 4096, "eager": IS_SMALL, **options}
    engine_options = {"max_num_seqs": SIZES.episodes, **settings.pop("engine_options", {})}
    lm = VLLMLanguageModel(model, engine_options=engine_options, **settings)
    return lm, round(time.perf_counter() - start, 1)


def played(
    lm: Any, agent: Any, tasks: Sequence[str], concurrency: int, steps: int = SIZES.steps
) -> dict[str, Any]:
    """Play tasks once each, and return what that took."""
    from comap.agents import run_episodes

    make_env = partial(operations.make_env, max_episode_steps=steps)
    usage = copy.copy(lm.usage)
    start = time.perf_counter()
    cpu_start = time.process_time()
    episodes = run_episodes(make_env, agent, tasks, lm=lm, concurrency=concurrency)
    seconds = time.perf_counter() - start
    cpu_seconds = time.process_time() - cpu_start

    reply_tokens = lm.usage.completion_tokens - usage.completion_tokens
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "episodes": len(episodes),
        "failed": sum(episode.error is not None for episode in episodes),
        "steps": sum(len(episode.steps) for episode in episodes),
        "prompt_tokens": lm.usage.prompt_tokens - usage.prompt_tokens,
        "reply_tokens": reply_tokens,
        "reply_tokens_a_second": round(reply_tokens / seconds, 1),
    }


def two_parts(number: int) -> tuple[Sequence[str], Sequence[str]]:
    """Return tasks for two times: the cache of the second one must not know the first one's."""
    tasks = operations.make_env().get_wrapper_attr("tasks").ids
    if len(tasks) < 2 * number:
        return tasks[:number], tasks[-number:]
    return tasks[:number], tasks[number : 2 * number]


def conversing_agent() -> Any:
    """Return PaW's agent whose conversations go on, as it played in measurements of earlier commits."""
    from comap.agents import create_agent

    return create_agent("paw", context="concat", draft_tokens=SIZES.reply_tokens)


class Recorder:
    """Stores what an engine is asked, and how many tokens it writes for each, in place of a transport."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._prompts: dict[int, tuple[int, ...]] = {}
        self.questions: list[tuple[tuple[int, ...], int]] = []

    def submit(self, request: Any) -> int:
        number: int = self._transport.submit(request)
        self._prompts[number] = request.prompt
        return number

    def step(self) -> list[Any]:
        replies: list[Any] = self._transport.step()
        for number, reply in replies:
            if not isinstance(reply, Exception):
                self.questions.append((self._prompts.pop(number), len(reply.tokens)))
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def vllm_rollouts(smollm2: str, shape: str) -> dict[str, Any]:
    """Play many episodes at a time in vLLM, and let vLLM alone write as much behind the same prompts."""
    lm, start_seconds = open_vllm(model_of(shape, smollm2))
    show({"start_seconds": start_seconds})
    warm_tasks, tasks = two_parts(SIZES.episodes)
    agent = conversing_agent()
    played(lm, agent, warm_tasks[: SIZES.episodes // 4 + 1], SIZES.episodes)

    recorder = Recorder(lm.transport)
    lm.transport = recorder
    measured = {"start_seconds": start_seconds, **played(lm, agent, tasks, SIZES.episodes)}
    show(measured)

    # With and without a seed for each request, which ours have: what the seeds cost is vLLM's.
    for name, is_seeded in (("generate", False), ("generate_seeded", True)):
        seconds = generated(recorder.llm, recorder.questions, is_seeded)
        tokens = sum(length for _, length in recorder.questions)
        measured[f"{name}_tokens_a_second"] = round(tokens / seconds, 1)
        measured[f"share_of_{name}"] = round(
            measured["reply_tokens_a_second"] * seconds / tokens, 3
        )
        show(measured)
    return measured


def generated(llm: Any, questions: Sequence[tuple[tuple[int, ...], int]], is_seeded: bool) -> float:
    """Return how long vLLM's own `generate` takes for prompts and the lengths of their replies."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": list(prompt)} for prompt, _ in questions]
    sampling = []
    for number, (_, length) in enumerate(questions):
        sampling.append(
            SamplingParams(
                temperature=1.0,
                max_tokens=length,
                min_tokens=length,
                ignore_eos=True,
                seed=number if is_seeded else None,
                detokenize=False,
            )
        )
    start = time.perf_counter()
    llm.generate(prompts, sampling, use_tqdm=False)
    return time.perf_counter() - start


def hf_rollouts(smollm2: str, shape: str = "135m") -> dict[str, Any]:
    """Play with the backend ``hf``: conversations that go on, and ReAct's prompts with a nucleus."""
    from comap.agents import create_agent
    from comap.lm import HFLanguageModel

    lm = HFLanguageModel(model_of(shape, smollm2), device=base.DEVICE, cache_mb=4000)
    warm_tasks, tasks = two_parts(SIZES.hf_episodes)
    react = create_agent("react", draft_tokens=SIZES.reply_tokens, temperature=1.0, top_p=0.9)
    agents = {"concat": conversing_agent(), "react": react}

    measured: dict[str, Any] = {}
    for name, agent in agents.items():
        played(lm, agent, warm_tasks[: SIZES.hf_episodes // 8 + 1], SIZES.hf_episodes)
        measured[name] = played(lm, agent, tasks, SIZES.hf_episodes)
        measured[name]["peak_gb"] = peak_memory()
        show(measured)
    return measured


def cpu_engines(smollm2: str) -> dict[str, Any]:
    """Play ReAct with vLLM and with the backend ``hf`` on a CPU; they take turns."""
    from comap.agents import create_agent
    from comap.lm import HFLanguageModel

    episodes = 2 if IS_SMALL else 16
    lms: dict[str, Any] = {
        "hf": HFLanguageModel(smollm2, device="cpu", dtype="float32"),
        "vllm": open_vllm(
            smollm2,
            dtype="float32",
            eager=True,
            engine_options={"max_num_seqs": episodes, "max_num_batched_tokens": 32_768},
        )[0],
    }
    agent = create_agent("react", prompts="brief", draft_tokens=SIZES.reply_tokens)
    tasks = operations.make_env().get_wrapper_attr("tasks").ids
    measured: dict[str, Any] = {"hf": [], "vllm": [], "ratios": []}
    for turn in range(1 if IS_SMALL else 3):
        turn_tasks = tasks[turn * episodes : (turn + 1) * episodes]
        for name, lm in lms.items():
            measured[name].append(played(lm, agent, turn_tasks, episodes, steps=2))
        speeds = [measured[name][-1]["reply_tokens_a_second"] for name in ("vllm", "hf")]
        measured["ratios"].append(round(speeds[0] / speeds[1], 2))
        show(measured)
    return measured


# Training


def timed_update(smollm2: str, shape: str) -> dict[str, Any]:
    """Update a policy by GRPO without and with PaW, on rows of scripted episodes; the second one counts."""
    model = model_of(shape, smollm2)
    sizes = (SIZES.groups, SIZES.members, SIZES.update_steps)
    rows = operations.episode_rows(model, *sizes, "standard", TAGS)
    tokens = sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)

    measured: dict[str, Any] = {"rows": len(rows), "tokens": tokens}
    for name, paw in (("grpo", False), ("paw", True)):
        update = updates_on(model, rows, paw)[-1]
        seconds = update["seconds_old_logps"] + update["seconds_update"]
        measured[name] = {
            "seconds": round(seconds, 2),
            "tokens_a_second": round(tokens / seconds),
            "peak_gb": peak_memory(),
        }
        show(measured)
    measured["paw_adds"] = round(measured["paw"]["seconds"] / measured["grpo"]["seconds"] - 1, 3)
    return measured


def updates_on(
    model: str, rows: Sequence[Any], paw: bool, updates: int = 3, watch: Any = None
) -> list[Any]:
    """Do updates on the same rows, and return what each says of itself.

    Args:
        model: The folder of the model.
        rows: What is learned, in each update anew.
        paw: Whether observations are learned, too.
        updates: How many.
        watch: Called with the number of each update before it.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from comap.trainers import paw_preset
    from comap.trainers.paw.trainer import make_trainer

    def roll_out(update: int) -> Sequence[Any]:
        if watch is not None:
            watch(update)
        return rows

    sizes = {"groups": SIZES.groups, "members": SIZES.members}
    config = paw_preset("paper", paw=paw, save_updates=0, **sizes)
    lines: list[Any] = []
    with tempfile.TemporaryDirectory() as out:
        trainer = make_trainer(
            config,
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            AutoTokenizer.from_pretrained(model),
            roll_out,
            out,
            updates=updates,
            tell=lambda line: lines.append(dict(line)),
            device=base.DEVICE,
        )
        trainer.fit()
    return lines


def timed_rows(smollm2: str) -> dict[str, Any]:
    """Warm up CoMap's policy with LoRA; what is made once is made by a first, shorter time."""
    measured: dict[str, Any] = {}
    for rows in (SIZES.rows // 8 + 1, SIZES.rows):
        fit = operations.warmed_up(smollm2, rows, nullcontext(), "standard", "auto")
        measured = {
            "rows": fit.rows,
            "tokens": fit.tokens,
            "seconds": fit.training_seconds,
            "tokens_a_second": round(fit.tokens / fit.training_seconds),
            "peak_gb": peak_memory(),
        }
        show(measured)
    return measured


def comap_round(smollm2: str) -> dict[str, Any]:
    """Do a round of CoMap, all stages, and return what each takes; the engine is what ``auto`` takes."""
    from comap.trainers import CoEvolution, Environments, open_models, preset, show_expert

    config = preset(
        "paper",
        tasks_per_round=SIZES.round_tasks,
        rounds=1,
        concurrency=SIZES.round_tasks,
        predict_tokens=SIZES.reply_tokens,
        reflect_tokens=SIZES.reply_tokens,
        draft_tokens=SIZES.reply_tokens,
        reflection_init=False,
        entry_tasks=0,
        evaluation_tasks=0,
        frozen_transitions=0,
        diagnosed=0,
        demonstrations=max(SIZES.round_tasks // 2, 2),
        policy_epochs=1,
        world_model_epochs=1,
    )
    make_env = Environments(
        operations.ENV, {"source": "generated", "max_episode_steps": SIZES.steps}
    )
    measured: dict[str, Any] = {"tasks": SIZES.round_tasks, "steps": SIZES.steps, "stages": {}}

    def tell(event: Any) -> None:
        if event["event"] == "done":
            # Without the curves of the training and the list of its files.
            counts = dict(event["result"])
            for name in ("log", "weights"):
                counts.pop(name, None)
            measured["stages"][event["stage"]] = {**counts, "peak_gb": peak_memory()}
            measured["seconds"] = round(time.perf_counter() - start, 1)
            show(measured)

    demonstrations = show_expert(make_env, config)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        training = CoEvolution(
            config,
            open_models(config, smollm2),
            make_env,
            demonstrations,
            Path(out),
            warmed_up=True,
            about={"preset": "paper"},
            tell=tell,
        )
        measured["engine"] = str(training.sampling.choice)
        training.run()
    return measured


def beside_trl(smollm2: str, trainer: str) -> dict[str, Any]:
    """Do updates of GRPO with TRL's trainer, or with ours on the same tasks; vLLM where there is a GPU."""
    if IS_SMALL:
        os.environ["UPDATES"] = "2"
        base.GROUPS = 1
        base.MEMBERS = 2
        base.STEPS = 1
        base.OPTIONS["max_episode_steps"] = 1
    import rollouts_trl

    # Ours runs first and draws the tasks; the process that has TRL's reads them here.
    tasks_file = models_folder() / "tasks.json"
    model = model_of("0.6b", smollm2)
    if trainer == "comap":
        measured = rollouts_trl.train_comap(model)
        tasks_file.write_text(json.dumps(measured.pop("tasks")))
    else:
        tasks = json.loads(tasks_file.read_bytes())
        measured = rollouts_trl.train_trl(model, tasks, vllm_memory=0.3 if HAS_GPU else None)
        measured.pop("tasks")
    return {**measured, "peak_gb": peak_memory()}


# What is compared, and profiles


def compared_logprobs(smollm2: str, dtype: str) -> dict[str, Any]:
    """Change a model's weights, hand them to vLLM, and compare log-probabilities with the model's own."""
    from transformers import AutoModelForCausalLM

    memory_share = 0.15 if HAS_GPU else None
    lm, _ = open_vllm(smollm2, dtype=dtype, eager=True, memory_share=memory_share)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=getattr(torch, dtype))
    model = model.to(base.DEVICE).eval()

    requests = operations.questions(smollm2, SIZES.compared_prompts)
    sampling = operations.Sampling(max_new_tokens=SIZES.reply_tokens, temperature=1.0, seed=1)
    requests = [operations.replace(request, sampling=sampling) for request in requests]
    measured = {"before": logprob_differences(lm, model, requests)}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "down_proj" in name:
                weight.mul_(0.9)
    measured["unsynchronized"] = logprob_differences(lm, model, requests)
    lm.transport.load_weights(model)
    measured["synchronized"] = logprob_differences(lm, model, requests)
    return measured


def logprob_differences(lm: Any, model: Any, requests: Sequence[Any]) -> dict[str, float]:
    """Return how far an engine's log-probabilities of what it samples are from a model's, in nats."""
    differences: list[float] = []
    for request, reply in zip(requests, lm.generate(requests), strict=True):
        prompt = lm.prompt_tokens(request)
        tokens = torch.tensor([[*prompt, *reply.token_ids]], device=model.device)
        with torch.inference_mode():
            logits = model(tokens).logits[0, len(prompt) - 1 : -1].float()
        own = logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None])[:, 0]
        differences += (own.cpu() - torch.tensor(reply.logprobs)).abs().tolist()
    return {
        "tokens": len(differences),
        "mean": sum(differences) / len(differences),
        "largest": max(differences),
    }


class Profile:
    """torch's profiler as a watch of a training, and its table."""

    def __init__(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if HAS_GPU:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profiler = torch.profiler.profile(activities=activities)

    def start_at(self, update: int) -> Callable[[int], None]:
        """Return a watch that starts the profiler with one of the updates."""

        def watch(number: int) -> None:
            if number == update:
                self.profiler.start()

        return watch

    def table(self, name: str) -> dict[str, Any]:
        """Write the profile beside the results, and return its longest rows."""
        events = self.profiler.key_averages()
        column = "self_device_time_total" if HAS_GPU else "self_cpu_time_total"
        table = events.table(sort_by=column, row_limit=40, max_name_column_width=60)
        folder = Path(os.environ.get("PROFILES", tempfile.gettempdir()))
        (folder / f"profile-{name}.txt").write_text(table)

        longest = sorted(events, key=lambda event: -getattr(event, column))[:12]
        rows = []
        for event in longest:
            milliseconds = round(getattr(event, column) / 1000, 2)
            rows.append({"name": event.key, "calls": event.count, "milliseconds": milliseconds})
        device_milliseconds = sum(event.self_device_time_total for event in events) / 1000
        cpu_milliseconds = sum(event.self_cpu_time_total for event in events) / 1000
        return {
            "device_milliseconds": round(device_milliseconds, 1),
            "cpu_milliseconds": round(cpu_milliseconds, 1),
            "longest": rows,
        }


def profiled_update(smollm2: str) -> dict[str, Any]:
    """Profile an update of GRPO with PaW on a few rows; one before it makes what is made once."""
    rows = operations.episode_rows(smollm2, 1, SIZES.members, 2, "standard", TAGS)
    rows = rows[: SIZES.profiled_rows]
    profile = Profile()
    updates_on(smollm2, rows, True, updates=2, watch=profile.start_at(1))
    profile.profiler.stop()
    tokens = sum(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    return {"rows": len(rows), "tokens": tokens, **profile.table("paw")}


def profiled_rows(smollm2: str) -> dict[str, Any]:
    """Profile CoMap's warm-up on a few rows; a first time makes what is made once."""
    operations.warmed_up(smollm2, SIZES.profiled_rows, nullcontext(), "standard", "auto")
    profile = Profile()
    fit = operations.warmed_up(smollm2, SIZES.profiled_rows, profile.profiler, "standard", "auto")
    return {"rows": fit.rows, "tokens": fit.tokens, **profile.table("comap")}


# Jobs


class Job(NamedTuple):
    """A piece of work of its own process.

    Attributes:
        work: Measures something with the folder of a model.
        limit: Seconds that it may take, the start of its process included.
        alone: Whether nothing may run beside it.
        needs_vllm: Whether it is left out without vLLM.
        usual: Whether it is done unless other jobs are named.
    """

    work: Callable[[str], dict[str, Any]]
    limit: int
    alone: bool = True
    needs_vllm: bool = False
    usual: bool = True


JOBS = {
    "rollouts/135m": Job(partial(vllm_rollouts, shape="135m"), 240, needs_vllm=True),
    "hf/135m": Job(hf_rollouts, 60),
    "update/135m": Job(partial(timed_update, shape="135m"), 60),
    "comap/rows": Job(timed_rows, 60),
    "make/0.6b": Job(make_shape, 60, alone=False),
    "logprobs/float32": Job(
        partial(compared_logprobs, dtype="float32"), 120, alone=False, needs_vllm=True
    ),
    "logprobs/bfloat16": Job(
        partial(compared_logprobs, dtype="bfloat16"), 120, alone=False, needs_vllm=True
    ),
    "profile/paw": Job(profiled_update, 90, alone=False),
    "profile/comap": Job(profiled_rows, 90, alone=False),
    "comap/round": Job(comap_round, 200),
    "update/0.6b": Job(partial(timed_update, shape="0.6b"), 90),
    "trl/comap": Job(partial(beside_trl, trainer="comap"), 150),
    "trl/trl": Job(partial(beside_trl, trainer="trl"), 150),
    "rollouts/0.6b": Job(partial(vllm_rollouts, shape="0.6b"), 200, needs_vllm=True),
    "cpu/engines": Job(cpu_engines, 3600, needs_vllm=True, usual=False),
}
"""The most important first; those of 0.6b and of TRL need the model that ``make/0.6b`` makes."""

LEAST_SECONDS = 15
"""A job with less time than this is not begun."""


def stages(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield which jobs run at the same time, one group after the other."""
    for is_alone, group in itertools.groupby(names, key=lambda name: JOBS[name].alone):
        if is_alone:
            for name in group:
                yield [name]
        else:
            yield list(group)


class Process:
    """A job that runs in a process of its own; what it printed last counts, even if it was killed."""

    def __init__(self, name: str, model: str, seconds_left: float) -> None:
        self.name = name
        self.start = time.perf_counter()
        # The first imports of a busy CPU may take longer than a GPU's whole job.
        self.limit = min(JOBS[name].limit * (10 if IS_SMALL else 1), seconds_left)
        # A file and not a pipe: what was printed is there even where the process is killed.
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 closed in `result`
        words = [sys.executable, __file__, model, "--job", name]
        words += ["--small"] if IS_SMALL else []
        self.process = subprocess.Popen(
            words, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def result(self) -> dict[str, Any]:
        """Wait for the process, at most until its limit, and return what it measured."""
        is_late = False
        try:
            left = self.limit - (time.perf_counter() - self.start)
            status = self.process.wait(max(left, 0.1))
        except subprocess.TimeoutExpired:
            is_late = True
            # Its own processes too: an engine that is left behind would keep the GPU's memory.
            os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()

        self.log.seek(0)
        lines = self.log.read().splitlines()
        self.log.close()
        measured: dict[str, Any] = {}
        for line in lines:
            if line.startswith('{"measured"'):
                with suppress(json.JSONDecodeError):  # a line that was cut off
                    measured = json.loads(line)["measured"]

        seconds = round(time.perf_counter() - self.start, 1)
        if is_late:
            measured = {**measured, "stopped": f"at its limit of {self.limit:.0f} s"}
        elif status:
            measured = {**measured, "failed": lines[-12:]}
        return {**measured, "process_seconds": seconds}


def reason_to_skip(name: str, seconds_left: float) -> str | None:
    """Return why a job is not begun, or None."""
    if JOBS[name].needs_vllm and find_spec("vllm") is None:
        return "vLLM is not installed"
    if seconds_left < LEAST_SECONDS:
        return "no time was left"
    return None


def run_jobs(
    model: str, names: Sequence[str], minutes: float, tell: Callable[[str, Any], None]
) -> None:
    """Run jobs, and tell the result of each as soon as it is there."""
    deadline = time.perf_counter() + 60 * minutes
    models_folder().mkdir(parents=True, exist_ok=True)
    for group in stages(names):
        processes = []
        for name in group:
            seconds_left = deadline - time.perf_counter()
            reason = reason_to_skip(name, seconds_left)
            if reason is None:
                processes.append(Process(name, model, seconds_left))
            else:
                tell(name, {"skipped": reason})
        for process in processes:
            tell(process.name, process.result())


def is_finished(measured: Mapping[str, Any] | None) -> bool:
    """Return whether a job was done to its end, and need not be done again."""
    return measured is not None and not measured.keys() & {"skipped", "stopped", "failed"}


def device() -> str:
    """Return the GPU's name, memory and driver."""
    if not HAS_GPU:
        return "none"
    words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.check_output(words, encoding="utf-8").strip()


def main() -> None:
    from comap.benchmarks.record import circumstances, commit, write_result

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=Path, required=True)
    usual = [name for name, job in JOBS.items() if job.usual]
    parser.add_argument("--only", nargs="+", choices=JOBS, metavar="JOB")
    parser.add_argument("--minutes", type=float, default=12, help="that all jobs have together")
    parser.add_argument("--small", action="store_true", help="tiny numbers on a CPU")
    options = parser.parse_args()

    jobs: dict[str, Any] = {}
    if options.out.exists():
        jobs = json.loads(options.out.read_bytes())["jobs"]
    unfinished = [name for name in usual if not is_finished(jobs.get(name))]

    result: dict[str, Any] = {
        "benchmark": "gpu",
        "program": PROGRAM,
        "commit": os.environ.get("COMMIT") or commit(),
        **circumstances(PACKAGES),
        "gpu": device(),
        "small": IS_SMALL,
        "sizes": vars(SIZES),
        "jobs": jobs,
    }

    def tell(name: str, measured: Any) -> None:
        jobs[name] = measured
        write_result(options.out, result)
        print(name, json.dumps(measured)[:600], flush=True)

    run_jobs(options.model, options.only or unfinished, options.minutes, tell)


if __name__ == "__main__":
    if "--job" in sys.argv:
        show(JOBS[sys.argv[3]].work(sys.argv[1]))
    else:
        main()
