"""Making world models from plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comap.errors import CoMapError, DataNotFound, OptionError, WorldModelError
from comap.worldmodel import WORLD_MODELS, NullWorldModel, WorldModel, create_world_model


@pytest.mark.parametrize("name", sorted(WORLD_MODELS))
def test_every_id_makes_a_world_model(name: str) -> None:
    needed = {"cached": {"model": "null"}, "language": {"lm": "http://127.0.0.1:9/v1#nobody"}}
    extra = needed.get(name, {})
    assert isinstance(create_world_model({"id": name, **extra}), WorldModel)


def test_ones_own_class_and_nested_models() -> None:
    model: Any = create_world_model(
        {"id": "cached", "model": {"id": "noisy", "model": "comap.worldmodel.null:NullWorldModel"}}
    )
    assert isinstance(model.model.model, NullWorldModel)


def test_the_config_is_not_changed() -> None:
    config = {"id": "cached", "model": {"id": "null", "text": "x"}}
    create_world_model(config)
    assert config == {"id": "cached", "model": {"id": "null", "text": "x"}}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("orcale", "did you mean 'oracle'"),
        ("", "no world model ''"),
        (None, "expected a world model's id or config, found None"),
        (3, "found 3"),
        ([("id", "null")], "found"),
        ({"model": "null"}, "no world model None"),
        ({"id": ["null"]}, "no world model"),
        ({"id": "null", "tex": "x"}, "unexpected keyword argument 'tex'"),
        ({"id": "null", 3: "x"}, "cannot make the world model 'null'"),
        ({"id": "cached"}, "missing 1 required positional argument"),
        ({"id": "cached", "model": 3}, "expected a world model"),
        ({"id": "noisy", "error_rate": "much"}, "cannot make the world model 'noisy'"),
        ({"id": "noisy", "model": {"id": "nosiy"}}, "did you mean 'noisy'"),
        (":Name", "Empty module name"),
        ("comap.worldmodel:Missing", "no attribute 'Missing'"),
        ("no_such_package.module:Model", "No module named"),
        ("comap.facts:State", "expected a world model"),
        ({"id": "retrieval", "path": "a\0b"}, "null"),
    ],
    ids=str,
)
def test_mistakes_are_explained(config: Any, told: str) -> None:
    with pytest.raises(CoMapError) as caught:
        create_world_model(config)
    assert isinstance(caught.value, WorldModelError)
    assert told in str(caught.value)


def test_a_models_own_errors_come_through(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="error_rate"):
        create_world_model({"id": "noisy", "error_rate": 7})
    with pytest.raises(DataNotFound):
        create_world_model({"id": "retrieval", "path": str(tmp_path / "none")})
