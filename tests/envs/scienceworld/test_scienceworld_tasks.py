"""Tasks, splits and limits; no simulator is needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.envs.scienceworld.tasks import SPLITS, open_source, task_table
from comap.errors import DataCorrupt, DataNotFound, TaskNotFound

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))

SIZES = {"train": 3592, "dev": 1796, "test": 1819}
SHA = {
    "train": "99e6cd1bfec2cf36cca156eaa9e0c605aa589d2def7b49b3b383b55bb273fc86",
    "dev": "89676950e9307b93fb67f4e1fc7a61d1f1da5e8119ef8a0b14939d728cce766b",
    "test": "447c2214a6be7c442e77fb8eeff30cd3d2ee9bf59ef19f0a2f22b58209c1fa54",
}


def ids_of(split: str, splits: str = "upstream", folder: Path | None = None) -> set[str]:
    return set(open_source(split, splits, folder).panel.ids)


def test_upstreams_splits_are_apart_and_complete() -> None:
    ids_by_split = {split: ids_of(split) for split in SPLITS}
    assert {split: len(ids) for split, ids in ids_by_split.items()} == SIZES
    assert {split: open_source(split, "upstream").panel.sha256 for split in SPLITS} == SHA
    assert len(set.union(*ids_by_split.values())) == sum(SIZES.values()) == 7207
    assert {"boil/0", "boil/13"} <= ids_by_split["train"] and "boil/14" in ids_by_split["dev"]
    assert {"boil/21", "boil/29"} <= ids_by_split["test"] and "boil/30" not in ids_by_split["test"]


def test_etos_lists_and_their_overlaps_are_as_documented(eto: Path) -> None:
    ids_by_split = {split: ids_of(split, "eto", eto) for split in SPLITS}
    assert [len(ids_by_split[split]) for split in SPLITS] == [1483, 194, 211]
    assert ids_by_split["dev"] <= ids_of("dev") and ids_by_split["test"] <= ids_of("test")
    assert (
        len(ids_by_split["train"] - ids_of("train"))
        == len(ids_by_split["train"] & ids_of("dev"))
        == 357
    )
    assert len(ids_by_split["train"] & ids_by_split["dev"]) == 54
    assert not ids_by_split["test"] & (ids_by_split["train"] | ids_by_split["dev"])
    assert len({task.partition("/")[0] for ids in ids_by_split.values() for task in ids}) == 24


def test_etos_lists_are_found_in_comap_home(
    eto: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"max_steps\.json.*data_dir"):
        open_source("dev", "eto")
    shutil.copytree(eto, tmp_path / "scienceworld")
    assert len(open_source("dev", "eto").panel) == 194


@pytest.mark.parametrize("content", [*CASES["broken_lists"], "[" * 100_000])
def test_broken_lists_are_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "max_steps.json").write_text('{"task-1-boil": 100}')
    (tmp_path / "dev_indices.json").write_text('[["task-1-boil", 3]]')
    assert open_source("dev", "eto", tmp_path).panel.ids == ("boil/3",)
    (tmp_path / "dev_indices.json").write_text(content)
    with pytest.raises(DataCorrupt, match=r"dev_indices\.json"):
        open_source("dev", "eto", tmp_path)


@pytest.mark.parametrize("content", ['{"boil": 0}', '{"boil": "9"}', '{"toil": 9}', "[]"])
def test_broken_limits_are_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "max_steps.json").write_text(content)
    (tmp_path / "dev_indices.json").write_text("[]")
    with pytest.raises(DataCorrupt, match=r"max_steps\.json"):
        open_source("dev", "eto", tmp_path)


def test_without_electrical_actions_there_are_no_electrical_tasks() -> None:
    env: Any = gym.make("comap/ScienceWorld-v0", simplification="openDoors,noElectricalAction")
    names = {task.partition("/")[0] for task in env.unwrapped.tasks}
    assert set(task_table()) - names == {
        "power-component",
        "power-component-renewable-vs-nonrenewable-energy",
        "test-conductivity",
        "test-conductivity-of-unknown-substances",
    }
    with pytest.raises(TaskNotFound):
        env.reset(options={"task": "power-component/0"})


def test_some_tasks_alone_can_be_played() -> None:
    env: Any = gym.make("comap/ScienceWorld-v0", split="dev", task_names="melt,boil").unwrapped
    assert {task.partition("/")[0] for task in env.tasks} == {"boil", "melt"}
    assert len(env.tasks) == 14 and env._limit_of(None) == 110
    whole: Any = gym.make("comap/ScienceWorld-v0", split="dev").unwrapped
    assert env.fingerprint() != whole.fingerprint()
    with pytest.raises(TaskNotFound):
        env.reset(options={"task": "freeze/14"})
