"""The rules of the house: floors, packaging, a cheap import, doctests, docstrings and sizes."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import comap

ROOT = Path(comap.__file__).parent
OWN = ["comap_envs"]
"""Packages of their own in the same distribution, for stacks that import one by its name."""
NOT_PACKAGED = {"tests", "docs", "examples", "build", "dist", "runs", "measure", *OWN}
FLOORS = (
    {"facts", "errors", "spaces", "jsonl", "redaction", "settings", "trajectory"},
    {"metrics", "lm"},
    {"envs"},
    {"worldmodel"},
    {"agents"},
    {"trainers"},
    {"integrations"},
    {"benchmarks"},
    {"cli"},
    {"__main__"},
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}
FOLDERS = {"alfworld", "scienceworld", "webshop", "stabletoolbench", "searchqa", "web"}
HEAVY = {"torch", "transformers", "textworld", "alfworld", "matplotlib", "rich", "ray", "openai"}
OPTIONAL = ("comap.benchmarks", "comap.integrations")
MAX_MODULE = 900
MAX_FUNCTION = 80
MAX_IMPORT_SECONDS = 0.5
MAX_PUBLIC = 260
AT_MOST = {
    "tuple assignments": 0.5,
    "conditional expressions": 16.5,
    "comprehensions": 28.5,
    "long functions without a blank line (%)": 4.0,
    "vague bindings (%)": 0.7,
}
LEAST_COMMENTS = 32.0
"""Per 1,000 lines, or percent. When the code has become better, these follow it; never the other way."""
CHAPTER = 100
"""A module of fewer lines that only one module of its folder imports is a chapter of that module."""


def packaged_files() -> list[Path]:
    """All Python files of the package, relative to its root."""

    def python_files(folder: Path) -> Iterator[Path]:
        for path in folder.iterdir():
            if not path.is_dir():
                if path.suffix == ".py":
                    yield path.relative_to(ROOT)
            elif (
                path.name not in NOT_PACKAGED and path.name[0] != "." and path.suffix != ".egg-info"
            ):
                yield from python_files(path)

    return sorted(python_files(ROOT))


FILES = packaged_files()
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=str)


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("comap", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a module, a tenth of its nodes."""
    yield node
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, name, None)
        if isinstance(inner, list):  # an expression's is none
            for statement in inner:
                yield from statements(statement)


def project() -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return data


@cache
def imported(path: Path) -> tuple[tuple[int, bool, tuple[str, ...]], ...]:
    """Return, for each import from this package: line, whether relative, path inside the package."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[int, bool, tuple[str, ...]]]:
    package = path.parts[:-1]
    for node in statements(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "comap":
                    yield node.lineno, False, tuple(alias.name.split(".")[1:])
        elif isinstance(node, ast.ImportFrom):
            module_parts = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                base = package[: len(package) - node.level + 1] + module_parts
            elif module_parts[0] == "comap":
                base = module_parts[1:]
            else:
                continue
            for alias in node.names:
                yield node.lineno, bool(node.level), (*base, alias.name)


def misplaced(path: Path, target: tuple[str, ...]) -> str:
    """Return what is wrong with an import of `target` in `path`, or nothing."""
    own_parts = path.with_suffix("").parts
    own_floor, target_floor = (
        FLOOR_OF.get(own_parts[0], 0),
        FLOOR_OF.get(target[0] if target else "", 0),
    )
    if target_floor > own_floor and own_parts != (
        "__init__",
    ):  # the package's face shows what users meet first
        return f"imports {'.'.join(target)}, which is above it"
    if own_parts[0] == "envs" and target[0:1] == ("envs",):
        mine, theirs = (set(parts[1:2]) & FOLDERS for parts in (own_parts, target))
        if theirs and theirs != mine:
            return f"imports {'.'.join(target)}, a benchmark's own folder"
    return ""


def test_imports_go_down() -> None:
    wrong = []
    for path in FILES:
        top_name = path.with_suffix("").parts[0]
        if top_name != "__init__" and top_name not in FLOOR_OF:
            wrong.append(f"{path}: put {top_name!r} on a floor in this test")
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
    assert not misplaced(Path("cli/run.py"), ("benchmarks",))


def test_the_package_list_is_complete() -> None:
    listed = project()["tool"]["setuptools"]["packages"]
    packages = {".".join(("comap", *path.parts[:-1])) for path in FILES}
    assert [*sorted(packages), *OWN] == listed, "pyproject.toml, [tool.setuptools] packages"
    bare = [
        name
        for name in sorted(packages)
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
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True
    )
    return process.stdout


def test_import_touches_nothing(tmp_path: Path) -> None:
    report = json.loads(python(WATCH, tmp_path))
    assert not report["connected"]
    allowed = [Path(prefix).resolve() for prefix in [*report["prefixes"], ROOT]]
    allowed += [Path("/proc"), Path("/sys"), Path("/dev")]
    strange = [
        name
        for name in report["opened"]
        if not any(Path(name).resolve().is_relative_to(prefix) for prefix in allowed)
    ]
    assert not strange, "importing comap must open no file but those of Python and of packages"
    assert not [
        name
        for name in report["opened"]
        if Path(name).resolve().is_relative_to(ROOT)
        and Path(name).suffix not in (".py", ".pyc")
        and ".pyc." not in name
        and not any(Path(name).resolve().is_relative_to(prefix) for prefix in allowed[:-4])
    ], "importing comap must not read its data"
    assert not HEAVY & set(report["modules"])


POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
"""Modules of Python that Windows lacks."""


@EACH_FILE
def test_what_windows_lacks_is_imported_under_a_guard(path: Path) -> None:
    """A module that imports one of these at its top, in no `if` and no `try`, cannot be imported there."""
    imported = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(node.module)
    assert not POSIX & imported


def test_import_is_quick(tmp_path: Path) -> None:
    # Time of the processor, not of the clock: what else runs on the machine does not count.
    code = "import comap, time; print(time.process_time())"
    seconds = [float(python(code, tmp_path)) for _ in range(3)]
    assert min(seconds) < MAX_IMPORT_SECONDS, (
        f"importing comap took {min(seconds):.2f} s of a processor"
    )


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
    printed = capsys.readouterr().out
    if failed and name.startswith(OPTIONAL) and "MissingExtra:" in printed:
        pytest.skip("needs an extra")
    assert not failed, printed


def public_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def package_of(path: Path) -> str:
    return ".".join(("comap", *path.parts[:-1]))


def test_only_packages_say_what_is_public() -> None:
    outside = [str(p) for p in FILES if p.name != "__init__.py" and public_names(tree_of(p))]
    assert not outside, f"__all__ belongs into the folder's __init__.py: {outside}"
    public = {
        (package_of(path), name)
        for path in FILES
        if path.name == "__init__.py"
        for name in public_names(tree_of(path))
    }
    assert len(public) <= MAX_PUBLIC, f"{len(public)} public names; see ARCHITECTURE.md"


def test_public_names_are_documented() -> None:
    wrong = [f"{p} has no docstring" for p in FILES if not ast.get_docstring(tree_of(p))]
    for path in FILES:
        names = public_names(tree_of(path)) if path.name == "__init__.py" else []
        module = importlib.import_module(package_of(path)) if names else None
        for name in names:
            thing = getattr(module, name)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and not thing.__doc__:
                wrong.append(f"{package_of(path)}.{name} is public and has no docstring")
            for key, part in vars(thing).items() if inspect.isclass(thing) else ():
                if key[0] != "_" and inspect.isroutine(part) and not inspect.getdoc(part):
                    wrong.append(f"{package_of(path)}.{name}.{key} is public and has no docstring")
    assert not wrong, "\n".join(wrong)


def folder_imports() -> dict[Path, set[Path]]:
    """Return, for each module, the modules of its own folder that it imports, wherever it does."""
    modules_by_parts = {path.with_suffix("").parts: path for path in FILES}
    graph: dict[Path, set[Path]] = {path: set() for path in FILES}
    for path in FILES:
        for _, _, target in imported(path):
            for parts in (target, target[:-1]):
                imported_path = modules_by_parts.get(parts)
                if (
                    imported_path is not None
                    and imported_path != path
                    and imported_path.parent == path.parent
                ):
                    graph[path].add(imported_path)
    return graph


def circle(graph: dict[Path, set[Path]]) -> list[Path]:
    """Return modules that import each other in a circle, or nothing."""
    finished: set[Path] = set()

    def walk(path: Path, trail: list[Path]) -> list[Path]:
        if path in trail:
            return trail[trail.index(path) :]
        if path in finished:
            return []
        for imported_path in sorted(graph[path]):
            if cycle := walk(imported_path, [*trail, path]):
                return cycle
        finished.add(path)
        return []

    for path in sorted(graph):
        if cycle := walk(path, []):
            return cycle
    return []


def test_no_folder_has_an_import_circle() -> None:
    graph = {path: others for path, others in folder_imports().items() if path.stem != "__init__"}
    cycle = circle({path: others & graph.keys() for path, others in graph.items()})
    assert not cycle, " imports ".join(map(str, [*cycle, *cycle[:1]]))
    a, b = Path("a.py"), Path("b.py")
    assert circle({a: {b}, b: {a}}) == [a, b] and not circle({a: {b}, b: set()})


def test_no_module_is_a_chapter_of_another() -> None:
    graph = folder_imports()
    users: dict[Path, set[Path]] = {path: set() for path in FILES}
    modules_by_parts = {path.with_suffix("").parts: path for path in FILES}
    for path in FILES:
        for _, _, target in imported(path):
            for parts in (target, target[:-1]):
                if parts in modules_by_parts and modules_by_parts[parts] != path:
                    users[modules_by_parts[parts]].add(path)
    chapters = [
        f"{path} ({len((ROOT / path).read_text('utf-8').splitlines())} lines) belongs into {user}"
        for path, (user, *others) in ((p, sorted(u)) for p, u in users.items() if len(u) == 1)
        if not others
        and path in graph[user]
        and user.name != "__init__.py"
        and len((ROOT / path).read_text("utf-8").splitlines()) < CHAPTER
    ]
    assert not chapters, "\n".join(chapters)


def test_modules_and_functions_are_short() -> None:
    wrong = []
    for path in FILES:
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > MAX_MODULE:
            wrong.append(f"{path} has {lines} lines")
        for node in statements(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION:
                    wrong.append(f"{path}:{node.lineno} {node.name}: {length} lines")
    assert not wrong, "\n".join(wrong)


def test_the_code_gets_no_harder_to_read() -> None:
    """The shares of `benchmarks/measure/readability.py` are a thermometer: none may rise."""
    program = ROOT / "benchmarks" / "measure" / "readability.py"
    measure = runpy.run_path(str(program))["measure"]
    shares = measure(ROOT, FILES)["all"].shares()

    worse = [
        f"{name}: {shares[name]:.2f}, and was {limit}"
        for name, limit in AT_MOST.items()
        if shares[name] > limit
    ]
    if shares["comments"] < LEAST_COMMENTS:
        worse.append(f"comments: {shares['comments']:.2f}, and were {LEAST_COMMENTS}")
    assert not worse, "\n".join(worse)
