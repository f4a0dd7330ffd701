from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import comap
from comap.envs import Panel, restore, snapshot
from comap.envs.conformance.transcripts import load
from comap.errors import (
    DataCorrupt,
    DataNotFound,
    EngineError,
    InvalidAction,
    NoEpisode,
    OptionError,
    SnapshotError,
    TaskNotFound,
)
from comap.facts import Delta, State

TOYS = str(Path(__file__).with_name("toys.py"))
make, toy = load(f"{TOYS}:make"), load(f"{TOYS}:toy")


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
    assert info["error"] == "RuntimeError: the engine broke"
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


def test_reset_options_are_checked() -> None:
    env = toy()
    with pytest.raises(OptionError, match="the option 'tsak'"):
        env.reset(options={"tsak": "toy/0"})
    with pytest.raises(OptionError, match="must be a task id"):
        env.reset(options={"task": 3})
    with pytest.raises(TaskNotFound, match="6 tasks of split 'dev', found 'toy/9'; did you mean"):
        env.reset(options={"task": "toy/9"})
    assert env.reset(seed=4, options={"task": None})[1]["task"] == env.reset(seed=4)[1]["task"]


def test_an_empty_split_is_explained() -> None:
    env = toy()
    env.tasks = Panel.of([], "dev", ("dev",))
    with pytest.raises(DataNotFound, match="expected tasks in split 'dev', found none"):
        env.reset()


def test_the_step_limit_truncates() -> None:
    for env in (toy(max_episode_steps=2), make(max_episode_steps=2)):
        for _ in range(2):
            env.reset(seed=0)
            assert env.step("look")[2:4] == (False, False)
            assert env.step("look")[2:4] == (False, True)
    inner = toy(max_episode_steps=2)
    inner.reset(seed=0)
    assert coin_taken(inner)[2:4] == (True, False), "the end and the limit together: the end"


def test_actions_must_be_text() -> None:
    env = toy()
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=r"found int: 3; .*admissible_actions"):
        env.step(3)
    with pytest.raises(InvalidAction) as caught:
        env.step(b"x" * 10_000)
    assert len(str(caught.value)) < 300


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


@pytest.mark.parametrize("unchecked", [True, False])
def test_restore_needs_no_reset(unchecked: bool) -> None:
    env = make()
    env.reset(seed=3)
    env.step("look")
    moment = pickle.loads(pickle.dumps(snapshot(env)))
    fresh = make(disable_env_checker=unchecked)
    assert restore(fresh, moment)[1] == restore(env, moment)[1]
    assert fresh.step("look") == env.step("look")
    assert fresh.step("look") == env.step("look")


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
    env, other = toy(), toy(colour="red")
    env.reset(seed=0)
    moment = env.snapshot()
    with pytest.raises(SnapshotError, match=r"with \{'colour': 'red'\}, found one of .*'grey'"):
        other.restore(moment)
    with pytest.raises(SnapshotError, match="expected a Snapshot, found str"):
        env.restore("toy/0")
    boxes = env.boxes[:1]
    from dataclasses import replace

    with pytest.raises(SnapshotError, match="admissible actions differ"):
        env.restore(replace(moment, engine=(boxes, False)))
    with pytest.raises(NoEpisode):
        env.step("look")
    with pytest.raises(SnapshotError, match="cannot go back to task 'toy/99': TaskNotFound"):
        env.restore(replace(moment, task="toy/99"))
    env.restore(moment)
    env.step("look")


def test_snapshot_needs_an_episode() -> None:
    with pytest.raises(NoEpisode, match="found none"):
        toy().snapshot()


def test_render() -> None:
    env = make(render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == f"{observation}\n"
    moment = snapshot(env)
    env.step("look")
    assert env.render() == "> look\nNothing changed.\n"
    restore(env, moment)
    assert env.render() == f"{observation}\n"
    silent = toy()
    silent.reset(seed=0)
    assert silent.render() is None


def test_fingerprint() -> None:
    assert toy(colour="red").fingerprint() == {
        "env": "comap-test/Toy-v0",
        "comap": comap.__version__,
        "facts": "toy-1",
        "split": "dev",
        "panel": toy().tasks.sha256,
        "colour": "red",
    }


def test_the_hooks_have_defaults() -> None:
    env: Any = toy()
    base = comap.envs.TextEnv
    assert base.expert_action(env) is None
    assert base.goal_reached(env, State()) is None
    assert base.score_of(env, State()) is None
    assert base.admissible_of(env, State()) is None
    assert base.refused(env, "x") is False
    assert base.settings(env) == {}


OWN_LIMITS = {"ScienceWorld-v0", "SearchQA-v0", "StableToolBench-v0"}
"""Environments that end episodes themselves: by their tasks, turns or calls."""


@pytest.mark.parametrize("name", sorted(OWN_LIMITS - {"ScienceWorld-v0"}))
def test_limits_of_their_own_end_episodes(name: str) -> None:
    env = gymnasium.make(f"comap/{name}")
    env.reset(seed=0)
    ends = [env.step("nothing of any meaning") for _ in range(env.unwrapped._limit)]
    assert [truncated for *_, truncated, _ in ends] == [False] * (len(ends) - 1) + [True]
    assert not any(terminated for _, _, terminated, _, _ in ends)


def test_gymnasium_ids_are_strings_and_unchecked() -> None:
    ours = [spec for spec in gymnasium.registry.values() if spec.namespace == "comap"]
    assert ours
    for spec in ours:
        assert isinstance(spec.entry_point, str), "importing comap must stay cheap"
        assert isinstance(spec.vector_entry_point, str)
        assert spec.disable_env_checker, "the checker breaks after a first reset that raised"
        own = spec.id.partition("/")[2] in OWN_LIMITS
        assert (spec.max_episode_steps is None) == own, "every episode ends"
