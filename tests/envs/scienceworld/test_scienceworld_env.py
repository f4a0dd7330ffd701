"""What the environment does with what the simulator says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.envs.conformance.transcripts import record
from comap.envs.scienceworld import engine as gold
from comap.envs.scienceworld.backends import make_simulator
from comap.envs.scienceworld.tasks import SPLITS, open_source, task_table
from comap.errors import NoEpisode, SnapshotError

pytestmark = pytest.mark.usefixtures("simulator")
MENU = "open door"
SHORT = "lifespan-longest-lived/0"


def follow(env: Any, task: str, limit: int = 100) -> tuple[list[str], dict[str, Any]]:
    """Follow the expert as far as it leads; return its actions and the last info."""
    _, info = env.reset(options={"task": task})
    actions: list[str] = []
    while len(actions) < limit and (action := env.unwrapped.expert_action()) is not None:
        actions.append(action)
        info = env.step(action)[-1]
    return actions, info


def test_the_first_observation_is_the_room_and_the_goal_is_the_task(play: Any) -> None:
    ((observation, info),) = play("boil/0")
    assert observation.startswith("This room is called the hallway. In it, you see: \n\tthe agent")
    assert not observation.endswith("\n")
    assert info["goal"].startswith("Your task is to boil water.")
    assert (info["score"], info["choices"], info["failure"]) == (0.0, (), "")
    assert info["admissible_actions"] is None and info["engine_facts"] is None


def test_a_question_is_told_and_a_number_answers_it(play: Any) -> None:
    _, question, answered = play("boil/0", MENU, "2")
    assert question[0].startswith("Ambiguous request")
    assert question[-1]["choices"][2] == "open door between bedroom and hallway"
    assert question[-1]["admissible_actions"] == ("0", "1", "2", "3", "4", "5")
    assert not question[-1]["invalid_action"]
    assert answered[0] == "The door is already open."
    assert (answered[-1]["choices"], answered[-1]["admissible_actions"]) == ((), None)


@pytest.mark.parametrize("reply", ["look around", "", "6", "-1", MENU])
def test_any_other_reply_is_swallowed_and_costs_time(
    shared_env: Any, play: Any, reply: str
) -> None:
    *_, swallowed = play("boil/0", MENU, reply)
    assert swallowed[0].startswith("Unknown action.") and swallowed[-1]["invalid_action"]
    assert swallowed[-1]["choices"] == ()
    assert shared_env.unwrapped.engine.last.ticks == 1
    assert not shared_env.step("inventory")[-1]["invalid_action"]


def test_a_wrong_focus_ends_the_episode_with_nothing(shared_env: Any, play: Any) -> None:
    _, observation = play("find-plant/3", "focus on axe")
    assert observation[:4] == ("You focus on the axe.", -0.08, True, False)
    info = observation[-1]
    assert (info["score"], info["success"]) == (0.0, False) and "below 0" in info["failure"]
    with pytest.raises(NoEpisode):
        shared_env.step("look around")
    assert shared_env.unwrapped.expert_action() is None


def test_the_expert_says_nothing_once_its_path_is_left(shared_env: Any) -> None:
    shared_env.reset(options={"task": SHORT})
    env = shared_env.unwrapped
    first = env.expert_action()
    for idle in ("look around", "fly", "inventory"):
        shared_env.step(idle)
        if env.engine.last.ticks == 0:
            assert env.expert_action() == first
    shared_env.step("wait1")
    assert env.expert_action() is None
    shared_env.reset(options={"task": SHORT})
    shared_env.step(MENU)
    assert env.expert_action() is None, "the open question would swallow its action"


def test_asking_the_expert_changes_nothing(shared_env: Any) -> None:
    actions, _ = follow(shared_env, SHORT)
    assert len(actions) > 3
    plain = [record(*shared_env.reset(options={"task": SHORT}))]
    plain += [record(*shared_env.step(action)) for action in actions]
    records_with_expert = [record(*shared_env.reset(options={"task": SHORT}))]
    for number, action in enumerate(actions):
        if number in (0, 3):
            gold._paths.clear()  # it is worked out again, which starts the simulator anew
        assert shared_env.unwrapped.expert_action() == action
        records_with_expert.append(record(*shared_env.step(action)))
    assert records_with_expert == plain


def test_recorded_gold_paths_reach_the_full_score(shared_env: Any, eto: Path) -> None:
    recorded = json.loads((eto / "gold_paths_sample.json").read_text())
    quick = [path for path in recorded if len(path["gold"]) <= 12]
    assert len(quick) >= 8
    for path in quick[::2]:
        shared_env.reset(options={"task": f"{path['task']}/{path['variation']}"})
        for action in path["gold"]:
            _, _, terminated, _, info = shared_env.step(action)
            if terminated:
                break
        assert info["success"], path["task"]


def test_an_episode_ends_after_the_tasks_own_limit(shared_env: Any, play: Any) -> None:
    limit = task_table()["lifespan-longest-lived"]["limit"]
    answers = play(SHORT, *["inventory"] * limit)
    assert [answer[3] for answer in answers[1:]] == [False] * (limit - 1) + [True]
    assert not answers[-1][2] and answers[-1][-1]["failure"] == ""
    play("boil/0", *["inventory"])
    assert shared_env.unwrapped._limit == task_table()["boil"]["limit"]


def test_asking_changes_nothing_where_upstreams_list_changes_the_world(
    shared_env: Any, eto: Path
) -> None:
    recorded = json.loads((eto / "gold_paths_sample.json").read_text())
    path = next(sample for sample in recorded if sample["task"] == "mendelian-genetics-known-plant")
    engine = shared_env.unwrapped.engine

    def observations_with(ask: Callable[[], object]) -> list[str]:
        shared_env.reset(options={"task": f"{path['task']}/{path['variation']}"})
        observations = []
        for number, action in enumerate(path["gold"][:48]):
            observations.append(shared_env.step(action)[0])
            if number in (3, 9, 20):
                ask()
        return observations

    def ask_everything() -> None:
        for query in (engine.look, engine.inventory, engine.valid, engine.progress, engine.tree):
            query()

    def upstreams_list() -> object:
        return engine._line.simulator.texts("getValidActionObjectCombinations")

    silent = observations_with(lambda: None)
    assert observations_with(ask_everything) == silent
    assert observations_with(upstreams_list) != silent, "bees fly elsewhere"


def test_simplifications_of_one_episode_do_not_reach_the_next(simulator: None) -> None:
    def first_observation(simplification: str) -> str:
        env = gym.make("comap/ScienceWorld-v0", simplification=simplification)
        observation, _ = env.reset(options={"task": "boil/0"})
        env.close()
        return observation

    easy, plain = first_observation("easy"), first_observation("")
    assert "(that is open)" in easy and "(that is closed)" not in easy
    assert "(that is closed)" in plain
    assert (first_observation("easy"), first_observation("")) == (easy, plain)
    assert first_observation("openDoors") == easy


def test_the_table_of_tasks_is_the_simulators(simulator: None) -> None:
    jvm_simulator: Any = make_simulator()
    assert set(jvm_simulator.texts("getTaskNames")) == set(task_table())
    for name, row in task_table().items():
        assert jvm_simulator.call("getTaskMaxVariations", name) == row["variations"], name
    for name in ("boil", "lifespan-longest-lived", "test-conductivity"):
        jvm_simulator.load(name, 0, "easy")
        for split in SPLITS:
            listed = jvm_simulator._guarded(jvm_simulator._server, f"getVariations{split.title()}")
            last = jvm_simulator._guarded(listed, "size") - 1
            ends = [jvm_simulator._guarded(listed, "get", index) for index in (0, last)]
            ids = open_source(split, "upstream").panel.ids
            ours = [int(task.split("/")[1]) for task in ids if task.startswith(f"{name}/")]
            assert ends == [min(ours), max(ours)], (name, split)
    jvm_simulator.close()


def test_a_moment_that_is_not_arrived_at_is_refused(shared_env: Any, play: Any) -> None:
    play("boil/0", "go to kitchen", "look around")
    env = shared_env.unwrapped
    moment = env.snapshot()
    for change in (
        {"actions": ("go to kitchen", "go to hallway")},
        {"answers": "0" * 64},
        {"task": ("boil", 1)},
        {"actions": None},
    ):
        with pytest.raises(SnapshotError):
            env.restore(replace(moment, engine=moment.engine | change))
        with pytest.raises(NoEpisode):
            shared_env.step("look around")
    env.restore(moment)
    assert not shared_env.step("inventory")[3]
