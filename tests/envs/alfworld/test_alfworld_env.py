"""`ALFWorldEnv`: tasks, options, dialects, endings, where data are looked for, snapshots."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import comap
from comap.envs import snapshot as take
from comap.envs.alfworld import ALFWorldEnv
from comap.envs.alfworld.expert import plan
from comap.envs.alfworld.wording import DIALECTS, HELP, NOTHING_HAPPENS
from comap.errors import (
    CoMapError,
    DataNotFound,
    InvalidAction,
    NoEpisode,
    OptionError,
    SnapshotError,
    TaskNotFound,
)
from comap.facts import State, diff

ID = "comap/ALFWorld-v0"
SIZES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}


@pytest.fixture
def folder(official, tmp_path):
    """A data folder of our own with ten of the official games."""
    for path in official.files[::383]:
        target = tmp_path / "data" / path.relative_to(official.folder)
        target.parent.mkdir(parents=True)
        shutil.copy(path, target)
    return tmp_path / "data"


@pytest.fixture
def nothing(tmp_path, monkeypatch):
    """A machine without data."""
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    return tmp_path / "home"


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


# Dialects and errors.


def test_the_newer_dialect(folder):
    env = ALFWorldEnv(data_dir=folder)
    _, info = env.reset(options={"task": placing_task(env)})
    assert {"help", "look", "inventory"} <= set(info["admissible_actions"])
    assert env.step("help")[0].startswith("Available commands:")
    goes = [c for c in info["admissible_actions"] if c.startswith("go to ")]
    place = goes[0].removeprefix("go to ")
    assert env.step(goes[0])[0].startswith(f"You arrive at {place}. ")
    texts = win(env)
    assert any(text.startswith("You move the ") and " to the " in text for text in texts)


def win(env):
    texts, ended = [], False
    while not ended:
        text, _, ended, _, _ = env.step(env.expert_action())
        texts.append(text)
    return texts


def placing_task(env):
    return next(task for task in env.tasks.ids if "pick_" in task)


def test_the_older_dialect(folder):
    env = ALFWorldEnv(data_dir=folder, dialect="put")
    _, info = env.reset(options={"task": placing_task(env)})
    assert "help" not in info["admissible_actions"]
    assert env.step("help")[0] == NOTHING_HAPPENS
    location = "loc "
    go = next(c for c in info["admissible_actions"] if c.startswith("go to "))
    text, *_, info = env.step(go)
    assert text.startswith(f"You arrive at {location}")
    assert text.split(". ")[0].removeprefix("You arrive at loc ").isdigit()
    assert ("at", "agent", go.removeprefix("go to ")) in info["facts"].facts
    texts = win(env)
    assert any(text.startswith("You put the ") and " in/on the " in text for text in texts)
    assert not any("You move" in text for text in texts)


def test_dialects_differ_in_words_only(folder):
    envs = [ALFWorldEnv(data_dir=folder, dialect=dialect) for dialect in DIALECTS]
    for task in envs[0].tasks.ids:
        infos = [env.reset(options={"task": task})[1] for env in envs]
        assert infos[0]["facts"] == infos[1]["facts"]
        while not infos[0]["success"]:
            commands = [env.expert_action() for env in envs]
            canonical = {env.canonicalizer.action(c) for env, c in zip(envs, commands, strict=True)}
            assert len(canonical) == 1
            results = [env.step(c) for env, c in zip(envs, commands, strict=True)]
            infos = [result[4] for result in results]
            assert infos[0]["facts"] == infos[1]["facts"]
            assert infos[0]["score"] == infos[1]["score"]
            assert envs[0].engine_facts() == envs[1].engine_facts()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_command_that_does_nothing(folder, dialect):
    """Answered by the same words, with a reason where asked for, and never a change."""
    plain = ALFWorldEnv(data_dir=folder, dialect=dialect)
    told = ALFWorldEnv(data_dir=folder, dialect=dialect, informative_errors=True)
    reasons = set()
    for task in plain.tasks.ids:
        for env in (plain, told):
            env.reset(options={"task": task})
        for command in plan(plain.native_engine()):
            for wrong in wrong_commands(plain):
                before = plain.engine_facts()
                text, reward, *ends, info = plain.step(wrong)
                assert text == NOTHING_HAPPENS, wrong
                assert (reward, *ends, info["invalid_action"]) == (0, False, False, True)
                assert plain.engine_facts() == before
                known = told.state_facts()
                text, *_, info = told.step(wrong)
                assert text.startswith(f"{NOTHING_HAPPENS} "), (wrong, text)
                assert told.refused(text)
                assert info["invalid_action"]
                assert info["facts"] == known
                assert not info["delta"]
                reasons.add(shape(text.removeprefix(f"{NOTHING_HAPPENS} "), told))
            assert plain.step(command)[0] == told.step(command)[0]
    wanted = {
        "There is no X here that can be turned on.",
        "There is no X.",
        "You do not hold a X.",
        "You do not hold the X.",
        "You are already at the X.",
        "The X cannot be opened or closed.",
        "The X is open already.",
        "The X is closed already.",
        "You are not at the X.",
        "There is no X here that the X could slice.",
        "You already hold the X.",
        "The X is closed.",
        "There is no X to take from the X.",
        "The X does not fit in or on the X.",
    }
    hint = " Say help for a list of commands." if dialect == "move" else ""
    assert reasons - {f"The X cannot {verb} the X." for verb in ("clean", "heat", "cool")} == (
        wanted | {f"That is not a command.{hint}"}
    )


def shape(text, env):
    """Return a text with the names in it replaced by X."""
    names = {*env.game.order, "moon 1", "no such 1"}
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "X")
    return text


def wrong_commands(env):
    """Return commands that do nothing now, of all kinds."""
    game, engine = env.game, env.native_engine()
    valid = set(engine.admissible())
    here = game.here.get(engine.location, ())
    things = sorted({o for place in here for o in engine.contents[place]} & game.pickupable)
    put = "move {} to {}" if game.dialect == "move" else "put {} in/on {}"
    other = "put {} in/on {}" if game.dialect == "move" else "move {} to {}"
    held = engine.held or "no such 1"
    commands = ["", "  ", "sing", "LOOK", "go to moon 1", "examine no such 1", "open moon 1"]
    commands += ["use moon 1", "slice moon 1 with no such 1", "look around", "go to", "take"]
    commands += [f"go to {place}" for place in here] + [f"slice moon 1 with {held}"]
    for place in (*here, *game.receptacles[:3], "moon 1"):
        commands += [f"{verb} {place}" for verb in ("open", "close", "examine")]
        commands += [f"take {thing} from {place}" for thing in (*things[:2], "no such 1")]
        commands += [f"{verb} {held} with {place}" for verb in ("clean", "heat", "cool")]
        commands += [put.format(thing, place) for thing in (held, "no such 1")]
        commands += [other.format(held, place)]
    return [command for command in dict.fromkeys(commands) if command.strip() not in valid]


def test_commands_must_be_exact_but_for_blanks_around(folder):
    env = ALFWorldEnv(data_dir=folder)
    _, info = first(env)
    command = next(c for c in info["admissible_actions"] if c.startswith("go to "))
    for wrong in (command.upper(), command.replace(" ", "  ", 1), f"{command}.", f"> {command}"):
        assert env.step(wrong)[4]["invalid_action"]
    assert not env.step(f" \t{command}\n")[4]["invalid_action"]
    with pytest.raises(InvalidAction, match="str"):
        env.step(3)


def test_help_of_generated_games(nothing):
    env = ALFWorldEnv()
    env.reset(seed=0)
    assert env.step("help")[0] == HELP


# Options.


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("split", "valid_sen", "did you mean 'valid_seen'"),
        ("split", "test", "known: 'train'"),
        ("split", None, "split None"),
        ("split", 3, "split 3"),
        ("split", ["train"], "split"),
        ("split", "valid_train", "no generated games of split 'valid_train'"),
        ("engine", "nativ", "did you mean 'native'"),
        ("engine", None, "known: 'native'"),
        ("dialect", "push", "dialect cannot be 'push'"),
        ("dialect", 2, "dialect cannot be 2"),
        ("expert", "planner", "did you mean 'plan'"),
        ("expert", None, "expert cannot be None"),
        ("source", "offical", "did you mean 'official'"),
        ("source", None, "known: 'auto'"),
        ("difficulty", "harder", "did you mean 'hard'"),
        ("difficulty", 3, "difficulty must be"),
        ("difficulty", None, "difficulty must be"),
        ("difficulty", "r1-2.o3-4.f1", "expected receptacles"),
        ("generator_seed", -1, "generator_seed must be"),
        ("generator_seed", 1.5, "generator_seed must be"),
        ("generator_seed", "0", "generator_seed must be"),
        ("generator_seed", True, "generator_seed must be"),
        ("informative_errors", "false", "informative_errors must be True or False"),
        ("informative_errors", None, "informative_errors must be True or False"),
        ("data_dir", 3, "data_dir must name a folder"),
        ("data_dir", b"x", "data_dir must name a folder"),
        ("data_dir", "", "data_dir must name a folder"),
        ("data_dir", "~no-such-user-here/x", "data_dir must name a folder"),
        ("render_mode", "human", "render_mode must be 'ansi'"),
        ("max_text_length", 0, "max_length must be"),
        ("splitt", "train", "did you mean 'split'"),
        ("domain_randomization", True, "no option 'domain_randomization'"),
    ],
)
def test_wrong_options(nothing, option, value, said):
    with pytest.raises(OptionError, match=said):
        ALFWorldEnv(**{option: value})
    if option not in ("render_mode", "max_episode_steps"):
        with pytest.raises(OptionError, match=said):
            gym.make(ID, **{option: value})


def test_options_that_exclude_each_other(nothing, folder):
    for wrong in ({"dialect": "put"}, {"informative_errors": True}):
        with pytest.raises(OptionError, match="textworld"):
            ALFWorldEnv(engine="textworld", **wrong)
    with pytest.raises(OptionError, match="leave one out"):
        ALFWorldEnv(source="generated", data_dir=folder)


def test_before_the_first_reset(nothing):
    env = ALFWorldEnv()
    for call in (
        lambda: env.step("look"),
        env.snapshot,
        env.engine_facts,
        lambda: env.game,
        lambda: env.goal_reached(State()),
    ):
        with pytest.raises(NoEpisode, match="reset"):
            call()
    env.close()
    env.close()


# Fingerprints.


def test_fingerprint_of_official_games(official):
    prints = {}
    for split, size in SIZES.items():
        env = ALFWorldEnv(data_dir=official.folder, split=split)
        prints[split] = env.fingerprint()
        assert prints[split]["games"] == f"official {size}"
        assert len(prints[split]["data"]) == len(prints[split]["panel"]) == 64
        assert prints[split]["comap"] == comap.__version__
    assert prints["train"]["data"] != prints["valid_seen"]["data"]
    expected = {"env": ID, "dialect": "move", "engine": "native", "informative_errors": "false"}
    assert expected.items() <= prints["train"].items()
    env = ALFWorldEnv(
        data_dir=official.folder, split="valid_seen", dialect="put", informative_errors=True
    )
    changed = {"dialect": "put", "informative_errors": "true"}
    assert env.fingerprint() == prints["valid_seen"] | changed


def test_fingerprint_tells_changed_data(folder):
    env = ALFWorldEnv(data_dir=folder)
    before = env.fingerprint()
    assert before["games"] == f"unknown {len(env.tasks)}"
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    assert ALFWorldEnv(data_dir=other).fingerprint() == before
    third = folder.parent / "third"
    shutil.copytree(folder, third)
    path = third / "json_2.1.1" / env.tasks.ids[0] / "game.tw-pddl"
    content = json.loads(path.read_text())
    content["walkthrough"] = []
    path.write_text(json.dumps(content))
    after = ALFWorldEnv(data_dir=third).fingerprint()
    assert {name for name in after if after[name] != before[name]} == {"data"}
    fourth = folder.parent / "fourth"
    shutil.copytree(folder, fourth)
    env = ALFWorldEnv(data_dir=fourth)
    assert env.tasks.ids
    (fourth / "json_2.1.1" / env.tasks.ids[0] / "game.tw-pddl").unlink()
    with pytest.raises(DataNotFound, match="comap data verify alfworld"):
        env.fingerprint()


# Snapshots.


GO_ON = """
import pickle, sys
from comap.envs.alfworld import ALFWorldEnv
folder, file, dialect = sys.argv[1:]
env = ALFWorldEnv(data_dir=folder, dialect=dialect)
with open(file, "rb") as stream:
    moment = pickle.load(stream)
seen = [env.restore(moment)]
while not seen[-1][-1]["success"]:
    seen.append(env.step(env.expert_action()))
with open(file + ".out", "wb") as stream:
    pickle.dump([seen, sorted(env.engine_facts())], stream)
"""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_snapshots_go_on_in_another_process(folder, tmp_path, dialect):
    env = ALFWorldEnv(data_dir=folder, dialect=dialect)
    seen = [first(env)]
    seen.append(env.step(env.expert_action()))
    seen = [(seen[-1][0], seen[-1][-1])]
    file = tmp_path / "moment"
    file.write_bytes(pickle.dumps(take(env)))
    while not seen[-1][-1]["success"]:
        seen.append(env.step(env.expert_action()))
    subprocess.run(
        [sys.executable, "-c", GO_ON, str(folder), str(file), dialect],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        check=True,
    )
    there = pickle.loads(Path(f"{file}.out").read_bytes())
    assert there == [seen, sorted(env.engine_facts())]


def test_snapshots_of_other_settings_are_refused(folder):
    moments = {}
    for dialect in DIALECTS:
        env = ALFWorldEnv(data_dir=folder, dialect=dialect)
        first(env)
        moments[dialect] = env.snapshot()
    with pytest.raises(SnapshotError, match="dialect"):
        env.restore(moments["move"])
    with pytest.raises(SnapshotError, match="Snapshot"):
        env.restore("move")
    assert env.restore(moments["put"])[1]["step"] == 0


def test_snapshots_of_changed_games_are_refused(folder):
    env = ALFWorldEnv(data_dir=folder)
    first(env)
    moment = env.snapshot()
    path = folder / "json_2.1.1" / moment.task / "game.tw-pddl"
    content = json.loads(path.read_text())
    content["walkthrough"] = content["walkthrough"][:1]
    path.write_text(json.dumps(content))
    other = ALFWorldEnv(data_dir=folder)
    with pytest.raises(SnapshotError, match="SHA-256 differs"):
        other.restore(moment)
    with pytest.raises(NoEpisode):
        other.step("look")
    env.reset(seed=0)
    path.unlink()
    fresh = ALFWorldEnv(data_dir=folder)
    with pytest.raises(SnapshotError, match="comap data verify alfworld"):
        fresh.restore(moment)


@pytest.mark.parametrize("engine", [None, {}, {"game": "x"}, 3])
def test_broken_snapshots_are_refused(folder, engine):
    import dataclasses

    env = ALFWorldEnv(data_dir=folder)
    first(env)
    moment = env.snapshot()
    with pytest.raises(SnapshotError):
        env.restore(dataclasses.replace(moment, engine=engine))
    for name in moment.engine:
        partial = {key: value for key, value in moment.engine.items() if key != name}
        with pytest.raises(SnapshotError):
            env.restore(dataclasses.replace(moment, engine=partial))
    assert env.restore(moment)[1]["step"] == 0


# What lasts.


def test_a_game_is_read_once_and_memory_is_flat(official):
    psutil = pytest.importorskip("psutil")
    env = ALFWorldEnv(data_dir=official.folder, split="valid_seen")
    other = ALFWorldEnv(data_dir=official.folder, split="valid_seen")
    first(env)
    first(other)
    assert env.game is other.game
    ids = env.tasks.ids
    process = psutil.Process()

    def round_trip():
        for task in ids:
            env.reset(options={"task": task})
            play(env, ["look", "inventory", "x"])
        return process.memory_info().rss

    for _ in range(2):
        before = round_trip()
    for _ in range(3):
        after = round_trip()
    assert after - before < 8 * 2**20


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


def test_both_experts(folder):
    for expert in ("plan", "explore"):
        env = gym.make(ID, data_dir=folder, expert=expert)
        won = 0
        for task in env.unwrapped.tasks.ids:
            _, info = env.reset(options={"task": task})
            for _ in range(50):
                action = env.unwrapped.expert_action()
                if action is None:
                    break
                *_, ended, _, info = env.step(action)
                if ended:
                    break
            won += info["success"]
        assert won >= len(env.unwrapped.tasks) - (expert == "explore")


def test_all_errors_are_ours(nothing):
    """Whatever is wrong with an option, ``except CoMapError`` is enough."""
    for value in (None, 1.5, b"x", [], {}, object(), "x\x00", "\ud800"):
        for option in ("split", "data_dir", "engine", "dialect", "expert", "source", "difficulty"):
            if option == "data_dir" and value is None:
                continue
            with pytest.raises(CoMapError):
                ALFWorldEnv(**{option: value})
