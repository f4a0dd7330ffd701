"""The small language models that comap ships: a policy, a world model and a refinement head.

They lie in the package's folder ``models``, one folder for each benchmark::

    alfworld/agent/            the policy, as save_pretrained writes models
    alfworld/wm/               the world model, likewise
    alfworld/head.safetensors  the refinement head that reads the policy's hidden states
    alfworld/settings.json     how they are asked, as they were trained
    alfworld/CARD.md           how they were made
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import DataCorrupt, DataNotFound, MissingExtra, OptionError, suggest

__all__ = [
    "SHIPPED",
    "Shipped",
    "check_packages",
    "folder_of",
    "full_name",
    "model_folder",
    "shipped",
]

SHIPPED: Mapping[str, str] = {"comap/ALFWorld-v0": "alfworld"}
"""The name of the models for each environment's id that has some."""

_SPEC = "shipped"
_PARTS = ("agent", "wm")
_SETTINGS = ("agent", "world_model")
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The models of one benchmark.

    Attributes:
        folder: Where all of them lie.
        agent: The policy's folder.
        world_model: The world model's folder.
        head: The refinement head's file.
        settings: What ``settings.json`` says: ``agent`` and ``world_model`` hold options of the agent
            and of `LanguageWorldModel`.

    Example:
        >>> Shipped(Path("m"), Path("m/agent"), Path("m/wm"), Path("m/head"), {}).folder.name
        'm'
    """

    folder: Path
    agent: Path
    world_model: Path
    head: Path
    settings: Mapping[str, Any]

    @property
    def parameters(self) -> int:
        """Number of the policy's parameters.

        Raises:
            DataCorrupt: Its weights are no safe tensors.
        """
        file = self.agent / _WEIGHTS
        try:
            with file.open("rb") as weights:
                size = int.from_bytes(weights.read(8), "little")
                if size > file.stat().st_size:
                    raise ValueError("it ends before its header does")
                header = json.loads(weights.read(size))
            shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
            return sum(_product(shape) for shape in shapes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(file, f"weights as safe tensors ({error})") from error


def model_folder(name: str = "alfworld", root: Path | None = None) -> Path:
    """Return the folder where models belong, whether they are there or not.

    Args:
        name: One of the values of `SHIPPED`.
        root: The folder of all models; None for that of the package.

    Raises:
        DataNotFound: No models have this name, or the package is not made of files.

    Example:
        >>> model_folder(root=Path("models")).as_posix()
        'models/alfworld'
    """
    known = sorted(set(SHIPPED.values()))
    if name not in known:
        raise DataNotFound(
            f"expected the name of models that comap ships, found {name!r:.80}; "
            f"{suggest(str(name), known)}; for another environment give a model of yours"
        )
    return (_package_folder() if root is None else root) / name


def shipped(name: str = "alfworld", root: Path | None = None) -> Shipped:
    """Return where the models of a benchmark are, and how they are asked.

    Args:
        name: One of the values of `SHIPPED`.
        root: The folder of all models; None for that of the package.

    Raises:
        DataNotFound: There are none, or the package was built without them.
        DataCorrupt: Their settings cannot be read.

    Example:
        >>> shipped("alfworld", Path("nowhere"))
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected the models that comap ships in nowhere/alfworld, found \
no settings.json; this comap was built without them: give a model of yours (--model), or make them \
(comap bench shipped)
    """
    folder = model_folder(name, root)
    agent, world_model = folder / "agent", folder / "wm"
    head, told = folder / "head.safetensors", folder / "settings.json"
    for file in (told, agent / _WEIGHTS, world_model / _WEIGHTS, head):
        if not file.is_file():
            raise DataNotFound(
                f"expected the models that comap ships in {folder}, found no "
                f"{file.relative_to(folder).as_posix()}; this comap was built without them: give a "
                "model of yours (--model), or make them (comap bench shipped)"
            )
    return Shipped(folder, agent, world_model, head, _settings(told))


def full_name(spec: str) -> str | None:
    """Return the whole name of a shipped model, ``shipped:agent`` for short ``shipped``; else None.

    Args:
        spec: See `create_language_model`.

    Raises:
        OptionError: There is no such part.

    Example:
        >>> full_name("shipped"), full_name("shipped:wm"), full_name("tiny")
        ('shipped:agent', 'shipped:wm', None)
    """
    kind, colon, part = spec.partition(":")
    if kind != _SPEC:
        return None
    if colon and part not in _PARTS:
        listed = " or ".join(f"{_SPEC}:{name}" for name in _PARTS)
        raise OptionError(f"expected {listed}, found {spec!r:.80}")
    return f"{_SPEC}:{part or _PARTS[0]}"


def folder_of(spec: str) -> Path:
    """Return the folder of a shipped model.

    Args:
        spec: ``shipped``, ``shipped:agent`` or ``shipped:wm``.

    Raises:
        OptionError: It is none of those.
        DataNotFound: The package was built without them.
        DataCorrupt: Their settings cannot be read.

    Example:
        >>> folder_of("shiped")
        Traceback (most recent call last):
        comap.errors.OptionError: expected shipped, shipped:agent or shipped:wm, found 'shiped'
    """
    name = full_name(spec)
    if name is None:
        raise OptionError(f"expected shipped, shipped:agent or shipped:wm, found {spec!r:.80}")
    found = shipped()
    return found.agent if name.endswith("agent") else found.world_model


def check_packages() -> None:
    """Refuse shipped models where the packages are missing that they run on; load none of those.

    Raises:
        MissingExtra: torch or transformers is not installed.

    Example:
        >>> check_packages()  # doctest: +SKIP
    """
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MissingExtra.of("local", "the small model that comap ships")


def _package_folder() -> Path:
    place = files(__package__) / "models"
    if not isinstance(place, Path):
        raise DataNotFound(
            "expected comap's models as files on disk, found comap in an archive; install it with pip"
        )
    return place


def _settings(file: Path) -> dict[str, Any]:
    """Return what a file of settings says: nothing in it is a path or code."""
    try:
        told = json.loads(file.read_bytes())
        parts = [told[name] for name in _SETTINGS]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(file, f"settings with agent and world_model ({error!r})") from error
    if not all(isinstance(part, dict) for part in parts):
        raise _corrupt(file, "settings with agent and world_model, by name")
    settings: dict[str, Any] = told
    return settings


def _product(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count


def _corrupt(file: Path, expected: str) -> DataCorrupt:
    return DataCorrupt(f"expected {expected} in {file}, found something else; install comap again")
