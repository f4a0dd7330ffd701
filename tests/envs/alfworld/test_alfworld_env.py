"""`ALFWorldEnv`: tasks and splits, where data are looked for, endings and scores."""

from __future__ import annotations

import shutil

import gymnasium as gym
import pytest

from comap.envs.alfworld import ALFWorldEnv
from comap.envs.alfworld.expert import plan
from comap.envs.alfworld.wording import DIALECTS
from comap.errors import (
    NoEpisode,
    OptionError,
    TaskNotFound,
)
from comap.facts import diff

ID = "comap/ALFWorld-v0"
SIZES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}


def play(env, commands):
    return [env.step(command) for command in commands]


def first(env):
    return env.reset(options={"task": env.tasks.ids[0]})


# Tasks and splits.


@pytest.mark.parametrize("split", SIZES)
def test_official_splits(official, split):
    env = gym.make(ID, data_dir=official.folder, split=split)
    tasks = env.unwrapped.tasks
    assert len(tasks) == SIZES[split]
    assert set(tasks.splits) == set(SIZES)
    assert tasks.split == split
    assert all(task.startswith(f"{split}/") and task.count("/") == 2 for task in tasks.ids)
    assert list(tasks.ids) == sorted(tasks.ids)
    task = tasks.ids[-1]
    observation, info = env.reset(options={"task": task})
    assert (info["task"], info["split"]) == (task, split)
    assert observation.endswith(f"\n\nYour task is to: {info['goal']}")
    assert (official.root / task / "game.tw-pddl").is_file()
    env.close()


def test_seeds_choose_official_tasks(official):
    env = ALFWorldEnv(data_dir=official.folder, split="valid_seen")
    drawn = [env.reset(seed=seed)[1]["task"] for seed in range(30)]
    assert drawn == [env.reset(seed=seed)[1]["task"] for seed in range(30)]
    assert len(set(drawn)) > 20
    assert len({env.reset()[1]["task"] for _ in range(30)}) > 20


@pytest.mark.parametrize(
    "task",
    [
        "",
        "..",
        "../..",
        "valid_seen/../valid_unseen",
        "valid_seen/../../../etc/passwd",
        "/etc/passwd",
        "valid_seen",
        "valid_seen//",
        "C:\\games",
        "\x00",
        "valid_seen/\x00/x",
        "\ud800",
        "x" * 10_000,
        "generated/valid_seen/normal/0-000000",
    ],
)
def test_tasks_that_are_not_there(official, task):
    env = ALFWorldEnv(data_dir=official.folder, split="valid_seen")
    with pytest.raises(TaskNotFound, match=r"expected one of the 140 tasks of split 'valid_seen'"):
        env.reset(options={"task": task})
    with pytest.raises(NoEpisode):
        env.step("look")
    assert env.reset(seed=0)[1]["split"] == "valid_seen"


def test_tasks_of_other_splits_and_near_misses(official):
    env = ALFWorldEnv(data_dir=official.folder, split="valid_seen")
    other = ALFWorldEnv(data_dir=official.folder, split="train").tasks.ids[0]
    with pytest.raises(TaskNotFound, match=r"env\.unwrapped\.tasks\.ids"):
        env.reset(options={"task": other})
    task = env.tasks.ids[0]
    for near in (task[:-1], f"{task}/", f"{task}/game.tw-pddl", f"./{task}"):
        with pytest.raises(TaskNotFound, match="did you mean"):
            env.reset(options={"task": near})


@pytest.mark.parametrize(
    "task",
    [
        "",
        "../..",
        "/etc/passwd",
        "\x00",
        "generated",
        "generated/train/normal/0-0",
        "generated/train/normal/00-000000",
        "generated/train/normal/0-000000/",
        "generated/train/normal/-1-000000",
        "generated/train/no such/0-000000",
        "generated/train/r1-2.o1-1.f1/0-000000",
        "generated/valid_train/normal/0-000000",
        "generated/train/normal/0-" + "9" * 5_000,
        "generated/train/normal/0-00000²",
    ],
)
def test_generated_tasks_that_cannot_be(nothing, task):
    env = ALFWorldEnv()
    with pytest.raises(TaskNotFound, match="generated"):
        env.reset(options={"task": task})


@pytest.mark.parametrize("options", [{"tasks": "x"}, {"task": 3}, {"task": b"x"}, {"seed": 1}])
def test_reset_options(nothing, options):
    with pytest.raises(OptionError, match="task"):
        ALFWorldEnv().reset(options=options)


def test_generated_games_where_there_are_no_data(nothing):
    for split, size in SIZES.items():
        env = ALFWorldEnv(split=split)
        assert len(env.tasks) == size
        _, info = env.reset(seed=3)
        assert info["task"].startswith(f"generated/{split}/normal/0-")
        assert info["split"] == split
        assert env.fingerprint()["games"] == "generated normal, seed 0"
    task = "generated/train/hard/77-123456"  # any generated task of any size can be asked for
    assert env.reset(options={"task": task})[1]["task"] == task
    hard = ALFWorldEnv(difficulty="hard", generator_seed=5)
    assert hard.tasks.ids[0] == "generated/train/hard/5-000000"
    assert hard.fingerprint()["games"] == "generated hard, seed 5"
    assert hard.fingerprint()["panel"] != ALFWorldEnv().fingerprint()["panel"]


# Where data are looked for.


def test_data_dir(folder, nothing):
    for given in (folder, str(folder), folder / "json_2.1.1", f"{folder}/"):
        env = ALFWorldEnv(data_dir=given)
        assert not first(env)[1]["task"].startswith("generated/")


def test_comap_home(folder, nothing):
    nothing.mkdir()
    folder.rename(nothing / "alfworld")
    assert not ALFWorldEnv().tasks.ids[0].startswith("generated/")
    assert ALFWorldEnv(source="generated").tasks.ids[0].startswith("generated/")
    assert not ALFWorldEnv(source="official").tasks.ids[0].startswith("generated/")


def test_alfworld_data(folder, nothing, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(folder))
    assert not ALFWorldEnv().tasks.ids[0].startswith("generated/")
    monkeypatch.setenv("ALFWORLD_DATA", str(folder / "nowhere"))
    assert ALFWorldEnv().tasks.ids[0].startswith("generated/")
    monkeypatch.setenv("ALFWORLD_DATA", "")
    assert ALFWorldEnv().tasks.ids[0].startswith("generated/")


def test_comap_home_goes_before_alfworld_data(folder, nothing, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(folder))
    everything = len(ALFWorldEnv().tasks)
    game = next((folder / "json_2.1.1" / "train").glob("*/*"))
    shutil.copytree(game, nothing / "alfworld" / game.relative_to(folder))
    assert len(ALFWorldEnv().tasks) == 1 < everything
    assert len(ALFWorldEnv(data_dir=folder).tasks) == everything


def test_home_abbreviations(folder, nothing, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("USERPROFILE", str(folder.parent))
    assert not ALFWorldEnv(data_dir="~/data").tasks.ids[0].startswith("generated/")
    monkeypatch.setenv("ALFWORLD_DATA", "~/data")
    assert not ALFWorldEnv().tasks.ids[0].startswith("generated/")


def test_other_files_are_no_games(folder):
    """Upstream leaves out sliced and movable ones, and so do we; stray files do no harm."""
    train = folder / "json_2.1.1" / "train"
    game = next(train.glob("*/*/game.tw-pddl"))
    before = ALFWorldEnv(data_dir=folder).tasks.ids
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    train = other / "json_2.1.1" / "train"
    for name in ("pick_and_place_with_movable_recep-A-B-C-1", "look_at_obj-AppleSliced-None-D-2"):
        (train / name / "trial").mkdir(parents=True)
        shutil.copy(game, train / name / "trial" / "game.tw-pddl")
    (train / "notes.txt").write_text("x")
    (train / "empty" / "trial").mkdir(parents=True)
    assert ALFWorldEnv(data_dir=other).tasks.ids == before


# Endings and scores.


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_win_terminates(folder, dialect):
    env = gym.make(ID, data_dir=folder, dialect=dialect)
    for task in env.unwrapped.tasks.ids:
        _, info = env.reset(options={"task": task})
        assert (info["score"] < 1, info["success"], info["invalid_action"]) == (True, False, False)
        while True:
            facts, command = info["facts"], env.unwrapped.expert_action()
            _, reward, terminated, truncated, info = env.step(command)
            assert info["delta"] == diff(facts, info["facts"])
            assert not truncated
            assert info["success"] == terminated == (reward == 1) == (info["score"] == 1)
            met, total = env.unwrapped.native_engine().conditions()
            assert info["score"] == met / total
            if terminated:
                break
            assert reward == 0
            assert info["admissible_actions"] == tuple(sorted(set(info["admissible_actions"])))
        assert env.unwrapped.expert_action() is None
        with pytest.raises(NoEpisode):
            env.unwrapped.step("look")


def test_the_step_limit_truncates(folder):
    env = gym.make(ID, data_dir=folder)
    env.reset(seed=0)
    ends = [result[2:4] for result in play(env, ["look"] * 50)]
    assert ends == [(False, False)] * 49 + [(False, True)]
    env = gym.make(ID, data_dir=folder, max_episode_steps=3)
    env.reset(seed=0)
    assert [result[3] for result in play(env, ["look", "nonsense", "help"])] == [False, False, True]
    env = ALFWorldEnv(data_dir=folder, max_episode_steps=2)
    env.reset(seed=0)
    assert [result[3] for result in play(env, ["", "look"])] == [False, True]
    with pytest.raises(NoEpisode):
        env.step("look")


def test_a_win_at_the_limit_is_a_win(folder):
    env = ALFWorldEnv(data_dir=folder)
    first(env)
    length = len(plan(env.native_engine()))
    env = ALFWorldEnv(data_dir=folder, max_episode_steps=length)
    first(env)
    for _ in range(length):
        result = env.step(env.expert_action())
    assert result[2:4] == (True, False)


def test_scores_count_goal_conditions(official):
    """Partial scores appear, of the right size, in each family that has parts."""
    seen = {}
    for split in ("valid_seen", "valid_unseen"):
        env = ALFWorldEnv(data_dir=official.folder, split=split)
        for task in env.tasks.ids:
            _, info = env.reset(options={"task": task})
            while not info["success"]:
                info = env.step(env.expert_action())[4]
                seen.setdefault(env.game.goal.family, set()).add(round(info["score"], 3))
            believed = env.score_of(info["facts"])
            assert 0 <= believed <= 1
            assert (believed == 1) == env.goal_reached(info["facts"])
    assert seen["pick_and_place_simple"] == {0.0, 1.0}
    assert seen["look_at_obj_in_light"] >= {0.5, 1.0}
    assert seen["pick_two_obj_and_place"] >= {0.5, 1.0}
    for family in ("clean", "heat", "cool"):
        assert seen[f"pick_{family}_then_place_in_recep"] >= {0.0, 0.333, 1.0}
        assert seen[f"pick_{family}_then_place_in_recep"] <= {0.0, 0.333, 0.667, 1.0}
