"""The commands on environments other than the first: agents play them, trainers train on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

import comap  # noqa: F401
from comap.agents.corpus import tiny_folder
from comap.cli import main
from comap.envs.registered import embedded_tasks, evaluated_splits
from comap.envs.scienceworld import keep_idle
from comap.envs.scienceworld.java import find_java, simulator_jar
from comap.errors import CoMapError
from comap.trajectory import read_trajectories
from comap.worldmodel import ImaginedEnv, NullWorldModel

SHOP = ["--env", "comap/WebShop-v0", "--env-option", "source=generated"]
SMALLEST = ["--tiny-parameters", "200000", "--env-option", "max_episode_steps=2"]
ASKING = ("comap", "paw", "wkm")


def test_splits_are_told_by_the_class() -> None:
    assert (
        evaluated_splits("comap/WebShop-v0") == ("test",) and evaluated_splits("CartPole-v1") == ()
    )
    assert embedded_tasks("comap/WebShop-v0") == {"source": "generated"}
    assert embedded_tasks("CartPole-v1") == {}
    with pytest.raises(gymnasium.error.Error, match="doesn't exist"):
        evaluated_splits("comap/Shop-v0")
    for env_id in ("comap/ALFWorld-v0", "comap/WebShop-v0"):
        for split in evaluated_splits(env_id):
            env = gymnasium.make(env_id, split=split, **embedded_tasks(env_id))
            assert len(env.get_wrapper_attr("tasks").ids) > 10
            env.close()


def test_what_an_environment_adds_to_info_is_not_shared() -> None:
    env = ImaginedEnv(gymnasium.make("comap/WebShop-v0", source="generated"), NullWorldModel())
    _, info = env.reset(seed=0)
    info["reward_parts"]["mine"] = 1.0
    _, _, _, _, info = env.step("search[rug]")
    assert info["imagined"] and info["reward_parts"] == {}
    info["reward_parts"]["mine"] = 1.0
    assert env.step("search[rug]")[4]["reward_parts"] == {}
    assert env.reset(seed=0)[1]["reward_parts"] == {}


def test_an_expert_shops_on_the_split_for_tests(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["run", *SHOP, "--agent", "expert", "--episodes", "3", "--out", str(out)]) == 0
    episodes = list(read_trajectories(out / "trajectories.jsonl"))
    assert [(one.split, one.success) for one in episodes] == [("test", True)] * 3
    assert main(["view", str(out), "--no-open"]) == 0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model that knows no word of the environment."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return tiny_folder(folder, parameters=200_000, episodes=1)


@pytest.fixture(scope="module")
def simulators() -> Iterator[None]:
    """ScienceWorld's JVMs wait for the next test."""
    try:
        simulator_jar()
        find_java()
    except CoMapError as error:
        pytest.skip(str(error))
    before = keep_idle(4)
    yield
    keep_idle(before)


@pytest.fixture
def laboratory(simulators: None, tmp_path: Path) -> list[str]:
    """Words for ScienceWorld."""
    env = ["--env", "comap/ScienceWorld-v0", "--env-option", "task_names=find-plant"]
    return [*env, "--out", str(tmp_path / "out")]


def test_an_expert_finds_a_plant(laboratory: list[str], tmp_path: Path) -> None:
    assert main(["run", *laboratory, "--agent", "expert", "--episodes", "1"]) == 0
    (episode,) = read_trajectories(tmp_path / "out" / "trajectories.jsonl")
    assert (episode.split, episode.success, episode.score) == ("test", True, 1.0)


@pytest.mark.parametrize("agent", ["comap", "rap", "reflexion"])
def test_agents_play_in_the_laboratory(
    agent: str, small: Path, laboratory: list[str], tmp_path: Path
) -> None:
    """An untrained model's actions are refused, and that is told; for all agents: test_all_agents."""
    words = ["--agent", agent, "--episodes", "1", "--env-option", "max_episode_steps=2"]
    words += ["--model", str(small), "--world-model", "oracle"]
    if agent == "rap":
        words += ["--agent-option", "rollouts=2", "--agent-option", "depth=2"]
    assert main(["run", *laboratory, *words]) == 0
    trials = list(read_trajectories(tmp_path / "out" / "trajectories.jsonl"))
    assert all(one.error is None and len(one.steps) == 2 for one in trials)
    assert len(trials) == (3 if agent == "reflexion" else 1)


def test_paw_trains_in_the_laboratory(small: Path, laboratory: list[str], tmp_path: Path) -> None:
    pytest.importorskip("trl")
    words = ["--updates", "1", "--groups", "2", "--members", "2", "--evaluation-tasks", "1"]
    words += ["--max-episode-steps", "2", "--preset", "tiny", "--model", str(small)]
    words += ["--warmup-tokens", "0", "--demonstrations", "2"]
    assert main(["train", "paw", *words, *laboratory]) == 0
    (line,) = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["wm_rows"] > 0


@pytest.mark.parametrize("agent", ASKING)
def test_agents_ask_language_models_about_a_shop(agent: str, tmp_path: Path) -> None:
    """An untrained model wins nothing; every agent reads its answers and goes on."""
    pytest.importorskip("transformers")
    words = ["--agent", agent, "--model", "tiny", *SMALLEST, "--episodes", "1"]
    assert main(["run", *SHOP, *words, "--world-model", "oracle", "--out", str(tmp_path)]) == 0
    (episode,) = read_trajectories(tmp_path / "trajectories.jsonl")
    assert episode.error is None and len(episode.steps) == 2


def test_paw_trains_on_a_shop(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    words = ["--updates", "1", "--groups", "2", "--members", "2", "--evaluation-tasks", "1"]
    words += ["--warmup-tokens", "0", "--demonstrations", "2", "--max-episode-steps", "3"]
    words += ["--parameters", "200000", "--env", "comap/WebShop-v0", "--preset", "tiny"]
    assert main(["train", "paw", *words, "--out", str(tmp_path)]) == 0
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["wm_rows"] > 0
    assert "test" in (tmp_path / "evaluations.jsonl").read_text()


def test_a_split_that_there_is_not_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--agent", "random", "--split", "valid_unseen", "--out", str(tmp_path)]
    assert main(["run", *SHOP, *words])
    assert "split cannot be 'valid_unseen'; known: 'train', 'valid'" in capsys.readouterr().err
