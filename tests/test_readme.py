"""The README: its code runs and prints what it shows, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comap.cli import main
from comap.cli.main import understood
from comap.envs.conformance.transcripts import load

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
kit = load(f"{Path(__file__).parent / 'docs' / 'page_kit.py'}:KIT")
BLOCKS = kit.blocks_of(README)


def commands() -> list[list[str]]:
    blocks = [block for kind, block in BLOCKS if kind == "sh"]
    return [words for block in blocks for words, _ in kit.commands_of(block)]


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 180


def test_python_blocks_run_in_order_and_print_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kit.follow(README, tmp_path, monkeypatch, capsys, commands=False)
    assert len(re.findall(r"^```\n\n```text\n", TEXT, re.MULTILINE)) >= 3


def test_make_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = [words[1] for words in commands() if words[0] == "make"]
    assert targets == ["demo", "test"], "the README promises exactly two set-up commands"
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_comap_commands_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    words = [words[1:] for words in commands() if words[0] == "comap"]
    assert words
    for arguments in words:
        assert main([*arguments, "--help"]) == 0, arguments
        understood(arguments)
    assert main(["data", "list"]) == 0
    assert "alfworld" in capsys.readouterr().out


def test_its_files_are_there() -> None:
    """Links and pictures lead to files of the repository."""
    linked = re.findall(r"\]\((?!http)([^)#]+)", TEXT)
    assert len(linked) > 10
    assert [path for path in linked if not (ROOT / path).is_file()] == []
