"""The wheel has all that it should, and what CI pins is what the project asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import comap
from comap.errors import DISTRIBUTION

ROOT = Path(comap.__file__).parent
OUTSIDE = ("tests", "docs", "examples", "benchmarks/measure", "benchmarks/results", ".ci")
BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # the backend overwrites sys.argv
build_meta.build_wheel(out), build_meta.build_sdist(out)
"""


def project() -> dict[str, Any]:
    pyproject: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return pyproject


@pytest.mark.parametrize("started_in", [".", "tests"])
def test_tests_run_in_a_folder_whose_name_is_no_identifier(started_in: str, tmp_path: Path) -> None:
    """GitHub's ZIP unpacks to ``comap-main``, which pytest cannot import as the package that it is."""
    checkout = tmp_path / "comap-main"
    names = ["pyproject.toml", "__init__.py", "tests/conftest.py"]
    names += ["tests/kits/event_files.py", "tests/kits/brief_jvms.py"]
    for name in names:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "tests" / "test_small.py").write_text(
        "from kits.event_files import TRACKER\ndef test_small():\n    assert TRACKER\n"
    )

    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    process = subprocess.run(
        command,
        cwd=checkout / started_in,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0 and "1 passed" in process.stdout, process.stdout


def tracked() -> list[str]:
    """The files of the repository, new ones included."""
    words = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    if process.returncode or not process.stdout:
        pytest.skip("not a git checkout: nobody knows what belongs to it")
    return [name for name in process.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize(
    ("driver", "failing", "installed"),
    [
        (True, (), ["torch==2.13.0"]),
        (False, (), ["torch==2.13.0+cpu"]),
        (False, ("+cpu",), ["torch==2.13.0+cpu", "uv", "--torch-backend=auto torch==2.13.0"]),
        (False, ("+cpu", "uv"), ["torch==2.13.0+cpu", "uv", "torch==2.13.0"]),
    ],
)
def test_without_an_nvidia_driver_the_cpu_build_of_torch_is_installed(
    driver: bool, failing: tuple[str, ...], installed: list[str], tmp_path: Path
) -> None:
    if sys.platform != "linux":
        pytest.skip("PyPI's build has CUDA on Linux alone")
    fails = "".join(f'case "$*" in *{word}) exit 1;; esac\n' for word in failing)
    for name, text in {
        "nvidia-smi": f"exit {int(not driver)}",
        "python": f'echo "$*" >> "{tmp_path}/said"\n{fails}',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = [str(ROOT / ".ci" / "install-torch"), str(tmp_path / "python")]
    process = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=True)
    commands = (tmp_path / "said").read_text().splitlines()
    assert len(commands) == len(installed)
    assert all(line.endswith(end) for line, end in zip(commands, installed, strict=True)), commands
    assert ("2.5 GB" in process.stdout) is ("uv" in failing)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | set[str]]:
    """The names in the wheel and in the source distribution, built of a copy without network."""
    pytest.importorskip("setuptools", minversion="77")
    place = tmp_path_factory.mktemp("packaging")
    source, out = place / "source", place / "dist"
    for name in tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    out.mkdir()
    words = [sys.executable, "-c", BUILD, str(out)]
    process = subprocess.run(words, cwd=source, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        (metadata_name,) = (
            name for name in file.namelist() if name.endswith(".dist-info/METADATA")
        )
        metadata, inside = file.read(metadata_name), set(file.namelist())
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    return {"wheel": inside, "sdist": names, "metadata": metadata}


def test_the_wheel_has_the_package_and_nothing_else(distributions: dict[str, Any]) -> None:
    names = {
        name.removeprefix("comap/") for name in distributions["wheel"] if ".dist-info/" not in name
    }
    package = {
        name.replace(
            "integrations/comap_envs/", "comap_envs/"
        )  # a package of its own: pyproject.toml
        for name in tracked()
        if not name.startswith(tuple(f"{folder}/" for folder in OUTSIDE))
        and ("/" in name or name.endswith(".py") or name == "py.typed")
    }
    # The rows that `comap score world-model --set` shows beside a model's.
    package.add("benchmarks/results/world_model_set_v1.json")
    assert names == package, f"lacks {package - names}, has besides {names - package}"
    assert any(name.endswith("licenses/LICENSE") for name in distributions["wheel"])
    assert any(name.endswith("entry_points.txt") for name in distributions["wheel"])


def test_the_source_distribution_is_the_repository(distributions: dict[str, Any]) -> None:
    generated = {
        name for name in distributions["sdist"] if name.startswith("comap_agents.egg-info/")
    }
    rest = distributions["sdist"] - generated - {"PKG-INFO", "setup.cfg"}
    assert rest == set(tracked()), (
        f"lacks {set(tracked()) - rest}, has besides {rest - set(tracked())}"
    )


def test_metadata(distributions: dict[str, Any]) -> None:
    metadata = distributions["metadata"].decode()
    head, _, body = metadata.partition("\n\n")
    assert f"Version: {comap.__version__}" in head and "License-Expression: Apache-2.0" in head
    assert body.startswith("# ") and "Description-Content-Type: text/markdown" in head
    for extra in project()["project"]["optional-dependencies"]:
        assert f"Provides-Extra: {extra}\n" in head
    minors = re.findall(r"Python :: 3\.(\d+)", head)
    assert minors[0] == "11" and "Requires-Python: >=3.11" in head
    changes, cited = (ROOT / name for name in ("CHANGELOG.md", "CITATION.cff"))
    assert (
        re.findall(r"^## (\S+)", changes.read_text("utf-8"), re.MULTILINE)[0] == comap.__version__
    )
    assert f"\nversion: {comap.__version__}\n" in cited.read_text("utf-8")


def test_every_command_that_installs_comap_names_our_distribution() -> None:
    assert project()["project"]["name"] == DISTRIBUTION
    install_pattern = re.compile(r"""pip3? install[^`#\n]*[ "'](comap)[\["' ]""")
    wrong = []
    for name in tracked():
        if not name.startswith("benchmarks/results/") and name != Path(__file__).name:
            text = (ROOT / name).read_text("utf-8", errors="replace")
            wrong += [f"{name}: {match[0]}" for match in install_pattern.finditer(text)]
    assert not wrong, wrong


def requirements(texts: list[str]) -> list[Requirement]:
    """What is asked for, with the extras of our own that are named resolved."""
    extras = project()["project"]["optional-dependencies"]
    resolved = []
    for text in texts:
        requirement = Requirement(text)
        resolved += (
            [requirement]
            if canonicalize_name(requirement.name) != DISTRIBUTION
            else requirements([part for extra in requirement.extras for part in extras[extra]])
        )
    return resolved


CORE = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
from comap.cli import main
small = ["--episodes", "1", "--env-option", "source=generated", "--agent", "expert"]
for env in ("ALFWorld", "WebShop", "StableToolBench", "SearchQA", "Web"):
    options = small if env != "Web" else ["--episodes", "1", "--agent", "expert"]
    assert main(["run", *options, "--env", f"comap/{env}-v0", "--out", env]) == 0
    assert main(["verify", env]) == 0
assert main(["demo", "--train-tasks", "2", "--test-tasks", "1", "--lengths", "1", "--out", "demo"]) == 0
"""
MODULES = {"faiss-cpu": "faiss", "pystemmer": "Stemmer", "jpype1": "jpype", "pillow": "PIL"}
"""Modules that have other names than their packages."""


def test_core_alone_plays_verifies_and_compares(tmp_path: Path) -> None:
    project_table = project()["project"]
    core = {
        canonicalize_name(requirement.name)
        for requirement in requirements(project_table["dependencies"])
    }
    extra = requirements(
        [text for texts in project_table["optional-dependencies"].values() for text in texts]
    )
    lacking = {canonicalize_name(requirement.name) for requirement in extra} - core
    names = sorted(MODULES.get(name, name.replace("-", "_")) for name in lacking)
    assert {"jinja2", "matplotlib", "torch", "jsonschema"} <= set(names)
    process = subprocess.run(
        [sys.executable, "-c", CORE, *names],
        cwd=tmp_path,
        env={**os.environ, "COMAP_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    assert (
        "report: none; a report needs the extra 'viz'; run: pip install \"comap-" in process.stdout
    )


def test_what_ci_pins_is_what_the_project_asks_for() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    texts = [line.partition("#")[0].strip() for line in lines]  # a reason may stand beside a pin
    pins = [Requirement(text) for text in texts if text]
    pins_by_name = {canonicalize_name(pin.name): pin for pin in pins}
    assert len(pins_by_name) == len(pins), "a package is pinned twice"
    project_table = project()["project"]
    extras = project_table["optional-dependencies"]
    extra_texts = [text for texts in extras.values() for text in texts]
    all_requirements = requirements([*project_table["dependencies"], *extra_texts])
    for requirement in all_requirements:
        pin = pins_by_name.get(canonicalize_name(requirement.name))
        if pin is not None:
            (specifier,) = pin.specifier
            assert specifier.operator == "==" and requirement.specifier.contains(
                specifier.version
            ), requirement
    for requirement in requirements(
        [*project_table["dependencies"], *extras["test"], *extras["lint"]]
    ):
        assert canonicalize_name(requirement.name) in pins_by_name, (
            f"constraints.txt does not pin {requirement.name}"
        )
