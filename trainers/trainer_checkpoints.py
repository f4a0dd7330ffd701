"""Checkpoints of a trainer: a role's weights as safe tensors, and a mark once all is written.

The mark tells size and SHA-256 of every file, the optimizer's as well: training goes on from what was
written, or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..checksums import seal, sums_of, unseal, wrong_file
from ..errors import DataCorrupt, MissingExtra
from .processes import gathered, is_first, wait
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

    The mark has the checksums of all files.

    Example:
        >>> Path("run/checkpoint-3").mkdir(parents=True)
        >>> mark_complete(Path("run/checkpoint-3"))
        >>> last_checkpoint(Path("run"))
        'run/checkpoint-3'
    """
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    files = sums_of(folder, [name for name in names if name != _COMPLETE])
    draft = folder / f"{_COMPLETE}.part"
    draft.write_text(seal(json.dumps({"files": files}, indent=1)) + "\n", "utf-8")
    draft.replace(folder / _COMPLETE)


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint in a folder, and remove what was left half written.

    All processes of a training must ask; the first one reads all of the checkpoint's files. A mark
    without checksums, as older versions wrote it, says that the checkpoint is complete, and no more.

    Raises:
        DataCorrupt: A file of that checkpoint is missing or was changed; the message says which.

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
    if not found:
        return None
    last = max(found)[1]
    wrong = gathered([_wrong(last) if is_first() else ""])[0]
    if wrong:
        raise DataCorrupt(
            f"{wrong} in the checkpoint {last}; restore it, or remove that folder to go on from the "
            "one before, or from the beginning where there is none"
        )
    return str(last)


def _wrong(folder: Path) -> str:
    """Return in words what is wrong with a complete checkpoint."""
    written = (folder / _COMPLETE).read_bytes()
    if not written:
        return ""
    try:
        return wrong_file(folder, unseal(written)["files"])
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        return f"expected checksums in the file {_COMPLETE}, found something else ({error})"
