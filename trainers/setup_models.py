"""The models that a training begins with, from plain options; a tiny one is built for it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..agents.corpus import corpus, played_for_words
from ..errors import DataNotFound, MissingExtra, OptionError
from .coevolution import roles_of
from .config import CoMapTraining
from .processes import is_first, wait, world_size
from .roles import Roles

__all__ = [
    "describe_models",
    "device_for_training",
    "open_models",
    "tiny_for_training",
    "weights_hash",
]

_MARK = "tiny.json"
_OFTEN = 50  # so often each prompt counts among its words
_FORM = (
    "Reflection:",
    "Decision: KEEP\nFinal Action:",
    "Decision: REVISE\nFinal Action:",
    "Revise Probability: 0.5",
)


def open_models(
    config: CoMapTraining,
    model: str | Path | None,
    policy: str | Path | None = None,
    world_model: str | Path | None = None,
) -> Roles:
    """Load the models of a training.

    Args:
        config: Says which there are, and of which kind.
        model: The folder or hub's name of the model that all begin from.
        policy: What the policy begins from instead: a model with full weights, else an adapter.
        world_model: The same for world model and teacher.

    Raises:
        OptionError: One of several adapters is lacking, or models do not fit together.
        CoMapError: They cannot be loaded.
    """
    settings: dict[str, Any] = {
        "kind": config.weights,
        "roles": roles_of(config),
        "dtype": config.precision,
        "device": device_for_training(),
        "seed": config.seed,
    }
    if config.weights == "full":
        begin = {"agent": policy or model, "wm": world_model or model}
        given = {role: place for role, place in begin.items() if place is not None}
        return Roles.open(given, **settings)
    if (policy is None) != (world_model is None):
        raise OptionError(
            "expected two adapters or none to begin from, found one; give --policy and --world-model"
        )
    settings["lora"] = {
        "r": config.lora_r,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout,
    }
    assert model is not None
    if policy is None or world_model is None:
        return Roles.open(model, **settings)
    with _side_by_side({"agent": Path(policy), "wm": Path(world_model)}) as saved:
        return Roles.open(model, saved=saved, **settings)


@contextmanager
def _side_by_side(adapters: Mapping[str, Path]) -> Iterator[Path]:
    """Give a folder that holds the adapters under the names of their roles."""
    with tempfile.TemporaryDirectory() as place:
        for role, path in adapters.items():
            if not path.is_dir():
                raise DataNotFound(f"expected the folder of an adapter at {path}, found none")
            shutil.copytree(path, Path(place, role))
        yield Path(place)


def device_for_training() -> str:
    """Return the device of this process: its own GPU where several processes train.

    Example:
        >>> device_for_training()
        'auto'
    """
    if world_size() == 1:
        return "auto"
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def describe_models(roles: Roles, **places: str | Path | None) -> dict[str, Any]:
    """Return what the models are that a training begins from, without places on this machine.

    Args:
        roles: The models.
        **places: Where each was loaded from: folders are told by a hash of their weights.
    """
    shape = roles.base("agent").config.get_text_config()
    told: dict[str, Any] = {"name": roles.name, "kind": roles.kind}
    for name in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size"):
        told[name] = getattr(shape, name, None)
    told["parameters"] = sum(weight.numel() for weight in roles.base("agent").parameters())
    told["trained"] = sum(weight.numel() for weight in roles.parameters("agent").values())
    for name, place in places.items():
        if place is not None and Path(place).is_dir():
            told[f"{name}_sha256"] = weights_hash(Path(place))
    return told


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights, names of files included."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + b"\n")
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def tiny_for_training(directory: str | Path, env_id: str, *, parameters: int, seed: int) -> Path:
    """Return the folder of an untrained tiny model for training; it is built where it is missing.

    It is as `comap.agents.corpus.tiny_folder` builds it, but each word of the brief prompts is one
    token, that of the trainers' prompts and of a reflection's form as well.

    Args:
        directory: The folder.
        env_id: The benchmark that its words come from.
        parameters: Its size.
        seed: Seed of its weights.

    Raises:
        OptionError: Something else is in the folder, or it cannot be written.
        MissingExtra: The extra ``train`` is not installed.
    """
    folder = Path(directory)
    if is_first():
        wanted = {"for": "training", "env": env_id, "parameters": parameters, "seed": seed}
        _build(folder, env_id, json.dumps({**wanted, "episodes": played_for_words(env_id)}) + "\n")
    wait()
    return folder


def _build(folder: Path, env_id: str, written: str) -> None:
    from ..lm.tiny import build_tiny

    mark, wanted = folder / _MARK, json.loads(written)
    try:
        from safetensors import SafetensorError
    except ImportError as error:
        raise MissingExtra.of("train", "building a tiny language model") from error
    if mark.is_file():
        found = mark.read_text("utf-8")
        if found != written:
            raise OptionError(
                f"expected the tiny model {written.strip()} in {folder}, found "
                f"{found.strip():.200}; choose another --out, or remove that folder"
            )
        return
    text = corpus(env_id) + [*_brief_prompts(), *_FORM] * _OFTEN
    try:
        build_tiny(folder, text, parameters=wanted["parameters"], seed=wanted["seed"])
        draft = mark.with_name(mark.name + ".part")
        draft.write_text(written, "utf-8")
        draft.replace(mark)  # last: what is there then is whole
    except (OSError, SafetensorError) as error:
        raise OptionError(f"cannot write the tiny model into {folder}: {error}") from error


def _brief_prompts() -> list[str]:
    package = (__package__ or "").rpartition(".")[0]
    return [
        entry.read_text(encoding="utf-8")
        for part in ("agents", "trainers", "worldmodel")
        for entry in sorted(
            (files(package) / part / "prompts" / "brief").iterdir(), key=lambda one: str(one.name)
        )
        if entry.name.endswith(".txt")
    ]
