"""The conformance suite passes on a sound environment, and fails where it should on broken ones."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import ClassVar

import pytest

from comap.envs.conformance import EnvConformance
from comap.envs.conformance.suite import Snapshots
from comap.envs.conformance.transcripts import load

TOYS = str(Path(__file__).with_name("toys.py"))
load(f"{TOYS}:make")


class TestToy(EnvConformance):
    env_id = "comap-test/Toy-v0"
    maker = f"{TOYS}:make"
    maker_args: ClassVar = {}


class TestToyWithChecker(Snapshots):
    """The same through Gymnasium's passive checker, as third parties register environments."""

    maker = f"{TOYS}:make"
    maker_args: ClassVar = {"disable_env_checker": False}


BROKEN = [
    ("GlobalRandom", "test_seed_repeats_an_episode"),
    ("IgnoresTask", "test_task_option_chooses_the_task"),
    ("Leaks", "test_episodes_are_independent"),
    ("SharedSnapshot", "test_snapshot_is_not_changed_by_later_steps"),
    ("LacksKey", "test_info_has_the_documented_keys"),
    ("WrongDelta", "test_facts_and_delta_agree"),
    ("HatesEmoji", "test_any_text_is_answered"),
    ("TakesNumbers", "test_other_types_are_refused"),
    ("NeverEnds", "test_step_after_the_end_is_refused"),
    ("FalsePromises", "test_admissible_actions_are_accepted"),
    ("KeepsEverything", "test_memory_is_flat"),
]


@pytest.mark.parametrize(("variant", "test"), BROKEN)
def test_suite_finds_what_is_broken(variant: str, test: str) -> None:
    with pytest.raises(AssertionError) as caught:
        getattr(suite_of(variant), test)()
    assert str(caught.value)


def test_suite_says_where_transcripts_part() -> None:
    with pytest.raises(AssertionError, match=r"seed 0 .* record 0 differs at character \d+"):
        suite_of("HashOrder").test_same_transcript_in_other_processes()


def test_suite_skips_what_does_not_apply() -> None:
    class NoId(TestToy):
        env_id = ""

    with pytest.raises(unittest.SkipTest, match="no registered id"):
        NoId().test_make_vec_equals_sync()


def suite_of(variant: str) -> EnvConformance:
    class Suite(TestToy):
        maker_args: ClassVar = {"variant": variant}
        seeds = (0, 1)

    return Suite()
