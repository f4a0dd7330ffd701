"""Overlapped rounds: the same episodes, while two models answer at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, run_episodes, stream_episodes
from comap.agents.create import create_agent
from comap.agents.run import Run, run_to
from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError
from comap.lm import Generate
from comap.worldmodel import CachedWorldModel, LanguageWorldModel, Prediction, Query

HashedModel = load(f"{Path(__file__).with_name('scripted.py')}:HashedModel")
AGENT = create_agent("comap", p_source="verbal", q_source="proxy")


def short() -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=4
    )


TASKS: tuple[str, ...] = short().unwrapped.tasks.ids[:9]  # type: ignore[attr-defined]


class Meeting(HashedModel):  # type: ignore[misc,valid-type]
    """Answers only while another model is being asked as well, once both were asked at all."""

    def __init__(self, name: str, both: threading.Barrier):
        super().__init__()
        self.name, self.both, self.met, self.threads = name, both, 0, set()

    def generate(self, requests: Sequence[Generate]) -> list[Any]:
        self.threads.add(threading.current_thread().name)
        try:
            self.both.wait(timeout=0.3)
            self.met += 1
        except threading.BrokenBarrierError:
            self.both.reset()
        return super().generate(requests)  # type: ignore[no-any-return]


def play(overlap: bool, live: int = 6, **options: Any) -> list[Any]:
    given = {"lm": HashedModel(), "world_model": LanguageWorldModel(HashedModel()), **options}
    played = run_episodes(short, AGENT, TASKS, live=live, overlap=overlap, **given)
    return [trajectory.to_json() for trajectory in played]


@pytest.mark.parametrize("live", [1, 2, 6, 20])
def test_episodes_are_the_same(live: int) -> None:
    assert play(True, live) == play(False)


def test_policy_and_world_model_are_asked_at_the_same_time() -> None:
    both = threading.Barrier(2)
    lm, other = Meeting("policy", both), Meeting("world", both)
    told = play(True, lm=lm, world_model=LanguageWorldModel(other))
    assert lm.met >= 3 and other.met >= 3
    assert lm.threads and all(name.startswith("comap-answers") for name in lm.threads)
    assert len(told) == len(TASKS) and not any(episode["error"] for episode in told)


@pytest.mark.parametrize("model", ["oracle", "null", {"id": "noisy", "seed": 3}], ids=str)
def test_world_models_of_every_kind(model: Any) -> None:
    assert play(True, world_model=model) == play(False, world_model=model)


def test_a_model_that_both_share_is_asked_by_one_thread() -> None:
    class Alone(HashedModel):  # type: ignore[misc,valid-type]
        asking = 0

        def generate(self, requests: Sequence[Generate]) -> list[Any]:
            self.asking += 1
            assert self.asking == 1
            found = super().generate(requests)
            self.asking -= 1
            return found  # type: ignore[no-any-return]

    lm = Alone()
    world = CachedWorldModel(LanguageWorldModel(lm))
    assert not any(one["error"] for one in play(True, lm=lm, world_model=world))


def test_a_model_that_fails_costs_those_who_asked_it() -> None:
    class Failing:
        def predict(self, queries: Sequence[Query]) -> list[Prediction]:
            if any("desk" in query.action for query in queries):
                raise LanguageModelError("no answer")
            return [Prediction("Nothing happens.") for _ in queries]

    told = play(True, world_model=Failing())
    assert told == play(False, world_model=Failing())
    failed = [episode for episode in told if episode["error"]]
    assert failed and all("no answer" in str(episode["error"]) for episode in failed)


def test_whoever_stops_listening_leaves_no_thread() -> None:
    before = threading.active_count()
    lm, world = HashedModel(), LanguageWorldModel(HashedModel())
    options: dict[str, Any] = {"lm": lm, "world_model": world, "overlap": True}
    playing = stream_episodes(short, AGENT, TASKS, **options)
    next(playing)
    playing.close()
    assert threading.active_count() == before


def test_agents_that_ask_nothing() -> None:
    played = run_episodes(short, ExpertAgent(), TASKS, overlap=True)
    assert [episode.task for episode in played] == list(TASKS)


def test_a_run_may_go_on_either_way(tmp_path: Path) -> None:
    def run(tasks: Sequence[str]) -> Run:
        lm, world = HashedModel(), LanguageWorldModel(HashedModel())
        return Run(make_env=short, agent=AGENT, tasks=tasks, lm=lm, world_model=world)

    for name, overlap in (("a", False), ("b", True)):
        run_to(tmp_path / name, run(TASKS), overlap=overlap)
    one, other = ((tmp_path / name / "trajectories.jsonl").read_bytes() for name in "ab")
    assert one == other
