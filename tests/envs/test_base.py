from __future__ import annotations

import pickle
from dataclasses import fields, replace
from typing import Any

import gymnasium
import pytest

import comap  # noqa: F401
from comap.envs import restore, snapshot
from comap.errors import DataCorrupt, EngineError, NoEpisode, OptionError, SnapshotError
from comap.facts import Delta
from kits.toys import make, toy


def coin_taken(env: Any) -> Any:
    env.step(env.get_wrapper_attr("expert_action")())
    return env.step("take coin")


def test_an_episode() -> None:
    env = toy()
    observation, info = env.reset(options={"task": "toy/1"})
    assert observation.startswith("You see a ")
    assert (info["task"], info["split"], info["goal"]) == ("toy/1", "dev", "take the coin")
    assert (info["step"], info["imagined"], info["success"]) == (0, False, False)
    assert info["delta"].added == info["facts"].facts
    observation, reward, terminated, truncated, info = coin_taken(env)
    assert (observation, reward, terminated, truncated) == ("You take the coin.", 1.0, True, False)
    assert (info["step"], info["success"], info["score"]) == (2, True, 1.0)
    assert ("holding", "coin") in info["delta"].added
    assert env.goal_reached(info["facts"])
    assert env.state_facts() is info["facts"]


def test_a_fault_of_the_engine_ends_the_episode() -> None:
    env = make("SometimesBreaks")
    _, before = env.reset(options={"task": "toy/0"})
    env.step("look")
    observation, reward, terminated, truncated, info = env.step("break")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["error"].startswith("RuntimeError: the engine broke (toys.py, line ")
    assert (info["facts"], info["delta"], info["step"]) == (before["facts"], Delta(), 2)
    assert pickle.loads(pickle.dumps(info)) == info
    with pytest.raises(NoEpisode, match="one that has ended"):
        env.step("look")
    _, info = env.reset(options={"task": "toy/0"})
    assert "error" not in info
    assert "error" not in env.step("look")[-1]


def test_a_fault_of_the_canonicalizer_ends_the_episode() -> None:
    env = toy()
    env.reset(seed=0)
    env.canonicalizer = None
    *_, truncated, info = env.step("look")
    assert truncated
    assert info["error"].startswith("AttributeError")


def test_a_broken_task_raises_and_leaves_no_episode() -> None:
    env = make("SometimesBreaks")
    env.reset(options={"task": "toy/0"})
    with pytest.raises(DataCorrupt, match="rubbish"):
        env.reset(options={"task": "toy/4"})
    for call in (lambda: env.step("look"), lambda: snapshot(env)):
        with pytest.raises(NoEpisode, match="found none"):
            call()
    with pytest.raises(EngineError, match="task 'toy/5' to start, found KeyError: 'boxes'"):
        env.reset(options={"task": "toy/5"})
    env.reset(options={"task": "toy/0"})
    env.step("look")


def test_interrupts_are_not_faults() -> None:
    env = toy()
    env.reset(seed=0)

    def interrupt(action: str) -> Any:
        raise KeyboardInterrupt

    env._act = interrupt
    with pytest.raises(KeyboardInterrupt):
        env.step("look")


def test_unknown_options_are_explained() -> None:
    with pytest.raises(OptionError, match=r"Toy-v0 has no option 'rendermode'; .*'render_mode'"):
        toy(rendermode="ansi")
    with pytest.raises(OptionError, match=r"known: .*'max_episode_steps'.*'max_text_length'"):
        toy(zzz=1)
    with pytest.raises(OptionError, match="'ansi' or None, not 'human'"):
        toy(render_mode="human")
    for steps in (0, -3, 1.5, "9", True):
        with pytest.raises(OptionError, match="max_episode_steps"):
            toy(max_episode_steps=steps)
    with pytest.raises(OptionError, match="max_length"):
        toy(max_text_length=0)


def test_the_step_limit_truncates() -> None:
    for env in (toy(max_episode_steps=2), make(max_episode_steps=2)):
        for _ in range(2):
            env.reset(seed=0)
            assert env.step("look")[2:4] == (False, False)
            assert env.step("look")[2:4] == (False, True)
    inner = toy(max_episode_steps=2)
    inner.reset(seed=0)
    assert coin_taken(inner)[2:4] == (True, False), "the end and the limit together: the end"


def test_no_episode_goes_on_after_it_was_truncated() -> None:
    """Nor can it be won then: the limit of ``gym.make`` is outside, and counts too."""
    for env in (toy(max_episode_steps=2), make(max_episode_steps=2)):
        env.reset(seed=0)
        env.step("look")
        assert env.step("look")[3]
        with pytest.raises(NoEpisode, match="one that has ended"):
            coin_taken(env)
        env.reset(seed=0)
        assert not env.step("look")[3]
    copied_env = pickle.loads(pickle.dumps(env))
    assert copied_env.step("look")[3]


def test_an_action_of_absurd_length_is_invalid() -> None:
    env = toy(max_text_length=50)
    env.reset(seed=0)
    long = f"look{' ' * 60}"
    observation, *_, info = env.step(long)
    assert info["invalid_action"] and info["step"] == 1 and env.history()[-1].action == ""
    assert observation == env.step("")[0] != env.step("look")[0]


@pytest.mark.parametrize("options", [5, True, "task", ["task"], {"task": 5}, {5: 5}])
def test_options_that_are_none(options: Any) -> None:
    with pytest.raises(OptionError, match="task"):
        toy().reset(options=options)


def test_restore_sets_the_time_limit_back() -> None:
    env = make(max_episode_steps=4)
    env.reset(seed=0)
    env.step("look")
    moment = snapshot(env)
    for _ in range(3):
        assert [env.step("look")[3] for _ in range(3)] == [False, False, True]
        _, info = restore(env, moment)
        assert info["step"] == 1
    inner = toy(max_episode_steps=4)
    restore(inner, moment)
    assert [inner.step("look")[3] for _ in range(3)] == [False, False, True]


def test_restore_after_the_end_stays_at_the_end() -> None:
    env = make()
    env.reset(seed=3)
    coin_taken(env)
    moment = snapshot(env)
    env.reset(seed=4)
    assert restore(env, moment)[1]["success"]
    with pytest.raises(NoEpisode):
        env.step("look")


def test_restore_is_verified() -> None:
    env, red_env = toy(), toy(colour="red")
    env.reset(seed=0)
    moment = env.snapshot()
    with pytest.raises(SnapshotError, match=r"with \{'colour': 'red'\}, found one of .*'grey'"):
        red_env.restore(moment)
    with pytest.raises(SnapshotError, match="expected a Snapshot, found str"):
        env.restore("toy/0")
    boxes = env.boxes[:1]
    with pytest.raises(SnapshotError, match="admissible actions differ"):
        env.restore(replace(moment, engine=(boxes, False)))
    with pytest.raises(NoEpisode):
        env.step("look")
    with pytest.raises(SnapshotError, match="cannot go back to task 'toy/99': TaskNotFound"):
        env.restore(replace(moment, task="toy/99"))
    env.restore(moment)
    env.step("look")


def test_a_forged_snapshot_is_refused() -> None:
    env = toy(max_episode_steps=3)
    env.reset(seed=0)
    env.step("look")
    moment = env.snapshot()
    for field in fields(moment):
        for value in (None, 5, "x", [], (), object()):
            with pytest.raises(SnapshotError):
                env.restore(replace(moment, **{field.name: value}))
    outcome = moment.outcome
    for forged in (
        replace(moment, task=""),
        replace(moment, step=0),  # more steps than there are
        replace(moment, running=True, outcome=outcome._replace(terminated=True)),
        replace(moment, outcome=outcome._replace(observation="You win.")),
        replace(moment, outcome=outcome._replace(success=1)),
    ):
        with pytest.raises(SnapshotError):
            env.restore(forged)
    env.restore(moment)
    env.step("look")
    env.step("look")
    with pytest.raises(SnapshotError, match="has ended"):
        env.restore(replace(env.snapshot(), running=True))


@pytest.mark.parametrize("name", ["ALFWorld", "WebShop", "StableToolBench", "SearchQA"])
def test_a_forged_success_is_not_believed(name: str) -> None:
    env: Any = gymnasium.make(f"comap/{name}-v0", source="generated").unwrapped
    env.reset(seed=1)
    moments = [env.snapshot()]
    while moments[-1].running:
        env.step(env.expert_action())
        moments.append(env.snapshot())
    for moment in moments:
        env.restore(moment)
        opposite_success = not moment.outcome.success
        for claim in ({"success": opposite_success}, {"score": float(opposite_success)}):
            with pytest.raises(SnapshotError, match="score or success"):
                env.restore(replace(moment, outcome=moment.outcome._replace(**claim)))
    assert moments[-1].outcome.success
