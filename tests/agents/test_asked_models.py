"""Records name the world model that was asked, the oracle most of all."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.agents import (
    AGENTS,
    Decision,
    ExpertAgent,
    ReplayAgent,
    View,
    agent_options,
    create_agent,
    run_episode,
    run_episodes,
)
from comap.agents import requests as of_requests
from comap.agents.base import Imagine, asks_world_model
from comap.agents.run import Run, run_to
from comap.agents.tally import Tally
from comap.errors import OptionError
from comap.trajectory import Trajectory
from comap.worldmodel import CachedWorldModel, ImaginedEnv, NullWorldModel, OracleWorldModel
from comap.worldmodel.naming import NOT_TO_REPORT

ORACLE = f"the oracle, {NOT_TO_REPORT}"


def real() -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=3)


TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]


class Foresees:
    """Asks what its action would do and takes another: no prediction is of what it took."""

    name = "foresees"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield Imagine("inventory")
        return Decision("look")


class SaysSo(Foresees):
    asks_world_model = True


def run_of(agent: Any, **options: Any) -> Run:
    return Run(**{"make_env": real, "agent": agent, "tasks": TASKS, **options})


def recorded(folder: Path, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    summary = run_to(folder, run)
    return json.loads((folder / "run.json").read_text()), summary


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_each_agent_says_whether_it_asks_a_world_model(name: str) -> None:
    asks = asks_world_model(create_agent(name))
    assert isinstance(asks, bool)
    if agent_options(name) is None:
        assert not asks


def test_agents_that_would_ask_none_with_these_settings_say_so() -> None:
    for name, off in {
        "comap": {"future_state": False},
        "itp": {"foresight": "generate"},
        "webevolver": {"depth": 0},
    }.items():
        assert asks_world_model(create_agent(name)) is True
        assert asks_world_model(create_agent(name, **off)) is False
    episode = run_episode(real(), ExpertAgent(), task=TASKS[0])
    assert asks_world_model(ReplayAgent(episode)) is False
    assert asks_world_model(ReplayAgent(episode, imagine=True)) is True


def test_the_oracle_that_nobody_named_is_named_in_the_record(tmp_path: Path) -> None:
    described, summary = recorded(tmp_path, run_of(SaysSo()))
    assert described["world_model"] == "oracle"
    assert described["world_model_in_words"] == ORACLE
    assert summary["world_models"] == {"oracle": ORACLE}
    description = run_of(SaysSo(), world_model="oracle").describe()
    assert description == {name: described[name] for name in description}, "as if it had been named"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (NullWorldModel(), "null"),
        ({"id": "noisy", "error_rate": 0.5}, "noisy 0.5"),
        (CachedWorldModel(OracleWorldModel()), "oracle, cached by query"),
    ],
)
def test_whichever_world_model_answered_is_named(model: Any, name: str, tmp_path: Path) -> None:
    described, summary = recorded(tmp_path, run_of(SaysSo(), world_model=model, tasks=TASKS[:1]))
    assert list(summary["world_models"]) == [name]
    assert list(summary["world_models"].values()) == [described["world_model_in_words"]]
    assert (NOT_TO_REPORT in described["world_model_in_words"]) is (name != "null")


def test_an_agent_that_does_not_say_that_it_asks_is_found_out(tmp_path: Path) -> None:
    described, summary = recorded(tmp_path, run_of(Foresees()))
    assert described["world_model"] is None
    assert summary["world_models"] == {"oracle": ORACLE}


def test_who_asks_nobody_has_no_world_model(tmp_path: Path) -> None:
    described, summary = recorded(tmp_path, run_of(ExpertAgent(), world_model="oracle"))
    assert described["world_model_in_words"] is None and summary["world_models"] == {}


def test_imagined_episodes_name_who_imagined_them(tmp_path: Path) -> None:
    imagined = run_of(SaysSo(), make_env=lambda: ImaginedEnv(real(), "oracle"))
    described, summary = recorded(tmp_path, imagined)
    assert described["world_model"] is None
    assert described["imagined"]["world_model"] == {"id": "oracle"}
    assert described["world_model_in_words"] == ORACLE
    assert summary["world_models"] == {"oracle": ORACLE}


def test_a_run_of_before_goes_on_where_the_oracle_was_not_named(tmp_path: Path) -> None:
    config = {"world_model": "oracle"}
    recorded(tmp_path, run_of(SaysSo(), config=config))
    old_record = json.loads((tmp_path / "run.json").read_text())
    old_record |= {"world_model": None, "config": {"world_model": None}}
    del old_record["world_model_in_words"], old_record["tasks"]["generated"]
    (tmp_path / "run.json").write_text(json.dumps(old_record))
    resumed_record, _ = recorded(tmp_path, run_of(SaysSo(), config=config))
    assert len(resumed_record["sessions"]) == 2 and resumed_record["world_model"] == "oracle"
    old_record["world_model"] = "null"
    (tmp_path / "run.json").write_text(json.dumps(old_record))
    with pytest.raises(OptionError, match="world_model: 'null' there, 'oracle' now"):
        recorded(tmp_path, run_of(SaysSo(), config=config))


def test_trajectories_of_before_are_counted_by_what_they_called_it() -> None:
    (episode,) = run_episodes(real, SaysSo(), TASKS[:1], world_model="oracle")
    old_episode = Trajectory.from_json(episode.to_json() | {"world_model": "OracleWorldModel"})
    assert Tally.of([old_episode]).summary()["world_models"] == {"OracleWorldModel": ORACLE}


def test_python_is_warned_once_of_an_oracle_that_it_did_not_name() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        of_requests._warn_of_oracle.cache_clear()
        for world_model in (None, None, "oracle", "null"):
            run_episodes(real, Foresees(), TASKS, world_model=world_model)
    warning_texts = [
        str(warning.message) for warning in caught if "world model" in str(warning.message)
    ]
    assert len(warning_texts) == 1 and NOT_TO_REPORT in warning_texts[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_requests._warn_of_oracle.cache_clear()
        run_episodes(real, Foresees(), TASKS, world_model="oracle")
        run_episodes(real, ExpertAgent(), TASKS)
