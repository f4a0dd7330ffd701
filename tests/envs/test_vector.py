"""Vector environments: a failure costs one episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from comap.envs import Info
from comap.errors import OptionError

BOTH = pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
TOY = "comap-test/Toy-v0"
LOOK = ("look",) * 3


@pytest.fixture
def vector(request: pytest.FixtureRequest) -> Any:
    """A function that makes a vector, closed at the end."""

    def make_vector(count: int = 3, **options: Any) -> Any:
        envs = gymnasium.make_vec(TOY, num_envs=count, **options)
        request.addfinalizer(envs.close)
        return envs

    return make_vector


@BOTH
def test_each_environment_gets_its_task(vector: Any, asynchronous: bool) -> None:
    tasks = ["toy/3", "toy/0", "toy/3"]
    envs = vector(asynchronous=asynchronous)
    assert isinstance(envs, AsyncVectorEnv if asynchronous else SyncVectorEnv)
    texts, infos = envs.reset(options={"tasks": tasks})
    assert list(infos["task"]) == tasks
    assert texts[0] == texts[2] != texts[1]
    _, infos = envs.reset(options={"task": "toy/2"})
    assert list(infos["task"]) == ["toy/2"] * 3
    _, infos = envs.reset(seed=[5, 5, 5])
    assert len(set(infos["task"])) == 1


@pytest.mark.parametrize("tasks", [["toy/0"], "toy", ["toy/0"] * 4])
def test_a_wrong_number_of_tasks_is_refused(vector: Any, tasks: Any) -> None:
    with pytest.raises(OptionError, match="must list 3 task ids"):
        vector(asynchronous=False).reset(options={"tasks": tasks})


@BOTH
@pytest.mark.parametrize(
    ("task", "error"),
    [
        ("toy/4", "DataCorrupt: expected a task, found rubbish"),
        ("toy/5", "EngineError: expected task 'toy/5' to start, found KeyError"),
        ("toy/none", "TaskNotFound: "),
    ],
)
def test_a_broken_task_is_an_episode_that_fails(
    vector: Any, asynchronous: bool, task: str, error: str
) -> None:
    envs = vector(variant="SometimesBreaks", asynchronous=asynchronous)
    _, infos = envs.reset(options={"tasks": ["toy/0", task, "toy/1"]})
    assert infos["error"][1].startswith(error)
    assert infos["_error"].tolist() == [False, True, False]
    assert infos["task"][1] == task
    assert all(infos[f"_{key}"].all() for key in Info.__required_keys__)
    texts, rewards, ends, cuts, infos = envs.step(LOOK)
    assert texts == ("Nothing changed.", "", "Nothing changed.")
    assert cuts.tolist() == [False, True, False]
    assert not ends.any()
    assert not rewards.any()
    assert infos["error"][1].startswith(error)
    assert infos["step"].tolist() == [1, 1, 1]
    envs.reset(options={"tasks": ["toy/0", "toy/1", "toy/2"]})
    assert envs.step(LOOK)[0] == ("Nothing changed.",) * 3


@BOTH
@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("break", "RuntimeError: the engine broke"),
        ("shout", "at most 32768 characters, found 100000"),
    ],
)
def test_a_fault_ends_one_episode_alone(
    vector: Any, asynchronous: bool, action: str, error: str
) -> None:
    envs = vector(variant="SometimesBreaks", asynchronous=asynchronous)
    envs.reset(options={"tasks": ["toy/0"] * 3})
    texts, _, ends, cuts, infos = envs.step(("look", action, "look"))
    assert texts == ("Nothing changed.", "", "Nothing changed.")
    assert (ends.tolist(), cuts.tolist()) == ([False] * 3, [False, True, False])
    assert error in infos["error"][1]
    _, _, _, cuts, infos = envs.step(LOOK)
    assert not cuts.any()
    assert infos["step"].tolist() == [2, 0, 2], "the next step started the broken one anew"


@BOTH
def test_a_first_text_that_does_not_fit_is_an_episode_that_fails(
    vector: Any, asynchronous: bool
) -> None:
    envs = vector(2, asynchronous=asynchronous, max_text_length=5)
    texts, infos = envs.reset(seed=0)
    assert texts == ("", "") and "at most 5 characters" in infos["error"][0]
    assert envs.step(("look",) * 2)[3].all()


@BOTH
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_modes(vector: Any, asynchronous: bool, mode: AutoresetMode) -> None:
    envs = vector(2, asynchronous=asynchronous, autoreset_mode=mode, max_episode_steps=2)
    assert envs.metadata["autoreset_mode"] is mode
    envs.reset(seed=[1, 1])
    envs.step(("look", "look"))
    _, _, ends, cuts, infos = envs.step(("look", "look"))
    assert cuts.all()
    assert not ends.any()
    if mode is AutoresetMode.NEXT_STEP:
        assert infos["step"].tolist() == [2, 2]
        assert envs.step(("look", "look"))[-1]["step"].tolist() == [0, 0]
    elif mode is AutoresetMode.SAME_STEP:
        assert infos["step"].tolist() == [0, 0]
        assert infos["final_info"]["step"].tolist() == [2, 2]
        assert list(infos["final_obs"]) == ["Nothing changed."] * 2
    else:
        mask = np.array([True, False])
        envs.reset(options={"tasks": ["toy/2", "toy/3"], "reset_mask": mask})
        infos = envs.reset(options={"reset_mask": ~mask})[1]
        assert envs.step(("look", "look"))[-1]["step"].tolist() == [1, 1]
