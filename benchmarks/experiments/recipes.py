"""How a method is measured: ``recipes.json`` says which kind of job, after which, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from ...errors import DataCorrupt, OptionError, suggest

__all__ = ["KINDS", "Recipe", "recipe", "recipe_names"]

KINDS = ("comap", "baseline", "paw", "play", "predict", "noise", "overhead", "told")
"""Kinds of jobs: trainings (CoMap's, its baselines', PaW's), an agent that plays, a world model that
predicts, gradients on noise, PaW's overhead, and what needs no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a method is measured.

    Attributes:
        name: Its name.
        kind: One of `KINDS`.
        start: The recipe whose models it begins with; None to begin with the backbone.
        policy: Of an agent that plays: the recipe that trained its policy, ``base`` for the backbone
            as it is, or ``free`` for what a scale lets training-free agents play with.
        world_model: The recipe that trained its world model, ``policy`` for the policy's own model,
            or an id that ``--world-model`` takes; None for none.
        agent: Which agent plays.
        method: Which baseline is trained: the word after ``comap train``.
        settings: Settings, in the words of the command.
        fact: Of what needs no run: which fact.
    """

    name: str
    kind: str
    start: str | None = None
    policy: str | None = None
    world_model: str | None = None
    agent: str | None = None
    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fact: str | None = None

    def needs(self, policy: str | None = None) -> tuple[str, ...]:
        """Return the recipes whose results this one needs.

        Args:
            policy: The recipe that trained its policy, which a scale may say; None for the backbone.

        Example:
            >>> recipe("play-itp-i").needs("sft"), recipe("play-react").needs()
            (('sft',), ())
        """
        found = [self.start, policy]
        if self.world_model in recipe_names():
            found.append(self.world_model)
        return tuple(dict.fromkeys(name for name in found if name is not None))


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes."""
    return tuple(_recipes())


def recipe(name: str) -> Recipe:
    """Return the recipe of a name.

    Raises:
        OptionError: There is none.

    Example:
        >>> recipe("grpo+paw").settings["paw"]
        True
    """
    known = _recipes()
    if name not in known:
        raise OptionError(f"there is no recipe {name!r:.80}; {suggest(name, list(known))}")
    return known[name]


@cache
def _recipes() -> dict[str, Recipe]:
    path = files(__package__) / "recipes.json"
    try:
        found = {
            name: Recipe(name=name, **told)
            for name, told in json.loads(path.read_text("utf-8")).items()
        }
    except (TypeError, ValueError) as error:
        raise DataCorrupt(f"expected recipes in {path}, found {error}") from error
    for one in found.values():
        if one.kind not in KINDS:
            raise DataCorrupt(f"expected a kind of job in recipe {one.name}, found {one.kind!r}")
    return found
