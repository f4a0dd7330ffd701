"""Folders that take another's place: whole, or not at all, and never at the cost of the old one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from comap.envs.storage import replacing


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def old_folder(tmp_path: Path) -> Path:
    target = tmp_path / "home" / "data"
    with replacing(target) as folder:
        (folder / "old.txt").write_text("old")
    return target


def test_a_folder_takes_the_place_of_another(old_folder: Path) -> None:
    with replacing(old_folder) as folder:
        assert folder.parent.parent == old_folder.parent and not any(folder.iterdir())
        (folder / "new.txt").write_text("new")
        assert names(old_folder) == ["old.txt"], "until the end the old one is there"
    assert names(old_folder.parent) == ["data", "data/new.txt"]


def test_a_failure_while_making_leaves_the_old(old_folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(old_folder) as folder:
        (folder / "new.txt").write_text("new")
        raise KeyboardInterrupt
    assert names(old_folder.parent) == ["data", "data/old.txt"]


def fail_renames_to(monkeypatch: pytest.MonkeyPatch, target: Path, times: int) -> None:
    """Let the next renames to a place fail."""
    rename, failures_left = Path.rename, [times]

    def sometimes(source: Path, place: Path) -> Path:
        if Path(place) == target and failures_left[0]:
            failures_left[0] -= 1
            raise OSError(errno.EACCES, "somebody holds it")
        return rename(source, place)

    monkeypatch.setattr(Path, "rename", sometimes)


def test_an_old_folder_that_cannot_be_put_back_is_kept(old_folder: Path, monkeypatch) -> None:
    fail_renames_to(monkeypatch, old_folder, 2)
    with pytest.raises(OSError, match="holds it"), replacing(old_folder) as folder:
        (folder / "new.txt").write_text("new")
    assert [path.read_text() for path in old_folder.parent.rglob("old.txt")] == ["old"]
    monkeypatch.undo()
    with replacing(old_folder) as folder:
        (folder / "new.txt").write_text("new")
    assert (old_folder / "new.txt").is_file()
