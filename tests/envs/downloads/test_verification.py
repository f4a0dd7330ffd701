"""`verify` says what is missing, extra or changed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from comap.envs.archives import unpack
from comap.envs.datasets import DataSet, catalogue
from comap.envs.downloads import get
from comap.envs.transfer import Patience
from comap.envs.verification import fingerprint, verify
from comap.errors import DataNotFound

QUICK = Patience(attempts=3, pause=0.01, timeout=0.4, lock=10)
SHARED = Path(__file__).parents[4] / "shared"


@pytest.fixture
def folder(site: Any, tmp_path: Path) -> Path:
    for name, content in site.files.items():
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "made"


def test_verify_of_a_right_folder(toy: DataSet, folder: Path):
    report = verify(toy, folder)
    assert report.ok and not report.manifest
    assert [split.content for split in report.splits] == ["matches", "matches", "unknown"]
    assert "more: not there (optional)" in str(report)


def test_verify_by_numbers_and_content(toy: DataSet, folder: Path):
    game = folder / "root/dev/task-1/trial/game.txt"
    game.write_text("changed")
    dev = verify(toy, folder).splits[0]
    assert (dev.found, dev.missing, dev.extra, dev.changed, dev.content) == (
        3,
        0,
        0,
        None,
        "differs",
    )
    game.unlink()
    dev = verify(toy, folder).splits[0]
    assert (dev.found, dev.missing, dev.extra, dev.ok) == (2, 1, 0, False)
    for n in (7, 8):
        (folder / f"root/dev/task-{n}/trial").mkdir(parents=True)
        (folder / f"root/dev/task-{n}/trial/game.txt").write_text("new")
    report = verify(toy, folder)
    assert (report.splits[0].found, report.splits[0].extra, report.splits[0].ok) == (4, 1, False)
    assert report.splits[1].ok and not report.ok
    assert "dev: 4 of 3, 1 extra, content differs" in str(report)


def test_verify_with_a_manifest_names_what_is_wrong(toy: DataSet, home: Path):
    get(toy, patience=QUICK)
    trial = home / "toy/root/dev"
    (trial / "task-0/trial/game.txt").unlink()
    (trial / "task-1/trial/game.txt").write_text("changed")
    (trial / "task-8/trial").mkdir(parents=True)
    (trial / "task-8/trial/game.txt").write_text("new")
    dev = verify(toy).splits[0]
    assert (dev.found, dev.missing, dev.extra, dev.changed) == (3, 1, 1, 1)
    assert dev.examples == (
        "missing: dev/task-0/trial",
        "extra: dev/task-8/trial",
        "changed: dev/task-1/trial",
    )


def test_verify_of_nothing(toy: DataSet, folder: Path):
    with pytest.raises(DataNotFound, match=r"found no such folder; run: comap data get toy"):
        verify(toy)
    with pytest.raises(
        DataNotFound, match=r"'root'\), found 'blob.bin', 'dev', 'test'; give the folder"
    ):
        verify(toy, folder / "root")


def test_the_content_of_a_split_does_not_depend_on_order():
    assert fingerprint({"b": "2", "a": "1"}) == fingerprint({"a": "1", "b": "2"})
    assert fingerprint({"a": "1"}) == hashlib.sha256(b"a 1\n").hexdigest()


def test_the_shared_official_games_are_those_of_the_catalogue(tmp_path: Path):
    archive = SHARED / "data/alfworld/games.tar.xz"
    if not archive.exists():
        pytest.skip("the shared copy of ALFWorld's games is not on this machine")
    wanted = catalogue()["alfworld"]
    unpack(archive, tmp_path / "new", wanted.limits)
    report = verify("alfworld", tmp_path / "new")
    assert report.ok
    assert {split.split: split.found for split in report.splits if split.content == "matches"} == {
        "train": 3553,
        "valid_seen": 140,
        "valid_unseen": 134,
    }
