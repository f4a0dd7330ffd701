"""How large experiments are run: ``scales/*.json`` say models, environments, settings and seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from ...envs.registered import embedded_tasks, evaluated_splits, listed_actions
from ...errors import DataCorrupt, OptionError, suggest
from .recipes import Recipe

__all__ = ["Backbone", "Place", "Scale", "scale_named", "scale_names"]

_FOLDER = "scales"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """A language model that methods begin with.

    Attributes:
        name: Its name in tables.
        model: What ``--model`` takes: a hub's name, a folder, a server's address, or ``tiny``.
        parameters: About how many parameters it has.
        api: Whether it is behind a server of others, so that it cannot be trained.
        options: Options of the language model, such as the variable that has a server's key.
    """

    name: str
    model: str
    parameters: float
    api: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An environment at a scale.

    Attributes:
        env: Its id.
        options: Its options, without places on this machine.
        splits: The splits that are evaluated.
        data: Whether official data is needed, which ``--data`` names the folder of.
        folders: Options of the environment that name a part of this folder, with that part.
        judge: The model that judges answers, where success is for a judge to say; None for none.
        demos: Whether the demonstrations come from a file, which ``--demos`` names.
    """

    env: str
    options: Mapping[str, Any]
    splits: tuple[str, ...]
    data: bool = False
    folders: Mapping[str, str] = field(default_factory=lambda: {"data_dir": ""})
    judge: str | None = None
    demos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A scale.

    Attributes:
        name: ``tiny``, ``small`` or ``paper``.
        about: What it is, in a sentence.
        seeds: The seeds that each cell is run with.
        backbones: The language models in each paper's slots.
        slots: Of an experiment, the slots that are run at this scale, where not all are.
        places: The environments.
        kinds: Settings of each kind of job: ``preset``, ``set``, and ``on``, what differs on an
            environment.
        cost: What a job of each kind costs, where it is known from elsewhere: ``hours`` by the clock,
            ``gpus``, and ``basis``, where that comes from.
        notes: What a reader of results at this scale should know.
    """

    name: str
    about: str
    seeds: tuple[int, ...]
    backbones: Mapping[str, Mapping[str, Backbone]]
    slots: Mapping[str, tuple[str, ...]]
    places: Mapping[str, Place]
    kinds: Mapping[str, Mapping[str, Any]]
    cost: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]

    def backbone(self, paper: str, slot: str) -> Backbone | None:
        """Return the language model in a paper's slot; None where this scale has none.

        Example:
            >>> scale_named("paper").backbone("CoMap", "medium").name
            'Qwen3-8B'
        """
        return self.backbones.get(paper, {}).get(slot)

    def settings(self, kind: str, env: str | None, recipe: str = "") -> dict[str, Any]:
        """Return what is set for a kind of job on an environment, and for one recipe of that kind.

        Most particular wins: a recipe on an environment, a recipe, an environment, the kind. A recipe's
        settings with ``only`` stand alone.
        """
        found = self.kinds.get(kind, {})
        recipes = found.get("recipes", {})
        own = {**recipes.get(recipe, {}), **recipes.get(f"{recipe} {env}", {})}
        if own.pop("only", False):
            return own
        return {**found.get("set", {}), **found.get("on", {}).get(env, {}), **own}

    def policy_of(self, made: Recipe, env: str | None) -> str | None:
        """Return the recipe that trained the policy that a job begins or plays with; None for none.

        What is ``free`` in a recipe, and where PaW's training begins, is for the scale to say: large
        models can act as they are, small ones have to be taught first.

        Example:
            >>> from comap.benchmarks.experiments.recipes import recipe
            >>> scale_named("tiny").policy_of(recipe("play-reflexion"), "comap/WebShop-v0")
            'sft'
        """
        if made.kind == "paw":
            starts: Mapping[str, str | None] = self.kinds.get("paw", {}).get("starts", {})
            return starts.get(made.name, starts.get(env or ""))
        named = made.policy
        if named == "free":
            named = self.kinds.get("play", {}).get("free", "base")
        return None if named == "base" else named

    def preset(self, kind: str, env: str | None, recipe: str = "") -> str:
        """Return the preset of a kind of job on an environment, and for one recipe of that kind."""
        found = self.kinds.get(kind, {})
        by_recipe: str | None = found.get("recipe_presets", {}).get(recipe)
        by_env: str | None = found.get("presets", {}).get(env)
        return by_recipe or by_env or str(found.get("preset", self.name))


def scale_names() -> tuple[str, ...]:
    """Return the names of the scales, the smallest first.

    Example:
        >>> scale_names()
        ('tiny', 'small', 'paper')
    """
    return ("tiny", "small", "paper")


def scale_named(name: str) -> Scale:
    """Return the scale of a name.

    Raises:
        OptionError: There is none.

    Example:
        >>> scale_named("tiny").seeds
        (0,)
    """
    if name not in scale_names():
        raise OptionError(f"there is no scale {name!r:.80}; {suggest(name, list(scale_names()))}")
    path = files(__package__) / _FOLDER / f"{name}.json"
    try:
        return _read(json.loads(path.read_text("utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise DataCorrupt(f"expected a scale in {path}, found {error}") from error


def _read(data: dict[str, Any]) -> Scale:
    models = {name: Backbone(name=name, **told) for name, told in data["models"].items()}
    return Scale(
        name=data["name"],
        about=data["about"],
        seeds=tuple(data["seeds"]),
        backbones={
            paper: {slot: models[name] for slot, name in slots.items()}
            for paper, slots in data["backbones"].items()
        },
        slots={name: tuple(slots) for name, slots in data.get("slots", {}).items()},
        places={env: _place(env, told) for env, told in data["environments"].items()},
        kinds=data["kinds"],
        cost=data.get("cost", {}),
        notes=tuple(data.get("notes", ())),
    )


def _place(env: str, told: Mapping[str, Any]) -> Place:
    """Return an environment; on its embedded tasks unless it says otherwise."""
    official = bool(told.get("data", False))
    options = {} if official else {**embedded_tasks(env), **listed_actions(env)}
    return Place(
        env=env,
        options={**options, **told.get("options", {})},
        splits=tuple(told.get("splits") or evaluated_splits(env)),
        data=official,
        folders=told.get("folders", {"data_dir": ""}),
        judge=told.get("judge"),
        demos=bool(told.get("demos", False)),
    )
