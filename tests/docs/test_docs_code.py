"""The documentation's code: Python runs, commands exist with all their options, and short ones run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from comap.cli import main
from comap.cli.main import understood
from comap.trainers.tracking import TRACKERS
from kits.doc_pages import (
    DOCS,
    ROOT,
    blocks_of,
    commands_of,
    files_of,
    follow,
    pages,
    runs_here,
    text_of,
)
from kits.hostile_server import HostileServer, says
from kits.tool_model import tool_model

PAGES = pages()
TASKS = {
    name: DOCS / "guides" / f"{name}.md"
    for name in (
        "environment",
        "world-model",
        "agent",
        "model-server",
        "reward",
        "logging",
        "export",
        "trl",
    )
}
"""The pages of what a newcomer wants to do first."""
OWN = {
    "lamps:mine/Lamps-v0": "comap/ALFWorld-v0",
    "curious:Curious": "random",
    "doors:Doors": "null",
    "my_reward:progress": "success",
}
"""What the reader wrote, and what stands for it where a command is only parsed."""
MOST_LINES = 40  # of code on each of them
OTHERS = (
    "harbor",
    "inspect",
    "openenv",
    "transformers",
    "vf-eval",
    "vllm",
)  # programs that pages tell of
SMALLER = {
    "quickstart.md": {
        "--train-tasks 20 --test-tasks 2": "--train-tasks 4 --test-tasks 1",
        "--agent comap --episodes 2 --env-option max_episode_steps=12": (
            "--agent comap --episodes 1 --env-option max_episode_steps=2"
        ),
        "--model tiny --env comap/WebShop-v0 --episodes 2": (
            "--model tiny --tiny-parameters 200000 --env comap/WebShop-v0 --episodes 1"
        ),
        "max_episode_steps=3": "max_episode_steps=1",
    },
    "guides/reward.md": {
        "warmup_tokens=80_000": "warmup_tokens=2_000",
        "members=4": "members=2",
        "evaluation_tasks=4": "evaluation_tasks=1",
        "updates=2": "updates=1",
        '"lamps:mine/Lamps-v0"': '"lamps:mine/Lamps-v0", {"max_episode_steps": 2}',
    },
    "guides/logging.md": {
        "max_episode_steps=8": "max_episode_steps=2",
        "members=4": "members=2",
        "evaluation_tasks=2": "evaluation_tasks=1",
    },
}
"""What of a page is run with smaller numbers than a reader's."""

ALL = [
    (page, *command)
    for page in PAGES
    for kind, block in blocks_of(page)
    if kind == "sh"
    for command in commands_of(block)
]


def parse(words: list[str]) -> None:
    try:
        understood(words)
    except SystemExit as stop:
        assert stop.code == 0, words


def test_blocks_are_found() -> None:
    kinds = [kind for page in PAGES for kind, _ in blocks_of(page)]
    assert kinds.count("python") >= 25 and set(kinds) == {"python", "sh", "text", "yaml"}
    assert sum(runs_here(words, comment) for _, words, comment in ALL) >= 5
    with pytest.raises(AssertionError):
        parse(["run", "--agent", "react", "--no-such-option"])


@pytest.mark.parametrize("name", TASKS)
def test_a_task_needs_little_code(name: str) -> None:
    """Without comments and docstrings."""
    blocks = [block for kind, block in blocks_of(TASKS[name]) if kind in ("python", "sh")]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert sum(bool(line) and not line.startswith(("#", '"""')) for line in lines) <= MOST_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_can_be_followed(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run a page's Python and short commands, in their order, in one folder."""
    text = text_of(page)
    code = "".join(block for _, block in blocks_of(page))
    if "shipped" in text or "run --agent comap" in code:
        pytest.importorskip("transformers")
    packages = set(re.findall(r"^ *(?:from|import) (\w+)", code, re.MULTILINE))
    packages |= set(re.findall(r"from comap\.integrations\.(mcp|openenv|trl) ", code))
    for package in packages & {"torch", "trl", "datasets", "mcp", "openenv", "pandas"}:
        pytest.importorskip(package)
    if "comap.trainers import" in code:
        pytest.importorskip("trl")
    if re.search(r"comap (demo|view)", code):
        pytest.importorskip("jinja2")
    monkeypatch.setattr("comap.benchmarks.demo.MOST", 1)  # tests/benchmarks has all, and the plots
    monkeypatch.setattr("comap.benchmarks.tables.svg_of", lambda plot: b"<svg/>")
    with replacements(page, tmp_path) as replaced:
        follow(page, tmp_path, monkeypatch, capsys, replaced)


@contextmanager
def replacements(page: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Yield what stands here for a server, for a model of the hub, and for minutes of training."""
    if page == TASKS["model-server"]:
        pytest.importorskip("openai")
        with HostileServer(says("Thought: I look.\nAction: look")) as server:
            yield {"http://127.0.0.1:8000": server.base}
    elif page == TASKS["trl"]:
        model = tool_model(folder / "model", "comap/ALFWorld-v0", "press lamp 1", "press lamp 2")
        yield {
            '"Qwen/Qwen3-0.6B"': repr(str(model)),
            "max_completion_length=512": "max_completion_length=128",
        }
    else:
        yield SMALLER.get(page.relative_to(DOCS).as_posix(), {})


def test_commands_are_known() -> None:
    """Every command is made of options that there are, also where it cannot be run here."""
    for page, words, _ in ALL:
        program = words[0]
        if program == "comap" or "comap" in words:
            arguments = [OWN.get(word, word) for word in words]
            comap_arguments = arguments[arguments.index("comap") + 1 :]
            if comap_arguments == ["--version"]:
                assert main(comap_arguments) == 0
            else:
                parse(comap_arguments)
        elif program == "pip":
            extras = re.search(r"\[(.*)\]", words[-1])
            is_known = (
                words[-1] in TRACKERS
                if extras is None
                else {*extras[1].split(",")} <= extras_known()
            )
            assert is_known, (page, words)
        elif program == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text("utf-8"), (page, words)
        elif program.startswith(".ci/"):
            assert (ROOT / program).is_file(), (page, words)
        elif program == "python" or "pytest" in words:
            files = [word for word in words if word.endswith(".py")]
            assert files and all((ROOT / file).is_file() for file in files), (page, words)
        else:
            assert program in OTHERS, (page, words)


def extras_known() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return set(project["optional-dependencies"])


def test_the_guides_environment_passes_the_conformance_tests(tmp_path: Path) -> None:
    page = TASKS["environment"]
    for name, block in files_of(page).items():
        (tmp_path / name).write_text(block, encoding="utf-8")
    tested = re.search(r"`(class TestLamps.*)`", page.read_text("utf-8"))
    assert tested is not None
    code = f"from comap.envs.conformance import EnvConformance\n\n{tested[1]}\n"
    (tmp_path / "test_lamps.py").write_text(code, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT.parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_lamps.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
