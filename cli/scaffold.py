"""``comap init`` and ``comap validate``: a package of one's own that works, and its environment tested."""

from __future__ import annotations

import json
import keyword
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from pathlib import Path
from string import Template
from typing import Any, ClassVar, Literal

from .. import __version__
from ..benchmarks.record import version
from ..envs.panel import evenly
from ..envs.registry import env_class, registered
from ..errors import DISTRIBUTION, MissingExtra, OptionError, check_number
from ..lm.prompts import packaged_prompts
from .options import WORD, Command, EnvOptions, Pairs

_SCIENCEWORLD = "comap/ScienceWorld-v0"
_TEST = """\
from comap.envs.conformance import EnvConformance

class TestEnvironment(EnvConformance):
    env_id = {env!r}
    kwargs = {kwargs!r}
"""


def check_new(out: Path) -> None:
    """Refuse a folder that has something in it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OptionError(f"expected a new or empty folder, found {out}; choose another --out")


def write_scaffold(scaffold: str, out: Path, substitutions: Mapping[str, str]) -> None:
    """Write a scaffold's files, with their placeholders substituted, into a new or empty folder."""
    check_new(out)
    source = Path(__file__).parent / "scaffolds" / scaffold
    for path in source.rglob("*.txt"):
        # As texts they are no Python to linters, to pytest and to the wheel.
        file_name = path.relative_to(source).as_posix().removesuffix(".txt")
        target = out / file_name.replace("NAME", substitutions["name"])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(path.read_text("utf-8")).substitute(substitutions), "utf-8")


def _owner_of(name: str) -> str:
    """Return what has a module of this name already; empty where nothing has."""
    if name in sys.stdlib_module_names or name in ("test", "tests", "setup"):
        return "Python"
    if name in ("comap", "conftest", "pytest"):  # pytest imports a file of the second name
        return "comap" if name == "comap" else "pytest"

    distributions = packages_distributions().get(name, [])
    if not distributions and version(name.replace("_", "-")) is not None:
        distributions = [name]
    return f"the installed distribution {distributions[0]}" if distributions else ""


@dataclass(frozen=True, kw_only=True)
class _Init(Command):
    scaffold: ClassVar[str]
    after: ClassVar[str]
    """The commands to give next, with placeholders as in the scaffold's files."""

    name: str = field(default="", metadata=WORD)
    """Name of the package and its module, such as lamps."""
    out: Path | None = None
    """Folder to write, new or empty (default: the name)."""

    def run(self) -> int:
        name = self.name
        out = self.out or Path(name)
        if not re.fullmatch("[a-z][a-z0-9_]{0,40}", name) or keyword.iskeyword(name):
            raise OptionError(
                f"expected a name of lower-case letters, digits and _, such as lamps, found {name!r:.60}"
            )
        owner = _owner_of(name)
        if owner:
            raise OptionError(
                f"expected a name of its own, found {name!r}, which {owner} has: the package would take "
                "its place; choose another"
            )

        # The class is named in CapWords after the module: my_lamps has MyLamps.
        substitutions = {"name": name, "Name": name.title().replace("_", "")}
        write_scaffold(self.scaffold, out, substitutions)

        next_commands = Template(self.after).substitute(substitutions)
        print(f"{out}: a package that works; now change {name}.py\n")
        print(f"  cd {out}\n  pip install -e . && pytest\n{next_commands}")
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
class InitPrompts(Command):
    """Write the prompts of agents, world models and environments as files, to be changed.

    `comap run --prompts DIR` and `comap train METHOD --prompts DIR` use the files that are there in
    place of comap's own; those that are left out, or deleted, stay comap's.
    """

    example: ClassVar[str] = "comap init prompts --out prompts"

    out: Path = Path("prompts")
    """Folder to write, new or empty."""

    def run(self) -> int:
        check_new(self.out)
        prompts = packaged_prompts()
        for prompt in prompts:
            target = self.out / prompt.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(prompt.text, "utf-8")
        print(f"{self.out}: {len(prompts)} prompts; change some, delete the others, and give it\n")
        print(f"  comap run --prompts {shlex.quote(str(self.out))}")
        return 0


@dataclass(frozen=True, kw_only=True)
class InitOpenEnv(Command):
    """Write a package of OpenEnv for an environment: a server, a client and a Dockerfile.

    `openenv validate` passes; `openenv build` and `openenv push` take the folder.
    """

    example: ClassVar[str] = "comap init openenv comap/ALFWorld-v0 --out alfworld_env"

    env: str = field(default="", metadata=WORD)
    """Id of the environment, or MODULE:ID of one that MODULE registers."""
    out: Path | None = None
    """Folder to write, new or empty (default: the package's name)."""
    env_option: Pairs = field(default_factory=dict)
    """Option of the environment. Repeatable."""

    def run(self) -> int:
        from ..integrations import Offered

        with closing(Offered([self.env], self.env_option, ["split"]).make()) as env:
            split = env.get_wrapper_attr("tasks").split

        # comap/ALFWorld-v0 becomes alfworld_env, as packages of OpenEnv are called.
        module, _, env_id = self.env.rpartition(":")
        base_name = env_id.rpartition("/")[2].rpartition("-v")[0]
        identifier = re.sub(r"\W", "_", base_name).strip("_").lower()
        name = f"{identifier}_env" if identifier[:1].isalpha() else f"env_{identifier}_env"

        is_scienceworld = env_id == _SCIENCEWORLD
        extra = ",scienceworld" if is_scienceworld else ""
        # Pinned: an image that is built next year must hold the protocol that this package speaks.
        requirements = [f"{DISTRIBUTION}[openenv{extra}]=={__version__}", "openenv>=0.10,<0.11"]
        if module:
            requirements += packages_distributions().get(module, [module])[:1]

        name_parts = name.replace("_env", "").split("_")
        substitutions = {
            "name": name,
            "Name": "".join(name_part.capitalize() for name_part in name_parts),
            "dashed": name.replace("_", "-"),
            "env": env_id,
            "env_id": self.env,
            "options": repr(dict(self.env_option)),
            "split": json.dumps(split),
            "requires": ", ".join(map(json.dumps, requirements)),
            # ScienceWorld takes back the score of an episode that fails.
            "lowest": "-1.0" if is_scienceworld else "0.0",
        }
        out = self.out or Path(name)
        write_scaffold("openenv", out, substitutions)
        print(f"{out}: a package of OpenEnv for {env_id}; README.md says how to serve it\n")
        print(f"  cd {out}\n  pip install -e . && server\n  openenv validate .")
        return 0


@dataclass(frozen=True, kw_only=True)
class InitHarbor(Command):
    """Write task folders of Harbor: an instruction, the environment as an MCP server, a verifier.

    Each folder is one task with one episode. The reward is the score that the server recorded, which
    the agent's container cannot reach; solution/ plays the expert's plan. TRL, SkyRL, prime-rl and NeMo
    Gym take such folders, too.
    """

    example: ClassVar[str] = (
        "comap init harbor comap/ALFWorld-v0 --split valid_seen --episodes 20 --out alfworld_tasks"
    )

    env: str = field(default="", metadata=WORD)
    """Id of the environment, or MODULE:ID of one that MODULE registers."""
    out: Path = Path("harbor_tasks")
    """Folder to write, new or empty; it gets a folder for each task."""
    split: str | None = None
    """Split of the tasks (default: the environment's hardest test split)."""
    episodes: int | None = 20
    """Number of tasks to write, spread evenly over the split; null for all."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks to write, instead."""
    measure: Literal["score", "success"] = "score"
    """What the reward is: the score, from 0 to 1, or 1 for success."""
    env_option: Pairs = field(default_factory=dict)
    """Option of the environment. Repeatable."""
    wheel: tuple[Path, ...] = ()
    """Wheel that no index has, such as comap's own, for the environment's image. Repeatable."""

    def run(self) -> int:
        from ..integrations import Offered
        from ..integrations.harbor import harbor_task, substitutions

        check_new(self.out)
        if self.episodes is not None:
            check_number("--episodes", self.episodes)
        for wheel in self.wheel:
            if wheel.suffix != ".whl" or not wheel.is_file():
                raise OptionError(f"expected a wheel as --wheel, found {wheel}; name a .whl file")

        module, _, _ = self.env.rpartition(":")
        split = self.split or next(reversed(env_class(self.env).test_splits), None)
        options = dict(self.env_option) | ({} if split is None else {"split": split})
        offered = Offered([self.env], options)
        with closing(offered.make()) as env:
            panel = env.get_wrapper_attr("tasks").ids
        task_ids = tuple(dict.fromkeys(self.tasks)) or evenly(panel, self.episodes)

        # All before the first is written: one that is refused leaves no folder with a part of them.
        tasks = [harbor_task(offered, task_id) for task_id in task_ids]
        unsolved = 0
        for task in tasks:
            folder = self.out / task.name
            write_scaffold("harbor", folder, substitutions(task, offered, self.measure, module))
            for wheel in self.wheel:
                shutil.copy(wheel, folder / "environment" / "comap" / "wheels" / wheel.name)
            if task.plan is None:  # there is no expert, or it fails
                shutil.rmtree(folder / "solution")
                unsolved += 1

        noun = "task" if len(tasks) == 1 else "tasks"
        print(f"{self.out}: {len(tasks):,} {noun} of Harbor for {self.env}")
        if unsolved:
            print(
                f"{unsolved} of them have no solution: the environment's expert does not solve them"
            )
        print(f"\n  harbor run -p {shlex.quote(str(self.out))} -a oracle")
        return 0


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

        registered(self.env)  # refuses an unknown name with the likeliest one
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "test_environment.py")
            file.write_text(_TEST.format(env=self.env, kwargs=self.env_options()), "utf-8")
            printer = _OutcomePrinter()
            os.environ.pop("PYTEST_ADDOPTS", None)  # meant for the tests of the user's project
            # No configuration of the folder that the user happens to be in changes these tests.
            pytest_options = ("-p", "no:terminal", "-p", "no:cacheprovider", f"--rootdir={folder}")
            status = int(
                pytest.main([*pytest_options, "-c", "/dev/null", str(file)], plugins=[printer])
            )

        if not printer.outcomes:
            raise OptionError(
                f"expected tests of {self.env}, but none could run (pytest ended with {status})"
            )
        counts = Counter(printer.outcomes.values())
        skipped = f", {counts['skipped']} do not apply" if counts["skipped"] else ""
        print(f"\n{counts['passed']} of {len(printer.outcomes)} tests passed{skipped}")
        return 1 if counts["failed"] else 0


class _OutcomePrinter:
    """A plugin of pytest that prints a line for each test: its name, and why it failed."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A test's setup and teardown are told only where they fail; its call always.
        if report.when != "call" and report.passed:
            return

        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        self.outcomes[name] = report.outcome
        outcome = "FAILED" if report.failed else report.outcome
        print(f"{outcome:<8}{name}", flush=True)

        if report.failed:
            # pytest's whole report shows code of comap: the message alone says what is wrong.
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash else str(report.longrepr)
            lines = [line for line in reason.splitlines() if line.strip()][:4]
            print("".join(f"        {line[:200]}\n" for line in lines), end="", flush=True)
