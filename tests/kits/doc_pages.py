"""The code of a page: its Python runs, what is printed is what it shows, and short commands run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from comap.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WRITTEN = re.compile(r"^<!-- [a-z ]+: [^\n]+ -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
"""A part of a page that docs/hooks writes from code; the code's own tests run what stands there."""
FILE = re.compile(r"# ((\w+)\.py)\n")
"""The first line of a block that the reader saves as a file, and others import."""
VARIABLE = re.compile(r"[A-Z_]+=")
"""What sets a variable for one command."""
NOT_HERE = re.compile(r"(.*=)?(DIR|INDEX|CATALOG|FILE|MODEL|NAME)|https?://.*|\w+/[A-Z].*")
"""Data, servers and models of the hub: what a command here cannot have."""
KNOWN = {"comap/ALFWorld-v0", "comap/WebShop-v0", "comap/SearchQA-v0"}

Command = tuple[list[str], str]


def pages() -> list[Path]:
    """Return the pages that people write, without the one of files inside the package."""
    inside = DOCS / "guides" / "inside.md"  # tests/test_contributing.py runs it
    by_people = []
    for page in sorted(DOCS.glob("**/*.md")):
        if page != inside and not page.read_text("utf-8").startswith("<!-- Written by"):
            by_people.append(page)
    return by_people


def text_of(page: Path) -> str:
    """Return what people wrote of a page."""
    return WRITTEN.sub("", page.read_text("utf-8"))


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(text_of(page))


def commands_of(block: str) -> Iterator[Command]:
    """Yield each line's words, without variables before them, and the comment behind a ``#``."""
    for line in re.sub(r"\\\n *", "", block).splitlines():
        command, _, comment = line.partition(" #")
        words = shlex.split(command)
        while words and VARIABLE.match(words[0]):
            del words[0]
        if words:
            yield words, comment.strip()


def runs_here(words: list[str], comment: str) -> bool:
    if (
        words[0] != "comap"
        or comment.startswith(("some minutes", "some hours"))
        or "--model tiny" in comment
    ):
        return False
    elsewhere = [word for word in words if NOT_HERE.fullmatch(word) and word not in KNOWN]
    return not elsewhere and words[1] != "serve" and words[1:3] != ["data", "get"]


def files_of(page: Path) -> dict[str, str]:
    """Return the blocks that are files, by name."""
    blocks = [(FILE.match(block), block) for kind, block in blocks_of(page) if kind == "python"]
    return {first[1]: block for first, block in blocks if first}


def follow(
    page: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    replaced: Mapping[str, str] | None = None,
    commands: bool = True,
) -> None:
    """Run a page's Python and short commands, in their order, in one folder.

    Args:
        page: The page. Files of other pages that its text names are there.
        folder: Where it is followed.
        monkeypatch: Undoes what following changes.
        capsys: Has what is printed: a block ``text`` right after one of Python shows it, with ``...``
            for what may vary.
        replaced: Texts of the page, and what stands here for them, such as addresses.
        commands: Whether to run its commands.
    """
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    text = text_of(page)
    for guide in DOCS.glob("guides/*.md"):
        for name, block in files_of(guide).items():
            if f"`{name}`" in text or f"{name[:-3]}:" in text:
                folder.joinpath(name).write_text(block, encoding="utf-8")
                monkeypatch.delitem(sys.modules, name[:-3], raising=False)
    for before, after in (replaced or {}).items():
        assert before in text, before
        text = text.replace(before, after)
    namespace: dict[str, object] = {"__name__": "page"}
    printed, end = "", 0
    for match in BLOCK.finditer(text):
        kind, block = match.groups()
        if kind == "python":
            capsys.readouterr()
            if first := FILE.match(block):
                namespace |= vars(import_module(first[2]))
            else:
                exec(compile(block, str(page), "exec"), namespace)
            printed = capsys.readouterr().out
        elif kind == "sh" and commands:
            for words, comment in commands_of(block):
                if runs_here(words, comment):
                    run(words)
        elif kind == "text" and printed and not text[end : match.start()].strip():
            check_output(block, printed)
        end = match.end()
        printed = printed if kind == "python" else ""


def check_output(expected: str, printed: str) -> None:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), printed


def run(words: list[str]) -> None:
    try:
        code: Any = main(words[1:])
    except SystemExit as stop:
        code = stop.code
    assert not code, words
