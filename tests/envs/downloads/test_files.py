"""Data sets that are files: `get`, `check`, and what the list of official data says."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.agents.tally import Tally
from comap.benchmarks.official import check
from comap.cli import main
from comap.cli.main import understood
from comap.envs import data
from comap.envs.data import get
from comap.envs.datasets import (
    DataFile,
    DataSet,
    catalogue,
    data_sets_of,
    find,
    licenses_in_words,
)
from comap.errors import DataCorrupt, DownloadError, OptionError
from comap.facts import State
from comap.integrations.cards import Results
from comap.trajectory import Trajectory
from kits.archives import LIMITS

BODY = b'{"id": 1}\n{"id": 2}\n\n{"id": 3}\n'
SHA = hashlib.sha256(BODY).hexdigest()
BENCHMARKS = ("alfworld", "scienceworld", "webshop", "stabletoolbench", "searchqa", "web")


@pytest.fixture
def lists(site: Any) -> DataSet:
    site.body = BODY
    files = (
        DataFile("a.jsonl", f"{site.url}/a.jsonl", len(BODY), SHA, 3),
        DataFile("sub/b.jsonl", f"{site.url}/b.jsonl", None, None, 3),
    )
    return DataSet("lists", "Lists", limits=LIMITS, files=files, license="MIT", folder="shared")


def stored_files(home: Path) -> list[str]:
    names = (path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.endswith(".lock"))


def test_files_are_got_once_and_others_in_the_folder_stay(site: Any, lists: DataSet, home: Path):
    (home / "shared").mkdir(parents=True)
    (home / "shared" / "mine.json").write_text("mine")
    stages = set()
    assert get(lists, progress=lambda progress: stages.add(progress.stage)) == home / "shared"
    assert stored_files(home) == ["shared/a.jsonl", "shared/mine.json", "shared/sub/b.jsonl"]
    assert stages == {"downloading a.jsonl", "downloading b.jsonl"}
    get(lists)
    assert site.requests == ["/a.jsonl", "/b.jsonl"]
    get(lists, mirror=f"{site.url}/elsewhere/", force=True)
    assert site.requests[2:] == ["/elsewhere/a.jsonl", "/elsewhere/b.jsonl"]
    assert str(check(lists)).splitlines()[1:] == [
        "  a.jsonl: 3 records, content matches",
        "  sub/b.jsonl: 3 records, SHA-256 not known",
    ]


def test_a_download_that_broke_off_goes_on_with_the_next_file(
    site: Any, lists: DataSet, home: Path
):
    site.fail({}, *[{"cut": 5}] * 4)
    with pytest.raises(DownloadError, match=r"b.jsonl"):
        get(lists)
    assert stored_files(home) == ["shared/a.jsonl"]
    checked = check(lists)
    assert checked.state == "missing" and not replace(checked, data_set=lists).ok
    assert "sub/b.jsonl: missing" in str(checked) and "comap data get lists\n" in f"{checked}\n"
    site.requests.clear()
    get(lists)
    assert site.requests == ["/b.jsonl"] and check(lists).ok


def test_other_content_is_refused_and_removed(site: Any, lists: DataSet, home: Path):
    site.body = BODY.replace(b"1", b"9")
    with pytest.raises(DataCorrupt, match=rf"expected SHA-256 {SHA} of .*a.jsonl, found"):
        get(lists)
    site.body = BODY + b'{"id": 4}\n'
    with pytest.raises(DownloadError, match=f"expected at most {len(BODY)} bytes"):
        get(lists)
    unknown = replace(lists, files=lists.files[1:])
    with pytest.raises(DataCorrupt, match=r"found 4 records, not 3; .*--allow-changed"):
        get(unknown)
    assert stored_files(home) == []
    get(unknown, allow_changed=True)
    assert stored_files(home) == ["shared/sub/b.jsonl"]
    with pytest.raises(DataCorrupt, match=r"found 4 records, not 3; move .*get lists --force"):
        get(unknown)
    checked = check(unknown)
    assert checked.state == "wrong" and "comap data get lists --force" in str(checked)


def test_a_full_disk_leaves_nothing(
    site: Any, lists: DataSet, home: Path, monkeypatch: pytest.MonkeyPatch
):
    real = data._download

    def full(url: str, target: Path, *rest: Any) -> None:
        real(url, target, *rest)
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(data, "_download", full)
    with pytest.raises(DownloadError, match=r"No space left on device; free some space"):
        get(lists)
    assert stored_files(home) == []


def test_what_no_command_downloads_has_steps():
    with pytest.raises(OptionError, match=r"its steps:\n  pip install gdown"):
        get("webshop")
    with pytest.raises(OptionError, match="stabletoolbench has one release"):
        get("stabletoolbench", release="two")


# What the list says.


def test_every_benchmark_is_listed_with_license_and_source():
    for name in BENCHMARKS:
        assert data_sets_of(name), name
    for data_set in catalogue().values():
        assert data_set.benchmark in gymnasium.registry
        for text in (data_set.title, data_set.license, data_set.size, data_set.fallback):
            assert text, data_set.name
        assert data_set.license_source.startswith("https://")
        assert data_set.url or data_set.files or data_set.steps, "a way to get it"
        for step in data_set.steps:
            if step.startswith("comap "):
                understood(shlex.split(step)[1:])
        for file in data_set.files:
            assert re.search(r"/[0-9a-f]{40}/", file.url), "an address whose content stays"
            assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.sha256 or file.records, "something to compare"


def test_on_an_empty_machine_all_are_missing_and_ways_told(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "verify", "stabletoolbench"]) == 1
    assert main(["data", "verify", "webvoyager"]) == 0, "official tasks need none of it"
    assert main(["data", "list"]) == 0
    output = capsys.readouterr().out
    for data_set in catalogue().values():
        assert f"{data_set.name}: {data_set.title}\n  license: {data_set.license}\n" in output
    assert "stabletoolbench in" in output and "webvoyager in" in output
    assert "comap data get stabletoolbench\n" in output
    assert "hf download stabletoolbench/Cache" in output


# What is there is checked by the code that plays it.


def query(number: int) -> dict[str, Any]:
    return {"query_id": number, "query": "What is the weather?", "api_list": []}


def test_a_task_is_loaded_from_checked_files(home: Path):
    folder = home / "stabletoolbench"
    (folder / "test_instruction").mkdir(parents=True)
    file = DataFile("test_instruction/G1_instruction.json", "", records=2)
    queries = replace(find("stabletoolbench"), files=(file,))
    path = folder / file.path
    path.write_text(json.dumps([query(1), query(2)]))
    checked = check(queries)
    assert checked.ok and checked.lines[-1].startswith("a task loads: G1_instruction/")
    path.write_text(json.dumps([query(1), {"query_id": 2}]))
    checked = check(queries)
    assert not checked.ok and "a task does not load: expected a query at place 1" in str(checked)
    live = home / "web"
    live.mkdir()
    line = '{"id": "Shop--0", "ques": "Which lamp?", "web": "http://shop.test/"}\n'
    (live / "WebVoyager_data.jsonl").write_text(line)
    file = DataFile("WebVoyager_data.jsonl", "", records=1)
    assert check(replace(find("webvoyager"), files=(file,))).lines[-1] == "1 tasks load"


def test_a_built_catalog_is_checked_and_played(home: Path):
    from comap.envs.webshop.generate import embedded_catalog

    assert check(find("webshop")).state == "missing"
    shutil.copytree(embedded_catalog().folder, home / "webshop")
    checked = check(find("webshop"))
    assert checked.ok and "a task loads: synthetic/" in str(checked)


# Licenses go with results.


def test_summaries_and_cards_name_the_licenses_of_official_data_alone():
    tasks = ("valid_seen/kitchen/1", "generated/valid_seen/normal/0-1")
    episodes = [
        Trajectory("comap/ALFWorld-v0", task, "valid_seen", "goal", "random", "Hello.", State())
        for task in tasks
    ]
    summary = Tally.of(episodes).summary()
    assert [(part["data"], part["tasks"]) for part in summary["data"]] == [
        ("alfworld", 1),
        ("generated", 1),
    ]
    assert licenses_in_words(summary["data"]) == "alfworld: MIT"

    def card(*episodes: Trajectory) -> str:
        results = Results()
        for episode in episodes:
            results.add(episode)
        return "\n".join(results.parts())

    assert "| `alfworld` | ALFWorld's text games" in card(*episodes)
    assert "| MIT | https://github.com/alfworld" in card(*episodes)
    assert "## Data" not in card(episodes[1]) and "Generated tasks are comap's" in card(episodes[1])
