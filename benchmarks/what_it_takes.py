"""What a training takes before it begins: tasks and tokens, memory against this machine's GPUs, hours."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataNotFound, MissingExtra, OptionError
from ..lm.create import folder_of, full_name
from ..trainers.needs import (
    SHAPES,
    USABLE,
    Memory,
    Setup,
    Shape,
    engine_needs,
    memory,
    peak_of,
    rates_of,
    training_hours,
)
from .tables import Table

ASSUMED = 80e9
"""Bytes of the card that is assumed where this machine has none: an A100 with 80 GB, as the papers had."""

_PROMPTS: Mapping[str, int] = {
    "comap/ALFWorld-v0": 902,
    "comap/WebShop-v0": 631,
    "comap/ScienceWorld-v0": 1258,
    "comap/StableToolBench-v0": 1003,
    "comap/SearchQA-v0": 555,
}
"""Mean tokens of a prompt with the whole history, of an expert's generated episodes (capacity.json)."""
_OTHER_PROMPT = 1000
_EXPERT_STEPS = 15  # of a demonstration: an assumption, ALFWorld's have 12 in the middle
# Reply tokens a second, measured on an H100.
_SLOW = 578  # 4B, transformers
_FAST = 5_000  # 135M, vLLM
_ENGINE_SHARE = 0.3  # of the card, for vLLM in the process of a training
_SERVER = "--engine http://HOST:PORT, on another GPU"


class Card(NamedTuple):
    """A GPU: its name, its bytes, and whether it is only assumed."""

    name: str
    size: float
    is_assumed: bool = False


class Work(NamedTuple):
    """What is learned: rows and tokens, and how they were estimated."""

    name: str
    rows: float
    tokens: float
    replies: float
    basis: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The training that is asked about."""

    method: str
    config: Any
    env_id: str
    tasks: int | None  # None where the split's data are not on this machine
    model: str
    engine: str = "auto"
    engine_memory: float | None = None
    processes: int = 1
    sharded: bool = False


def shape_of(model: str) -> Shape:
    """Return the shape of a model by its name or folder; only its configuration is read.

    Raises:
        DataNotFound: There is no configuration.
        OptionError: It is no dense transformer's.

    Example:
        >>> shape_of("Qwen/Qwen3-8B").layers
        36
    """
    if model in SHAPES:
        return SHAPES[model]
    shipped = full_name(model)
    folder = Path(model).expanduser()
    if shipped:
        folder = folder_of(shipped)
    file = folder / "config.json"
    try:
        if not file.is_file() and not Path(model).exists():
            from huggingface_hub import hf_hub_download

            file = Path(hf_hub_download(model, "config.json"))
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise DataNotFound(
            f"expected the config.json of {model!r:.120}, found none ({type(error).__name__}); name a "
            "folder of save_pretrained, or a model of the hub that can be reached"
        ) from error
    if not isinstance(content, dict):
        raise OptionError(f"expected an object in {file}, found {type(content).__name__}")
    return Shape.of(content)


def cards_here() -> list[Card]:
    """Return this machine's GPUs, or the one that is assumed where it has none."""
    try:
        import torch

        number = torch.cuda.device_count()
        cards = [torch.cuda.get_device_properties(index) for index in range(number)]
    except ImportError:
        cards = []
    gpus = [Card(str(card.name), float(card.total_memory)) for card in cards]
    return gpus or [Card("A100 with 80 GB", ASSUMED, is_assumed=True)]


def setup_of(training: Asked) -> Setup:
    """Return what of a training's settings decides its memory."""
    config = training.config
    is_paw = training.method == "paw"
    optimization = config.optimization
    roles = 1
    if not is_paw:
        roles = len(config.roles())

    if config.precision == "float64":
        raise OptionError(
            "--dry-run estimates passes in bfloat16 and float32, not float64; leave it out, or take "
            "another --precision"
        )

    # The engines of several models divide the share. SFT asks nothing where nothing is evaluated.
    share = 0.0
    samples = training.method != "sft" or config.evaluation_tasks != 0
    if training.engine in ("auto", "vllm") and samples:
        share = _ENGINE_SHARE if training.engine_memory is None else training.engine_memory
    reply = config.agent.draft_tokens
    has_critic = is_paw and config.algorithm == "ppo"
    return Setup(
        weights=config.weights,
        rank=config.lora.r,
        adapters=roles,
        models=roles,
        reference=is_paw and optimization.kl > 0,
        critic=has_critic,
        processes=training.processes,
        sharded=training.sharded,
        pass_tokens=optimization.micro_batch_tokens or getattr(optimization, "batch_tokens", None),
        longest=config.agent.max_length + reply,
        checkpointing=optimization.gradient_checkpointing,
        mixed=config.precision in ("auto", "bfloat16"),
        engine_share=share,
        can_shard=not has_critic and not getattr(config, "staleness", 0),
    )


def work_of(training: Asked) -> list[Work]:
    """Return what the training learns, in rows and tokens; upper bounds where episodes may end earlier."""
    config = training.config
    prompt = _PROMPTS.get(training.env_id, _OTHER_PROMPT)
    reply = config.agent.draft_tokens
    row = prompt + reply
    tasks = training.tasks or 0
    per_row = f"{prompt:,} tokens a prompt, at most {reply} a reply"
    if training.method == "paw":
        updates = config.updates or max(tasks // config.groups, 1)
        updates = min(updates, config.max_updates or updates)
        episodes = config.groups * config.members
        rows = updates * episodes * config.max_episode_steps
        basis = (
            f"{updates} updates of {config.groups} · {config.members} episodes of at most "
            f"{config.max_episode_steps} steps; {per_row}"
        )
        return [Work("policy", rows, rows * row, rows * reply, basis)]

    demonstrations = min(config.demonstrations or tasks, tasks)
    demonstrated_steps = demonstrations * _EXPERT_STEPS
    steps_in_words = f"{_EXPERT_STEPS} steps each (assumed); {per_row}"
    if training.method != "comap":
        epochs = config.epochs
        basis = f"{epochs} epochs of {demonstrations:,} demonstrations of {steps_in_words}"
        learned = [
            Work("policy", epochs * demonstrated_steps, epochs * demonstrated_steps * row, 0, basis)
        ]
        if getattr(config, "train_world_model", False):
            learned.append(learned[0]._replace(name="world model"))
        return learned

    return _work_of_comap(config, demonstrations, row, steps_in_words)


def _work_of_comap(config: Any, demonstrations: int, row: int, steps_in_words: str) -> list[Work]:
    """Return what CoMap learns: the warm-up of both models, and its rounds."""
    reply = config.agent.draft_tokens
    demonstrated_steps = demonstrations * _EXPERT_STEPS
    epochs = config.warmup_epochs
    played = (demonstrations + config.warmup_rollouts) * _EXPERT_STEPS
    episodes = config.rounds * config.tasks_per_round
    steps = episodes * _EXPERT_STEPS

    # Self-distillation reads a student's text and the teacher's beside the observed one.
    sequences = 1 + 2 * config.self_distills
    world_model_rows = steps * config.world_model_epochs
    policy_rows = steps * config.policy_epochs
    warm_up = f"{epochs} epochs of {demonstrations:,} demonstrations"
    rounds = f"{config.rounds} rounds of {config.tasks_per_round} episodes"
    return [
        Work(
            "warm-up, policy",
            epochs * demonstrated_steps,
            epochs * demonstrated_steps * row,
            0,
            f"{warm_up}, {steps_in_words}",
        ),
        Work(
            "warm-up, world model",
            epochs * played,
            epochs * played * row,
            config.warmup_rollouts * _EXPERT_STEPS * reply,
            f"{warm_up} and {config.warmup_rollouts} rollouts",
        ),
        _work_of_reflections(config, row),
        Work(
            "rounds, policy",
            policy_rows,
            policy_rows * row,
            2 * steps * reply,
            f"{rounds}, {config.policy_epochs} epochs",
        ),
        Work(
            "rounds, world model",
            world_model_rows,
            world_model_rows * row * sequences,
            steps * config.predict_tokens,
            f"{rounds}, {config.world_model_epochs} epochs of {sequences} sequences",
        ),
    ]


def _work_of_reflections(config: Any, row: int) -> Work:
    """Return what the initialization of CoMap's reflection mode learns, at most."""
    states = 0
    if config.reflection_init and config.label_states != "policy":
        of_episode = config.states_per_episode or _EXPERT_STEPS
        states += config.reflection_tasks * min(of_episode, _EXPERT_STEPS)
    if config.reflection_init and config.label_states != "expert":
        states += config.reflection_tasks * _EXPERT_STEPS

    # Each state is learned beside a demonstrated step; draft and expert's action are played out.
    epochs = config.init_epochs or config.policy_epochs
    rows = 2 * states * epochs
    suffix_steps = 2 * config.suffixes * _EXPERT_STEPS
    replies = states * (2 + suffix_steps) * config.agent.draft_tokens
    basis = (
        f"{epochs} epochs of {states:,} states and as many demonstrated steps, {suffix_steps} steps of "
        "suffix rollouts for each state"
    )
    return Work("reflection mode, policy", rows, rows * row, replies, basis)


def remedies(shape: Shape, setup: Setup, card: float) -> Iterator[str]:
    """Yield changes that make a training fit, the smallest first; each is checked by the same sum."""
    # A server takes the weights of one model, or adapters.
    takes_server = setup.weights == "lora" or setup.models == 1

    beside = replace(setup, engine_share=0.0)
    trials = [
        ("--gradient-checkpointing true", replace(setup, checkpointing=True)),
        (
            "--gradient-checkpointing true --micro-batch-tokens 4096",
            replace(setup, checkpointing=True, pass_tokens=4096),
        ),
    ]
    share = math.ceil(20 * engine_needs(shape, setup) / card) / 20
    if setup.engine_share and setup.engine_share < share < 1:
        trials.append((f"--engine-memory {share:g}", replace(setup, engine_share=share)))
    if setup.engine_share and takes_server:
        trials.append((_SERVER, beside))
    if setup.weights == "full":
        trials.append(("--weights lora", replace(setup, weights="lora")))

    for processes in (2, 4, 8, 16, 32, 64):
        if processes > setup.processes and setup.can_shard:
            trials += _sharded_trials(setup, processes, takes_server)

    for words, trial in trials:
        if memory(shape, trial, card).fits:
            yield words
            # More GPUs fit as well: the fewest are said.
            if trial.processes > setup.processes:
                return


def _sharded_trials(
    setup: Setup, processes: int, takes_server: bool
) -> Iterator[tuple[str, Setup]]:
    """Yield ways to share a training out among so many processes."""
    sharded = replace(setup, processes=processes, sharded=True, checkpointing=True)
    words = f"{processes} GPUs with FSDP2 (guide: Scaling)"
    shorter = replace(sharded, pass_tokens=8192)
    yield words, sharded
    yield f"{words} and --micro-batch-tokens 8192", shorter
    if setup.engine_share and takes_server:
        yield f"{words} and {_SERVER}", replace(sharded, engine_share=0.0)
        served = replace(shorter, engine_share=0.0)
        yield f"{words}, --micro-batch-tokens 8192 and {_SERVER}", served


def tables_of(training: Asked, shape: Shape, card: Card) -> tuple[list[Table], list[str]]:
    """Return what a training takes as tables, and what must be said beside them."""
    setup = setup_of(training)
    estimate = memory(shape, setup, card.size)
    is_full = setup.weights == "full"
    trained = shape.adapter(setup.rank)
    if is_full:
        trained = shape.parameters
    work = work_of(training)

    tasks = "unknown: the data are not on this machine"
    if training.tasks is not None:
        tasks = f"{training.tasks:,}"
    rows = [
        ("tasks to learn from", tasks),
        ("parameters", f"{shape.parameters:,}"),
        ("of them trained, or in an adapter", f"{trained:,}"),
        ("tokens of a pass", f"{estimate.pass_tokens:,}"),
    ]
    for part in work:
        amount = f"{part.rows:,.0f} rows, {part.tokens / 1e6:,.1f} million tokens"
        rows.append((part.name, f"{amount}: {part.basis}"))
    title = (
        f"{training.method} of {training.model} on {training.env_id}: estimated, nothing is loaded"
    )
    tables = [Table(title, ("", "value"), tuple(rows)), _memory_table(estimate, card)]
    hours = _hours_table(training, shape, work, estimate, card)

    remarks = _remarks(shape, setup, estimate, card)
    if training.tasks is None:
        remarks.append(
            f"warning: rows and hours lack what is learned of each task of {training.config.train_split}; "
            "comap data list says how to get the data"
        )
    return [*tables, hours], remarks


def _memory_table(estimate: Memory, card: Card) -> Table:
    rows: list[tuple[object, ...]] = []
    for part in estimate.parts:
        rows.append((part.name, f"{part.size / 1e9:.1f}", part.basis))
    limit = f"of {USABLE * card.size / 1e9:.1f} that a card gives"
    rows.append(("sum", f"{estimate.size / 1e9:.1f}", limit))
    assumed = ""
    if card.is_assumed:
        assumed = ", assumed: this machine has no GPU"
    title = f"Memory of each GPU, GB of 10^9 bytes ({card.name}{assumed})"
    return Table(title, ("", "GB", "how"), tuple(rows))


def _hours_table(
    training: Asked, shape: Shape, work: list[Work], estimate: Memory, card: Card
) -> Table:
    """Return the hours of training and sampling, each with what they follow from."""
    config = training.config
    passes = 0
    if training.method == "paw":
        is_scored_again = config.optimization.old_logprobs == "recomputed"
        passes = int(is_scored_again) + (config.optimization.kl > 0)
    tokens = sum(part.tokens for part in work)
    fewest, most = training_hours(
        shape,
        tokens,
        full=config.weights == "full",
        checkpointing=estimate.checkpointing,
        passes=passes,
        card=card.name,
        cards=training.processes,
    )
    rates = rates_of(shape.parameters)
    card_name, peak = peak_of(card.name)
    measured = "; ".join(f"{rate.share:.1%}, measured of {rate.basis}" for rate in rates)
    basis = (
        f"{peak / 1e12:.0f} tera-operations a second ({card_name}), of which are used: {measured}"
    )
    hours = f"{fewest:,.1f}"
    if len(rates) > 1:
        hours += f" to {most:,.1f}"
    rows = [("training", hours, basis)]

    replies = sum(part.replies for part in work)
    if replies:
        fast, slow = (replies / speed / 3600 / training.processes for speed in (_FAST, _SLOW))
        basis = (
            f"{replies / 1e6:,.1f} million reply tokens at {_FAST:,} and {_SLOW} a second, measured on an "
            "H100: 135M with vLLM, 4B with transformers"
        )
        rows.append(("sampling", f"{fast:,.1f} to {slow:,.1f}", basis))
    note = "Evaluation, the expert's play and the environments' own time are not in it."
    return Table("Hours, an estimate", ("", "h", "from"), tuple(rows), note)


def _remarks(shape: Shape, setup: Setup, estimate: Memory, card: Card) -> list[str]:
    """Return whether it fits, and what would."""
    if estimate.fits:
        return [f"It fits: {estimate.size / 1e9:.1f} of {USABLE * card.size / 1e9:.1f} GB."]
    problems = []
    if estimate.size > USABLE * card.size:
        limit = f"{USABLE * card.size / 1e9:.1f}"
        problems.append(f"{estimate.size / 1e9:.1f} GB, and a card gives {limit}")
    if estimate.engine_lack:
        needed = f"{engine_needs(shape, setup) / 1e9:.1f}"
        share = f"{setup.engine_share * card.size / 1e9:.1f} GB"
        problems.append(f"vLLM's share is {share}, and weights and a row's cache need {needed}")
    ways = list(remedies(shape, setup, card.size))
    listed = "; or ".join(ways) or "none of comap's settings; take a smaller model"
    return [f"warning: it does not fit: {'; '.join(problems)}. What would: {listed}."]


def number_of_tasks(make_env: Any, split: str) -> int | None:
    """Return how many tasks a split has; None where its data are not on this machine.

    Raises:
        OptionError: There is no such split.
    """
    try:
        env = make_env(split)
    except (DataNotFound, MissingExtra):
        return None
    try:
        return len(env.unwrapped.tasks.ids)
    finally:
        env.close()
