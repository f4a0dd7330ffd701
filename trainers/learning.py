"""Training one role in one stage: samples become rows, rows updates, and TRL makes them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..agents.refinement import RefinementHead
from ..errors import OptionError
from .arguments import Optimization, trainer_arguments
from .examples import Example, encode_samples
from .plan import Batching, plan_updates
from .run_folder import StageFolder
from .samples import Sample
from .sharded import check_sharding, wants_shards

if TYPE_CHECKING:
    from .comap_trainer import Distillation
    from .session import Session

__all__ = ["learn", "stage_arguments"]


def learn(
    session: Session,
    stage: StageFolder,
    role: str,
    epochs: Sequence[Sequence[Sample]],
    rate: float,
    *,
    warm_up: bool = False,
    distillation: Distillation | None = None,
    with_head: bool = False,
) -> dict[str, Any]:
    """Train a role on samples: see `Session.learn`.

    Args:
        session: The training; its head is another one afterwards where it was trained.
        stage: The stage: its folder keeps checkpoints.
        role: Who is trained.
        epochs: The samples of each epoch.
        rate: The highest learning rate.
        warm_up: Whether this is plain fine-tuning.
        distillation: How to distil.
        with_head: Whether the refinement head is trained too; else labels are those of two words.

    Returns:
        The role, its rows, tokens and updates, the log, and the seconds that it took.

    Raises:
        OptionError: The processes share weights (FSDP), and the settings do not allow it.
    """
    config, began = session.config, time.monotonic()
    _check_sharding(session)
    encoded = _encoded(session, epochs, with_head)
    lengths = [[len(row) for row in rows] for rows in encoded]
    head = _module_of(session.head) if with_head else None
    told = _told(session, stage, rate, lengths)
    told |= {"roles": session.roles, "role": role, "epochs": encoded, "head": head}
    log = _trainer(told, warm_up, distillation).fit()
    if head is not None:
        session.head = _head_of(head)
    return {
        "role": role,
        "rows": sum(map(len, lengths)),
        "tokens": sum(map(sum, lengths)),
        "updates": len(told["plan"]) // config.accumulate,
        "log": log,
        "training_seconds": round(time.monotonic() - began, 3),
    }


def _check_sharding(session: Session) -> None:
    """Refuse, in the first stage already, what FSDP cannot do in a later one."""
    check_sharding(session.roles.kind)
    config = session.config
    anew = config.fresh_per == "epoch" and config.world_model_epochs > 1
    if wants_shards() and anew and config.distill_on == "rollout" and config.eta:
        raise OptionError(
            "expected fresh_per='round', found 'epoch' and FSDP: processes that share the weights "
            "cannot let the student predict within a stage; set fresh_per to 'round'"
        )


def _told(
    session: Session, stage: StageFolder, rate: float, lengths: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return what every trainer is told."""
    config = session.config
    batching = Batching(
        rows=config.batch_rows, tokens=config.batch_tokens, accumulate=config.accumulate
    )
    return {
        "plan": plan_updates(lengths, batching, session.seed(stage.name, "order")),
        "args": stage_arguments(session, stage, rate),
        "head_rate": config.head_rate,
        "betas": (0.9, config.beta2),
        "tell": lambda logs: session.tell({"event": "update", "stage": stage.name, **logs}),
    }


def _trainer(told: dict[str, Any], warm_up: bool, distillation: Distillation | None) -> Any:
    from .comap_trainer import CoMapTrainer
    from .row_trainer import WarmUpTrainer

    return WarmUpTrainer(**told) if warm_up else CoMapTrainer(distillation=distillation, **told)


def _encoded(
    session: Session, epochs: Sequence[Sequence[Sample]], with_head: bool
) -> list[list[Example]]:
    """Return the rows of each epoch; epochs of the same samples share them."""
    known: dict[int, list[Example]] = {}
    for samples in epochs:
        if id(samples) not in known:
            rows = encode_samples(session.roles.tokenizer, samples, session.config.max_length)
            # the label is the head's to learn then, not that of the words of the decision
            known[id(samples)] = [replace(row, decision=None) if with_head else row for row in rows]
    return [known[id(samples)] for samples in epochs]


def stage_arguments(
    session: Session,
    stage: StageFolder,
    rate: float,
    *,
    accumulate: int | None = None,
    schedule: str | None = None,
    every: int | None = None,
) -> Any:
    """Return TRL's settings for a stage, as the training's settings say.

    Args:
        session: The training.
        stage: The stage: its folder keeps checkpoints.
        rate: The highest learning rate.
        accumulate: Another number of micro-batches of an update.
        schedule: Another schedule; ``constant`` has no warm-up.
        every: Log, and write a checkpoint, after so many updates instead; without checkpoints there
            are none.
    """
    config, device = session.config, session.roles.base("agent").device.type
    mixed = device == "cuda" and config.precision in ("auto", "bfloat16")
    return trainer_arguments(
        stage.checkpoints,
        Optimization(
            learning_rate=rate,
            warmup=0.0 if schedule == "constant" else config.warmup_ratio,
            schedule=schedule or config.schedule,
            weight_decay=config.weight_decay,
            clip=config.clip,
        ),
        accumulate=accumulate or config.accumulate,
        seed=session.seed(stage.name, "dropout"),
        logging_steps=every or config.logging_steps,
        save_steps=(every or config.save_steps) if config.save_steps else 0,
        report_to=session.report_to,
        run_name=f"{session.name}/{stage.name}",
        precision="bfloat16" if mixed else "float32",
        gradient_checkpointing=config.gradient_checkpointing,
        device=device,
    )


def _module_of(head: RefinementHead) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        module = torch.nn.Linear(head.size, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(np.array(head.weight)).unsqueeze(0))
        module.bias.fill_(head.bias)
    return module


def _head_of(module: Any) -> RefinementHead:
    weight = module.weight.detach().cpu().float().reshape(-1).numpy().copy()
    return RefinementHead(weight, float(module.bias.detach().cpu()[0]))
