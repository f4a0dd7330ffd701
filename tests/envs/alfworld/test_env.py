"""`ALFWorldEnv`: fingerprints, snapshots, and what lasts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest

from comap.envs.alfworld import ALFWorldEnv
from comap.envs.alfworld.expert import plan
from comap.envs.alfworld.goal import DIALECTS, NOTHING_HAPPENS
from comap.errors import DataNotFound, NoEpisode, SnapshotError
from comap.facts import diff

ID = "comap/ALFWorld-v0"
SIZES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}


def first(env):
    return env.reset(options={"task": env.tasks.ids[0]})


# Tasks and splits.


@pytest.mark.parametrize("split", SIZES)
def test_official_splits(official, split):
    env = gym.make(ID, data_dir=official.folder, split=split)
    assert env.spec.max_episode_steps == 50
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


def test_generated_games_where_there_are_no_data(no_data):
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


def test_data_dir(folder, no_data):
    for data_dir in (folder, str(folder), folder / "json_2.1.1", f"{folder}/"):
        env = ALFWorldEnv(data_dir=data_dir)
        assert not first(env)[1]["task"].startswith("generated/")


@pytest.mark.parametrize("name", ["json_2.1.2", "json_2.1.3"])
def test_a_folder_is_found_under_the_names_of_other_releases(name, copied, no_data, monkeypatch):
    renamed_copy = copied("other")
    (renamed_copy / "json_2.1.1").rename(renamed_copy / name)
    tasks = ALFWorldEnv(data_dir=renamed_copy).tasks.ids
    monkeypatch.setenv("ALFWORLD_DATA", str(renamed_copy))
    assert ALFWorldEnv(source="official").tasks.ids == tasks and tasks


def test_other_files_are_no_games(folder, copied):
    """Upstream leaves out sliced and movable ones, and so do we; stray files do no harm."""
    train = folder / "json_2.1.1" / "train"
    game = next(train.glob("*/*/game.tw-pddl"))
    before = ALFWorldEnv(data_dir=folder).tasks.ids
    copy_with_strays = copied("other")
    train = copy_with_strays / "json_2.1.1" / "train"
    for name in ("pick_and_place_with_movable_recep-A-B-C-1", "look_at_obj-AppleSliced-None-D-2"):
        (train / name / "trial").mkdir(parents=True)
        shutil.copy(game, train / name / "trial" / "game.tw-pddl")
    (train / "notes.txt").write_text("x")
    (train / "empty" / "trial").mkdir(parents=True)
    assert ALFWorldEnv(data_dir=copy_with_strays).tasks.ids == before


# Endings and scores.


def test_a_win_terminates_in_dialects_that_differ_in_words_only(folder):
    envs = [gym.make(ID, data_dir=folder, dialect=dialect) for dialect in DIALECTS]
    bare = [env.unwrapped for env in envs]
    for task in bare[0].tasks.ids:
        infos = [env.reset(options={"task": task})[1] for env in envs]
        assert not infos[0]["success"] and infos[0]["score"] < 1
        while not infos[0]["success"]:
            facts, commands = infos[0]["facts"], [env.expert_action() for env in bare]
            canonical = {env.canonicalizer.action(c) for env, c in zip(bare, commands, strict=True)}
            assert len(canonical) == 1
            results = [env.step(c) for env, c in zip(envs, commands, strict=True)]
            infos = [result[4] for result in results]
            assert infos[0]["delta"] == diff(facts, infos[0]["facts"])
            for env, (_, reward, terminated, truncated, info) in zip(bare, results, strict=True):
                assert not truncated
                assert info["success"] == terminated == (reward == 1) == (info["score"] == 1)
                met_conditions, total = env.native_engine().conditions()
                assert info["score"] == met_conditions / total
                listed = info["admissible_actions"]
                assert listed == tuple(sorted(set(listed)))
            assert infos[0]["facts"] == infos[1]["facts"]
            assert bare[0].engine_facts() == bare[1].engine_facts()
        for env in bare:
            assert env.expert_action() is None
            with pytest.raises(NoEpisode):
                env.step("look")


def test_scores_count_goal_conditions(official):
    """Partial scores appear, of the right size, in each family that has parts."""
    scores_by_family = {}
    for split in ("valid_seen", "valid_unseen"):
        env = ALFWorldEnv(data_dir=official.folder, split=split)
        for task in env.tasks.ids:
            _, info = env.reset(options={"task": task})
            while not info["success"]:
                info = env.step(env.expert_action())[4]
                scores_by_family.setdefault(env.game.goal.family, set()).add(
                    round(info["score"], 3)
                )
            believed = env.score_of(info["facts"])
            assert 0 <= believed <= 1
            assert (believed == 1) == env.goal_reached(info["facts"])
    assert scores_by_family["pick_and_place_simple"] == {0.0, 1.0}
    assert scores_by_family["look_at_obj_in_light"] >= {0.5, 1.0}
    assert scores_by_family["pick_two_obj_and_place"] >= {0.5, 1.0}
    for family in ("clean", "heat", "cool"):
        assert scores_by_family[f"pick_{family}_then_place_in_recep"] >= {0.0, 0.333, 1.0}
        assert scores_by_family[f"pick_{family}_then_place_in_recep"] <= {0.0, 0.333, 0.667, 1.0}


# Dialects and errors.


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_command_that_does_nothing(folder, dialect):
    """Answered by the same words, and never a change."""
    env = ALFWorldEnv(data_dir=folder, dialect=dialect)
    for task in env.tasks.ids:
        env.reset(options={"task": task})
        for command in plan(env.native_engine()):
            for wrong in wrong_commands(env):
                before, facts_before = env.engine_facts(), env.state_facts()
                text, reward, *ends, info = env.step(wrong)
                assert text == NOTHING_HAPPENS, wrong
                assert env.refused(text)
                assert (reward, *ends, info["invalid_action"]) == (0, False, False, True)
                assert env.engine_facts() == before
                assert info["facts"] == facts_before
                assert not info["delta"]
            env.step(command)


def wrong_commands(env):
    """Return commands that do nothing now, of all kinds."""
    game, engine = env.game, env.native_engine()
    valid = set(engine.admissible())
    nearby_places = game.here.get(engine.location, ())
    things = sorted(
        {o for place in nearby_places for o in engine.contents[place]} & game.pickupable
    )
    put = "move {} to {}" if game.dialect == "move" else "put {} in/on {}"
    foreign_put = "put {} in/on {}" if game.dialect == "move" else "move {} to {}"
    held_thing = engine.held or "no such 1"
    commands = ["", "  ", "sing", "LOOK", "go to moon 1", "examine no such 1", "open moon 1"]
    commands += ["use moon 1", "slice moon 1 with no such 1", "look around", "go to", "take"]
    commands += [f"go to {place}" for place in nearby_places] + [f"slice moon 1 with {held_thing}"]
    for place in (*nearby_places, *game.receptacles[:3], "moon 1"):
        commands += [f"{verb} {place}" for verb in ("open", "close", "examine")]
        commands += [f"take {thing} from {place}" for thing in (*things[:2], "no such 1")]
        commands += [f"{verb} {held_thing} with {place}" for verb in ("clean", "heat", "cool")]
        commands += [put.format(thing, place) for thing in (held_thing, "no such 1")]
        commands += [foreign_put.format(held_thing, place)]
    return [command for command in dict.fromkeys(commands) if command.strip() not in valid]


@pytest.fixture
def copied(folder):
    """A function that copies the data folder."""
    return lambda name: shutil.copytree(folder, folder.parent / name)


def test_fingerprint_tells_changed_data(folder, copied):
    env = ALFWorldEnv(data_dir=folder)
    before = env.fingerprint()
    assert before["games"] == f"unknown {len(env.tasks)}"
    changed, incomplete = copied("changed"), copied("gone")
    assert ALFWorldEnv(data_dir=copied("other")).fingerprint() == before
    game = Path("json_2.1.1") / env.tasks.ids[0] / "game.tw-pddl"
    content = json.loads((changed / game).read_text())
    (changed / game).write_text(json.dumps(content | {"walkthrough": []}))
    after = ALFWorldEnv(data_dir=changed).fingerprint()
    assert {name for name in after if after[name] != before[name]} == {"data"}
    env = ALFWorldEnv(data_dir=incomplete)
    assert env.tasks.ids
    (incomplete / game).unlink()
    with pytest.raises(DataNotFound, match="comap data verify alfworld"):
        env.fingerprint()


@pytest.mark.parametrize("engine", [None, {}, {"game": "x"}, 3])
def test_broken_snapshots_are_refused(folder, engine):
    env = ALFWorldEnv(data_dir=folder)
    first(env)
    moment = env.snapshot()
    with pytest.raises(SnapshotError):
        env.restore(replace(moment, engine=engine))
    for name in moment.engine:
        partial = {key: value for key, value in moment.engine.items() if key != name}
        with pytest.raises(SnapshotError):
            env.restore(replace(moment, engine=partial))
    assert env.restore(moment)[1]["step"] == 0


# What lasts.


def test_a_changed_game_is_read_anew(folder):
    env = ALFWorldEnv(data_dir=folder)
    _, info = first(env)
    path = folder / "json_2.1.1" / info["task"] / "game.tw-pddl"
    content = json.loads(path.read_text())
    content["grammar"] = content["grammar"].replace(info["goal"], "do the impossible")
    path.write_text(json.dumps(content))
    assert first(env)[1]["goal"] == "do the impossible"
    # A task that nobody can read is still played; only the explorer does not know what to do.
    env = ALFWorldEnv(data_dir=folder, expert="explore")
    first(env)
    assert env.expert_action() is None
