"""The models that a baseline's training begins with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import (
    DataCorrupt,
    DataNotFound,
    LanguageModelError,
    MissingExtra,
    OptionError,
)
from ...lm.model_sums import check_model
from ..config import CoMapTraining
from ..roles import Roles
from ..setup_models import device_for_training
from .config import BaselineTraining
from .training import roles_of_baseline

__all__ = ["open_baseline"]

_PREFIX = "base_model.model."  # what peft puts before the names of an adapter's weights


def open_baseline(
    config: BaselineTraining, model: str | Path, begin: Mapping[str, str | Path] | None = None
) -> Roles:
    """Load the models of a training.

    Args:
        config: Says which there are, and of which kind.
        model: The folder or the hub's name of the model that all begin from.
        begin: What roles begin from instead: models with full weights, else adapters.

    Raises:
        OptionError: A role is none of this training's, or an adapter is of another kind.
        CoMapError: A model or an adapter cannot be loaded.
    """
    given = dict(begin or {})
    names = roles_of_baseline(config, given)
    for role in given:
        if role not in names:
            raise OptionError(f"the method {config.method} has no {role} to begin with")
    shared: dict[str, Any] = {
        "kind": config.weights,
        "roles": names,
        "dtype": config.precision,
        "device": device_for_training(),
        "seed": config.seed,
    }
    if config.weights == "full":
        return Roles.open({role: given.get(role, model) for role in names}, **shared)
    settings = config.shared()
    lora = {"r": config.lora_r, "alpha": config.lora_alpha, "dropout": config.lora_dropout}
    roles = Roles.open(model, lora=lora, **shared)
    for role, place in given.items():
        roles.load(role, _adapter(Path(place), settings))
    return roles


def _adapter(folder: Path, config: CoMapTraining) -> dict[str, Any]:
    """Return the weights of an adapter, if it is one of the training's kind.

    Raises:
        DataNotFound: There is no adapter.
        DataCorrupt: Its files are damaged.
        OptionError: Its rank or scale is another.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtra.of("train", "a LoRA adapter") from error
    try:
        check_model(folder)
        told = json.loads((folder / "adapter_config.json").read_bytes())
        found = {"r": told["r"], "alpha": told["lora_alpha"]}
        weights = load_file(folder / "adapter_model.safetensors")
    except LanguageModelError as error:
        raise DataCorrupt(f"{error}") from error
    except OSError as error:
        raise DataNotFound(
            f"expected an adapter (adapter_config.json, adapter_model.safetensors) in {folder}, "
            f"found none: {error.strerror or error}"
        ) from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataCorrupt(f"expected an adapter in {folder}, found {error!r:.120}") from error
    wanted = {"r": config.lora_r, "alpha": config.lora_alpha}
    if found != wanted:
        raise OptionError(
            f"expected an adapter with {wanted} in {folder}, found {found}; give the same with "
            "--lora-r and --lora-alpha"
        )
    return {name.removeprefix(_PREFIX): weight for name, weight in weights.items()}
