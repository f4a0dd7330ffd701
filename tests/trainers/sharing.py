"""Stages in a row on the same models, whose weights processes share; run as a script.

python sharing.py MODEL OUT

The environment asks for FSDP, as accelerate launch would. On CPUs accelerate does not heed it, so it is
told afterwards that it does; all else is its own code and torch's.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import learning
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer

from comap.lm import Generate, Sampling
from comap.trainers.sharded import wants_shards

STAGES: dict[str, dict[str, Any]] = {
    "warm_up": {},
    "once": {"checkpointing": True, "accumulate": 4},
    "policy": {"rows": 3},
}


def pretend() -> None:
    """Let accelerate share weights on CPUs."""
    create = Trainer.create_accelerator_and_postprocess

    def created(self: Any) -> None:
        create(self)
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        state = AcceleratorState._shared_state
        state["distributed_type"] = DistributedType.FSDP
        state["fsdp_plugin"] = FullyShardedDataParallelPlugin()
        if self.accelerator.mixed_precision != "no":
            state["fsdp_plugin"].set_mixed_precision(self.accelerator.mixed_precision)
        self.is_fsdp_enabled = True

    Trainer.create_accelerator_and_postprocess = created


def base_of(roles: Any) -> str:
    """A digest of all weights that no role owns."""
    own = {id(weight) for role in roles.names for weight in roles.parameters(role).values()}
    found = hashlib.sha256()
    for name, weight in roles.module("wm").named_parameters():
        if id(weight) not in own:
            found.update(f"{name} {tuple(weight.shape)}".encode())
            found.update(weight.detach().double().numpy().tobytes())
    return found.hexdigest()


def look(roles: Any) -> dict[str, Any]:
    """What a trainer may leave behind on the models, and what an agent is told by them."""
    module = roles.module("wm")
    said = roles.language_model().generate(
        [Generate(learning.asked("mug"), Sampling(4, 0.0), adapter=name) for name in roles.names]
    )
    return {
        "base": base_of(roles),
        "wrapped": sum(isinstance(one, FSDPModule) for one in module.modules()),
        "classes": [type(one).__name__ for one in module.modules()],
        "entries": [sorted(map(str, vars(one))) for one in module.modules()],
        "hooks": [
            len(one._forward_hooks) + len(one._forward_pre_hooks) for one in module.modules()
        ],
        "answers": [one.token_ids for one in said],
        "weights": [id(weight) for weight in module.parameters()],
    }


def stage(name: str, roles: Any, out: Path, **told: Any) -> dict[str, Any]:
    """Train one stage, and return what it ended as and what was seen meanwhile."""
    before, seen = look(roles), []

    def tell(line: Any) -> None:
        wrapped = [one for one in trainer.model.modules() if isinstance(one, FSDPModule)]
        shared = sum(hasattr(weight, "full_tensor") for weight in trainer.own.values())
        empty = sum(weight.numel() == 0 for weight in roles.parameters(trainer.role).values())
        seen.append((len(wrapped), shared / len(trainer.own), empty / len(trainer.own)))

    trainer = learning.make(name, roles, out / name, tell=tell, save=2, **told)
    log = trainer.fit()
    after = look(roles)
    changed = [key for key in before if before[key] != after[key] and key != "answers"]
    found = learning.result(roles, trainer, log)
    checkpoints = len(list((out / name).glob("checkpoints/checkpoint-*")))
    return {
        **found,
        "seen": seen,
        "changed": changed,
        "answers": after["answers"],
        "checkpoints": checkpoints,
    }


def learned(model: Path, out: Path) -> dict[str, Any]:
    """Train three stages on the same models, and one in half precision on others."""
    exact, half = (learning.opened(model, "lora", dtype) for dtype in ("float64", "bfloat16"))
    found = {name: stage(name, exact, out, **told) for name, told in STAGES.items()}
    os.environ["FSDP_AUTO_WRAP_POLICY"] = "NO_WRAP"  # all in one piece, of two precisions
    found["half"] = stage("once", half, out / "half", precision="bfloat16")
    return found


def main(model: str, out: str) -> None:
    torch.set_num_threads(1)
    assert wants_shards()
    pretend()
    found = learned(Path(model), Path(out))
    torch.save(found, Path(out, f"found-{os.environ['RANK']}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
