"""Settings are checked by their types and by the ranges beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_type_hints

import pytest

from comap.agents import AgentConfig
from comap.agents.create import AGENTS, agent_options
from comap.errors import OptionError
from comap.settings import (
    NonNegativeFloat,
    PositiveInt,
    PositiveShare,
    Range,
    Share,
    check_fields,
)
from comap.trainers import CoMapTraining, PaWTraining
from comap.trainers.baselines.config import BASELINES


@dataclass(frozen=True)
class Inner:
    depth: PositiveInt = 1


@dataclass(frozen=True)
class Settings:
    """One field of each kind."""

    count: PositiveInt | None = None
    share: Share = 0.5
    part: PositiveShare = 0.5
    weight: NonNegativeFloat = 1
    open_share: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5
    seed: int = 0
    way: Literal["left", "right"] = "left"
    is_on: bool = True
    name: str = "a"
    names: tuple[str, ...] = ("a",)
    options: Mapping[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_fields(self, "some.")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "some.count must be a whole number of at least 1, or None, not 0"),
        ({"count": True}, "some.count must be a whole number of at least 1, or None, not True"),
        ({"count": 1.0}, "not 1.0"),
        ({"share": 1.1}, "some.share must be a number from 0 to 1, not 1.1"),
        ({"share": None}, "not None"),
        ({"part": 0.0}, "some.part must be a number above 0 and at most 1, not 0.0"),
        ({"weight": -1}, "some.weight must be a number of at least 0, not -1"),
        ({"weight": float("inf")}, "not inf"),
        ({"weight": float("nan")}, "not nan"),
        ({"open_share": 1}, "some.open_share must be a number above 0 and below 1, not 1"),
        ({"seed": "x" * 200}, f"some.seed must be a whole number, not '{'x' * 79}$"),
        ({"way": "lef"}, "some.way cannot be 'lef'; did you mean 'left'?"),
        ({"way": 1}, "some.way must be one of 'left', 'right', not 1"),
        ({"is_on": 1}, "some.is_on must be True or False, not 1"),
        ({"name": ""}, "some.name must be a text, not ''"),
        ({"names": ("a", "a")}, "some.names must be a tuple of different texts"),
        ({"names": "ab"}, "some.names must be a tuple of different texts, not 'ab'"),
        ({"options": []}, "some.options must be a mapping of values by name"),
        ({"inner": Settings}, "some.inner must be a Inner"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("?", r"\?")):
        Settings(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"count": 1}, {"share": 0}, {"share": 1.0}, {"part": 1}, {"weight": 0}, {"seed": -(10**400)}],
)
def test_the_edges_are_accepted(settings: dict[str, Any]) -> None:
    assert Settings(**settings)


def config_classes() -> list[type]:
    """Return the settings of all agents and trainings, with those that they nest."""
    classes: dict[str, type] = {}
    waiting = [CoMapTraining, PaWTraining, *BASELINES.values()]
    waiting += [options for name in AGENTS if (options := agent_options(name))]
    while waiting:
        config = waiting.pop()
        classes[config.__name__] = config
        hints = get_type_hints(config)
        waiting += [hints[part.name] for part in fields(config) if is_dataclass(hints[part.name])]
    return [classes[name] for name in sorted(classes)]


@pytest.mark.parametrize("config", config_classes())
def test_every_number_has_its_range_beside_it(config: type) -> None:
    """A field that a class defines anew needs its range anew: nothing is inherited by its name."""
    for name, hint in get_type_hints(config, include_extras=True).items():
        if name == "seed" and issubclass(config, AgentConfig):  # any whole number
            continue
        members = {hint} if hasattr(hint, "__metadata__") else {hint, *get_args(hint)}
        assert not members & {int, float}, f"{config.__name__}.{name} has no range"
