"""The examples of what is added to comap itself, docs/guides/inside.md, run as they stand."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import comap
from comap.agents import Decision, ExpertAgent, Reply, Request, View, run_episode
from comap.agents.run import TRAJECTORIES
from comap.benchmarks.verify import check_episode
from comap.errors import DataNotFound
from comap.trajectory import write_trajectories
from comap.worldmodel import ImaginedEnv

PAGE = Path(comap.__file__).parent / "docs" / "guides" / "inside.md"
TEXT = PAGE.read_text("utf-8")
PAGES = {
    match[1]: match[2]
    for match in re.finditer(r"^```python\n# (\S+\.py)\n(.*?)^```", TEXT, re.S | re.M)
}


@pytest.fixture
def page() -> Iterator[Any]:
    """A function that makes a module of a page's example, as if it lay where its first line says."""
    module_names = []

    def load(path: str) -> types.ModuleType:
        parts = ("comap", *Path(path).with_suffix("").parts)
        package = parts[:-1]
        name = ".".join(package if parts[-1] == "__init__" else parts)
        module = types.ModuleType(name)
        module.__package__ = ".".join(package)
        sys.modules[name] = module  # dataclasses look there
        module_names.append(name)
        exec(compile(PAGES[path], path, "exec"), module.__dict__)
        assert all(hasattr(module, public) for public in getattr(module, "__all__", ()))
        return module

    yield load
    for name in module_names:
        del sys.modules[name]


def test_every_page_has_an_example() -> None:
    assert set(PAGES) == {
        "envs/lamps/__init__.py",
        "worldmodel/hopeful.py",
        "agents/cautious.py",
        "trainers/winners.py",
    }


def test_the_environment_the_world_model_and_the_agent(page: Any) -> None:
    lamps = page("envs/lamps/__init__.py")
    env: gymnasium.Env[str, str] = lamps.LampsEnv(split="test", max_episode_steps=20)
    for task in env.get_wrapper_attr("tasks").ids[:3]:
        episode = run_episode(env, ExpertAgent(), task=task)
        assert episode.success and check_episode(env, episode).status == "agrees"
    cautious = page("agents/cautious.py").CautiousAgent(tries=2)
    episode = run_episode(env, cautious, task=env.get_wrapper_attr("tasks").ids[0])
    assert episode.error is None and episode.steps[0].prediction is not None
    hopeful = page("worldmodel/hopeful.py").HopefulWorldModel(verb="made")
    imagined = ImaginedEnv(env, hopeful)
    imagined.reset(seed=0)
    assert imagined.step("press lamp 1")[0] == "You made it: press lamp 1."


def test_the_trainer(page: Any, tmp_path: Path) -> None:
    """It plays, and refuses to learn where nothing was won."""
    winners = page("trainers/winners.py")
    lamps = page("envs/lamps/__init__.py").LampsEnv

    class GivesUp:
        name = "gives-up"

        def decide(self, view: View) -> Generator[Request, Reply, Decision]:
            """Do nothing."""
            yield []
            return Decision(None)

    tasks = lamps(split="train").tasks.ids[:2]
    arguments = (
        winners.WinnersTraining(),
        tmp_path,
        lambda: lamps(split="train"),
        GivesUp(),
        tasks,
    )
    for _ in range(2):
        with pytest.raises(DataNotFound, match="found none"):
            winners.train_on_winners(*arguments, tmp_path / "out")
    assert (tmp_path / "out" / "stages" / "00-play" / "done.json").is_file()


def test_the_trainer_learns_from_what_was_won(page: Any, tmp_path: Path) -> None:
    winners = page("trainers/winners.py")
    env = page("envs/lamps/__init__.py").LampsEnv(split="train")
    won_episode = run_episode(env, ExpertAgent(), task=env.tasks.ids[0])
    write_trajectories(tmp_path / "episodes" / TRAJECTORIES, [won_episode])
    rows = [*winners._rows(types.SimpleNamespace(path=tmp_path), winners.WinnersTraining())]
    assert won_episode.success and [row.answer for row in rows] == [
        f"Action: {step.action}" for step in won_episode.steps
    ]
