"""The documentation's code: Python runs, commands exist with all their options, and short ones run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from comap.cli import main
from comap.cli.main import understood

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_HERE = re.compile(r"(.*=)?(DIR|INDEX|CATALOG|FILE|NAME)|https?://.*|\w+/[A-Z].*|lamps:.*")
"""Data, servers, models of the hub and a module of the reader's: what a command here cannot have."""

Command = tuple[list[str], str]


def blocks_of(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text("utf-8"))


def commands_of(block: str) -> Iterator[Command]:
    """Yield each line's words, and what is said of it behind a ``#``."""
    for line in re.sub(r"\\\n *", "", block).splitlines():
        told, _, comment = line.partition(" #")
        if told.strip():
            yield shlex.split(told), comment.strip()


ALL = [
    (page, *command)
    for page in PAGES
    for kind, block in blocks_of(page)
    if kind == "sh"
    for command in commands_of(block)
]


def runs_here(words: list[str], comment: str) -> bool:
    if words[0] != "comap" or comment.startswith("some minutes") or "--model tiny" in comment:
        return False
    known = {"comap/ALFWorld-v0", "comap/WebShop-v0", "comap/SearchQA-v0"}
    elsewhere = [word for word in words if NOT_HERE.fullmatch(word) and word not in known]
    return not elsewhere and words[1] != "serve" and words[1:3] != ["data", "get"]


def parse(words: list[str]) -> None:
    try:
        understood(words)
    except SystemExit as stop:
        assert stop.code == 0, words


def test_blocks_are_found() -> None:
    kinds = [kind for page in PAGES for kind, _ in blocks_of(page)]
    assert kinds.count("python") >= 25 and set(kinds) == {"python", "sh", "text"}
    assert sum(runs_here(words, comment) for _, words, comment in ALL) >= 5
    with pytest.raises(AssertionError):
        parse(["run", "--agent", "react", "--no-such-option"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_can_be_followed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a page's Python and short commands, in their order, in one folder."""
    found = blocks_of(page)
    text = page.read_text("utf-8")
    if "shipped" in text or "run --agent comap" in text:
        pytest.importorskip("transformers")
    for package in ("torch", "jinja2"):
        if re.search(rf"import {package}|comap (demo|view)", text):
            pytest.importorskip(package)
    for package in re.findall(
        r"from comap\.integrations\.(mcp|openenv|verifiers|textarena) ", text
    ):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for kind, block in found:
        if kind == "python":
            exec(compile(block, str(page), "exec"), namespace)
        elif kind == "sh":
            for words, comment in commands_of(block):
                if runs_here(words, comment):
                    run(words)


def run(words: list[str]) -> None:
    try:
        code: Any = main(words[1:])
    except SystemExit as stop:
        code = stop.code
    assert not code, words


def test_commands_are_known() -> None:
    """Every command is made of options that there are, also where it cannot be run here."""
    for page, words, _ in ALL:
        program = words[0]
        if program == "comap" or "comap" in words:
            own = {"lamps:mine/Lamps-v0": "comap/ALFWorld-v0", "curious:Curious": "random"}
            known = [own.get(word, word) for word in words]
            asked = known[known.index("comap") + 1 :]
            if asked == ["--version"]:
                assert main(asked) == 0
            else:
                parse(asked)
        elif program == "pip":
            extras = re.search(r"\[(.*)\]", words[-1])
            assert extras and set(extras[1].split(",")) <= extras_known(), (page, words)
        elif program == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text("utf-8"), (page, words)
        elif program.startswith(".ci/"):
            assert (ROOT / program).is_file(), (page, words)
        elif program == "python" or "pytest" in words:
            files = [word for word in words if word.endswith(".py")]
            assert files and all((ROOT / file).is_file() for file in files), (page, words)
        else:
            assert program in ("vllm", "transformers"), (page, words)


def extras_known() -> set[str]:
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return set(project["optional-dependencies"])


def test_the_guide_to_environments_makes_one(tmp_path: Path) -> None:
    """Its class passes the conformance tests and is found by the command line, as it says."""
    code = [block for kind, block in blocks_of(DOCS / "guides/environment.md") if kind == "python"]
    register = re.search(r"^gym\.register\(.*?\)$", code[2], re.DOTALL | re.MULTILINE)
    assert register is not None
    lamps = "\n".join([*code[:2], "import gymnasium as gym", register[0]])
    (tmp_path / "lamps.py").write_text(lamps, encoding="utf-8")
    (tmp_path / "test_lamps.py").write_text(code[3], encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT.parent), os.environ.get("PYTHONPATH", "")])
    played = next(words for _, words, _ in ALL if "lamps:mine/Lamps-v0" in words)
    tested = ["pytest", "-q", "-x", "-p", "no:cacheprovider", "test_lamps.py"]
    for words in (played, tested):
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "lamps" / "trajectories.jsonl").is_file()
