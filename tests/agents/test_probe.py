"""Probes: what the real environment would answer, and an episode that does not notice being asked."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import (
    Decision,
    ExpertAgent,
    Imagine,
    Probe,
    Probed,
    RandomAgent,
    View,
    run_episode,
    run_episodes,
)
from comap.agents.answers import Answers
from comap.agents.stage import Probing, Stage
from comap.envs import Outcome
from comap.envs.alfworld import ALFWorldEnv
from comap.envs.conformance.transcripts import load
from comap.errors import EngineError, InvalidAction, NoEpisode, SnapshotError
from comap.trajectory import Trajectory
from comap.worldmodel import ImaginedEnv, LanguageWorldModel

ToyEnv = load(f"{Path(__file__).parents[1] / 'envs' / 'toys.py'}:ToyEnv")
HashedModel = load(f"{Path(__file__).with_name('scripted.py')}:HashedModel")
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

    taken = 0

    def step(self, action: str) -> Any:
        self.taken += 1
        return self.env.step(action)


class Curious:
    """Acts as another agent does, and probes this and that before and after."""

    def __init__(self, inner: Any, seed: int):
        self.inner, self.name, self.seed = inner, inner.name, seed
        self.probed: list[Probed] = []

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        rng = random.Random(f"{self.seed}/{view.task}/{view.step}")
        actions = [*(view.admissible_actions or ()), "sing", view.expert_action() or "look"]
        yield from self._probe(rng, actions)
        decision: Decision = yield from self.inner.decide(view)
        if decision.action is not None and rng.random() < 0.6:
            yield from self._probe(rng, [decision.action])
        if rng.random() < 0.3:
            assert view.expert_action() == view.expert_action()
            asked = [Probe(rng.choice(actions)), Imagine(rng.choice(actions)), Probe(actions[-1])]
            self.probed.append((yield asked)[2])
        return decision

    def _probe(self, rng: random.Random, actions: list[str]) -> Generator[Any, Any, None]:
        for action in rng.choices(actions, k=rng.randrange(3)):
            found = yield Probe(action)
            assert isinstance(found, Probed)
            self.probed.append(found)


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


def written(found: list[Trajectory]) -> str:
    return json.dumps([trajectory.to_json() for trajectory in found])


@pytest.mark.parametrize("make", [limited, bare])
@pytest.mark.parametrize("steps", [1, 5, 30])
@pytest.mark.parametrize(
    "inner",
    [
        RandomAgent(2, mixed=0.3),
        ExpertAgent(),
        Foreseeing(RandomAgent(1)),
        Foreseeing(ExpertAgent()),
    ],
    ids=["random", "expert", "random, oracle", "expert, oracle"],
)
def test_an_episode_does_not_notice_probes(make: Any, steps: int, inner: Any) -> None:
    tasks = TASKS[:8]
    plain = run_episodes(lambda: make(steps), inner, tasks, live=1)
    assert not any(trajectory.error for trajectory in plain)
    curious = Curious(inner, steps)
    for live in (1, 2):
        assert written(run_episodes(lambda: make(steps), curious, tasks, live=live)) == written(
            plain
        )
    if steps == 30 and "expert" in str(type(getattr(inner, "inner", inner))).lower():
        assert all(trajectory.success for trajectory in plain)
        assert any(found.success and found.terminated for found in curious.probed)
    if steps == 1:
        assert any(found.truncated for found in curious.probed)


def staged(env: Any = None) -> tuple[Stage, Counting, Any]:
    counting = Counting(env or limited(30))
    stage = Stage(counting)
    _, info = stage.reset(TASKS[0] if env is None else None, 0)
    return stage, counting, info


def counts(stage: Stage) -> tuple[int, int, int]:
    return stage.probes, stage.restores, stage.kept


def test_what_is_probed_and_then_done_costs_one_step() -> None:
    stage, env, info = staged()
    first, second = info["admissible_actions"][:2]
    moment = stage.moment
    probed = stage.probe(first)
    assert stage.moment is moment and (env.taken, *counts(stage)) == (1, 1, 0, 0)
    assert stage.probe(first) == probed and env.taken == 1
    answer = stage.step(first)
    assert stage.moment is not moment and (env.taken, *counts(stage)) == (1, 1, 0, 1)
    assert (answer[0], answer[4]["facts"], answer[4]["step"]) == (
        probed.observation,
        probed.facts,
        1,
    )
    stage.probe(second)
    assert stage.step(first)[4]["step"] == 2
    assert (env.taken, *counts(stage)) == (3, 2, 1, 1)
    stage.probe(first)
    stage.reset(TASKS[1], None)
    assert stage.step("look")[4]["step"] == 1 and counts(stage) == (3, 1, 1)


def test_a_probe_tells_what_the_step_would() -> None:
    for action in ("look", "sing", *staged()[2]["admissible_actions"]):
        probed = staged()[0].probe(action)
        text, reward, terminated, truncated, info = staged()[0].step(action)
        assert probed == Probed(
            text,
            info["facts"],
            info["delta"],
            reward,
            terminated,
            truncated,
            info["success"],
            info["invalid_action"],
        )
        assert probed.reads(text) == info["facts"] and not probed.ended
        assert not probed.reads("Lorem ipsum.").parsed
    assert not Probed("", *[None] * 7).reads("You look.").parsed  # type: ignore[arg-type]


def test_all_else_sees_the_present() -> None:
    stage, env, info = staged()
    action = info["admissible_actions"][0]
    expert, history = stage.expert_action(), stage.inner.history()
    stage.probe(action)
    assert len(stage.inner.history()) == 2
    assert stage.expert_action() == expert and stage.inner.history() == history
    stage.probe(action)
    assert stage.foresee(Imagine("look")).query.history == history
    stage.probe(action)
    stage.ground(stage.model)
    assert stage.inner.history() == history and counts(stage) == (3, 3, 0)
    stage.settle()
    assert counts(stage) == (3, 3, 0) and env.taken == 3


def test_probes_are_answered_last_and_so_are_kept() -> None:
    stage, env, info = staged()
    action = info["admissible_actions"][0]
    answers, ahead = Answers(None), stage.foresee(Imagine(action))
    probed, foretold = answers([Probing(stage, action), ahead])
    assert foretold.prediction.observation == probed.observation
    stage.step(action)
    assert counts(stage) == (1, 0, 1)
    several = answers([Probing(stage, "look"), Probing(stage, "inventory")])
    assert [found.observation for found in several] != [several[0].observation] * 2
    assert len(stage.inner.history()) == 3 and stage.restores == 1
    stage.settle()
    assert len(stage.inner.history()) == 2 and env.taken == 3


class Asking:
    """Probes an action, goes on whatever comes of it if it may, and then acts."""

    name = "asking"

    def __init__(self, action: Any, then: str = "look", catches: bool = False):
        self.action, self.then, self.catches = action, then, catches

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        try:
            yield Probe(self.action)
        except EngineError:
            if not self.catches:
                raise
        return Decision(self.then)


class Fragile(ToyEnv):  # type: ignore[misc, valid-type]
    """Breaks at ``burn``."""

    def _act(self, action: str) -> Outcome:
        if action == "burn":
            raise ZeroDivisionError("on fire")
        found: Outcome = super()._act(action)
        return found


def test_a_fault_of_the_engine_ends_the_episode() -> None:
    tasks = ["toy/0", "toy/1"]
    found = run_episodes(lambda: Fragile(max_episode_steps=2), Asking("burn"), tasks, live=1)
    for trajectory in found:
        assert trajectory.error is not None and trajectory.steps == ()
        assert trajectory.error.startswith("EngineError: expected an answer to the probed action")
        assert "'burn'" in trajectory.error and "ZeroDivisionError: on fire" in trajectory.error


def test_a_fault_that_is_caught_leaves_the_episode_where_it_was() -> None:
    agent = Asking("burn", catches=True)
    found = run_episode(Fragile(max_episode_steps=2), agent, task="toy/0")
    plain = run_episode(Fragile(max_episode_steps=2), Asking("open"), task="toy/0")
    assert found.error is None and found.steps == plain.steps and len(found.steps) == 2
    again = run_episode(Fragile(), Asking("burn", "burn", catches=True), task="toy/0")
    assert again.error == "ZeroDivisionError: on fire" and again.steps[0].truncated


class Torn(Counting):
    """A wrapper that itself breaks at ``tear``."""

    def step(self, action: str) -> Any:
        if action == "tear":
            raise RuntimeError("torn")
        return super().step(action)


def test_an_environment_that_broke_is_not_used_again() -> None:
    stage = Stage(Torn(ToyEnv()))
    stage.reset("toy/0", None)
    with pytest.raises(RuntimeError, match="torn"):
        stage.probe("tear")
    assert stage.broken
    made: list[Any] = []

    def make() -> Any:
        made.append(Torn(ToyEnv(max_episode_steps=1)))
        return made[-1]

    found = run_episodes(make, Asking("tear"), ["toy/0", "toy/1"], live=1)
    assert [trajectory.error for trajectory in found] == ["RuntimeError: torn"] * 2
    assert len(made) == 2


class Lost(ToyEnv):  # type: ignore[misc, valid-type]
    """Does not come back to where it was."""

    def _load(self, saved: Any) -> tuple[str, ...]:
        return ("elsewhere",)


def test_an_environment_that_does_not_come_back_is_found_out() -> None:
    found = run_episode(Lost(max_episode_steps=3), Asking("sing"), task="toy/0")
    assert found.error is not None and found.error.startswith("SnapshotError: the engine did not")
    assert found.steps == ()
    stage = Stage(Lost())
    stage.reset("toy/0", None)
    stage.probe("sing")
    with pytest.raises(SnapshotError):
        stage.expert_action()
    assert stage.reset("toy/1", None)[1]["task"] == "toy/1"  # a new start needs no way back


def test_what_cannot_be_probed() -> None:
    imagined = ImaginedEnv(ToyEnv(), "null", horizon=2)
    found = run_episode(imagined, Asking("look"), task="toy/0")
    assert found.error is not None and found.error.startswith("OptionError: a probe needs the real")
    stage = Stage(ToyEnv())
    with pytest.raises(NoEpisode):
        stage.probe("look")
    stage.reset("toy/0", None)
    with pytest.raises(InvalidAction, match="found int"):
        stage.probe(3)  # type: ignore[arg-type]
    assert counts(stage) == (0, 0, 0)
    assert "InvalidAction" in str(run_episode(ToyEnv(), Asking(None), task="toy/0").error)


def test_probes_stand_beside_other_requests() -> None:
    class Mixed:
        name = "mixed"

        def decide(self, view: View) -> Generator[Any, Any, Decision]:
            probed, imagined, other = yield [Probe("look"), Imagine("look"), Probe("inventory")]
            assert isinstance(probed, Probed) and isinstance(other, Probed)
            assert imagined.action == "look" and probed.observation
            return Decision("look", notes={"seen": [probed.observation, other.observation]})

    lm = HashedModel()
    found = run_episodes(
        lambda: limited(2), Mixed(), TASKS[:4], lm=lm, world_model=LanguageWorldModel(lm), live=3
    )
    for trajectory in found:
        assert trajectory.error is None and len(trajectory.steps) == 2
        for step in trajectory.steps:
            assert step.notes["seen"][0] == step.observation
            assert [call.kind for call in step.calls] == ["imagine"]
