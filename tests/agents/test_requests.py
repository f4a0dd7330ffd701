"""Probes: what the real environment would answer, and an episode that does not notice being asked."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import (
    Decision,
    ExpertAgent,
    Imagine,
    Probe,
    ProbeResult,
    RandomAgent,
    View,
    run_episode,
    run_episodes,
)
from comap.agents.requests import EnvSlot
from comap.envs import Outcome
from comap.envs.alfworld import ALFWorldEnv
from comap.errors import EngineError, SnapshotError
from comap.trajectory import Trajectory
from kits.toys import ToyEnv

TASKS = ALFWorldEnv(split="valid_seen", source="generated").tasks.ids


def limited(steps: int) -> gym.Env[str, str]:
    """A game with Gymnasium's own limit around it."""
    options = {"source": "generated", "split": "valid_seen"}
    return gym.make("comap/ALFWorld-v0", max_episode_steps=steps, **options)  # type: ignore[arg-type]


def bare(steps: int) -> gym.Env[str, str]:
    """A game that counts its steps itself."""
    return ALFWorldEnv(source="generated", split="valid_seen", max_episode_steps=steps)


class Counting(gym.Wrapper[str, str, str, str]):
    """Counts the steps that reach an environment."""

    step_count = 0

    def step(self, action: str) -> Any:
        self.step_count += 1
        return self.env.step(action)


class Curious:
    """Acts as another agent does, and probes this and that before and after."""

    def __init__(self, inner: Any, seed: int):
        self.inner, self.name, self.seed = inner, inner.name, seed
        self.probed: list[ProbeResult] = []

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        rng = random.Random(f"{self.seed}/{view.task}/{view.step}")
        actions = [*(view.admissible_actions or ()), "sing", view.expert_action() or "look"]
        yield from self._probe(rng, actions)
        decision: Decision = yield from self.inner.decide(view)
        if decision.action is not None and rng.random() < 0.6:
            yield from self._probe(rng, [decision.action])
        if rng.random() < 0.3:
            assert view.expert_action() == view.expert_action()
            requests = [
                Probe(rng.choice(actions)),
                Imagine(rng.choice(actions)),
                Probe(actions[-1]),
            ]
            self.probed.append((yield requests)[2])
        return decision

    def _probe(self, rng: random.Random, actions: list[str]) -> Generator[Any, Any, None]:
        for action in rng.choices(actions, k=rng.randrange(3)):
            probe_result = yield Probe(action)
            assert isinstance(probe_result, ProbeResult)
            self.probed.append(probe_result)


class Foreseeing:
    """Does what another agent would, with what the world model says of it on record."""

    name = "foreseeing"

    def __init__(self, inner: Any):
        self.inner = inner

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        decision: Decision = yield from self.inner.decide(view)
        if decision.action is None:
            return decision
        return replace(decision, imagined=(yield Imagine(decision.action)))


def episodes_json(episodes: list[Trajectory]) -> str:
    """Return episodes as their file has them, but for whom the agent asked."""
    return json.dumps([replace(trajectory, world_model=None).to_json() for trajectory in episodes])


@pytest.mark.parametrize("make", [limited, bare])
@pytest.mark.parametrize("steps", [1, 5, 30])
@pytest.mark.parametrize(
    "inner",
    [RandomAgent(2, mixed=0.3), Foreseeing(ExpertAgent())],
    ids=["random", "expert, oracle"],
)
def test_an_episode_does_not_notice_probes(make: Any, steps: int, inner: Any) -> None:
    tasks = TASKS[:6]
    plain = run_episodes(lambda: make(steps), inner, tasks, concurrency=1)
    assert not any(trajectory.error for trajectory in plain)
    curious = Curious(inner, steps)
    for concurrency in (1, 2):
        assert episodes_json(
            run_episodes(lambda: make(steps), curious, tasks, concurrency=concurrency)
        ) == episodes_json(plain)
    if steps == 30 and "expert" in str(type(getattr(inner, "inner", inner))).lower():
        assert all(trajectory.success for trajectory in plain)
        assert any(
            probe_result.success and probe_result.terminated for probe_result in curious.probed
        )
    if steps == 1:
        assert any(probe_result.truncated for probe_result in curious.probed)


def staged(env: Any = None) -> tuple[EnvSlot, Counting, Any]:
    counting = Counting(env or limited(30))
    slot = EnvSlot(counting)
    _, info = slot.reset(TASKS[0] if env is None else None, 0)
    return slot, counting, info


def counts(slot: EnvSlot) -> tuple[int, int, int]:
    return slot.probes, slot.restores, slot.kept


def test_what_is_probed_and_then_done_costs_one_step() -> None:
    slot, env, info = staged()
    first, second = info["admissible_actions"][:2]
    moment = slot.moment
    probed = slot.probe(first)
    assert slot.moment is moment and (env.step_count, *counts(slot)) == (1, 1, 0, 0)
    assert slot.probe(first) == probed and env.step_count == 1
    answer = slot.step(first)
    assert slot.moment is not moment and (env.step_count, *counts(slot)) == (1, 1, 0, 1)
    assert (answer[0], answer[4]["facts"], answer[4]["step"]) == (
        probed.observation,
        probed.facts,
        1,
    )
    slot.probe(second)
    assert slot.step(first)[4]["step"] == 2
    assert (env.step_count, *counts(slot)) == (3, 2, 1, 1)
    slot.probe(first)
    slot.reset(TASKS[1], None)
    assert slot.step("look")[4]["step"] == 1 and counts(slot) == (3, 1, 1)


def test_a_probe_tells_what_the_step_would() -> None:
    for action in ("look", "sing", *staged()[2]["admissible_actions"]):
        probed = staged()[0].probe(action)
        text, reward, terminated, truncated, info = staged()[0].step(action)
        assert probed == ProbeResult(
            text,
            info["facts"],
            info["delta"],
            reward,
            terminated,
            truncated,
            info["success"],
            info["invalid_action"],
        )
        assert probed.reads(text) == info["facts"] and not probed.terminated
        assert not probed.reads("Lorem ipsum.").parsed
    assert not ProbeResult("", *[None] * 7).reads("You look.").parsed  # type: ignore[arg-type]


class Remembering:
    """Says what follows its action before it looks, and asks nobody."""

    name = "remembering"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        """Expect the first observation again."""
        imagined = yield Imagine("look", observation=view.history[0].observation)
        return Decision("look", imagined=imagined)


def test_what_is_known_is_asked_of_no_world_model() -> None:
    class Never:
        def predict(self, queries: Any) -> Any:
            raise AssertionError("nobody was to be asked")

    played = run_episode(bare(1), Remembering(), task=TASKS[0], world_model=Never())
    prediction = played.steps[0].prediction
    assert played.error is None and prediction is not None and prediction.source == "known"
    assert prediction.observation == played.observation


class Asking:
    """Probes an action, goes on whatever comes of it if it may, and then acts."""

    name = "asking"

    def __init__(self, action: Any, second_action: str = "look", catches: bool = False):
        self.action, self.second_action, self.catches = action, second_action, catches

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        try:
            yield Probe(self.action)
        except EngineError:
            if not self.catches:
                raise
        return Decision(self.second_action)


class Fragile(ToyEnv):  # type: ignore[misc, valid-type]
    """Breaks at ``burn``."""

    def _act(self, action: str) -> Outcome:
        if action == "burn":
            raise ZeroDivisionError("on fire")
        outcome: Outcome = super()._act(action)
        return outcome


def test_a_fault_that_is_caught_leaves_the_episode_where_it_was() -> None:
    agent = Asking("burn", catches=True)
    episode = run_episode(Fragile(max_episode_steps=2), agent, task="toy/0")
    plain = run_episode(Fragile(max_episode_steps=2), Asking("open"), task="toy/0")
    assert episode.error is None and episode.steps == plain.steps and len(episode.steps) == 2
    failed_episode = run_episode(Fragile(), Asking("burn", "burn", catches=True), task="toy/0")
    assert (
        "ZeroDivisionError: on fire (test_requests.py, line " in failed_episode.error
        and failed_episode.steps[0].truncated
    )


class Lost(ToyEnv):  # type: ignore[misc, valid-type]
    """Does not come back to where it was."""

    def _load(self, saved: Any) -> tuple[str, ...]:
        return ("elsewhere",)


def test_an_environment_that_does_not_come_back_is_found_out() -> None:
    episode = run_episode(Lost(max_episode_steps=3), Asking("sing"), task="toy/0")
    assert episode.error is not None and episode.error.startswith(
        "SnapshotError: the engine did not"
    )
    assert episode.steps == ()
    slot = EnvSlot(Lost())
    slot.reset("toy/0", None)
    slot.probe("sing")
    with pytest.raises(SnapshotError):
        slot.expert_action()
    assert slot.reset("toy/1", None)[1]["task"] == "toy/1"  # a new start needs no way back
