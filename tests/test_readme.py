"""The README: its code runs, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from comap.cli import main
from comap.cli.main import understood

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    lines = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
    return [line.split("#")[0].split() for line in lines if line.strip()]


def test_python_blocks_run_in_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, object] = {}
    blocks = [block for kind, block in BLOCKS if kind == "python"]
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out.splitlines()
    assert any("->" in line for line in printed)
    numbers = [float(line) for line in printed if re.fullmatch(r"[0-9.]+", line)]
    assert len(numbers) == 1 and 0.0 <= numbers[0] <= 1.0, "Delta-F1 of one transition"
    assert "Action: heat egg 1 with microwave 1" in "\n".join(printed), "what the model said"


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
