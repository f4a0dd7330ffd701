"""Small trainings for the tests; run as a script, one of them in a process of its own.

python tests/kits/learning.py WHAT[,WHAT...] MODEL OUT
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from comap.lm import Message, Sampling
from comap.lm.chat import ChatTokenizer
from comap.lm.tiny import build_tiny
from comap.trainers.comap.samples import StudentRollouts
from comap.trainers.config import LoRA, Optimization
from comap.trainers.memory import fitted
from comap.trainers.roles import Roles
from comap.trainers.row_trainer import trainer_arguments
from comap.trainers.samples import Sample, encode_samples, plan_updates

THINGS = (("mug", "sink"), ("pen", "desk"), ("apple", "fridge"), ("book", "shelf"), ("egg", "pan"))
TARGETS = ("q_proj", "v_proj", "down_proj")
ROLES = ("agent", "wm", "wm_ema")
PREDICTED = ((5, 6, 7, 8), (9, 10, 11), (7, 8, 12, 13, 14), (5, 5), (6, 9, 9, 12))


def model_folder(folder: Path) -> Path:
    words = "where is the ? it in on Decision: REVISE KEEP Final Action: take go look Really was"
    corpus = [" ".join([words, *(word for pair in THINGS for word in pair)])] * 2
    return build_tiny(folder, corpus, parameters=200_000, vocabulary=400, max_length=256)


def question_about(thing: str, context: str = "") -> tuple[Message, ...]:
    return (Message("system", "Act."), Message("user", f"{context} where is the {thing}?"))


def world_samples() -> list[Sample]:
    return [
        Sample(
            kind="world_model",
            messages=question_about(thing, "it is" * (number % 3)),
            reply=((f"the {thing} is in the {place}" + " on" * number, True),),
            teacher=question_about(thing, f"Really it was in the {place}."),
        )
        for number, (thing, place) in enumerate(THINGS)
    ]


def policy_samples() -> list[Sample]:
    samples = []
    for number, (thing, place) in enumerate(THINGS):
        reply = (
            ("Decision:", False),
            (" REVISE" if number % 2 else " KEEP", True),
            ("\nFinal Action:", False),
            (f" take {thing}", True),
        )
        samples.append(
            Sample(
                kind="keep_draft",
                messages=question_about(thing),
                reply=reply,
                label=float(number % 2),
            )
        )
        samples.append(
            Sample(kind="anchor", messages=question_about(place), reply=((" look", True),))
        )
    return samples


def opened(model: Path, kind: Any, dtype: str = "float64", dropout: float = 0.0) -> Roles:
    lora = LoRA(r=2, dropout=dropout, targets=TARGETS)
    return Roles.open(model, kind=kind, roles=ROLES, lora=lora, dtype=dtype, device="cpu")


def settings(  # noqa: PLR0913 one training, whose parts tests vary
    roles: Roles,
    out: Path,
    samples: Sequence[Sample],
    *,
    role: str = "wm",
    rows: int = 2,
    accumulate: int = 2,
    tokens: int | None = None,
    epochs: int = 2,
    rate: float = 1e-2,
    save: int = 0,
    checkpointing: bool = False,
    tell: Callable[[Any], object] | None = None,
) -> dict[str, Any]:
    """What both trainers are told."""
    encoded = encode_samples(roles.tokenizer, samples, 256)
    lengths = [[len(row) for row in encoded]] * epochs
    optimization = Optimization(
        schedule="linear",
        beta2=0.999,
        weight_decay=0.01,
        batch_rows=rows,
        accumulate=accumulate,
        micro_batch_tokens=tokens,
        logging_steps=1,
        save_steps=save,
        gradient_checkpointing=checkpointing,
    )
    return {
        "roles": roles,
        "role": role,
        "epochs": [encoded] * epochs,
        "plan": plan_updates(lengths, optimization, 3),
        "args": trainer_arguments(
            out / "checkpoints",
            fitted(optimization, roles.base(role), (), longest=256),
            rate,
            seed=5,
            use_cpu=True,
            bf16=False,
        ),
        "tell": tell,
    }


def rollouts(roles: Roles, out: Path, samples: Sequence[Sample]) -> StudentRollouts:
    out.mkdir(parents=True, exist_ok=True)
    end, sampling = ChatTokenizer(roles.tokenizer).end, Sampling(6, 1.0, 1.0, (), 7)
    return StudentRollouts(out, samples, lambda: roles.language_model(exact=True), end, sampling)


def make(training: str, roles: Roles, out: Path, **options: Any) -> Any:
    """A trainer: warm-up, the world model's evolution (with texts of once), or the policy's.

    "distill" is that evolution where nobody can sample: the texts are given.
    """
    import torch

    from comap.trainers.comap.config import Distillation
    from comap.trainers.comap.objective import policy_objective, world_model_objective
    from comap.trainers.comap.trainer import CoMapTrainer, Teacher
    from comap.trainers.row_trainer import WarmUpTrainer

    if training == "warm_up":
        return WarmUpTrainer(**settings(roles, out, world_samples(), **options))
    if training in ("evolve", "distill"):
        samples = world_samples()
        config = Distillation(mu=0.9, chunk=5)
        texts: Any = lambda epoch: PREDICTED  # noqa: E731
        if training == "evolve":
            texts = rollouts(roles, out, samples)
        teacher = Teacher(role="wm_ema", config=config, continuations=texts)
        objective = partial(world_model_objective, eta=0.5)
        return CoMapTrainer(
            objective=objective, teacher=teacher, **settings(roles, out, samples, **options)
        )
    head = torch.nn.Linear(roles.base("agent").config.hidden_size, 1)
    with torch.no_grad():
        head.weight.zero_(), head.bias.zero_()
    return CoMapTrainer(
        objective=partial(policy_objective, beta=0.3),
        head=head,
        head_rate=0.05,
        **settings(roles, out, policy_samples(), role="agent", **options),
    )


def gradient_of(trainer: Any) -> tuple[float, Any]:
    """Return the loss of the first update and its gradient by all that is trained."""
    import torch

    loss = float(trainer.training_step(trainer.model, {}))
    weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    return loss, torch.cat([weight.grad.reshape(-1) for weight in weights])


def result(roles: Roles, trainer: Any, log: Any) -> dict[str, Any]:
    weights = {role: roles.state(role) for role in ROLES}
    if trainer.head is not None:
        weights["head"] = {name: w.clone() for name, w in trainer.head.state_dict().items()}
    return {"weights": weights, "log": log}


def main(names: str, model: str, out: str) -> None:
    """Train in this process, and write down whether it is still in its group when it has ended."""
    import torch

    torch.set_num_threads(1)
    atexit.register(tell_group, Path(out))  # the first asked is the last called
    for name in names.split(","):
        learn(name, Path(model), Path(out, name))


def tell_group(out: Path) -> None:
    from torch import distributed

    if rank := os.environ.get("RANK"):
        (out / f"group-{rank}").write_text(str(distributed.is_initialized()))


def learn(training_name: str, model: Path, out: Path) -> None:
    """Train, and write the result."""
    import torch

    name, _, kind = training_name.partition("-")
    roles = opened(model, kind)
    trainer = make(name, roles, out)
    log = trainer.fit()
    if int(os.environ.get("RANK", "0")) == 0:
        out.mkdir(parents=True, exist_ok=True)
        torch.save(result(roles, trainer, log)["weights"], out / "result.pt")
        (out / "log.json").write_text(json.dumps(log), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
