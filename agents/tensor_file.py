"""Small tensors as safetensors, with a checksum in the file's metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataCorrupt

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["read_tensors", "write_tensors"]

_SUM = "sha256"
_OTHERS = {"format"}  # what torch's writer tells


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors so that a reader finds the old file or the new one, whole.

    Args:
        path: The file; its folder is made where it is missing.
        tensors: The tensors by name.

    Raises:
        ImportError: safetensors is not installed.

    Example:
        >>> write_tensors(Path("one.safetensors"), {"weight": np.ones(2, np.float32)})
        >>> read_tensors(Path("one.safetensors"))["weight"].tolist()
        [1.0, 1.0]
    """
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    save_file(dict(tensors), draft, metadata={_SUM: _digest(tensors)})
    draft.replace(path)


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file; one without a checksum, as older ones, is taken as it stands.

    Raises:
        ImportError: safetensors is not installed.
        OSError: The file cannot be read.
        DataCorrupt: It was changed, or is no such file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            told = file.metadata()
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataCorrupt(f"{type(error).__name__}: {error}") from error
    if set(told or ()) - _OTHERS and told.get(_SUM) != _digest(found):
        raise DataCorrupt(
            f"tensors of another {_SUM} than when it was written: it was changed since; restore it, or "
            "write it again"
        )
    return found


def _digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of tensors: names, kinds, shapes and numbers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        kind = tensor.dtype.newbyteorder("<")
        digest.update(f"{name}\n{kind.str}\n{tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor, kind).tobytes())
    return digest.hexdigest()
