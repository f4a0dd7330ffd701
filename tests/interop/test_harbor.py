"""Harbor's own code loads and lints the task folders, and its oracle and its verifier score them.

Harbor needs Python 3.12: `PYTHON=python3.13 make interop DOORS=harbor` makes the environment for it.
No container is built: `UncontainedEnvironment` stands for Docker, with the folder's own commands.
"""

# installs: comap[mcp,serve] harbor==0.26.0
# python: 3.12

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "harbor", reason="make interop DOORS=harbor installs it, for Python 3.12 and later"
)

import yaml
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.lint.models import COMPOSE_RULES, DEFAULT_RULES
from harbor.lint.task import lint_task
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TrialConfig
from harbor.models.trial.config import TaskConfig as TrialTaskConfig
from harbor.trial.trial import Trial

from comap.trajectory import read_trajectories

ALFWORLD = "comap/ALFWorld-v0"
PLACES = ("/logs", "/tests", "/solution", "/record")
"""The folders of containers that commands name: each is one of the environment's own here."""


def comap(*words: str) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "comap", *words], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tasks") / "out"
    options = ("--env-option", "source=generated", "--episodes", "2", "--split", "valid_seen")
    comap("init", "harbor", ALFWORLD, *options, "--out", str(out))
    return sorted(out.iterdir())[0]


class UncontainedEnvironment(BaseEnvironment):
    """Runs the commands of a task's containers on this machine, in a folder for each container."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.root = Path(self.trial_paths.trial_dir) / "containers" / self.session_id
        self.server: subprocess.Popen[str] | None = None
        self.url = ""

    @staticmethod
    def type() -> str:
        return "uncontained"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(docker_compose=True, disable_internet=True)

    def _validate_definition(self) -> None:
        assert (self.environment_dir / "Dockerfile").is_file()

    def place(self, path: str | Path) -> Path:
        return self.root / str(path).lstrip("/")

    async def start(self, force_build: bool) -> None:
        for name in ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests", "/solution"):
            self.place(name).mkdir(parents=True, exist_ok=True)
        compose = self.environment_dir / "docker-compose.yaml"
        if not compose.is_file():  # the verifier's container has the files of its own image
            for name in re.findall(r"^COPY \S+ (.*) /tests/$", self.dockerfile(), re.MULTILINE)[
                0
            ].split():
                shutil.copy(self.environment_dir / name, self.place("/tests"))
            return

        words = yaml.safe_load(compose.read_text())["services"]["comap"]["command"]
        words = ["serve", "env", *(word.replace("$$", "$") for word in words), "--style", "mcp"]
        words += ["--record", str(self.place("/record")), "--no-token", "--port", "0"]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "comap", *words], stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        self.url = self.server.stdout.readline().split()[1]

    def dockerfile(self) -> str:
        return (self.environment_dir / "Dockerfile").read_text("utf-8")

    async def stop(self, delete: bool) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.communicate()

    async def stop_service(self, service: str) -> None:
        assert service == "main"

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
        discard_stdout: bool = False,
        **_: Any,
    ) -> ExecResult:
        for name in PLACES:
            command = re.sub(rf"(?<![\w/.]){name}(?=[/\s'\";)]|$)", str(self.place(name)), command)
        places = {
            "COMAP_URL": self.url,
            "COMAP_RECORD": str(self.place("/record")),
            "COMAP_VERIFIER_DIR": str(self.place("/logs/verifier")),
        }
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            env={**os.environ, **(env or {}), **places},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_sec or 300)
        return ExecResult(
            stdout=stdout.decode(), stderr=stderr.decode(), return_code=process.returncode or 0
        )

    async def service_exec(
        self, command: str, *, service: str | None = None, **options: Any
    ) -> ExecResult:
        if command == "finish":  # the program of the server's image
            assert service == "comap" and self.server is not None
            self.server.terminate()
            await asyncio.to_thread(self.server.wait, 60)
            return ExecResult(stdout="", stderr="", return_code=0)
        return await self.exec(command)

    async def service_download_file(
        self, source_path: str, target_path: Path | str, *, service: str | None = None
    ) -> None:
        await self.download_file(source_path, target_path)

    async def service_download_dir(
        self, source_dir: str, target_dir: Path | str, *, service: str | None = None
    ) -> None:
        await self.download_dir(source_dir, target_dir)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        self.place(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self.place(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self.place(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        source = Path(source_path)
        # What Harbor made by a command, such as an archive in /tmp, is where the command made it.
        shutil.copy(source if source.is_file() else self.place(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self.place(source_dir), target_dir, dirs_exist_ok=True)


def test_harbor_loads_the_folder(folder: Path) -> None:
    assert Task.is_valid_dir(folder)
    task = Task(folder)
    assert task.name == f"comap/{folder.name}" and "\n> " in task.instruction
    (server,) = task.config.environment.mcp_servers
    assert server.transport == "streamable-http" and server.url == "http://comap:8000/mcp"
    definition = resolve_verifier_environment_definition(task.config, task.paths)
    assert definition is not None and definition.bundled_tests  # a container of its own


def test_harbors_linter_has_nothing_to_say(folder: Path) -> None:
    """Of what it says by default; agents that install themselves are root, and tags are versions."""
    rules = set(DEFAULT_RULES)
    try:
        findings = lint_task(folder, selected_rules=rules)
    except RuntimeError:  # the compose file is parsed by Docker's own program, which is not there
        findings = lint_task(folder, selected_rules=rules - COMPOSE_RULES)
    assert findings == []


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_a_trial_gives_the_recorded_score(agent: str, folder: Path, tmp_path: Path) -> None:
    """Harbor's oracle plays the solution, its verifier gets the record: 1, and 0 for who does nothing."""

    async def run() -> Any:
        config = TrialConfig(
            task=TrialTaskConfig(path=folder),
            trials_dir=tmp_path,
            agent=AgentConfig(name=agent),
            environment=EnvironmentConfig(import_path=f"{__name__}:UncontainedEnvironment"),
        )
        return await (await Trial.create(config)).run()

    result = asyncio.run(run())
    assert result.exception_info is None, result.exception_info
    reward = 1.0 if agent == "oracle" else 0.0
    assert result.verifier_result.rewards["reward"] == reward

    # The record is among the trial's artifacts, whole.
    (record,) = {path.parent for path in tmp_path.rglob("artifacts/**/run.json")}
    episodes = list(read_trajectories(record / "trajectories.jsonl"))
    plan = json.loads((folder / "solution" / "plan.json").read_text())
    assert [len(episode.steps) for episode in episodes] == ([len(plan)] if reward else [])
    if reward:
        assert "1 agrees" in comap("verify", str(record), "--episodes", "all")
