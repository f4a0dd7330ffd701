"""`comap run` and `comap view`, as one types them."""

from __future__ import annotations

import json
import re

import pytest

from comap.agents.create import AGENTS
from comap.benchmarks import display
from comap.cli import main
from comap.cli.main import understood
from comap.cli.run import Play
from comap.envs.alfworld import ALFWorldEnv
from comap.trajectory import Trajectory, write_trajectories
from comap.worldmodel.naming import NOT_TO_REPORT
from kits.commands import episodes, run, viewed

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 <script>alert(1)</script> \u202e \ud800 [bold]red[/bold]\n{% x %}"
)


def test_progress_counts_steps_also_while_no_episode_has_ended(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(display, "_SECONDS", 0.0)
    assert run("--agent", "random", "--max-episode-steps", "3", "--out", str(tmp_path)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "steps (" in line]
    assert re.fullmatch(r"Playing: 0 of 4 tasks, 1 steps \([\d,.]+ a second\)", lines[0])
    assert re.fullmatch(r"4 of 4 tasks, success 0.0 %, 12 steps \([\d,.]+ a second\)", lines[-1])
    assert len(lines) == 12 + 4


def test_an_expert_plays_and_is_shown(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert run("--agent", "expert", "--out", out) == 0
    output = capsys.readouterr()
    assert output.err == "" and "4 of 4 tasks, success 100.0 %" in output.out and out in output.out
    assert [t.success for t in episodes(tmp_path / "run")] == [True] * 4
    assert run("--agent", "expert", "--out", out, "--live", "2") == 0
    assert "4 of 4 tasks had ended before" in capsys.readouterr().out
    assert main(["view", out, "--no-open"]) == 0
    page = tmp_path / "run" / "view.html"
    assert capsys.readouterr().out == f"page: {page}\n"
    entries, records = viewed(page)
    assert [entry["outcome"] for entry in entries] == ["solved"] * 4 and "put" in entries[0][
        "title"
    ]
    assert all(record["about"] and record["real"]["steps"] for record in records)
    assert main(["view", out, "--out", str(tmp_path / "other.html"), "--max", "2"]) == 0
    assert "the first 2 shown" in (tmp_path / "other.html").read_text("utf-8")
    assert len(viewed(tmp_path / "other.html")[0]) == 2


def test_runs_are_viewed_together(tmp_path, capsys):
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
    assert len(entries) == 8 and {entry["run"] for entry in entries[:4]} != {entries[4]["run"]}
    markup = page.read_text("utf-8")
    assert "<bdi>a/run</bdi>" in markup and "<bdi>b/run</bdi>" in markup, (
        "as much as tells them apart"
    )
    assert str(tmp_path) not in markup
    assert main(["view", str(folders[0]), str(folders[0] / "trajectories.jsonl")]) == 2
    assert "twice" in capsys.readouterr().err


def test_tasks_may_be_named(tmp_path, capsys):
    tasks = ALFWorldEnv(split="valid_unseen", source="generated").tasks.ids[5:8]
    listed = tmp_path / "tasks.txt"
    listed.write_text("\n".join(["", *tasks, " "]))
    command = ["run", "--agent", "random", "--env-option", "source=generated"]
    for name, task_words in {"file": [str(listed)], "ids": list(tasks)}.items():
        assert main([*command, "--out", str(tmp_path / name), "--tasks", *task_words]) == 0
        assert [t.task for t in episodes(tmp_path / name)] == list(tasks)


@pytest.mark.parametrize("world_model", ["oracle", "null", "noisy", "retrieval"])
def test_imagination(world_model, tmp_path, capsys):
    words = ["--agent", "expert", "--imagined", "--world-model", world_model, "--fit-tasks", "2"]
    for _ in range(2):  # the second time it goes on
        assert run(*words, "--env-option", "expert=explore", "--out", str(tmp_path)) == 0
    trajectories = episodes(tmp_path)
    assert all(t.imagined and t.error is None for t in trajectories)
    if world_model == "oracle":
        assert all(t.success for t in trajectories)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["imagined"]["world_model"] and str(tmp_path) not in json.dumps(record)


def test_a_language_agent_and_world_model(tmp_path, capsys):
    pytest.importorskip("torch")
    words = ["--agent", "react", "--model", "tiny", "--decoding", "masked", "--prompts", "brief"]
    words += ["--tiny-parameters", "200000", "--env-option", "max_episode_steps=3"]
    assert run(*words, "--out", str(tmp_path), "--live", "4") == 0
    first = (tmp_path / "trajectories.jsonl").read_bytes()
    played = episodes(tmp_path)
    assert all(t.error is None and len(t.steps) == 3 for t in played)
    assert all(step.calls and not step.invalid_action for t in played for step in t.steps)
    assert played[0].settings["decoding"] == "masked" and played[0].settings["model"] == "tiny"
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
    assert {t.world_model for t in episodes(tmp_path / "dream")} == {"language:model"}


def test_a_missing_example_is_said_in_a_line(tmp_path, capsys):
    words = (
        "--model",
        "tiny",
        "--tiny-parameters",
        "200000",
        "--max-length",
        "700",
        "--max-episode-steps",
        "1",
        "--no-show-actions",
    )
    assert run("--agent", "react", *words, "-n", "1", "--out", str(tmp_path)) == 0

    (line,) = (line for line in capsys.readouterr().err.splitlines() if "worked example" in line)
    assert line.startswith("comap: the worked example of comap/ALFWorld-v0 does not fit")
    assert "--max-length" in line and "\x1b" not in line


def test_prompts_of_small_runs_are_recorded_and_an_older_run_stays_as_it_was(
    tmp_path, capsys, monkeypatch
):
    pytest.importorskip("torch")
    words = ["--agent", "react", "--model", "tiny", "--tiny-parameters", "200000", "--prompts"]
    words += ["brief", "--decoding", "masked", "--env-option", "max_episode_steps=1"]

    def has_prompts(folder):
        (has_messages,) = {
            step.calls[0].messages is not None for t in episodes(folder) for step in t.steps
        }
        assert (
            json.loads((folder / "run.json").read_text())["keep"]
            == ("replies", "prompts")[has_messages]
        )
        return has_messages

    older, small, large = (tmp_path / name for name in ("older", "small", "large"))
    assert run(*words, "--out", str(older), "--keep", "replies") == 0
    (older / "summary.json").unlink()
    whole = (older / "trajectories.jsonl").read_bytes()
    (older / "trajectories.jsonl").write_bytes(whole[: whole.index(b"\n") + 1])
    assert run(*words, "--out", str(older)) == 0 and not has_prompts(older)
    assert (older / "trajectories.jsonl").read_bytes() == whole
    assert main(["verify", str(older)]) == 0
    assert run(*words, "--out", str(older), "--keep", "tokens") == 2
    assert "keep: 'replies' there, 'tokens' now" in capsys.readouterr().err
    assert run(*words, "--out", str(small)) == 0 and has_prompts(small)
    assert main(["verify", str(small)]) == 0
    monkeypatch.setattr("comap.cli.run._SMALL", 3)
    assert run(*words, "--out", str(large)) == 0 and not has_prompts(large)
    assert run(*words, "--out", str(small)) == 0, "what a run was begun with counts"


def test_failed_episodes_are_told_and_are_a_failure_if_there_are_no_others(
    tmp_path, capsys, monkeypatch
):
    def broken(self, action):
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(ALFWorldEnv, "_act", broken)
    assert run("--agent", "random", "--out", str(tmp_path)) == 3
    printed = capsys.readouterr().out
    assert "4 of 4 episodes failed: RuntimeError 4 (the first: [U+001B]" in printed
    assert "mend the code" in printed and "--retry-failed" not in printed
    assert not set(printed) & set("\x1b\x07\u202e\ud800"), "nothing steers the terminal"
    for line in (tmp_path / "trajectories.jsonl").read_bytes().splitlines():
        assert line.isascii() and json.loads(line)["error"].startswith(f"RuntimeError: {HOSTILE}")
    monkeypatch.undo()
    assert run("--agent", "random", "--out", str(tmp_path)) == 3
    assert "4 of 4 episodes failed" in capsys.readouterr().out, "they are kept"
    assert run("--agent", "random", "--out", str(tmp_path), "--retry-failed") == 0
    assert "episodes failed" not in capsys.readouterr().out
    assert all(t.error is None for t in episodes(tmp_path))


def test_hostile_episodes_are_viewed(tmp_path, capsys):
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


def test_each_agent_has_its_own_settings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    further = {"comap": "head", "random": "mixed", "itp": "k_head", "wkm": "knowledge"}
    for agent in AGENTS:
        assert main(["run", "--agent", agent, "--help-all"]) == 0
        help_text = capsys.readouterr().out
        assert ("  --decoding NAME" in help_text) == (agent not in ("expert", "random"))
        assert (f"--agent-option of {agent}:" in help_text) == (agent in further)
        assert further.get(agent, "") in help_text
        assert main(["run", "--agent", agent, "--help"]) == 0
        assert len(capsys.readouterr().out.splitlines()) <= 100
    assert main(["run", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "comap run --agent NAME --help" in help_text and all(
        agent in help_text for agent in AGENTS
    )


def test_options_come_from_files_too(tmp_path, capsys):
    words = ["run", "--agent", "comap", "--agent-seed", "4", "--tau-p", "0.3", "--episodes", "2"]
    words += ["--history-turns", "none", "--no-future-state", "--env-option", "source=generated"]
    assert main([*words, "--env-option", "max_episode_steps=7", "--print-config"]) == 0
    file = tmp_path / "run.yaml"
    file.write_text(capsys.readouterr().out)
    read = understood(["run", "--config", str(file), "--tau-p", "0.2"])
    assert isinstance(read, Play)
    assert read.env_option == {"source": "generated", "max_episode_steps": 7}
    agent_settings = {"seed": 4, "tau_p": 0.2, "history_turns": None, "future_state": False}
    assert (read.agent, read.episodes, read.config) == ("comap", 2, agent_settings)
    for text, message in (("agent: [", "while parsing"), ("agent: comap\nlife: 3", "life")):
        file.write_text(text)
        assert main(["run", "--config", str(file)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert main(["run", "--config", str(tmp_path / "none.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("words", [[], ["--world-model", "oracle"]], ids=["unnamed", "named"])
def test_the_oracle_is_named_wherever_its_numbers_stand(words, tmp_path, capsys):
    pytest.importorskip("torch")
    model = ["--model", "tiny", "--tiny-parameters", "200000", "--max-episode-steps", "2"]
    model += ["--draft-tokens", "8"]
    assert run("--agent", "redraft", *model, *words, "--out", str(tmp_path)) == 0
    oracle = f"the oracle, {NOT_TO_REPORT}"
    before, table = capsys.readouterr().out.split("redraft on comap/ALFWorld-v0")
    assert f"world model: {oracle}" in before
    assert table.startswith(", valid_unseen: 4 generated tasks") and oracle in table
    for name in ("run.json", "summary.json"):
        assert oracle in (tmp_path / name).read_text()
    assert main(["view", str(tmp_path), "--no-open"]) == 0
    markup = (tmp_path / "view.html").read_text("utf-8")
    assert markup.count(oracle) >= 2, "at the head and among the results"
    assert markup.count("4 generated tasks") >= 2


def test_an_agent_that_asks_no_world_model_is_silent_about_it(tmp_path, capsys):
    assert run("--agent", "random", "--world-model", "oracle", "--out", str(tmp_path)) == 0
    assert "oracle" not in capsys.readouterr().out


def test_more_episodes_than_there_are_tasks_are_said_to_be_all(tmp_path, capsys):
    words = ["--max-episode-steps", "1", "--out", str(tmp_path)]
    assert main(["run", "--agent", "random", "--split", "valid_seen", "-n", "1000000", *words]) == 0
    number = len(episodes(tmp_path))
    assert f"there are {number} tasks, not 1,000,000: all are played" in capsys.readouterr().out
