"""The checksums of a saved model's files, in a file beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..checksums import seal, sums_of, unseal, wrong_file
from ..errors import LanguageModelError

__all__ = ["SUMS", "check_model", "write_model_sums"]

SUMS = "checksums.json"
"""The file; a folder without it is taken as it stands."""

_FORMAT = "comap checksums 1"
_WEIGHTS = ".safetensors"
_OF_A_MODEL = {".json", ".jinja", ".model", ".txt", _WEIGHTS}


def write_model_sums(folder: Path) -> None:
    """Write down size and SHA-256 of all files of a model or an adapter; it is the last to be written.

    Args:
        folder: The folder.

    Example:
        >>> folder = Path("saved")
        >>> folder.mkdir()
        >>> size = (folder / "config.json").write_text("{}")
        >>> write_model_sums(folder)
        >>> check_model(folder)
        >>> size = (folder / "config.json").write_text("[]")
        >>> check_model(folder)
        Traceback (most recent call last):
        comap.errors.LanguageModelError: expected config.json with the SHA-256 44136fa355b3..., found \
4f53cda18c2b..., in saved; save or download it again, or if it was changed on purpose, remove \
checksums.json there
    """
    names = [
        path.name
        for path in folder.iterdir()
        if path.is_file() and path.suffix in _OF_A_MODEL and path.name != SUMS
    ]
    text = seal(json.dumps({"format": _FORMAT, "files": sums_of(folder, names)}, indent=1))
    draft = folder / f"{SUMS}.part"
    draft.write_text(text + "\n", "ascii")
    draft.replace(folder / SUMS)


def check_model(folder: Path, *, weights: bool = True) -> None:
    """Compare the files of a saved model with the checksums beside them, if there are any.

    A file that this process has read before counts as it was while its size and its time are the same.

    Args:
        folder: The folder.
        weights: Whether the weights, which may be large, are read too.

    Raises:
        LanguageModelError: A file is missing or was changed; the message says which.
    """
    path = folder / SUMS
    if not path.is_file():
        return
    try:
        told: Any = unseal(path.read_bytes())
        if told["format"] != _FORMAT:
            raise ValueError(f"the format {told['format']!r:.40}")
        files = {
            name: sums
            for name, sums in told["files"].items()
            if weights or not name.endswith(_WEIGHTS)
        }
        wrong = wrong_file(folder, files, fresh=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        wrong = f"expected checksums in {SUMS}, found something else ({error})"
    if wrong:
        raise LanguageModelError(
            f"{wrong}, in {folder}; save or download it again, or if it was changed on purpose, remove "
            f"{SUMS} there"
        )
