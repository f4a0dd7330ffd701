"""``comap init`` and ``comap validate``: a package of one's own that works, and its environment tested."""

from __future__ import annotations

import keyword
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, ClassVar

from ..envs.registry import registered
from ..errors import MissingExtra, OptionError
from .options import WORD, Command, EnvOptions

_TEST = """\
from comap.envs.conformance import EnvConformance

class TestEnvironment(EnvConformance):
    env_id = {env!r}
    kwargs = {kwargs!r}
"""


@dataclass(frozen=True, kw_only=True)
class _Init(Command):
    scaffold: ClassVar[str]
    after: ClassVar[str]

    name: str = field(default="", metadata=WORD)
    """Name of the package and its module, such as lamps."""
    out: Path | None = None
    """Folder to write, new or empty (default: the name)."""

    def run(self) -> int:
        name, out = self.name, self.out or Path(self.name)
        if not re.fullmatch("[a-z][a-z0-9_]{0,40}", name) or keyword.iskeyword(name):
            raise OptionError(
                f"expected a name of lower-case letters, digits and _, such as lamps, found {name!r:.60}"
            )
        if name == "comap" or name in sys.stdlib_module_names:
            raise OptionError(
                f"expected a name of its own, found {name!r}, which Python or comap has"
            )
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OptionError(f"expected a new or empty folder, found {out}; choose another --out")
        words = {"name": name, "Name": name.title().replace("_", "")}
        for path in (files(__package__) / "scaffolds" / self.scaffold).iterdir():
            target = out / path.name.replace("NAME", name).removesuffix(".txt")
            target = target.parent / "tests" / target.name if "test_" in target.name else target
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(path.read_text("utf-8")).substitute(words), "utf-8")
        print(f"{out}: a package that works; now change {name}.py\n\n  cd {out}")
        print("  pip install -e . && pytest\n" + Template(self.after).substitute(words))
        return 0


@dataclass(frozen=True, kw_only=True)
class InitEnv(_Init):
    """Write a package with an environment that works, its state facts and its tests."""

    example: ClassVar[str] = "comap init env lamps"
    scaffold: ClassVar[str] = "env"
    after: ClassVar[str] = (
        "  comap validate $name:mine/$Name-v0\n  comap play --env $name:mine/$Name-v0"
    )


@dataclass(frozen=True, kw_only=True)
class InitWorldModel(_Init):
    """Write a package with a world model that works and its tests."""

    example: ClassVar[str] = "comap init world-model doors"
    scaffold: ClassVar[str] = "world_model"
    after: ClassVar[str] = "  comap score world-model --world-model $name:$Name"


@dataclass(frozen=True, kw_only=True)
class Validate(EnvOptions):
    """Test an environment by comap's conformance suite, and say what fails and why.

    Episodes are repeated in other processes, snapshots are restored, malformed actions sent, vector
    environments compared with single ones, and memory is measured. Exit status 1: a test failed.
    """

    example: ClassVar[str] = "comap validate comap/ALFWorld-v0"

    env: str = field(default="", metadata=WORD)
    """Id of the environment, or MODULE:ID of one that MODULE registers."""

    def run(self) -> int:
        try:
            import pytest
        except ImportError:
            raise MissingExtra(
                "testing an environment needs pytest; run: pip install pytest"
            ) from None
        registered(self.env)  # says what is wrong with an unknown name
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "test_environment.py")
            file.write_text(_TEST.format(env=self.env, kwargs=self.env_options()), "utf-8")
            told = _Told()
            quiet = ("-p", "no:terminal", "-p", "no:cacheprovider", f"--rootdir={folder}")
            status = int(pytest.main([*quiet, "-c", "/dev/null", str(file)], plugins=[told]))
        if not told.tests:
            raise OptionError(
                f"expected tests of {self.env}, but none could run (pytest ended with {status})"
            )
        counts = Counter(told.tests.values())
        skipped = f", {counts['skipped']} do not apply" if counts["skipped"] else ""
        print(f"\n{counts['passed']} of {len(told.tests)} tests passed{skipped}")
        return 1 if counts["failed"] else 0


class _Told:
    """A plugin of pytest that prints a line for each test: its name, and why it failed."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        self.tests[name] = report.outcome
        print(f"{'FAILED' if report.failed else report.outcome:<8}{name}", flush=True)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr)
            lines = [line for line in why.splitlines() if line.strip()][:4]
            print("".join(f"        {line[:200]}\n" for line in lines), end="", flush=True)
