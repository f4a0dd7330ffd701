"""`comap run` and `comap view`, as one types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comap.agents.create import AGENTS
from comap.cli import main
from comap.cli.main import understood
from comap.cli.run import Play
from comap.envs.alfworld import ALFWorldEnv
from comap.envs.conformance.transcripts import load
from comap.trajectory import Trajectory, write_trajectories

kit = load(f"{Path(__file__).with_name('cli_kit.py')}:KIT")
run, episodes, viewed = kit.run, kit.episodes, kit.viewed
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 <script>alert(1)</script> \u202e \ud800 [bold]red[/bold]\n{% x %}"
)


def test_an_expert_plays_and_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert run("--agent", "expert", "--out", out) == 0
    said = capsys.readouterr()
    assert said.err == "" and "4 of 4 tasks, success 100.0 %" in said.out and out in said.out
    assert [t.success for t in episodes(tmp_path / "run")] == [True] * 4
    assert run("--agent", "expert", "--out", out, "--live", "2") == 0
    assert "4 of 4 tasks had ended before" in capsys.readouterr().out
    assert main(["view", out, "--no-open"]) == 0
    page = tmp_path / "run" / "view.html"
    assert capsys.readouterr().out == f"page: {page}\n"
    entries, records = viewed(page)
    assert [one["outcome"] for one in entries] == ["solved"] * 4 and "put" in entries[0]["title"]
    assert all(one["about"] and one["real"]["steps"] for one in records)
    assert main(["view", out, "--out", str(tmp_path / "other.html"), "--max", "2"]) == 0
    assert "the first 2 shown" in (tmp_path / "other.html").read_text("utf-8")
    assert len(viewed(tmp_path / "other.html")[0]) == 2


def test_runs_are_viewed_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for agent, folder in zip(("expert", "random"), folders, strict=True):
        assert (
            run("--agent", agent, "--env-option", "max_episode_steps=9", "--out", str(folder)) == 0
        )
    capsys.readouterr()
    assert main(["view", *map(str, folders), "--no-open"]) == 0
    page = folders[0] / "view-together.html"
    assert capsys.readouterr().out == f"page: {page}\n"
    entries, _ = viewed(page)
    assert len(entries) == 8 and {one["run"] for one in entries[:4]} != {entries[4]["run"]}
    markup = page.read_text("utf-8")
    assert "<bdi>a/run</bdi>" in markup and "<bdi>b/run</bdi>" in markup, (
        "as much as tells them apart"
    )
    assert str(tmp_path) not in markup
    assert main(["view", str(folders[0]), str(folders[0] / "trajectories.jsonl")]) == 2
    assert "twice" in capsys.readouterr().err


def test_tasks_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ALFWorldEnv(split="valid_unseen", source="generated").tasks.ids[5:8]
    listed = tmp_path / "tasks.txt"
    listed.write_text("\n".join(["", *tasks, " "]))
    command = ["run", "--agent", "random", "--env-option", "source=generated"]
    for name, named in {"file": [str(listed)], "ids": list(tasks)}.items():
        assert main([*command, "--out", str(tmp_path / name), "--tasks", *named]) == 0
        assert [t.task for t in episodes(tmp_path / name)] == list(tasks)


@pytest.mark.parametrize("world_model", ["oracle", "null", "noisy", "retrieval"])
def test_imagination(world_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--agent", "expert", "--imagined", "--world-model", world_model, "--fit-tasks", "2"]
    for _ in range(2):  # the second time it goes on
        assert run(*words, "--env-option", "expert=explore", "--out", str(tmp_path)) == 0
    found = episodes(tmp_path)
    assert all(t.imagined and t.error is None for t in found)
    if world_model == "oracle":
        assert all(t.success for t in found)
    said = json.loads((tmp_path / "run.json").read_text())
    assert said["imagined"]["world_model"] and str(tmp_path) not in json.dumps(said)


def test_a_language_agent_and_world_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    words = ["--agent", "react", "--model", "tiny", "--decoding", "masked", "--prompts", "brief"]
    words += ["--tiny-parameters", "200000", "--env-option", "max_episode_steps=3"]
    assert run(*words, "--out", str(tmp_path), "--live", "4") == 0
    first = (tmp_path / "trajectories.jsonl").read_bytes()
    found = episodes(tmp_path)
    assert all(t.error is None and len(t.steps) == 3 for t in found)
    assert all(step.calls and not step.invalid_action for t in found for step in t.steps)
    assert found[0].settings["decoding"] == "masked" and found[0].settings["model"] == "tiny"
    for name in ("trajectories.jsonl", "summary.json"):
        (tmp_path / name).unlink()
    assert run(*words, "--out", str(tmp_path), "--live", "1") == 0
    assert (tmp_path / "trajectories.jsonl").read_bytes() == first
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["language_model"]["per_step"]["calls"] == 1.0
    capsys.readouterr()
    assert run(*words, "--out", str(tmp_path), "--decoding", "scored") == 2
    assert "agent.decoding: 'masked' there, 'scored' now" in capsys.readouterr().err
    dream = ["--agent", "random", "--imagined", "--world-model", str(tmp_path / "model")]
    dream += ["--world-model-prompts", "brief", "--horizon", "2"]
    assert run(*dream, "--out", str(tmp_path / "dream")) == 0
    assert {t.world_model for t in episodes(tmp_path / "dream")} == {"LanguageWorldModel"}


def test_failed_episodes_are_told_and_are_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, action: str) -> Any:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(ALFWorldEnv, "_act", broken)
    assert run("--agent", "random", "--out", str(tmp_path)) == 0
    told = capsys.readouterr().out
    assert "4 of 4 episodes failed: RuntimeError 4 (the first: [U+001B]" in told
    assert "--retry-failed" in told
    assert not set(told) & set("\x1b\x07\u202e\ud800"), "nothing steers the terminal"
    for line in (tmp_path / "trajectories.jsonl").read_bytes().splitlines():
        assert line.isascii() and json.loads(line)["error"] == f"RuntimeError: {HOSTILE}"
    monkeypatch.undo()
    assert run("--agent", "random", "--out", str(tmp_path)) == 0
    assert "4 of 4 episodes failed" in capsys.readouterr().out, "they are kept"
    assert run("--agent", "random", "--out", str(tmp_path), "--retry-failed") == 0
    assert "episodes failed" not in capsys.readouterr().out
    assert all(t.error is None for t in episodes(tmp_path))


def test_hostile_episodes_are_viewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from comap.facts import State

    hostile = Trajectory(
        HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, State(), error=HOSTILE
    )
    write_trajectories(tmp_path / "some.jsonl", [hostile])
    assert main(["view", str(tmp_path / "some.jsonl"), "--no-open"]) == 0
    page = (tmp_path / "some.html").read_text("utf-8")
    assert "<script>alert" not in page and "\x1b" not in page and "\u202e" not in page
    (record,) = viewed(tmp_path / "some.html")[1]
    assert record["texts"] == [HOSTILE], "and it is all there"


MISTAKES = [
    (["run", "--agent", "random", "--live", "0"], "--live must be a whole number of at least 1"),
    (["run", "--agent", "random", "--seed", "-1"], "--seed must be a whole number of at least 0"),
    (["run", "--agent", "random", "--horizon", "3"], "add --imagined"),
    (["run", "--agent", "random", "--real-every", "2"], "add --imagined"),
    (["run", "--agent", "random", "--env-option", "split=dev"], "give split as --split"),
    (
        ["run", "--agent", "random", "--env-option", "max_episode_steps=x"],
        "'max_episode_steps': 'x'",
    ),
    (["run", "--agent", "random", "--world-model", "orcle"], "did you mean 'oracle'"),
    (["run", "--agent", "react", "--model", "tny"], "did you mean 'tiny'"),
    (
        ["run", "--agent", "react", "--model", "http://127.0.0.1:9/v1#m", "--decoding", "masked"],
        "set decoding='free', or if the server is vLLM say so (--model-option choices_mode=vllm)",
    ),
    (["run", "--agent", "rap", "--model", "http://127.0.0.1:9/v1#m"], "evaluation_weight=0"),
    (
        ["run", "--agent", "react", "--model", "http://127.0.0.1:9/v1#m", "--agent-adapter", "a"],
        "--adapter a=",
    ),
    (
        ["run", "--agent", "random", "--episodes", "0"],
        "--episodes must be a whole number of at least 1",
    ),
    (["run", "--agent", "random", "--env", "comap/ALFWord-v0"], "ALFWorld"),
    (["run", "--agent", "random", "--env", "CartPole-v1"], "CartPole"),
    (["run", "--agent", "random", "--split", "valid_sen"], "valid_seen"),
    (["run", "--agent", "random", "--data-dir", "no/such/folder"], "json_2.1.1"),
    (["run", "--agent", "random", "--tasks", "generated/none"], "generated/none"),
    (["run", "--agent", "random", "--env-option", "expert"], "--env-option expects NAME=VALUE"),
    (["run", "--agent", "random", "--env-option", "exprt=plan"], "expert"),
    (["run", "--agent", "random", "--agent-option", "sed=3"], "seed"),
    (["run", "--agent", "random", "--imagined"], "--world-model"),
    (["run", "--agent", "random", "--world-model", "no.jsonl"], "no.jsonl"),
    (["run", "--agent", "random", "--world-model", "noisy", "--error-rate", "2"], "error_rate"),
    (["run", "--agent", "react", "--base-url", "http://127.0.0.1:9/v1"], "--model"),
    (["run", "--agent", "react", "--model", "shiped"], "did you mean 'shipped'"),
    (["run", "--agent", "react", "--model", "shipped:world"], "shipped:agent or shipped:wm"),
    (["run", "--agent", "react", "--model", ""], "empty text"),
    (["run", "--agent", "react", "--model", "replay:no/such/file"], "found no file"),
    (["run", "--agent", "react", "--model", "http://127.0.0.1:9/v1"], "#NAME"),
    (["run", "--agent", "react", "--model", "m", "--base-url", "ftp://x"], "another scheme"),
    (["run", "--agent", "react", "--model", "http://h/v1#m", "--device", "cpu"], "device"),
    (["view", "no/such/run"], "comap run"),
    (["view", "."], "trajectories.jsonl"),
    (["view", ".", "--max", "0"], "max must be at least 1"),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_mistakes_are_told_in_a_line(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) in (1, 2)
    output = capsys.readouterr()
    assert len(output.err.splitlines()) == 1 and told in output.err, output.err
    assert not (tmp_path / "runs" / "random" / "run.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "--agent"),
        (["run", "--agent", "react", "--decodin", "free"], "did you mean '--decoding'?"),
        (["run", "--agent", "random", "free"], "free"),
        (["run", "--agent", "random", "--seed", "x"], "a whole number as --seed"),
        (["run", "--agent", "raect"], "did you mean 'react'"),
        (["run", "--agent", "random", "--decoding", "free"], "--decoding"),
        (["run", "--agent", "react", "--decoding", "fre"], "masked"),
        (["run", "--agent", "random", "--keep", "all"], "expected one of replies, prompts, tokens"),
        (["run", "--agent", "react", "--max-length", "long"], "--max-length"),
        (["view"], "RUNS"),
    ],
    ids=str,
)
def test_wrong_command_lines_are_told_in_a_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_each_agent_has_its_own_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    further = {"comap": "head", "random": "mixed", "itp": "k_head", "wkm": "knowledge"}
    further["comap-selective"] = "history"
    for agent in AGENTS:
        assert main(["run", "--agent", agent, "--help-all"]) == 0
        told = capsys.readouterr().out
        assert ("  --decoding NAME" in told) == (agent not in ("expert", "random"))
        assert (f"--agent-option of {agent}:" in told) == (agent in further)
        assert further.get(agent, "") in told
        assert main(["run", "--agent", agent, "--help"]) == 0
        assert len(capsys.readouterr().out.splitlines()) <= 100
    assert main(["run", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "comap run --agent NAME --help" in told and all(agent in told for agent in AGENTS)


def test_options_come_from_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--agent", "comap", "--agent-seed", "4", "--tau-p", "0.3", "--episodes", "2"]
    words += ["--history-turns", "none", "--no-future-state", "--env-option", "source=generated"]
    assert main([*words, "--env-option", "max_episode_steps=7", "--print-config"]) == 0
    file = tmp_path / "run.yaml"
    file.write_text(capsys.readouterr().out)
    read = understood(["run", "--config", str(file), "--tau-p", "0.2"])
    assert isinstance(read, Play)
    assert read.env_option == {"source": "generated", "max_episode_steps": 7}
    chosen = {"seed": 4, "tau_p": 0.2, "history_turns": None, "future_state": False}
    assert (read.agent, read.episodes, read.config) == ("comap", 2, chosen)
    for text, told in (("agent: [", "while parsing"), ("agent: comap\nlife: 3", "life")):
        file.write_text(text)
        assert main(["run", "--config", str(file)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
    assert main(["run", "--config", str(tmp_path / "none.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
