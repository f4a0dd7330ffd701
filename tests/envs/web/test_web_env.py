"""`WebEnv`: options, refusals, the expert after detours, what infos say, and what facts foresee."""

from __future__ import annotations

import inspect
import pickle
import random
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.envs.panel import evenly
from comap.envs.web.env import WebEnv
from comap.envs.web.kinds import GeneratedWebEnv, LiveWebEnv, MiniWobEnv
from comap.errors import OptionError
from comap.facts import State, diff
from comap.metrics import delta_f1


def make(**options: Any) -> Any:
    return gymnasium.make("comap/Web-v0", **options).unwrapped


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"benchmark": "miniwob", "engine": "twin"}, "use engine='chromium'"),
        ({"observation": "viewport", "engine": "twin"}, "no layout.*use engine='chromium'"),
        ({"render_mode": "rgb_array", "engine": "twin"}, "use engine='chromium'"),
        ({"render_mode": "human"}, "'ansi' or 'rgb_array' or None"),
        ({"engine": "twins"}, "did you mean 'twin'"),
        ({"benchmark": "embeded"}, "did you mean 'embedded'"),
        ({"observation": 3}, "observation cannot be 3"),
        ({"split": "tests"}, "did you mean 'test'"),
        ({"level": 0}, "level must be a whole number from 1 to 3"),
        ({"sites": ["shpo"]}, "did you mean 'shop'"),
        ({"sites": 5}, "sites must be names"),
        ({"sites": [["shop"]]}, "sites must be names"),
        ({"level": 1, "benchmark": "miniwob"}, "level and sites are for benchmark='embedded'"),
        ({"splits": "test"}, "did you mean 'split'"),
    ],
)
def test_wrong_options(options: dict[str, Any], phrase: str) -> None:
    with pytest.raises(OptionError, match=phrase):
        WebEnv(**options)


def test_one_door_makes_the_kind_that_plays_a_benchmark(tmp_path: Path, browser: str) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "1", "ques": "What is it?", "web": "http://shop.test/"}')
    for kind, options in (
        (GeneratedWebEnv, {"split": "test"}),
        (MiniWobEnv, {"benchmark": "miniwob", "browser": browser}),
        (LiveWebEnv, {"benchmark": "webvoyager", "tasks": tasks}),
    ):
        env = make(**options)
        assert type(env) is type(WebEnv(**options)) is type(kind(**options)) is kind
        assert env.spec.kwargs == options and env.spec.entry_point == "comap.envs.web:WebEnv"
        copied = pickle.loads(pickle.dumps(env))
        assert type(copied) is kind and copied.fingerprint() == env.fingerprint()
        env.close()
    with pytest.raises(OptionError, match=r"known: .miniwob."):
        MiniWobEnv(benchmark="embedded")


def test_the_class_says_which_options_all_kinds_have() -> None:
    options = set(inspect.signature(WebEnv).parameters)
    for kind in (GeneratedWebEnv, MiniWobEnv, LiveWebEnv):
        assert set(inspect.signature(kind).parameters) - {"options"} <= options
    assert WebEnv.takes("split") and not WebEnv.takes("expert")


def test_refusals_are_told_and_show_the_same_page() -> None:
    env = make(split="test")
    observation, info = env.reset(seed=3)
    assert info["refused"] == ""
    for action, reason in (
        ("open the door", "no action can be read of it"),
        ("click [99]", "there is no line [99]"),
        ("goto [https://example.org/]", "is not allowed"),
    ):
        same_page, reward, terminated, _, info = env.step(action)
        assert (same_page, reward, terminated, info["invalid_action"]) == (
            observation,
            0.0,
            False,
            True,
        )
        assert reason in info["refused"] and not len(info["delta"])
    assert env.step("wait")[4]["refused"] == ""


def test_what_infos_say_of_the_page() -> None:
    env = make(split="test")
    env.reset(options={"task": next(task for task in env.tasks if "/map-time/" in task)})
    info = env.step("click [link 'Route']")[4]
    assert (info["url"], info["title"], info["answer"]) == ("map.test/route", "Route - Map", None)
    observation, _, terminated, _, info = env.step("stop [I don't know]")
    assert observation == r"Answer: 'I don\'t know'" and terminated
    assert (info["answer"], info["url"], info["admissible_actions"]) == ("I don't know", "", ())


def test_numbers_and_names_do_the_same() -> None:
    by_name, by_number = make(split="valid"), make(split="valid")
    task = next(task for task in by_name.tasks if "/shop-order/" in task)
    by_name.reset(options={"task": task}), by_number.reset(options={"task": task})
    plan = by_name.wanted.plan
    for action in plan:
        numbered = action
        for line in by_number.history()[-1].observation.split("\n"):
            number, _, name = line.strip().partition("] ")
            target = action[action.find("[") + 1 : action.find("]")]
            if name.startswith(target):
                numbered = action.replace(f"[{target}]", f"{number}]", 1)
        answers = by_name.step(action)[0], by_number.step(numbered)[0]
        assert answers[0] == answers[1] and (numbered != action or action == plan[-1])
        assert by_name.expert_action() == by_number.expert_action()
    assert by_number.state_facts() == by_name.state_facts()


def test_the_expert_finds_the_way_back() -> None:
    env, rng = make(split="valid", max_episode_steps=80), random.Random(0)
    for task in evenly(env.tasks.ids, 30):
        _, info = env.reset(options={"task": task})
        terminated = False
        while not terminated:
            action = env.expert_action()
            if env._steps in (1, 2, 5):  # lost for a while, but nothing is changed on the sites
                links = [
                    option
                    for option in info["admissible_actions"]
                    if option.startswith("click [link")
                ]
                action = rng.choice([*links, "goback", "restart", "click [999]"])
            _, _, terminated, truncated, info = env.step(action)
            assert not truncated, (task, action)
        assert info["success"], task


def test_snapshots_keep_the_expert_and_the_key_nodes() -> None:
    env, fresh = make(split="test"), make(split="test")
    env.reset(options={"task": next(task for task in env.tasks if "/home-order/" in task)})
    for _ in range(9):
        env.step(env.expert_action())
    moment, score = env.snapshot(), env._outcome.score
    _, info = fresh.restore(moment)
    assert info["score"] == score > 0 and fresh.expert_action() == env.expert_action()
    for _ in range(4):
        *_, info = fresh.step(fresh.expert_action())
    assert info["success"]


def guesses(env: Any, seeds: range) -> dict[str, list[float]]:
    """Return the Delta-F1 of cheap guesses of what follows, over expert and random actions."""
    scores: dict[str, list[float]] = {"nothing": [], "address": []}
    rng = random.Random(0)
    for seed in seeds:
        _, info = env.reset(seed=seed)
        terminated = False
        while not terminated and env._steps < 12:
            before = info["facts"]
            action = (
                env.expert_action()
                if rng.random() < 0.7
                else rng.choice(info["admissible_actions"])
            )
            observation, _, terminated, _, info = env.step(action)
            if len(info["delta"]):
                address = observation.split("\n", 1)[0] + "\n[1] RootWebArea ''"
                guess = env.canonicalizer.update(before, action, address)
                scores["nothing"].append(delta_f1(before, before, info["facts"]))
                scores["address"].append(delta_f1(before, guess, info["facts"]))
    return scores


def test_the_right_address_alone_earns_little() -> None:
    scores = guesses(make(split="test"), range(12))
    assert max(scores["nothing"]) == 0.0
    assert sum(scores["address"]) / len(scores["address"]) < 0.35


def test_leaving_a_page_and_coming_back_changes_two_facts() -> None:
    env = make(split="test")
    env.reset(options={"task": next(task for task in env.tasks if "/shop-status/" in task)})
    env.step("click [link 'Cart']")
    before = env.state_facts()
    env.step("goback")
    assert len(diff(before, env.state_facts())) == 2
    assert isinstance(before, State)
