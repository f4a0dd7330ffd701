"""Sharded models whose weights reach vLLM; a script, one of several processes.

python tests/kits/sharded_vllm.py MODEL ENGINE KIND OUT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

CONTEXT = 512


def talk() -> Any:
    from comap.lm import Message

    return (Message("system", "You play a text game."), Message("user", "You see a fridge 1."))


def error_of(roles: Any, lm: Any, role: str, trained: Any) -> float:
    """Return the largest difference between what was sampled and what transformers computes anew."""
    import torch

    from comap.lm import Generate, Sampling

    # Each process asks for other texts, and another number of them.
    rank = int(os.environ["RANK"])
    requests = [
        Generate(talk(), Sampling(6 + rank, 1.0, seed=10 * rank + i), adapter=role)
        for i in range(2 + rank)
    ]
    (engine,) = (engine.engine for engine in roles._engines.values())
    largest = 0.0
    for request, reply in zip(requests, lm.generate(requests), strict=True):
        prompt = engine.prompt_tokens(request)
        with torch.no_grad():
            logits = trained(torch.tensor([[*prompt, *reply.token_ids]])).logits[0]
        logprobs = logits[len(prompt) - 1 : -1].log_softmax(-1)
        recomputed = logprobs.gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        largest = max(largest, float((recomputed - torch.tensor(reply.logprobs)).abs().max()))
    return largest


def shake(roles: Any, role: str) -> None:
    """Give a role's weights other values, of shards each process its own."""
    import torch

    for name, weight in roles.parameters(role).items():
        if "lora_B" in name:
            with torch.no_grad():
                weight.add_(0.1)
        elif "down_proj" in name and "lora" not in name:
            with torch.no_grad():
                weight.mul_(3.0)


def whole_model(roles: Any, role: str, model: Path, out: Path) -> Any:
    """Return the role's model as transformers and peft read what was saved, the same in each process."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from comap.trainers.processes import wait

    roles.save(out, [role])
    wait()
    if roles.kind == "full":
        return AutoModelForCausalLM.from_pretrained(out / role, dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return PeftModel.from_pretrained(base, out / role)


def main(model: str, engine: str, kind: str, folder: str) -> None:
    """Write down how far samples are from transformers: at first, after a change, and loaded anew."""
    import torch

    from comap.trainers.config import LoRA
    from comap.trainers.roles import Roles
    from comap.trainers.sampling import chosen_sampler

    torch.set_num_threads(1)
    out = Path(folder)
    names = ("agent", "wm") if kind == "lora" else ("agent",)
    roles = Roles.open(
        model, kind=kind, roles=names, lora=LoRA(r=8, alpha=16, dropout=0.0), device="cpu"
    )
    sampler = chosen_sampler(engine, None, dtype="float32", context=CONTEXT, device="cpu")
    role = names[-1]
    lm = roles.language_model(sampler=sampler)
    errors = [error_of(roles, lm, role, whole_model(roles, role, Path(model), out / "first"))]
    shake(roles, role)
    changed = whole_model(roles, role, Path(model), out / "second")
    errors.append(error_of(roles, lm, role, changed))
    lm = roles.language_model(sampler=sampler)
    errors.append(error_of(roles, lm, role, changed))
    errors.append(roles.take_sampling_error())
    (out / f"errors-{os.environ['RANK']}.json").write_text(json.dumps(errors))
    roles.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
