"""Every environment keeps the rules that all keep; of broken ones the suite finds what is broken."""

from __future__ import annotations

import random
import unittest
from typing import Any, ClassVar

import pytest

from comap.envs.conformance import EnvConformance
from comap.envs.conformance.suite import Answers, Snapshots
from kits import toys


def suite(name: str, memory_episodes: int = 100, data: str = "", **kwargs: Any) -> Any:
    """Return the suite of an environment, which plays on the folder of the fixture `data`."""

    class Suite(EnvConformance):
        env_id = f"comap/{name}-v0"

        @pytest.fixture(autouse=True)
        def data_folder(self, request: pytest.FixtureRequest) -> None:
            folder = {"data_dir": str(request.getfixturevalue(data))} if data else {}
            type(self).kwargs = kwargs | folder

    Suite.memory_episodes = memory_episodes
    return Suite


OLDER: dict[str, Any] = {"split": "valid_seen", "dialect": "put", "expert": "explore"}
TestALFWorld = suite("ALFWorld", 150)
TestOfficialALFWorld = suite("ALFWorld", data="alfworld_data", split="valid_unseen")
TestOfficialALFWorldOlderDialect = suite("ALFWorld", 60, "alfworld_data", **OLDER)

RICH: dict[str, Any] = {
    "observation_mode": "text_rich",
    "split": "test",
    "goals": "human",
    "strict_options": True,
    "show_attrs": True,
}
TestWebShop = suite("WebShop", 200, source="generated")
TestWebShopRich = suite("WebShop", source="generated", **RICH)
TestOfficialWebShop = suite("WebShop", 200, "webshop_data", split="legacy-test")

REACT: dict[str, Any] = {
    "split": "dev",
    "admissible_actions": True,
    "expert": "explore",
    "actions": "react",
    "style": "verl",
    "reward": "format",
    "invalid_penalty": 0.01,
    "topk": 2,
    "turns": 6,
}
TestSearchQA = suite("SearchQA", 200, source="generated")
TestSearchQAInReAct = suite("SearchQA", source="generated", **REACT)

REFERENCE: dict[str, Any] = {
    "split": "G3_instruction",
    "compat": "reference",
    "functions_as": "json",
    "max_observation_length": 128,
}
TestTools = suite("StableToolBench", source="generated", admissible_actions=True)
TestOfficialTools = suite(
    "StableToolBench", data="stabletoolbench_data", split="G1_instruction", admissible_actions=True
)


class TestReferenceTools(suite("StableToolBench", source="generated", **REFERENCE)):
    def policy(self, observation: str, info: dict[str, Any], rng: random.Random) -> str:
        """Call functions by names of their own, since no actions are listed."""
        return rng.choice(('{"name": "s", "arguments": {"page": 1}}', "list", "Action: cancel"))


WORDS = ("look around", "go to kitchen", "open door", "0", "wait1", "pick up orange", "inventory")


@pytest.mark.usefixtures("simulator")
class TestScienceWorld(suite("ScienceWorld", 6, split="dev")):
    """Less is played than elsewhere, as each step costs more."""

    seeds = (11, 7)  # of dev's tasks these load, and are solved, soonest
    steps = 2
    # Vectors of our own are tested: the others differ in nothing that a task sees.
    test_async_vector_equals_sync = test_make_vec_async_equals_sync = None
    test_async_vector_with_shared_memory_equals_sync = None
    test_admissible_actions_are_accepted = None  # these are listed below

    def policy(self, observation: str, info: dict[str, Any], rng: random.Random) -> str:
        return rng.choice(info["admissible_actions"] or WORDS)


@pytest.mark.usefixtures("simulator")
class TestScienceWorldListing(Answers):
    """With the actions listed and the truth told: the tests that this changes."""

    env_id = "comap/ScienceWorld-v0"
    kwargs: ClassVar = {
        "split": "dev",
        "admissible_actions": True,
        "info_level": "privileged",
        "simplification": "",
    }
    seeds = (11,)
    steps = 3


class TestToy(EnvConformance):
    env_id = "comap-test/Toy-v0"
    maker = f"{toys.__name__}:make"
    maker_args: ClassVar = {}


class TestToyWithChecker(Snapshots):
    """The same through Gymnasium's passive checker, as third parties register environments."""

    maker = f"{toys.__name__}:make"
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
        getattr(broken(variant), test)()
    assert str(caught.value)


def test_suite_says_where_transcripts_part() -> None:
    with pytest.raises(AssertionError, match=r"seed 0 .* record 0 differs at character \d+"):
        broken("HashOrder").test_same_transcript_in_other_processes()


def test_suite_skips_what_does_not_apply() -> None:
    class NoId(TestToy):
        env_id = ""

    with pytest.raises(unittest.SkipTest, match="no registered id"):
        NoId().test_make_vec_equals_sync()


def broken(variant: str) -> EnvConformance:
    """Return the suite of a broken toy."""

    class Suite(TestToy):
        maker_args: ClassVar = {"variant": variant}
        seeds = (0, 1)

    return Suite()
