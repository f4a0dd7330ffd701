"""The model that `comap bench training-scale` trains: random weights, made on the device.

Importing this module imports torch, transformers and peft.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, Qwen3Config

from ..lm.adapters import Adapters
from ..trainers.config import CoMapTraining
from ..trainers.roles import ROLES, Roles
from ..trainers.roles_full import training_dtype
from ..trainers.roles_lora import PROJECTIONS, LoraRoles
from .training_scale_parts import Architecture

__all__ = ["random_roles"]


def random_roles(
    architecture: Architecture, config: CoMapTraining, tokenizer: Any, device: Any, seed: int = 0
) -> Roles:
    """Return the roles of CoMap as adapters of a model with random weights, made on the device.

    Args:
        architecture: The model's shape.
        config: Precision, and the adapters' settings.
        tokenizer: Its tokenizer; the vocabulary's rows beyond it are never read.
        device: The torch device.
        seed: Seed of all weights.

    Example:
        >>> from comap.benchmarks.training_scale_parts import ARCHITECTURES
        >>> from comap.lm.tiny import tokenizer_of
        >>> shape, words = ARCHITECTURES["tiny"], tokenizer_of(["go to shelf"] * 2)
        >>> roles = random_roles(shape, CoMapTraining(), words, torch.device("cpu"))
        >>> sum(w.numel() for n, w in roles.base("wm").named_parameters() if "lora" not in n) == (
        ...     shape.parameters)
        True
    """
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    dtype = getattr(torch, training_dtype(config.precision, "lora", device))
    lora = {
        "r": config.lora_r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "target_modules": list(PROJECTIONS),
    }
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        with torch.device(device):
            shape = Qwen3Config(**architecture.config(), **ends)
            model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
        adapters = Adapters(model)
        for role in ROLES:
            adapters.create(role, LoraConfig(**lora, bias="none", task_type="CAUSAL_LM"))
    adapters.model.eval()
    for role in ROLES:
        adapters.model.peft_config[role].inference_mode = False
    adapters.model.set_adapter(ROLES[0], inference_mode=True)
    made = LoraRoles(ROLES, "random", tokenizer, adapters)
    made.copy("wm", "wm_ema")
    return made
