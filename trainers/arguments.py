"""The settings that TRL is given, and what says how a training goes on.

Several GPUs, one process each: start with ``torchrun --nproc-per-node N`` or with ``accelerate launch
--multi_gpu --num_processes N``. Processes that share a model's weights while a stage lasts (FSDP) need
less memory for that; roles must be LoRA adapters. Accelerate's config must say then::

    distributed_type: FSDP
    fsdp_config:
      fsdp_version: 2
      fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
      fsdp_transformer_layer_cls_to_wrap: Qwen3DecoderLayer
      fsdp_reshard_after_forward: true
      fsdp_cpu_ram_efficient_loading: false
      fsdp_offload_params: false

Between stages each process has the whole model again, for the agents. No checkpoints are written within
a stage: one that was killed begins again. The student predicts before a stage, not before each epoch
(``fresh_per="round"``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, OptionError, suggest
from .processes import part_at_exit, world_size
from .sharded import check_sharding, wants_shards

__all__ = ["Optimization", "trainer_arguments"]


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How weights are updated (METHODS.md 1.11).

    Attributes:
        learning_rate: The highest learning rate.
        warmup: Share of the updates over which it rises, below 1; from 1 on, their number.
        schedule: How it falls after that, as transformers calls it.
        weight_decay: Of AdamW.
        clip: Largest norm of a gradient.
        betas: Of AdamW.

    Example:
        >>> Optimization(learning_rate=1e-4).schedule
        'cosine'
    """

    learning_rate: float = 2e-5
    warmup: float = 0.03
    schedule: str = "cosine"
    weight_decay: float = 0.0
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.999)


def trainer_arguments(
    folder: Path,
    optimization: Optimization,
    *,
    accumulate: int,
    seed: int,
    logging_steps: int = 10,
    save_steps: int = 100,
    report_to: str = "none",
    run_name: str | None = None,
    precision: str = "float32",
    gradient_checkpointing: bool = False,
    device: str = "auto",
) -> Any:
    """Return a `trl.SFTConfig` for one stage.

    Args:
        folder: Where checkpoints go.
        optimization: How weights are updated.
        accumulate: Micro-batches of an update over all processes.
        seed: Seed of dropout.
        logging_steps: Updates between two lines of the log.
        save_steps: Updates between two checkpoints, a multiple of `logging_steps`; 0 writes none, and
            with FSDP there are none.
        report_to: The tracker, as transformers calls it: ``wandb``, ``tensorboard``, ``trackio``, ...
        run_name: What trackers call this stage.
        precision: ``bfloat16`` computes with automatic mixed precision.
        gradient_checkpointing: Whether activations are computed again, to save memory.
        device: ``auto`` or ``cpu``.

    Raises:
        OptionError: The processes do not divide an update evenly, steps do not fit, there is no such
            tracker or schedule, or FSDP is set up in a way that cannot be used.
        MissingExtra: TRL, or the tracker's package, is not installed.

    Example:
        >>> told = trainer_arguments(Path("runs"), Optimization(), accumulate=4, seed=0, device="cpu")
        >>> told.gradient_accumulation_steps, told.save_steps
        (4, 100)
    """
    try:
        from trl import SFTConfig
    except ImportError as error:
        raise MissingExtra.of("train", "training") from error
    _check_processes(accumulate)
    check_sharding("lora")
    _check_steps(logging_steps, save_steps)
    _check_schedule(optimization.schedule)
    _check_tracker(report_to)
    saves = bool(save_steps) and not wants_shards()
    return SFTConfig(
        output_dir=str(folder),
        per_device_train_batch_size=1,  # one micro-batch, whatever its number of rows
        gradient_accumulation_steps=accumulate // world_size(),
        num_train_epochs=1,  # the plan has all epochs
        learning_rate=optimization.learning_rate,
        warmup_steps=optimization.warmup,
        lr_scheduler_type=optimization.schedule,
        weight_decay=optimization.weight_decay,
        adam_beta1=optimization.betas[0],
        adam_beta2=optimization.betas[1],
        max_grad_norm=optimization.clip,
        logging_steps=logging_steps,
        save_strategy="steps" if saves else "no",
        save_steps=save_steps or 500,
        save_total_limit=2,
        report_to=report_to,
        run_name=run_name,
        seed=seed,
        bf16=precision == "bfloat16",
        use_cpu=device == "cpu",
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        max_length=None,
        ddp_find_unused_parameters=False,
        **_checkpointing(SFTConfig, gradient_checkpointing),
    )


def _checkpointing(config: Any, wanted: bool) -> dict[str, Any]:
    """Return how activations are computed again, in the words of this version of transformers."""
    old = "gradient_checkpointing"
    new = "activation_checkpointing"
    name = new if new in config.__dataclass_fields__ else old
    return {name: wanted, f"{name}_kwargs": {"use_reentrant": False} if wanted else None}


def _check_processes(accumulate: int) -> None:
    part_at_exit()
    processes = world_size()
    if accumulate % processes:
        raise OptionError(
            f"expected a number of processes that divides the {accumulate} micro-batches of an "
            f"update, found {processes}; change accumulate or the number of processes"
        )


def _check_steps(logging_steps: int, save_steps: int) -> None:
    if logging_steps < 1 or save_steps < 0 or save_steps % logging_steps:
        raise OptionError(
            f"save_steps must be a multiple of logging_steps, which must be at least 1; found "
            f"save_steps={save_steps} and logging_steps={logging_steps}"
        )


def _check_schedule(name: str) -> None:
    from transformers import SchedulerType

    known = [kind.value for kind in SchedulerType]
    if name not in known:
        raise OptionError(f"there is no schedule {name!r}; {suggest(name, known)}")


def _check_tracker(name: str) -> None:
    """Refuse a tracker that there is not, before a model is loaded into the trainer."""
    if name == "none":
        return
    from transformers.integrations import integration_utils

    known = integration_utils.INTEGRATION_TO_CALLBACK
    if name not in known:
        raise OptionError(
            f"there is no tracker {name!r}; {suggest(name, ['none', *sorted(known)], 20)}"
        )
    try:
        known[name]()
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(
            f"expected the package of the tracker {name!r}, which is not installed; run: "
            f"pip install {name.replace('_', '-')}"
        ) from error
