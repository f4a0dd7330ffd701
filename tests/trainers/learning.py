"""Small trainings for the tests; run as a script, one of them in a process of its own.

python learning.py WHAT[,WHAT...] MODEL OUT [KILL_AT]
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from comap.lm import Message, Sampling
from comap.lm.chat import ChatTokenizer
from comap.lm.tiny import build_tiny
from comap.trainers.arguments import Optimization, trainer_arguments
from comap.trainers.examples import encode_samples
from comap.trainers.plan import Batching, plan_updates
from comap.trainers.roles import Roles
from comap.trainers.samples import Sample
from comap.trainers.student_rollouts import StudentRollouts

THINGS = (("mug", "sink"), ("pen", "desk"), ("apple", "fridge"), ("book", "shelf"), ("egg", "pan"))
LORA = {"r": 2, "targets": ["q_proj", "v_proj", "down_proj"]}
ROLES = ("agent", "wm", "wm_ema")


def model_folder(folder: Path) -> Path:
    words = "where is the ? it in on Decision: REVISE KEEP Final Action: take go look Really was"
    corpus = [" ".join([words, *(word for pair in THINGS for word in pair)])] * 2
    return build_tiny(folder, corpus, parameters=200_000, vocabulary=400, max_length=256)


def asked(thing: str, told: str = "") -> tuple[Message, ...]:
    return (Message("system", "Act."), Message("user", f"{told} where is the {thing}?"))


def world_samples(eta: float = 0.5) -> list[Sample]:
    return [
        Sample(
            kind="world_model",
            messages=asked(thing, "it is" * (number % 3)),
            reply=((f"the {thing} is in the {place}" + " on" * number, True),),
            teacher=asked(thing, f"Really it was in the {place}."),
            distill_weight=eta,
        )
        for number, (thing, place) in enumerate(THINGS)
    ]


def policy_samples() -> list[Sample]:
    found = []
    for number, (thing, place) in enumerate(THINGS):
        reply = (
            ("Decision:", False),
            (" REVISE" if number % 2 else " KEEP", True),
            ("\nFinal Action:", False),
            (f" take {thing}", True),
        )
        found.append(
            Sample(
                kind="keep_draft",
                messages=asked(thing),
                reply=reply,
                label=float(number % 2),
                label_weight=0.3,
            )
        )
        found.append(Sample(kind="anchor", messages=asked(place), reply=((" look", True),)))
    return found


def opened(model: Path, kind: str, dtype: str = "float64", dropout: float = 0.0) -> Roles:
    lora = {**LORA, "dropout": dropout} if kind == "lora" else None
    return Roles.open(model, kind=kind, roles=ROLES, lora=lora, dtype=dtype, device="cpu")


def settings(
    roles: Roles,
    out: Path,
    samples: Sequence[Sample],
    *,
    role: str = "wm",
    rows: int = 2,
    accumulate: int = 2,
    epochs: int = 2,
    rate: float = 1e-2,
    save: int = 0,
    checkpointing: bool = False,
    report_to: str = "none",
    tell: Callable[[Any], object] | None = None,
    precision: str = "float32",
) -> dict[str, Any]:
    """What both trainers are told."""
    encoded = encode_samples(roles.tokenizer, samples, 256)
    lengths = [[len(row) for row in encoded]] * epochs
    return {
        "roles": roles,
        "role": role,
        "epochs": [encoded] * epochs,
        "plan": plan_updates(lengths, Batching(rows=rows, accumulate=accumulate), 3),
        "args": trainer_arguments(
            out / "checkpoints",
            Optimization(learning_rate=rate, schedule="linear", weight_decay=0.01),
            accumulate=accumulate,
            seed=5,
            logging_steps=1,
            save_steps=save,
            gradient_checkpointing=checkpointing,
            report_to=report_to,
            precision=precision,
            device="cpu",
        ),
        "tell": tell,
    }


def rollouts(
    roles: Roles, out: Path, samples: Sequence[Sample], fresh: bool = True
) -> StudentRollouts:
    out.mkdir(parents=True, exist_ok=True)
    end, sampling = ChatTokenizer(roles.tokenizer).end, Sampling(6, 1.0, 1.0, (), 7)
    return StudentRollouts(
        out, samples, lambda: roles.language_model(exact=True), end, sampling, fresh=fresh
    )


def make(what: str, roles: Roles, out: Path, **told: Any) -> Any:
    """A trainer: warm-up, the world model's evolution (with texts of once), or the policy's."""
    import torch

    from comap.trainers.comap_trainer import CoMapTrainer, Distillation
    from comap.trainers.row_trainer import WarmUpTrainer

    if what == "warm_up":
        return WarmUpTrainer(**settings(roles, out, world_samples(), **told))
    if what in ("evolve", "once"):
        samples = world_samples()
        texts = rollouts(roles, out, samples, fresh=what == "evolve")
        distillation = Distillation(teacher="wm_ema", mu=0.9, continuations=texts, chunk=5)
        return CoMapTrainer(distillation=distillation, **settings(roles, out, samples, **told))
    head = torch.nn.Linear(roles.base("agent").config.hidden_size, 1)
    with torch.no_grad():
        head.weight.zero_(), head.bias.zero_()
    return CoMapTrainer(
        head=head, head_rate=0.05, **settings(roles, out, policy_samples(), role="agent", **told)
    )


def result(roles: Roles, trainer: Any, log: Any) -> dict[str, Any]:
    found = {role: roles.state(role) for role in ROLES}
    if trainer.head is not None:
        found["head"] = {name: w.clone() for name, w in trainer.head.state_dict().items()}
    return {"weights": found, "log": log}


def main(what: str, model: str, out: str, kill_at: str = "") -> None:
    """Train in this process, which kills itself while it writes a checkpoint, if it shall."""
    import torch

    torch.set_num_threads(1)
    atexit.register(tell_group, Path(out))  # the first asked is the last called
    for one in what.split(","):
        learn(one, Path(model), Path(out, one), kill_at)


def tell_group(out: Path) -> None:
    """Write down whether this process is still in its group when it has almost ended."""
    from torch import distributed

    if rank := os.environ.get("RANK"):
        (out / f"group-{rank}").write_text(str(distributed.is_initialized()))


def learn(what: str, model: Path, out: Path, kill_at: str = "") -> None:
    """Train, and write the result."""
    import torch

    name, _, kind = what.partition("-")
    dropout = 0.3 if kill_at else 0.0  # each process has its own
    roles = opened(model, kind, dropout=dropout if kind == "lora" else 0.0)
    trainer = make(name, roles, out, save=2 if kill_at else 0)
    if kill_at:
        trainer._save_rng_state = lambda folder: (
            os.kill(os.getpid(), signal.SIGKILL)
            if trainer.state.global_step == int(kill_at)
            else type(trainer)._save_rng_state(trainer, folder)
        )
    log = trainer.fit()
    if int(os.environ.get("RANK", "0")) == 0:
        out.mkdir(parents=True, exist_ok=True)
        torch.save(result(roles, trainer, log)["weights"], out / "result.pt")
        (out / "log.json").write_text(json.dumps(log), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
