"""`comap envs`, `agents`, `models`, `doctor`, `play` and `export`, as one types them."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import gymnasium as gym
import pytest

from comap.agents.convert import from_sharegpt
from comap.agents.create import AGENTS
from comap.cli import main
from kits.commands import episodes, run, say

ENVIRONMENTS = sorted(name for name in gym.registry if name.startswith("comap/"))


def test_what_there_is_is_listed():
    code, printed, _ = say("envs")
    assert code == 0 and re.search(r"comap/ALFWorld-v0 +Household tasks", printed)
    code, printed, _ = say("agents")
    assert code == 0 and all(f"\n  {name} " in printed for name in AGENTS)
    code, printed, _ = say("models")
    assert code == 0 and "http://HOST:PORT/v1#NAME" in printed and "\n  retrieval " in printed


def test_an_environment_is_described(monkeypatch, tmp_path):
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    (tmp_path / "webshop").mkdir()
    (tmp_path / "webshop" / "notes.txt").write_bytes(b"x" * 2_500_000)
    code, printed, _ = say("envs", "comap/WebShop-v0")
    assert code == 0
    assert re.search(r"test +182 tasks \(for tests\)", printed)
    assert re.search(r"observation_mode +\"text\" or \"text_rich\". \(default: 'text'\)", printed)
    assert "max_text_length" in printed and "1 files, 2.5 MB" in printed
    assert "\na task: generated/" in printed and "Instruction:" in printed
    code, _, errors = say("envs", "comap/WebShp-v0")
    assert code == 2 and "did you mean 'comap/WebShop-v0'?" in errors


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_options_are_explained_where_they_stand(env, monkeypatch, tmp_path):
    """In a terminal there is no section of a page that "See *Task panel*" could mean."""
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    code, printed, _ = say("envs", env)
    options = printed.partition("\noptions, ")[2].partition("\n\n")[0]
    assert code == 0 and "split" in options
    assert not re.search(r"\bsee \*", options, re.IGNORECASE)


def test_an_agent_is_described():
    code, printed, _ = say("agents", "comap")
    assert code == 0 and re.search(r"--tau-p +.*\(default:", " ".join(printed.split()))
    for option in re.findall(r"\n  (--[a-z-]+)", printed):
        assert option[2:] in say("run", "--agent", "comap", "--help-all")[1]
    assert "\n  head " in printed.partition("--agent-option")[2]
    assert "mixed" in say("agents", "random")[1]


@pytest.mark.parametrize("agent", sorted(AGENTS))
def test_a_default_that_is_a_function_is_named(agent):
    """Its own text would have its address, which is another one in each process."""
    code, printed, _ = say("agents", agent)
    assert code == 0 and " at 0x" not in printed
    if agent == "comap":
        assert "(default: comap.agents.comap:action_gate)" in " ".join(printed.split())


def test_the_doctor_says_what_is_lacking_and_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    code, printed, errors = say("doctor")
    assert (code, errors) == (0, "")
    for name in (
        "Python",
        "torch",
        "extra train",
        "data alfworld",
        "Java",
        "GPU",
        "engine",
        "browser",
    ):
        assert re.search(rf"\n(ok|--)  {name} ", f"\n{printed}"), name
    assert re.search(r"--  data alfworld +not in .*run: comap data get alfworld\n", printed)
    assert re.search(r"--  GPU +no NVIDIA driver", printed)
    assert re.search(r"--  engine +hf \(vLLM is not installed\); tested with vLLM 0\.", printed)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'H100, 81559 MiB, 570.1'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert re.search(r"GPU +H100, 81559 MiB, 570.1", say("doctor")[1])


REQUIRED = """gymnasium<2,>=1.4
mcp<3,>=1.30; extra == "mcp"
trl<1.17,>=1.16; extra == "train"
nothing-like-it; extra == "train"
winonly; sys_platform == "win32" and extra == "train"
ruff>=99; extra == "lint"
"""
INSTALLED = {"comap-agents": "0.1", "gymnasium": "1.3.0", "mcp": "3.0.0", "trl": "1.16.5+cpu"}


def test_the_doctor_compares_versions(monkeypatch):
    """A package may be there in a version that does not fit: names alone do not say so."""
    monkeypatch.setattr("comap.cli.explore.version", INSTALLED.get)
    monkeypatch.setattr(
        "comap.cli.explore.metadata.requires", lambda name: REQUIRED.strip().split("\n")
    )
    printed = say("doctor")[1]
    assert re.search(r"--  gymnasium +has gymnasium 1\.3\.0, needs <2,>=1\.4; run: pip", printed)
    assert re.search(r'--  extra mcp +has mcp 3\.0\.0, needs <3,>=1\.30; run: .*\[mcp\]"', printed)
    assert re.search(r"--  extra train +lacks nothing-like-it; run: ", printed)
    assert "extra lint" not in printed and "winonly" not in printed

    monkeypatch.setitem(INSTALLED, "mcp", "2.3.0")
    assert re.search(r"ok  extra mcp +mcp\n", say("doctor")[1])


def play(words, *lines):
    """What is printed for these lines, prompts aside."""
    command = [sys.executable, "-m", "comap", "play", *words.split()]
    process = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True
    )
    assert process.stderr == "", process.stderr
    return process.returncode, process.stdout


def test_a_person_plays(monkeypatch, capsys):
    words = ["play", "--env-option", "source=generated", "--split", "valid_seen", "--seed", "3"]
    lines = iter(["actions", "1", "facts", "undo", "undo", "quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert main(words) == 0
    printed = capsys.readouterr().out
    action = re.search(r"\n +1  (.+)", printed)[1]
    assert f"\n> {action}\n" in printed and re.search(r"\n\+ at\(agent, .+\)\n", printed)
    assert "no action to take back" in printed
    assert printed.endswith("\nnot finished after 0 steps: score 0, return 0\n")


def test_a_person_wins_and_the_input_may_end(tmp_path):
    assert run("--agent", "expert", "--out", str(tmp_path), "--episodes", "1") == 0
    (episode,) = episodes(tmp_path)
    words = f"--env-option source=generated --split {episode.split} --task {episode.task}"
    code, printed = play(words, *(step.action for step in episode.steps), "look")
    assert (
        code == 0 and f"\nsuccess after {len(episode.steps)} steps: score 1, return 1\n" in printed
    )
    code, printed = play(words, episode.steps[0].action)
    assert code == 0 and printed.endswith("not finished after 1 steps: score 0, return 0\n")
    code, _, errors = say("play", "--task", "nowhere")
    assert code == 2 and "found 'nowhere'" in errors


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played")
    assert run("--agent", "expert", "--out", str(folder)) == 0
    return folder


def test_episodes_are_exported(played, tmp_path, capsys):
    datasets = pytest.importorskip("datasets")
    recorded = episodes(played)
    for export_format in ("messages", "sharegpt", "parquet"):
        out = tmp_path / f"new/{export_format}"
        assert main(["export", str(played), "--to", export_format, "--out", str(out)]) == 0
        assert f"{out}: 4 rows" in capsys.readouterr().out
    messages, talks = (
        [json.loads(line) for line in (tmp_path / "new" / name).read_text().splitlines()]
        for name in ("messages", "sharegpt")
    )
    actions = [[step.action for step in episode.steps] for episode in recorded]
    assert [[step.action for step in episode.steps] for episode in from_sharegpt(talks)] == actions
    assert messages[0]["messages"][-1] == {
        "role": "assistant",
        "content": f"Action: {actions[0][-1]}",
    }
    table = datasets.Dataset.from_parquet(
        str(tmp_path / "new" / "parquet"), cache_dir=str(tmp_path)
    )
    assert table.to_list() == messages
    out = tmp_path / "talks.parquet"
    assert main(["export", str(played), "--to", "sharegpt", "--out", str(out)]) == 0
    assert datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path)).to_list() == talks


def test_what_cannot_be_exported_is_refused(played, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    words = ["export", str(played), "--to", "sharegpt", "--out", str(out)]
    out.write_text("mine")
    code, _, errors = say(*words)
    assert code == 2 and "expected a new file as --out" in errors and out.read_text() == "mine"
    out.unlink()
    code, _, errors = say("export", str(tmp_path), *words[2:])
    assert code == 2 and "trajectories.jsonl" in errors and not out.exists()
    random = tmp_path / "random"
    assert run("--agent", "random", "--out", str(random), "--max-episode-steps", "2") == 0
    code, _, errors = say("export", str(random), *words[2:], "--successes")
    assert code == 2 and "expected successful episodes" in errors and not out.exists()
    monkeypatch.setitem(sys.modules, "datasets", None)
    code, _, errors = say("export", str(played), "--to", "messages", "--out", str(out))
    assert code == 2 and "needs the extra 'train'" in errors and not out.exists()
