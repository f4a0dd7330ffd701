"""The code blocks of the documentation: Python runs, commands exist, and short ones run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from comap.cli import _parser as command_line
from comap.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PLACEHOLDERS = re.compile(r"^(DIR|INDEX|CATALOG|SOURCE|CORPUS|FILE|NAME|.*=(DIR|FILE|NAME)|https?://.*)$")
PROGRAMS = {"accelerate", "torchrun", "vllm", "transformers"}
"""Programs of others, which are not run; a command of comap that they start is looked at."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text("utf-8"))


def commands(block: str) -> Iterator[tuple[list[str], str]]:
    """Yield each line's words, and what is said of it behind a ``#``."""
    for line in block.splitlines():
        told, _, comment = line.partition(" #")
        if told.strip():
            yield shlex.split(told), comment.strip()


def is_short(words: list[str], comment: str) -> bool:
    """Whether a command of comap can be run here: without data, servers, large models or minutes."""
    needs = any(PLACEHOLDERS.match(word) for word in words) or "/" in words[words.index("--model") + 1 :][:1][0] if "--model" in words else any(PLACEHOLDERS.match(word) for word in words)
    return not (needs or comment.startswith("some minutes") or words[1:3] == ["data", "get"] or words[1] == "serve" or any("lamps:" in w for w in words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_can_be_followed(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for kind, block in blocks(page):
        if kind == "python":
            exec(compile(block, str(page), "exec"), namespace)
        elif kind == "sh":
            for words, comment in commands(block):
                if words[0] == "comap" and is_short(words, comment):
                    try:
                        print("RUN", words, file=sys.stderr)
                        code = main(words[1:])
                    except SystemExit as stop:
                        code = int(stop.code or 0)
                    assert code == 0, words
