"""World models have names in records, and the oracle is called what it is."""

from __future__ import annotations

import pytest

from comap.worldmodel import (
    CachedWorldModel,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    RetrievalWorldModel,
)
from comap.worldmodel.naming import NOT_TO_REPORT, in_words, name_of, tries_really, words_of


class Mine(NullWorldModel):
    """One that extends comap's."""


class MyOracle(OracleWorldModel):
    """One that tries actions, too."""


class Named(Mine):
    name = "mine, version 2"


REAL = [
    OracleWorldModel(),
    MyOracle(),
    NoisyWorldModel(0.25),
    CachedWorldModel(OracleWorldModel()),
    CachedWorldModel(CachedWorldModel(NoisyWorldModel(1e-05)), key="belief"),
]
OTHERS = [
    NullWorldModel(),
    Mine(),
    Named(),
    RetrievalWorldModel(),
    NoisyWorldModel(0.5, model=NullWorldModel()),
    CachedWorldModel(RetrievalWorldModel(), key="belief"),
]


@pytest.mark.parametrize("model", REAL, ids=name_of)
def test_what_tries_actions_really_says_so_by_its_recorded_name_alone(model):
    assert tries_really(model)
    assert in_words(name_of(model)).startswith("the oracle")
    assert in_words(name_of(model)).endswith(NOT_TO_REPORT)
    config = model.config()
    assert tries_really(config) and (words_of(config) == words_of(model) or "My" in words_of(model))


@pytest.mark.parametrize("model", OTHERS, ids=name_of)
def test_others_are_called_by_their_names(model):
    assert not tries_really(model)
    assert words_of(model) == name_of(model)


def test_a_class_of_ones_own_is_not_called_what_it_extends():
    assert name_of(Mine()) == "Mine" and name_of(Named()) == "mine, version 2"
    assert name_of(MyOracle()) == "oracle (MyOracle)"
    assert name_of(NoisyWorldModel(0.5, model=Mine())) == "noisy 0.5 of Mine"


def test_configs_that_need_no_making_are_named_without_it():
    assert words_of({"id": "language", "lm": "no/such-model"}) == "language"
    assert words_of("somebody.module:Class") == "somebody.module:Class"
    assert not tries_really({"id": "noisy", "model": {"id": "null"}})


@pytest.mark.parametrize("name", ["OracleWorldModel", "NoisyWorldModel"])
def test_records_of_before_had_the_names_of_classes(name):
    assert in_words(name).endswith(NOT_TO_REPORT)
    assert in_words("LanguageWorldModel") == "a language model"
