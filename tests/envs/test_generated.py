"""What generated data are kept under changes with the code that generates them, and only then."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from comap.envs.generated import code_digest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two modules and a table, whose name this process has not met."""
    folder = tmp_path / f"generator_{tmp_path.name}"
    for name, text in {
        "__init__.py": "",
        "words.py": "WORDS = 3",
        "data/table.json": "[1]",
        "notes.txt": "one",
        "__pycache__/words.pyc": "one",
        "other/more.py": "MORE = 1",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    sys.modules.pop(folder.name, None)


def digest(package: Path) -> str:
    code_digest.cache_clear()
    return code_digest(package.name)


@pytest.mark.parametrize("name", ["words.py", "data/table.json", "__init__.py", "data/new.json"])
def test_other_code_has_another_digest(package: Path, name: str) -> None:
    before = digest(package)
    assert before == digest(package)
    (package / name).write_text("# changed")
    assert digest(package) != before


@pytest.mark.parametrize("name", ["notes.txt", "__pycache__/words.pyc", "other/more.py"])
def test_what_is_no_code_of_it_is_not_looked_at(package: Path, name: str) -> None:
    before = digest(package)
    (package / name).write_text("changed")
    assert digest(package) == before
