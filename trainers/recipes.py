"""Accelerate's configs for 1, 4 and 32 GPUs: ``python -m comap.trainers.recipes NAME`` prints a file.

``accelerate launch --config_file "$(python -m comap.trainers.recipes ddp-4)" -m comap train ...``

What DeepSpeed calls ZeRO-3 and ZeRO-2 is done by torch's own FSDP2, with weights let go after a forward
or kept; DeepSpeed itself is refused (`comap.trainers.sharded`).
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from ..errors import CoMapError, DataNotFound, OptionError, suggest

__all__ = ["RECIPES", "recipe"]

RECIPES = ("ddp-1", "ddp-4", "ddp-32", "fsdp-4", "fsdp-32", "zero2-4", "zero2-32")
"""The names: how processes share the work, and how many there are."""


def recipe(name: str) -> Path:
    """Return the file of a recipe.

    Args:
        name: One of `RECIPES`.

    Raises:
        OptionError: There is no such recipe.
        DataNotFound: The package is not made of files.

    Example:
        >>> recipe("ddp-4").name
        'ddp-4.yaml'
    """
    if name not in RECIPES:
        raise OptionError(f"there is no recipe {name!r:.80}; {suggest(name, RECIPES)}")
    place = files(__package__) / "launch" / f"{name}.yaml"
    if not isinstance(place, Path):
        raise DataNotFound(
            "expected comap's recipes as files, found an archive; install it with pip"
        )
    return place


def main(words: list[str]) -> int:
    """Print the file of the recipe that is named, or all names; return the exit code."""
    if not words:
        print("\n".join(RECIPES))
        return 0
    try:
        print(recipe(words[0]))
    except CoMapError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
