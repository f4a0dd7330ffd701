"""The commands on environments other than the first: agents play them, trainers train on them."""

from __future__ import annotations

import json

import pytest

import comap  # noqa: F401
from comap.cli import main
from comap.envs.scienceworld import keep_idle
from comap.envs.scienceworld.simulator import find_java, simulator_jar
from comap.errors import CoMapError
from comap.trajectory import read_trajectories

SHOP = ["--env", "comap/WebShop-v0", "--env-option", "source=generated"]
TOOLS = ["--env", "comap/StableToolBench-v0", "--env-option", "source=generated"]
SMALLEST = ["--tiny-parameters", "200000", "--env-option", "max_episode_steps=2"]
ASKING = ("comap", "paw", "wkm")


@pytest.mark.parametrize(
    ("words", "split"), [(SHOP, "test"), ([*TOOLS, "--split", "G3_instruction"], "G3_instruction")]
)
def test_an_expert_plays_the_split_for_tests(words, split, tmp_path):
    out = tmp_path / "run"
    assert main(["run", *words, "--agent", "expert", "--episodes", "3", "--out", str(out)]) == 0
    episodes = list(read_trajectories(out / "trajectories.jsonl"))
    assert [(episode.split, episode.success) for episode in episodes] == [(split, True)] * 3
    assert main(["view", str(out), "--no-open"]) == 0


@pytest.mark.parametrize("agent", ASKING)
def test_agents_ask_language_models_about_a_shop(agent, tmp_path):
    """An untrained model wins nothing; every agent reads its answers and goes on."""
    pytest.importorskip("transformers")
    words = ["--agent", agent, "--model", "tiny", *SMALLEST, "--episodes", "1"]
    words += ["--draft-tokens", "8"]
    assert main(["run", *SHOP, *words, "--world-model", "oracle", "--out", str(tmp_path)]) == 0
    (episode,) = read_trajectories(tmp_path / "trajectories.jsonl")
    assert episode.error is None and len(episode.steps) == 2


@pytest.mark.parametrize(
    ("env", "split"),
    [("StableToolBench", "G3_instruction"), ("ScienceWorld", "test")],
)
def test_paw_trains_on_other_environments(env, split, tmp_path, request):
    pytest.importorskip("trl")
    words = ["--updates", "1", "--groups", "1", "--members", "2", "--evaluation-tasks", "1"]
    words += ["--warmup-tokens", "0", "--demonstrations", "1", "--max-episode-steps", "2"]
    words += ["--tiny-parameters", "200000", "--env", f"comap/{env}-v0", "--preset", "tiny"]
    if env == "ScienceWorld":
        words += ["--model", "tiny", "--env-option", "task_names=find-plant", "--live", "1"]
        try:
            simulator_jar(), find_java()
        except CoMapError as error:
            pytest.skip(str(error))
        keep_idle(1)  # a JVM takes seconds to start
        request.addfinalizer(lambda: keep_idle(0))
    assert main(["train", "paw", *words, "--out", str(tmp_path)]) == 0
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["wm_rows"] > 0
    assert split in (tmp_path / "evaluations.jsonl").read_text()
