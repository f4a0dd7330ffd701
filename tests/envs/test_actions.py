"""Actions in one form, by the environment's id."""

from __future__ import annotations

import gymnasium
import pytest

import comap
from comap.envs import canonical_action

ENVS = sorted(name for name, spec in gymnasium.registry.items() if spec.namespace == "comap")


ALIKE = {"comap/StableToolBench-v0": (' {"name": "look", "arguments": {}} ', "look({})")}
"""Two spellings of one action, where case matters; elsewhere any text does."""


@pytest.mark.parametrize("env_id", ENVS)
def test_each_environment_has_a_canonicalizer_without_being_made(env_id: str) -> None:
    assert comap.__name__
    action, same_action = ALIKE.get(env_id, ("  Look. ", "look"))
    assert canonical_action(env_id, action) == canonical_action(env_id, same_action) != action
    for text in ("", " . ", "\x00\u2028", "$goal" * 2000):
        once = canonical_action(env_id, text)
        assert isinstance(once, str) and canonical_action(env_id, once) == once


def test_alfworld_evens_out_its_verbs() -> None:
    same = ("put pen 1 in/on safe 1", "Move the pen 1 to the safe 1.", "place pen 1  into safe 1")
    assert len({canonical_action("comap/ALFWorld-v0", text) for text in same}) == 1


@pytest.mark.parametrize("env_id", ["other/World-v0", "", "comap/None-v9"])
def test_unknown_environments_even_out_case_and_blanks(env_id: str) -> None:
    assert canonical_action(env_id, " Pick  up THE pen. ") == "pick up the pen"
