"""Wrong options and tasks are told by each environment, and cost nothing that was there before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import load_env_creator

import comap  # noqa: F401
from comap.errors import NoEpisode, OptionError, TaskNotFound

CASES = json.loads(Path(__file__).with_name("refusals.json").read_text("utf-8"))
GENERATED = {env: {"source": "generated"} for env in ("WebShop", "SearchQA", "StableToolBench")}
LONG = ("x" * 10_000, "synthetic/" + "9" * 5000)
OFFICIAL = {
    "ALFWorld": ("alfworld_data", "valid_seen", "expected one of the 140 tasks"),
    "WebShop": ("webshop_data", "test", "expected a"),
    "ScienceWorld": ("", "train", "3592"),
}


def cases(name: str, *extra_cases: str) -> Any:
    rows = [(env, case) for env, listed in CASES[name].items() for case in (*listed, *extra_cases)]
    return pytest.mark.parametrize(("env", "case"), rows, ids=lambda value: ascii(value)[:60])


@cases("wrong_options")
def test_wrong_options_are_told(env: str, case: Any) -> None:
    options, phrase = case
    creator = load_env_creator(str(gym.spec(f"comap/{env}-v0").entry_point))
    with pytest.raises(OptionError, match=phrase or None) as refusal:
        creator(**GENERATED.get(env, {}) | options)
    assert len(str(refusal.value).splitlines()) == 1


@cases("no_tasks", *LONG)
def test_tasks_that_are_not_there(env: str, case: str, request: pytest.FixtureRequest) -> None:
    data, split, phrase = OFFICIAL[env]
    folder = {"data_dir": request.getfixturevalue(data)} if data else {}
    bare_env: Any = gym.make(f"comap/{env}-v0", split=split, **folder).unwrapped
    with pytest.raises(TaskNotFound, match=phrase):
        bare_env.reset(options={"task": case})
    with pytest.raises(NoEpisode):
        bare_env.step("look")
