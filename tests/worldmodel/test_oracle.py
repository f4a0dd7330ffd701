"""The oracle: what it says at the edges of an episode, and that nobody notices it was asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import RandomAgent, run_episode
from comap.envs import restore, snapshot
from comap.envs.alfworld import ALFWorldEnv
from comap.errors import WorldModelError
from comap.trajectory import Turn
from comap.worldmodel import ImaginedEnv, OracleWorldModel, Query, imagine


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


TASKS = real().unwrapped.tasks.ids  # type: ignore[attr-defined]


def grounded(env: gym.Env[str, str]) -> OracleWorldModel:
    model = OracleWorldModel()
    model.ground(env)
    return model


def query_of(env: gym.Env[str, str], *actions: str) -> Query:
    """Return a query for the last action, after the others in imagination."""
    inner: Any = env.unwrapped
    history = (*inner.history(), *(Turn(action, "imagined") for action in actions[:-1]))
    return Query(inner.env_id, inner.goal, history, inner.state_facts(), actions[-1])


def expert_actions(env: gym.Env[str, str], task: str) -> list[str]:
    env.reset(options={"task": task})
    actions: list[str] = []
    over = False
    while not over:
        actions.append(env.get_wrapper_attr("expert_action")())
        over = env.step(actions[-1])[2]
    return actions


@pytest.mark.parametrize("broken_at", [1, 3])
def test_a_fault_in_the_middle_of_a_replay_leaves_no_trace(
    broken_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = real(render_mode="ansi")
    _, info = env.reset(seed=5)
    env.step(info["admissible_actions"][0])
    model, inner = grounded(env), env.unwrapped
    before, shown, facts = snapshot(env), env.render(), env.get_wrapper_attr("state_facts")()
    luck = inner.np_random.bit_generator.state
    act, count = inner._act, 0  # type: ignore[attr-defined]

    def breaks(action: str) -> Any:
        nonlocal count
        count += 1
        if count == broken_at:
            raise RuntimeError("engine on strike")
        return act(action)

    monkeypatch.setattr(inner, "_act", breaks)
    query = query_of(env, "look", "inventory", "help")
    with pytest.raises(WorldModelError, match="engine on strike"):
        model.predict([query])
    monkeypatch.undo()
    assert (snapshot(env), env.render()) == (before, shown)
    assert env.get_wrapper_attr("state_facts")() == facts
    assert inner.np_random.bit_generator.state == luck
    assert env.get_wrapper_attr("_elapsed_steps") == 1
    assert model.predict([query])[0].observation.startswith("Available commands")
    assert env.step("look")[4]["step"] == 2


def test_after_the_true_end_it_says_that_the_episode_is_over() -> None:
    env = real()
    actions = expert_actions(env, TASKS[0])
    env.reset(options={"task": TASKS[0]})
    model = grounded(env)
    (last,) = model.predict([query_of(env, *actions)])
    assert (last.terminated, last.reward) == (True, 1.0)
    for extra in (["look"], ["look", "inventory"]):
        (told,) = model.predict([query_of(env, *actions, *extra)])
        assert (told.observation, told.terminated, told.reward) == (last.observation, True, 0.0)
        assert told.info is not None and told.info["success"] and told.info["invalid_action"]
    assert env.step(actions[0])[4]["step"] == 1


def test_an_ended_episode_can_still_be_asked_about() -> None:
    env = real()
    expert_actions(env, TASKS[0])
    told = imagine(env, "look")
    assert told.prediction.terminated and told.goal_reached
    assert not told.delta.added and not told.delta.removed


def test_it_knows_no_step_limit_but_imagination_keeps_to_it() -> None:
    limited = ALFWorldEnv(split="valid_seen", source="generated", max_episode_steps=3)
    imagined = ImaginedEnv(limited, "oracle")
    assert imagined.horizon == 3
    imagined.reset(seed=1)
    assert [imagined.step("look")[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    longer = ImaginedEnv(limited, "oracle", horizon=5)
    longer.reset(seed=1)
    answers = [longer.step(action) for action in ("look", "help", "look", "help", "look")]
    assert [answer[2:4] for answer in answers] == [(False, False)] * 4 + [(False, True)]
    assert answers[3][0] == answers[1][0] and answers[4][0] == answers[0][0]
    assert limited.history() == limited.history()[:1], "the real episode did not move"


def test_more_steps_than_it_remembers() -> None:
    env, imagined = real(max_episode_steps=-1), ImaginedEnv(real(max_episode_steps=-1), "oracle")
    assert imagined.horizon is None
    _, info = env.reset(options={"task": TASKS[2]})
    imagined.reset(options={"task": TASKS[2]})
    places = [a for a in info["admissible_actions"] if a.startswith("go to")]
    for number in range(300):
        action = places[number * 7 % len(places)]
        assert imagined.step(action)[0] == env.step(action)[0]


def test_a_question_about_another_episode_is_refused() -> None:
    env, other = real(), real()
    env.reset(options={"task": TASKS[0]})
    other.reset(options={"task": TASKS[7]})
    model = grounded(env)
    with pytest.raises(WorldModelError, match="does not go on from the real episode"):
        model.predict([query_of(other, "look")])
    query = query_of(env, "look")
    env.step("look")
    model.ground(env)
    with pytest.raises(WorldModelError, match="does not go on from the real episode"):
        model.predict([query])


def test_one_oracle_for_two_imagined_episodes_is_noticed() -> None:
    model = OracleWorldModel()
    first, second = ImaginedEnv(real(), model), ImaginedEnv(real(), model)
    first.reset(options={"task": TASKS[0]})
    second.reset(options={"task": TASKS[7]})
    assert "does not go on" in first.step("look")[4]["error"]
    assert "error" not in second.step("look")[4]


def test_it_answers_for_the_moment_it_was_told_even_after_the_real_episode_moved() -> None:
    env = real()
    _, info = env.reset(options={"task": TASKS[3]})
    model, query = grounded(env), query_of(env, "inventory")
    wanted = model.predict([query])
    env.step(info["admissible_actions"][0])
    here = snapshot(env)
    assert model.predict([query]) == wanted
    assert snapshot(env) == here
    env.reset(options={"task": TASKS[4]})
    assert model.predict([query]) == wanted
    assert env.step("look")[4]["task"] == TASKS[4]


def test_a_snapshot_that_does_not_fit_is_no_harm() -> None:
    env = real()
    env.reset(seed=0)
    model, here = grounded(env), snapshot(env)
    model._moments[()] = replace(here, engine=object())
    with pytest.raises(Exception, match="cannot go back"):
        model.predict([query_of(env, "look")])
    assert snapshot(env) == here
    restore(env, here)


def test_random_play_is_foreseen_whole() -> None:
    env, watched = real(), real()
    for number, task in enumerate(TASKS[:3]):
        actions = [s.action for s in run_episode(env, RandomAgent(number, 0.3), task=task).steps]
        watched.reset(options={"task": task})
        for action in actions[:15]:
            ahead = imagine(watched, action)
            observation, reward, terminated, _, info = watched.step(action)
            said = ahead.prediction
            assert (ahead.observation, ahead.facts) == (observation, info["facts"])
            assert (said.reward, said.terminated) == (reward, terminated)
            assert said.info is not None
            assert all(info[key] == value for key, value in said.info.items())
