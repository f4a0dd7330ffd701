"""`comap init harbor`: task folders whose server, solution and verifier work together, uncontained."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import gymnasium as gym
import pytest
import yaml

import comap
from comap.integrations import Offered
from comap.integrations.harbor import HarborTask, compose_list, quotation, substitutions
from kits.commands import say

pytest.importorskip("mcp")
pytest.importorskip("uvicorn")

ALFWORLD, TOOLS = "comap/ALFWorld-v0", "comap/StableToolBench-v0"
ROOT = Path(comap.__file__).parent.parent
FILES = """
environment/Dockerfile environment/comap/Dockerfile environment/comap/finish environment/comap/serve
environment/comap/wheels/README.md environment/docker-compose.yaml instruction.md solution/plan.json
solution/solve.py solution/solve.sh task.toml tests/Dockerfile tests/reward.py tests/test.sh
"""
HOSTILE = 'put ``` a "mug"\n# Do \\ this\n<!-- canary -->\n$HOME ${X} \x07\x7f\ud800 '
HOSTILE += "\U0001f600 ''' \"\"\" ---"


def init(out, env=ALFWORLD, *words):
    return say("init", "harbor", env, "--env-option", "source=generated", "--out", str(out), *words)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("tasks") / "out"
    code, printed, error = init(out, ALFWORLD, "--split", "valid_seen", "--episodes", "2")
    assert code == 0 and "2 tasks of Harbor" in printed and "harbor run -p" in printed, error
    return sorted(out.iterdir())


def test_a_folder_has_what_harbor_reads(folders):
    assert folders[0].name == "alfworld-valid-seen-00000"
    for folder in folders:
        files = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        }
        assert files == set(FILES.split())

        config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
        task = config["metadata"]["task"]
        assert config["task"]["name"] == f"comap/{folder.name}" and task.startswith("generated/")
        (server,) = config["environment"]["mcp_servers"]
        assert (server["transport"], server["url"]) == ("streamable-http", "http://comap:8000/mcp")
        assert config["artifacts"] == [{"source": "/record", "service": "comap"}]
        assert config["verifier"]["environment_mode"] == "separate"

        # What the agent is told has the goal, and not which task it is.
        instruction = (folder / "instruction.md").read_text("utf-8")
        env = gym.make(ALFWORLD, source="generated", split="valid_seen")
        _, info = env.reset(options={"task": task})
        assert f"> {info['goal']}" in instruction and task not in instruction


def test_the_agent_is_in_another_container_than_the_environment(folders):
    """The record, the task's id and the plan are in none of the files of the agent's image."""
    for folder in folders:
        services = yaml.safe_load((folder / "environment" / "docker-compose.yaml").read_text())
        main, server = services["services"]["main"], services["services"]["comap"]
        assert set(main) == {"depends_on"} and not {"volumes", "ports", "privileged"} & set(server)
        words = server["command"]
        assert words[:2] == ["--env", ALFWORLD] and words[2] == "--task"
        agents_image = (folder / "environment" / "Dockerfile").read_text("utf-8")
        assert "COPY" not in agents_image and "comap" not in agents_image
        collect = tomllib.loads((folder / "task.toml").read_text())["verifier"]["collect"]
        assert collect == [{"service": "comap", "command": "finish"}]


def test_the_dockerfiles_are_sound(folders):
    """Hadolint has nothing to say of them; they are pinned, and the server is no root."""
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = beside if beside.is_file() else shutil.which("hadolint")
    dockerfiles = sorted(folders[0].rglob("Dockerfile"))
    assert len(dockerfiles) == 3
    for dockerfile in dockerfiles:
        text = dockerfile.read_text("utf-8")
        assert re.search(r"^FROM python:\d+\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
        for copied in re.findall(r"^COPY (?:--\S+ )*(.*) \S+$", text, re.MULTILINE):
            assert all((dockerfile.parent / name).exists() for name in copied.split())
        if hadolint is not None:
            process = subprocess.run([hadolint, dockerfile], capture_output=True, text=True)
            assert process.returncode == 0 and not process.stdout, process.stdout
    server = folders[0] / "environment" / "comap" / "Dockerfile"
    assert re.search(
        rf"^RUN pip install .*\[mcp,serve\]=={comap.__version__}\"$", server.read_text(), re.M
    )
    assert "\nUSER 1000\n" in server.read_text()


def serve(folder, record):
    """Start the server that the compose file describes, on this machine; return it and its address."""
    services = yaml.safe_load((folder / "environment" / "docker-compose.yaml").read_text())
    words = [word.replace("$$", "$") for word in services["services"]["comap"]["command"]]
    script = (folder / "environment" / "comap" / "serve").read_text()
    assert 'comap serve env "$@" --style mcp --record /record' in script
    words = ["serve", "env", *words, "--style", "mcp", "--record", str(record)]
    server = subprocess.Popen(
        [sys.executable, "-m", "comap", *words, "--no-token", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    return server, server.stdout.readline().split()[1]


def reward(folder, record, out):
    """Run the verifier; return its exit status and the rewards that it wrote."""
    places = {"COMAP_RECORD": str(record), "COMAP_VERIFIER_DIR": str(out)}
    script = ["sh", str(folder / "tests" / "test.sh")]
    process = subprocess.run(script, env=os.environ | places, capture_output=True, text=True)
    file = out / "reward.json"
    assert "Traceback" not in process.stderr
    return process.returncode, json.loads(file.read_text()) if file.exists() else process.stderr


@pytest.mark.parametrize("env", [ALFWORLD, TOOLS])
def test_the_solution_solves_the_task(env, folders, tmp_path):
    """Server, solution and verifier as in their containers: the reward is 1, and the record is whole."""
    folder = folders[1]
    if env == TOOLS:
        assert init(tmp_path / "tools", env, "--episodes", "1")[0] == 0
        (folder,) = (tmp_path / "tools").iterdir()
    record = tmp_path / "record"
    server, url = serve(folder, record)
    try:
        assert reward(folder, record, tmp_path / "before") == (
            0,
            {"reward": 0.0, "score": 0.0, "success": 0.0, "steps": 0},
        )
        solution = subprocess.run(
            ["sh", str(folder / "solution" / "solve.sh")],
            env=os.environ | {"COMAP_URL": url},
            capture_output=True,
            text=True,
        )
        assert solution.returncode == 0, solution.stdout + solution.stderr
    finally:
        server.terminate()
        server.communicate(timeout=60)

    plan = json.loads((folder / "solution" / "plan.json").read_text())
    expected = {"reward": 1.0, "score": 1.0, "success": 1.0, "steps": len(plan)}
    assert reward(folder, record, tmp_path / "after") == (0, expected)
    assert say("verify", str(record))[0] == 0


def test_the_verifier_reads_what_is_there(folders, tmp_path):
    """Steps of an episode that is under way count; without a server's record there is no reward."""
    folder, record = folders[0], tmp_path / "record"
    status, error = reward(folder, record, tmp_path / "none")
    assert status == 1 and "found nothing" in error

    (record / "unfinished").mkdir(parents=True)
    (record / "run.json").write_text("{}")
    steps = [{"score": 0.25, "success": False}, {"score": 0.5, "success": False}]
    lines = [json.dumps(line) for line in ({"task": "x"}, *steps)]
    (record / "unfinished" / "1-1.jsonl").write_text("\n".join(lines) + '\n{"score": 1.')
    status, rewards = reward(folder, record, tmp_path / "some")
    assert (status, rewards["reward"], rewards["steps"]) == (0, 0.5, 2)

    (record / "trajectories.jsonl").write_text(json.dumps({"steps": steps}) + "\n")
    status, error = reward(folder, record, tmp_path / "two")
    assert status == 1 and "expected one episode" in error


def test_hostile_texts_stay_texts():
    """A goal ends no quotation, no string and no list, whatever it has in it."""
    task = HarborTask("x", f"generated/{HOSTILE}", "train", HOSTILE, None)
    offered = Offered([ALFWORLD], {"source": "generated"})
    texts = substitutions(task, offered, "score")
    assert all(line.startswith(">") for line in texts["goal"].split("\n"))
    for name in ("description", "task"):
        parsed = tomllib.loads(f"x = {texts[name]}")["x"]
        assert 'put ``` a "mug"' in parsed and "\x07" not in parsed
    words = yaml.safe_load(texts["command"])
    assert words[3].startswith("generated/put ```") and "$$HOME $${X}" in words[3]
    assert compose_list(["a'b", "#: - {}"]) == '["a\'b", "#: - {}"]'
    assert quotation("a\r\n\r```") == "> a\n>\n> ```"


SECOND = "generated/valid_seen/normal/0-000002"


def test_a_task_that_is_named_twice_has_one_folder(tmp_path):
    code, printed, _ = init(tmp_path, ALFWORLD, "--split", "valid_seen", "--tasks", SECOND, SECOND)
    assert code == 0 and ": 1 task of Harbor" in printed
    assert [folder.name for folder in tmp_path.iterdir()] == ["alfworld-valid-seen-00002"]


def test_mistakes(tmp_path):
    out = tmp_path / "out"
    wheel = tmp_path / "comap.txt"
    wheel.write_text("")
    cases = [
        (["--tasks", "generated/nothing"], "generated/nothing"),
        (["--tasks", "valid_seen/official"], "of official data"),
        (["--split", "valid_seen", "--tasks", SECOND, "generated/nothing"], "generated/nothing"),
        (["--split", "x"], "cannot be 'x'"),
        (["--wheel", str(wheel)], "expected a wheel"),
        (["--episodes", "0"], "--episodes"),
    ]
    for words, message in cases:
        code, _, error = init(out, ALFWORLD, *words)
        assert code == 2 and message in error and not out.exists(), (words, error)
    code, _, error = init(tmp_path, ALFWORLD, "--episodes", "1")
    assert code == 2 and "new or empty folder" in error
