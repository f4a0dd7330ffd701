"""Checkpoints of a trainer: a role's weights as safe tensors, and a mark once all is written."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataCorrupt, MissingExtra
from .processes import is_first, wait
from .roles_checks import difference, fill

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["last_checkpoint", "mark_complete", "read_weights", "write_weights"]

_COMPLETE = "complete"
_WEIGHTS = "weights.safetensors"


def write_weights(folder: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write named tensors into a checkpoint, each by the name of its part.

    Args:
        folder: The checkpoint; made where it is missing.
        parts: Tensors by name, by the name of a part, which has no ``/``.

    Raises:
        MissingExtra: torch is not installed.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra.of("train", "a checkpoint") from error
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{part}/{name}": weight.detach().to("cpu", copy=True).contiguous()
        for part, named in parts.items()
        for name, weight in named.items()
    }
    save_file(tensors, folder / _WEIGHTS)


def read_weights(folder: Path, parts: Mapping[str, Mapping[str, Tensor]], role: str) -> None:
    """Fill tensors with what `write_weights` wrote of them.

    Args:
        folder: The checkpoint.
        parts: What is filled.
        role: Whose they are, for messages.

    Raises:
        DataCorrupt: The file is damaged, or of other weights.
        MissingExtra: torch is not installed.

    Example:
        >>> import torch
        >>> write_weights(Path("checkpoint-1"), {"own": {"A": torch.ones(2)}})
        >>> own = {"A": torch.zeros(2)}
        >>> read_weights(Path("checkpoint-1"), {"own": own}, "wm")
        >>> own["A"].tolist()
        [1.0, 1.0]
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtra.of("train", "a checkpoint") from error
    wanted = {f"{part}/{name}": w for part, named in parts.items() for name, w in named.items()}
    try:
        found = load_file(folder / _WEIGHTS)
        problem = difference(wanted, found)
    except (OSError, SafetensorError) as error:
        problem = f"the file cannot be read ({error})"
    if problem:
        raise DataCorrupt(
            f"expected the weights of {role} in the checkpoint {folder}, found others: {problem:.400}; "
            "remove that folder to train this stage anew"
        )
    fill(wanted, found)


def mark_complete(folder: Path) -> None:
    """Mark a checkpoint as one that training can go on from; the last thing that is written.

    Example:
        >>> Path("run/checkpoint-3").mkdir(parents=True)
        >>> mark_complete(Path("run/checkpoint-3"))
        >>> last_checkpoint(Path("run"))
        'run/checkpoint-3'
    """
    (folder / _COMPLETE).touch()


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint in a folder, and remove what was left half written.

    All processes of a training must ask.

    Example:
        >>> last_checkpoint(Path("nowhere")) is None
        True
    """
    wait()
    found: list[tuple[int, Path]] = []
    for path in sorted(folder.glob("checkpoint-*")):
        number = path.name.rpartition("-")[2]
        if (path / _COMPLETE).exists() and number.isdecimal():
            found.append((int(number), path))
        elif is_first():
            shutil.rmtree(path, ignore_errors=True)
    wait()
    return str(max(found)[1]) if found else None
