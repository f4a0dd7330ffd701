"""`ALFWorldEnv`: fingerprints, snapshots, and what lasts."""

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
from comap.envs.alfworld.wording import DIALECTS
from comap.errors import (
    CoMapError,
    DataNotFound,
    NoEpisode,
    SnapshotError,
)

ID = "comap/ALFWorld-v0"
SIZES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}


def play(env, commands):
    return [env.step(command) for command in commands]


def first(env):
    return env.reset(options={"task": env.tasks.ids[0]})


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
