"""Experiments on world models: what is scored, and against what."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.benchmarks.imagination import predicted, replay, rollouts, success
from comap.errors import OptionError
from comap.metrics import delta_f1_report
from comap.trajectory import Trajectory
from comap.worldmodel import ImaginedEnv, NoisyWorldModel, NullWorldModel, OracleWorldModel


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    env = real()
    agents = (ExpertAgent(), RandomAgent(1, 0.2))
    return [run_episode(env, agent, seed=seed) for seed in range(6) for agent in agents]


def test_delta_f1_falls_as_errors_rise(episodes: list[Trajectory]) -> None:
    rates = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)
    for kinds in (("drop",), ("swap",), ("invent",), ("drop", "swap", "invent")):
        models = {str(rate): NoisyWorldModel(rate, kinds) for rate in rates}
        found = predicted(real(), models, episodes)  # type: ignore[arg-type]
        means = [delta_f1_report(found[str(rate)]).mean for rate in rates]
        assert means[0] == 1.0
        assert means == sorted(set(means), reverse=True), (kinds, means)


def test_rows_are_the_real_transitions(episodes: list[Trajectory]) -> None:
    calls = 0

    def advance() -> None:
        nonlocal calls
        calls += 1

    models = {"oracle": OracleWorldModel(), "null": NullWorldModel()}
    found = predicted(real(), models, episodes, advance)  # type: ignore[arg-type]
    steps = [pair for trajectory in episodes for pair in trajectory.transitions()]
    assert calls == len(episodes)
    for rows in found.values():
        assert [(row[0], row[2]) for row in rows] == [(b, step.facts) for b, step in steps]
    assert all(guess == after for _, guess, after in found["oracle"])
    assert all(guess.facts == before.facts for before, guess, _ in found["null"])


def test_rollouts_of_the_oracle_are_exact_to_the_end(episodes: list[Trajectory]) -> None:
    models = {"oracle": OracleWorldModel(), "noisy": NoisyWorldModel(0.5)}
    lengths = (1, 3, 9)
    found = rollouts(real(), models, episodes, lengths)  # type: ignore[arg-type]
    for point in found["oracle"]:
        assert (point.delta_f1, point.exact, point.stderr) == (1.0, 1.0, 0.0)
    for point in found["noisy"]:
        assert point.delta_f1 < 1.0 and point.exact < 1.0
    for length, point in zip(lengths, found["oracle"], strict=True):
        wanted = sum(len(range(0, len(t.steps) - length + 1, 4)) for t in episodes)
        assert (point.length, point.n) == (length, wanted)
    assert rollouts(real(), models, [], lengths)["oracle"] == []  # type: ignore[arg-type]


@pytest.mark.parametrize("lengths", [(), (0,), (2, -1)])
def test_bad_lengths(lengths: tuple[int, ...], episodes: list[Trajectory]) -> None:
    with pytest.raises(OptionError, match="lengths"):
        rollouts(real(), {"null": NullWorldModel()}, episodes, lengths)


def test_success_and_replay() -> None:
    env = real()
    tasks = env.unwrapped.tasks.ids[:4]  # type: ignore[attr-defined]
    rate, found = success(env, ExpertAgent(), tasks)
    assert (rate.value, rate.n, len(found)) == (1.0, 4, 4)
    imagined, _ = success(ImaginedEnv(real(), "null"), RandomAgent(), tasks)
    assert imagined.value == 0.0
    again = replay(real(), found[0], NullWorldModel())
    assert [s.observation for s in again.steps] == [s.observation for s in found[0].steps]
    assert {s.prediction.observation for s in again.steps if s.prediction} == {"Nothing happens."}


def test_environments_of_others_are_refused(episodes: list[Trajectory]) -> None:
    with pytest.raises(OptionError, match="CartPole"):
        predicted(gym.make("CartPole-v1"), {"null": NullWorldModel()}, episodes)  # type: ignore[arg-type]
