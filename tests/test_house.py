"""The rules of the house: floors, packaging, a cheap import, doctests, docstrings and sizes."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import comap

ROOT = Path(comap.__file__).parent
NOT_PACKAGED = {"tests", "docs", "examples", "build", "dist", "runs"}
FLOORS = (
    {"checksums", "facts", "errors", "spaces", "trajectory"},
    {"metrics", "lm"},
    {"envs"},
    {"worldmodel"},
    {"agents"},
    {"trainers"},
    {"integrations"},
    {"benchmarks"},
    {"hub"},
    {
        "cli",
        "cli_baselines",
        "cli_bench",
        "cli_build",
        "cli_data",
        "cli_hub",
        "cli_paw",
        "cli_progress",
        "cli_run",
        "cli_score",
        "cli_serve",
        "cli_serve_env",
        "cli_train",
        "cli_verify",
        "cli_verify_built",
    },
    {"__main__"},
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}
FOLDERS = {"alfworld", "scienceworld", "webshop", "stabletoolbench", "searchqa"}
HEAVY = {"torch", "transformers", "textworld", "alfworld", "matplotlib", "rich", "ray", "openai"}
OPTIONAL = ("comap.benchmarks", "comap.integrations")
MAX_MODULE, MAX_FUNCTION, MAX_IMPORT_SECONDS = 500, 80, 0.5


def packaged_files() -> list[Path]:
    """All Python files of the package, relative to its root."""
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    return sorted(
        path
        for path in files
        if not any(
            part in NOT_PACKAGED or part.startswith(".") or part.endswith(".egg-info")
            for part in path.parts[:-1]
        )
    )


FILES = packaged_files()
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=str)


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("comap", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    data: dict[str, Any] = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return data


def imported(path: Path) -> Iterator[tuple[int, bool, tuple[str, ...]]]:
    """Yield, for each import from this package: line, whether relative, path inside the package."""
    package = path.parts[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "comap":
                    yield node.lineno, False, tuple(alias.name.split(".")[1:])
        elif isinstance(node, ast.ImportFrom):
            named = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                base = package[: len(package) - node.level + 1] + named
            elif named[0] == "comap":
                base = named[1:]
            else:
                continue
            for alias in node.names:
                yield node.lineno, bool(node.level), (*base, alias.name)


def misplaced(path: Path, target: tuple[str, ...]) -> str:
    """Return what is wrong with an import of `target` in `path`, or nothing."""
    own = path.with_suffix("").parts
    here, there = FLOOR_OF.get(own[0], 0), FLOOR_OF.get(target[0] if target else "", 0)
    if there > here:
        return f"imports {'.'.join(target)}, which is above it"
    if own[0] == "envs" and target[0:1] == ("envs",):
        mine, other = (set(parts[1:2]) & FOLDERS for parts in (own, target))
        if other and other != mine:
            return f"imports {'.'.join(target)}, a benchmark's own folder"
    return ""


def test_imports_go_down() -> None:
    wrong = []
    for path in FILES:
        own = path.with_suffix("").parts[0]
        if own != "__init__" and own not in FLOOR_OF:
            wrong.append(f"{path}: put {own!r} on a floor in this test")
        for line, relative, target in imported(path):
            if problem := misplaced(path, target):
                wrong.append(f"{path}:{line} {problem}")
            if not relative:
                wrong.append(f"{path}:{line} imports comap by name; inside the package write a dot")
    assert len(FILES) > 100 and not wrong, "\n".join(wrong)


def test_the_floor_test_can_fail() -> None:
    assert misplaced(Path("envs/base.py"), ("worldmodel", "base"))
    assert misplaced(Path("facts.py"), ("metrics",))
    assert misplaced(Path("envs/alfworld/env.py"), ("envs", "webshop", "env"))
    assert misplaced(Path("envs/base.py"), ("envs", "alfworld"))
    assert not misplaced(Path("envs/alfworld/env.py"), ("envs", "alfworld", "goal"))
    assert not misplaced(Path("envs/alfworld/env.py"), ("envs", "base", "TextEnv"))
    assert not misplaced(Path("envs/base.py"), ("__version__",))
    assert not misplaced(Path("cli.py"), ("benchmarks",))


def test_the_package_list_is_complete() -> None:
    listed = project()["tool"]["setuptools"]["packages"]
    found = {".".join(("comap", *path.parts[:-1])) for path in FILES}
    assert sorted(found) == listed, "pyproject.toml, [tool.setuptools] packages"
    bare = [
        name
        for name in listed
        if not (ROOT.joinpath(*name.split(".")[1:]) / "__init__.py").is_file()
    ]
    assert not bare, f"packages without __init__.py: {bare}"


def test_package_data_is_there() -> None:
    for name, patterns in project()["tool"]["setuptools"]["package-data"].items():
        folder = ROOT.joinpath(*name.split(".")[1:])
        for pattern in patterns:
            assert any(folder.glob(pattern)), f"{name}: no file matches {pattern!r}"


WATCH = """
import json, sys
opened, connected = [], []
def watch(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        opened.append(args[0] if isinstance(args[0], str) else args[0].decode())
    elif event.startswith("socket."):
        connected.append(event)
sys.addaudithook(watch)
import comap
said = {"opened": opened, "connected": connected, "modules": sorted(sys.modules),
        "prefixes": [sys.prefix, sys.base_prefix, *(p for p in sys.path if "-packages" in p)]}
print(json.dumps(said))
"""


def python(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_import_touches_nothing(tmp_path: Path) -> None:
    said = json.loads(python(WATCH, tmp_path))
    assert not said["connected"]
    allowed = [Path(prefix).resolve() for prefix in [*said["prefixes"], ROOT]]
    allowed += [Path("/proc"), Path("/sys"), Path("/dev")]
    strange = [
        name
        for name in said["opened"]
        if not any(Path(name).resolve().is_relative_to(prefix) for prefix in allowed)
    ]
    assert not strange, "importing comap must open no file but those of Python and of packages"
    assert not [
        name
        for name in said["opened"]
        if Path(name).resolve().is_relative_to(ROOT)
        and Path(name).suffix not in (".py", ".pyc")
        and ".pyc." not in name
        and not any(Path(name).resolve().is_relative_to(prefix) for prefix in allowed[:-4])
    ], "importing comap must not read its data"
    assert not HEAVY & set(said["modules"])


def test_import_is_quick(tmp_path: Path) -> None:
    def best(code: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            python(code, tmp_path)
            times.append(time.perf_counter() - start)
        return min(times)

    took = best("import comap") - best("pass")
    assert took < MAX_IMPORT_SECONDS, f"importing comap took {took:.2f} s"


@EACH_FILE
def test_doctests(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    name = module_name(path)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if name.startswith(OPTIONAL) and (error.name or "").split(".")[0] != "comap":
            pytest.skip(f"needs {error.name}")
        raise
    missing = [public for public in getattr(module, "__all__", ()) if not hasattr(module, public)]
    assert not missing, f"{name}.__all__ names {missing}, which are not there"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed = doctest.testmod(module, optionflags=flags).failed
    said = capsys.readouterr().out
    if failed and name.startswith(OPTIONAL) and "MissingExtra:" in said:
        pytest.skip("needs an extra")
    assert not failed, said


def public_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Yield the public names that a module defines without saying what they are."""
    public = {name for name in public_names(tree) if not name.startswith("__")}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in public and not ast.get_docstring(node):
                yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if ast.unparse(target) in public and not said:
                yield ast.unparse(target)


def test_public_names_are_documented() -> None:
    wrong = []
    for path in FILES:
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            wrong.append(f"{path} has no docstring")
        wrong += [f"{path}: {name} is public and has no docstring" for name in undocumented(tree)]
    assert not wrong, "\n".join(wrong)


def test_modules_and_functions_are_short() -> None:
    wrong = []
    for path in FILES:
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > MAX_MODULE:
            wrong.append(f"{path} has {lines} lines")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION:
                    wrong.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    assert not wrong, "\n".join(wrong)
