"""`comap init` and `comap validate`: packages that work as written, and what a broken one is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kits.commands import say

BROKEN = ("self.np_random.permutation(6)", '__import__("numpy").random.permutation(6)')


def comap(*words: str, cwd: Path) -> tuple[int, str]:
    process = subprocess.run(
        [sys.executable, "-m", "comap", *words],
        cwd=cwd,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(cwd), *sys.path]),
            "PYTEST_ADDOPTS": "-q",  # of the user's own tests: `comap validate` does without
        },
        capture_output=True,
        encoding="utf-8",
    )
    return process.returncode, process.stdout + process.stderr


@pytest.mark.parametrize(("kind", "name"), [("env", "lamps"), ("world-model", "doors")])
def test_a_package_is_written_whose_tests_pass(kind, name, tmp_path):
    code, printed, _ = say("init", kind, name, "--out", str(tmp_path / name))
    assert code == 0 and f"cd {tmp_path / name}" in printed
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path / name,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / name), *sys.path])},
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stdout


def test_an_environment_is_validated(tmp_path):
    say("init", "env", "lamps", "--out", str(tmp_path))
    code, printed = comap("validate", "lamps:mine/Lamps-v0", cwd=tmp_path)
    assert code == 0 and printed.endswith("23 of 23 tests passed\n"), printed

    source = (tmp_path / "lamps.py").read_text("utf-8")
    lines = [line for line in source.splitlines() if "expert=" not in line]
    without_expert = "\n".join(lines)
    (tmp_path / "lamps.py").write_text(without_expert.replace(*BROKEN), "utf-8")
    code, printed = comap("validate", "lamps:mine/Lamps-v0", cwd=tmp_path)
    assert code == 1 and "of 23 tests passed, 2 do not apply\n" in printed, printed
    assert "FAILED  seed repeats an episode\n        AssertionError: seed 0 must" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", "env", "../up"], "expected a name of lower-case letters"),
        (["init", "env", "json"], "which Python has"),
        (["init", "env", "test"], "which Python has"),
        (["init", "world-model", "comap"], "which comap has"),
        (["init", "env", "conftest"], "which pytest has"),
        (["init", "env", "numpy"], "which the installed distribution numpy has"),
        (["init", "world-model", "yaml"], "which the installed distribution PyYAML has"),
        (["validate", "comap/Nowhere-v0"], "comap/Nowhere-v0"),
    ],
)
def test_mistakes(words, message):
    code, _, error = say(*words)
    assert code == 2 and message in error


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("work of a year")
    code, _, error = say("init", "env", "lamps", "--out", str(tmp_path))
    assert (
        code == 2
        and "new or empty folder" in error
        and [*tmp_path.iterdir()] == [tmp_path / "mine.txt"]
    )
