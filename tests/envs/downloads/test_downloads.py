"""`get`: a data set is there whole, as the catalogue says, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.envs.datasets import DataSet, catalogue
from comap.envs.downloads import Progress, comap_home, data_path, get, is_installed
from comap.envs.storage import locked
from comap.envs.transfer import Patience, fetch
from comap.envs.verification import MANIFEST, verify
from comap.errors import CoMapError, DataCorrupt, DownloadError

QUICK = Patience(attempts=3, pause=0.01, timeout=0.4, lock=10)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }


def leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir() if path.name != ".toy.lock")


def test_get_downloads_checks_unpacks_and_tells_how_far_it_is(site: Any, toy: DataSet, home: Path):
    told: list[Progress] = []
    path = get(toy, patience=QUICK, progress=told.append)
    assert path == home / "toy" == data_path("toy")
    assert tree(path) == site.files
    assert leftovers(home) == ["toy"]
    assert verify(toy).ok and verify(toy).manifest
    assert list(dict.fromkeys(p.stage for p in told)) == ["downloading", "unpacking", "checking"]
    done = [p for p in told if p.stage == "downloading"]
    assert done[0].done == 0 and done[-1].done == done[-1].total == len(site.body)
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["archive"]["sha256"] == hashlib.sha256(site.body).hexdigest()


def test_get_asks_nothing_of_the_network_if_the_data_set_is_there(site: Any, toy: DataSet):
    get(toy, patience=QUICK)
    get(toy, patience=QUICK)
    assert len(site.requests) == 1
    get(toy, patience=QUICK, force=True)
    assert len(site.requests) == 2


def test_data_put_there_by_hand_are_used_if_they_are_right(site: Any, toy: DataSet, home: Path):
    with zipfile.ZipFile(io.BytesIO(site.body)) as archive:
        archive.extractall(home / "toy")
    assert get(toy) == home / "toy"
    assert not site.requests
    (home / "toy/root/dev/task-0/trial/game.txt").write_text("mine")
    with pytest.raises(DataCorrupt, match=r"comap did not put there; .* get toy --force"):
        get(toy)
    assert not site.requests
    get(toy, force=True, patience=QUICK)
    assert tree(home / "toy") == site.files
    assert leftovers(home) == ["toy"]


def test_wrong_bytes_are_removed(site: Any, toy: DataSet, home: Path):
    right = hashlib.sha256(site.body).hexdigest()
    known = replace(toy, sha256=right)
    site.body = site.body[:-1] + b"x"
    with pytest.raises(DataCorrupt, match=rf"expected SHA-256 {right} .* found .*data get toy"):
        get(known, patience=QUICK)
    assert leftovers(home) == []
    site.body = site.pack(site.files)
    assert get(replace(toy, sha256=hashlib.sha256(site.body).hexdigest()), patience=QUICK).is_dir()


def test_a_truncated_body_of_unknown_length_is_no_archive(site: Any, toy: DataSet, home: Path):
    site.fail({"no_length": True, "cut": 100_000})
    with pytest.raises(DataCorrupt, match="expected a whole zip or tar archive"):
        get(toy, patience=QUICK)
    assert leftovers(home) == []
    site.fail({"no_length": True})
    assert tree(get(toy, patience=QUICK)) == site.files


def test_other_content_is_refused_unless_allowed(site: Any, toy: DataSet, home: Path):
    site.body = site.pack({**site.files, "root/dev/task-0/trial/game.txt": b"other"})
    with pytest.raises(DataCorrupt, match=r"\(dev: 3 of 3, content differs\).*--allow-changed"):
        get(toy, patience=QUICK)
    assert leftovers(home) == []
    path = get(toy, patience=QUICK, allow_changed=True)
    assert (path / "root/dev/task-0/trial/game.txt").read_text() == "other"
    assert not verify(toy).ok


@pytest.mark.parametrize("no_length", [False, True])
def test_a_download_that_is_too_large_is_stopped(
    site: Any, toy: DataSet, home: Path, no_length: bool
):
    site.fail({"no_length": no_length})
    small = replace(toy, limits=replace(toy.limits, download_bytes=1000))
    with pytest.raises(DataCorrupt, match="expected at most 1000 bytes"):
        get(small, patience=QUICK)
    assert leftovers(home) == []


CHILD = """
import os, signal, sys
sys.path[:0] = {path!r}
from comap.envs.datasets import *
from comap.envs.downloads import get
from comap.envs.transfer import Patience
toy = {toy!r}
def tell(progress):
    if progress.stage == {stage!r} and progress.done >= {done}:
        os.kill(os.getpid(), signal.SIGKILL)
print(get(toy, patience=Patience(attempts=3, pause=.01, timeout=5, lock=30), progress=tell))
"""


def child(toy: DataSet, stage: str = "", done: int = 0) -> subprocess.Popen[str]:
    code = CHILD.format(path=sys.path, toy=toy, stage=stage, done=done)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills need POSIX signals")
@pytest.mark.parametrize(
    ("stage", "done", "requests"),
    [("downloading", 60_000, 2), ("unpacking", 2, 1), ("checking", 2, 1)],
)
def test_a_kill_leaves_nothing_half_done(
    site: Any, toy: DataSet, home: Path, stage: str, done: int, requests: int
):
    if stage == "downloading":
        site.fail({"cut": 65_000})
    process = child(toy, stage, done)
    process.communicate(timeout=20)
    assert process.returncode == -9
    assert not (home / "toy").exists()
    assert tree(get(toy, patience=QUICK)) == site.files
    assert len(site.requests) == requests
    assert leftovers(home) == ["toy"]


def test_an_interrupt_leaves_nothing_half_done(toy: DataSet, home: Path):
    def interrupt(progress: Progress) -> None:
        if progress.stage == "unpacking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(toy, patience=QUICK, progress=interrupt)
    assert leftovers(home) == [".toy.part", ".toy.part.json"]


def test_a_kill_between_two_renames_gives_the_old_data_back(site: Any, toy: DataSet, home: Path):
    get(toy, patience=QUICK)
    (home / "toy").rename(home / ".toy.old")
    get(toy, patience=QUICK)
    assert len(site.requests) == 1
    assert verify(toy).ok and leftovers(home) == ["toy"]


def test_two_processes_download_once(site: Any, toy: DataSet, home: Path):
    both = [child(toy), child(toy)]
    outputs = [process.communicate(timeout=20)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs == [str(home / "toy")] * 2
    assert len(site.requests) == 1


def test_waiting_for_another_process_ends(tmp_path: Path):
    told: list[Progress] = []
    start = time.monotonic()
    with (
        locked(tmp_path / "lock", wait=0),
        pytest.raises(DownloadError, match="another process holding"),
        locked(tmp_path / "lock", wait=0.2, progress=told.append),
    ):
        pass
    assert time.monotonic() - start < 5
    assert [progress.stage for progress in told] == ["waiting"]
    with locked(tmp_path / "lock", wait=0):
        pass


def test_a_home_that_is_a_file(toy: DataSet, home: Path):
    home.write_text("")
    with pytest.raises(DownloadError, match="COMAP_HOME"):
        get(toy)


def test_a_home_that_cannot_be_written_to(toy: DataSet, home: Path):
    home.mkdir(mode=0o500)
    if os.access(home, os.W_OK):
        pytest.skip("this user may write anywhere")
    with pytest.raises(DownloadError, match="set COMAP_HOME to a folder that you may write to"):
        get(toy)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    part = tmp_path / "x.part"
    monkeypatch.setattr(Path, "touch", lambda self: self.symlink_to("/dev/full"))
    with pytest.raises(DownloadError, match="free some space"):
        fetch(f"{site.url}/x", part, max_bytes=1 << 20, patience=QUICK)
    assert len(site.requests) == 1


def test_the_home(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COMAP_HOME")
    assert comap_home() == Path.home() / ".cache/comap"
    monkeypatch.setenv("COMAP_HOME", "~/elsewhere")
    assert comap_home() == Path.home() / "elsewhere"
    monkeypatch.setenv("COMAP_HOME", "")
    assert comap_home() == Path.home() / ".cache/comap"


def test_alfworld_is_in_the_catalogue():
    alfworld = catalogue()["alfworld"]
    assert {split.name: split.items for split in alfworld.splits} == {
        "train": 3553,
        "valid_train": 200,
        "valid_seen": 140,
        "valid_unseen": 134,
    }
    assert not is_installed("alfworld")
    assert issubclass(DownloadError, CoMapError) and issubclass(DownloadError, OSError)
