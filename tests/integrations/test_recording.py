"""Episodes that clients play are recorded as `comap run` records its own; none of them is lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time

import gymnasium as gym
import pytest

from comap import jsonl
from comap.agents import ExpertAgent, run_episode
from comap.benchmarks.comparison import compare_runs
from comap.benchmarks.verify import verify
from comap.errors import DataCorrupt, OptionError
from comap.integrations import Offered
from comap.integrations.mcp import EpisodeTools
from comap.integrations.recording import UNFINISHED, Recording
from comap.trajectory import read_trajectories
from kits.commands import say, viewed

ALFWORLD, TOOLS = "comap/ALFWorld-v0", "comap/StableToolBench-v0"
OPTIONS = {"source": "generated", "split": "valid_seen"}


@pytest.fixture
def offered():
    return Offered([ALFWORLD], OPTIONS)


def solve(tools, **task):
    """Play an episode by the expert's actions; its last message."""
    message = tools.call("reset", task).message
    while not message["done"]:
        action = tools.session.env.unwrapped.expert_action()
        message = tools.call("act", {"action": action}).message
    return message


def recorded(folder):
    return list(read_trajectories(folder / "trajectories.jsonl"))


def ends(folder):
    return [episode.error for episode in recorded(folder)]


def test_an_episode_is_recorded_as_an_agents_is(offered, tmp_path):
    """Facts, scores and prompts of StableToolBench's tools are those of `comap run`, step by step."""
    with Recording(tmp_path, offered, agent="somebody") as recording:
        tools = EpisodeTools(offered, recording)
        assert solve(tools, data_idx=3)["success"]
        tools.close()

    (episode,) = recorded(tmp_path)
    expected = run_episode(gym.make(ALFWORLD, **OPTIONS), ExpertAgent(), task=episode.task, seed=0)
    assert episode.steps == expected.steps and episode.facts == expected.facts and episode.seed == 0
    assert (episode.agent, episode.fingerprint) == ("somebody", expected.fingerprint)
    assert episode.steps[-1].score == 1.0 and episode.error is None

    result = verify(tmp_path, sample=0)
    assert result["agree"] and result["steps"] == len(expected.steps)


def test_view_verify_and_compare_read_it(offered, tmp_path):
    folder, expert_folder = tmp_path / "clients", tmp_path / "expert"
    with Recording(folder, offered) as recording:
        tools = EpisodeTools(offered, recording)
        for index in range(3):
            tools.call("reset", {"data_idx": index})
            tools.call("act", {"action": "look"})
        tools.close()
    words = ["run", "--agent", "expert", "--env", ALFWORLD, "--split", "valid_seen"]
    words += ["--env-option", "source=generated", "--out", str(expert_folder), "--tasks"]
    assert say(*words, *[episode.task for episode in recorded(folder)])[0] == 0

    assert say("verify", str(folder), "--episodes", "all")[0] == 0
    code, printed, _ = say("compare", str(folder), str(expert_folder))
    assert code == 0 and "expert against clients: 3 generated tasks" in printed
    (comparison,) = compare_runs([folder, expert_folder])["comparisons"]
    assert comparison["paired_by"] == "task and seed"
    assert comparison["differences"]["success"]["value"] == 1.0
    assert say("view", str(folder), "--no-open")[0] == 0
    _, episodes = viewed(folder / "view.html")
    for episode in episodes:
        assert any(text.startswith("Abandoned: the client") for text in episode["texts"])


def test_functions_are_recorded_as_the_calls_that_they_are(tmp_path):
    offered = Offered([TOOLS], {"source": "generated"})
    with Recording(tmp_path, offered) as recording:
        tools = EpisodeTools(offered, recording)
        message = tools.call("reset", {"data_idx": 2}).message
        while not message["done"]:
            call = json.loads(tools.session.env.unwrapped.expert_action())
            message = tools.call(call["name"], call["arguments"]).message
        assert message["success"]
        tools.close()
    assert verify(tmp_path, sample=0)["agree"]


def test_who_names_no_task_gets_the_one_that_was_played_least(offered, tmp_path):
    with Recording(tmp_path, offered) as recording:
        tools = EpisodeTools(offered, recording)
        for arguments in ({}, {}, {"data_idx": 0}, {"seed": 9}, {"data_idx": 0, "seed": 4}):
            tools.call("reset", arguments)
        for _ in range(2):
            tools.call("reset", {"data_idx": 0, "seed": 4})
        tools.close()

    ids = gym.make(ALFWORLD, **OPTIONS).unwrapped.tasks.ids
    env = gym.make(ALFWORLD, **OPTIONS)
    _, info = env.reset(seed=9)
    expected = [(ids[0], 0, 1), (ids[1], 0, 1), (ids[0], 1, 1), (info["task"], 9, 1)]
    expected += [(ids[0], 4, trial) for trial in (1, 2, 3)]
    assert [
        (episode.task, episode.seed, episode.trial) for episode in recorded(tmp_path)
    ] == expected
    assert verify(tmp_path, sample=0)["agree"]


def test_an_episode_counts_from_when_its_task_was_read(offered, tmp_path):
    """Tools are listed by every client, and by some for a look at them alone."""
    with Recording(tmp_path, offered) as recording:
        looked = EpisodeTools(offered, recording)
        looked.listed()
        looked.close()
        read = EpisodeTools(offered, recording)
        read.listed()
        read.call("observe", {})
        assert len(list((tmp_path / UNFINISHED).iterdir())) == 1
        read.close()
        named_tools = EpisodeTools(offered, recording)
        named_tools.listed()
        named_tools.call("reset", {"data_idx": 5})
        named_tools.close()
    first, second = recorded(tmp_path)
    assert first.error == second.error == "Abandoned: the client left it after 0 steps"
    ids = gym.make(ALFWORLD, **OPTIONS).unwrapped.tasks.ids
    assert (first.task, first.seed, second.task) == (ids[0], 0, ids[5])


def test_how_an_episode_ended_is_on_record(offered, tmp_path):
    short = Offered([ALFWORLD], OPTIONS | {"max_episode_steps": 2})
    with Recording(tmp_path, short) as recording:
        cut, abandoned, running = (EpisodeTools(short, recording) for _ in range(3))
        for tools, steps in ((cut, 2), (abandoned, 1), (running, 1)):
            tools.call("reset", {"data_idx": 0})
            for _ in range(steps):
                tools.call("act", {"action": "look"})
        abandoned.call("reset", {"data_idx": 1})
        abandoned.close()
    running.close()  # after the record: its end is told once
    assert ends(tmp_path) == [
        None,
        "Abandoned: the client began another one after 1 step",
        "Abandoned: the client left it after 0 steps",
        "Interrupted: the server was stopped after 1 step",
    ]
    assert recorded(tmp_path)[0].steps[-1].truncated


def test_a_step_that_takes_too_long_ends_its_episode(tmp_path, monkeypatch):
    offered = Offered([ALFWORLD], OPTIONS, seconds=0.3)
    with Recording(tmp_path, offered) as recording:
        tools = EpisodeTools(offered, recording)
        tools.call("reset", {"data_idx": 0})
        tools.call("act", {"action": "look"})
        monkeypatch.setattr(tools.session.env, "step", lambda action: time.sleep(0.8))
        assert "expected an answer within 0.3 s" in tools.call("act", {"action": "look"}).text
        tools.close()
    (episode,) = recorded(tmp_path)
    assert len(episode.steps) == 1
    assert episode.error == "Refused: expected an answer within 0.3 s, found none"


KILLED = """
import os, sys
from comap.integrations import Offered
from comap.integrations.mcp import EpisodeTools
from comap.integrations.recording import Recording
offered = Offered(["comap/ALFWorld-v0"], {"source": "generated", "split": "valid_seen"})
recording = Recording(sys.argv[1], offered)
for index in range(2):
    tools = EpisodeTools(offered, recording)
    tools.call("reset", {"data_idx": index})
    for _ in range(index + 1):
        tools.call("act", {"action": "look"})
os.kill(os.getpid(), 9)
"""


def test_a_kill_costs_no_step_that_was_answered(offered, tmp_path):
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert process.returncode == -9 and recorded(tmp_path) == []

    # One of both files has a torn last line, as a kill within a write leaves it.
    file = sorted((tmp_path / UNFINISHED).iterdir())[0]
    with file.open("ab") as journal:
        journal.write(b'{"t": 2, "acti')
    Recording(tmp_path, offered).close()
    assert ends(tmp_path) == [
        "Interrupted: the server was killed after 1 step",
        "Interrupted: the server was killed after 2 steps",
    ]
    assert verify(tmp_path, sample=0)["agree"] and not list((tmp_path / UNFINISHED).iterdir())


def test_a_kill_between_both_writes_records_an_episode_once(offered, tmp_path):
    with Recording(tmp_path, offered) as recording:
        tools = EpisodeTools(offered, recording)
        tools.call("reset", {"data_idx": 0})
        tools.call("act", {"action": "look"})
        (file,) = (tmp_path / UNFINISHED).iterdir()
        steps = file.read_bytes()
        tools.close()
    file.write_bytes(steps)
    Recording(tmp_path, offered).close()
    assert len(recorded(tmp_path)) == 1 and not file.exists()

    # What is no episode is not thrown away, and the message names it.
    for text in ("[]", '{"task": 1}', '{"schema": 2, "task": "x"}'):
        file.write_text(f"{text}\n")
        with pytest.raises(
            DataCorrupt, match=f"{file.name}, found something else.*remove the file"
        ):
            Recording(tmp_path, offered)
        assert file.exists()


def test_a_link_to_another_folder_is_not_emptied(offered, tmp_path):
    """A folder of somebody else's may have one; what lies in `unfinished` is taken over and removed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.jsonl").write_text("")
    folder = tmp_path / "record"
    Recording(folder, offered).close()
    (folder / UNFINISHED).rmdir()
    (folder / UNFINISHED).symlink_to(elsewhere)
    with pytest.raises(DataCorrupt, match="found a link"):
        Recording(folder, offered)
    assert (elsewhere / "mine.jsonl").exists()


OPEN = """
import gymnasium
from comap.envs.stabletoolbench.env import StableToolBenchEnv

class Open(StableToolBenchEnv):
    def __init__(self, api_key="", **options):
        super().__init__(**options)

gymnasium.register("test/Open-v0", entry_point=Open)
"""


def test_a_record_has_no_secrets_and_no_paths(tmp_path, monkeypatch):
    """Neither the server's token, nor an option's key, nor what a client calls itself, is written down."""
    (tmp_path / "openenvs.py").write_text(OPEN)
    (tmp_path / "token").write_text("0123456789-of-the-file")
    environment = os.environ | {"COMAP_SERVE_TOKEN": "0123456789-of-the-variable"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    options = ["source=generated", "api_key=mine-1", "live_url=http://127.0.0.1:9/S3cretPath99"]
    words = ["serve", "env", "--env", "openenvs:test/Open-v0", "--style", "mcp", "--stdio"]
    words += ["--record", str(tmp_path / "record"), "--token-file", str(tmp_path / "token")]
    words += ["--env-option", *options]
    process = subprocess.run(
        [sys.executable, "-m", "comap", *words],
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert process.returncode == 0

    monkeypatch.syspath_prepend(tmp_path)
    offered = Offered(["openenvs:test/Open-v0"], dict(pair.split("=", 1) for pair in options))
    with Recording(tmp_path / "record", offered) as recording:
        tools = EpisodeTools(offered, recording)
        tools.client = "coder sk-0123456789abcdef"
        tools.call("reset", {"data_idx": 0})
        tools.close()

    (episode,) = recorded(tmp_path / "record")
    assert episode.settings["client"] == "coder ***"
    file_texts = [file.read_text() for file in (tmp_path / "record").iterdir() if file.is_file()]
    secrets = ("0123456789", "mine-1", "S3cretPath99", str(tmp_path))
    assert not [secret for secret in secrets for text in file_texts if secret in text]
    assert "api_key" in "".join(file_texts)  # that there was one is said


def test_a_recording_is_gone_on_with(offered, tmp_path):
    for _ in range(2):
        with Recording(tmp_path, offered) as recording:
            tools = EpisodeTools(offered, recording)
            solve(tools)
            tools.close()
    ids = gym.make(ALFWORLD, **OPTIONS).unwrapped.tasks.ids
    assert [episode.task for episode in recorded(tmp_path)] == list(ids[:2])
    assert len(json.loads((tmp_path / "run.json").read_text())["sessions"]) == 2
    assert verify(tmp_path, sample=0)["agree"]


def test_a_folder_is_one_recordings(offered, tmp_path):
    with Recording(tmp_path / "one", offered), pytest.raises(OptionError, match="another process"):
        Recording(tmp_path / "one", offered)
    others = Offered([ALFWORLD], OPTIONS | {"max_episode_steps": 7})
    for offer, agent in ((others, "mcp"), (offered, "other")):
        with pytest.raises(OptionError, match="found other settings"):
            Recording(tmp_path / "one", offer, agent=agent)

    words = ["run", "--agent", "expert", "--env", ALFWORLD, "--split", "valid_seen"]
    words += ["--env-option", "source=generated", "--episodes", "1", "--out"]
    assert say(*words, str(tmp_path / "run"))[0] == 0
    before = (tmp_path / "run" / "trajectories.jsonl").read_bytes()
    with pytest.raises(OptionError, match="found other settings"):
        Recording(tmp_path / "run", offered)
    assert (tmp_path / "run" / "trajectories.jsonl").read_bytes() == before
    code, _, error = say(*words, str(tmp_path / "one"))
    assert code == 2 and "found other settings" in error

    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(OptionError, match="without a run beside it"):
        Recording(tmp_path / "foreign", offered)
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot make the folder"):
        Recording(tmp_path / "file", offered)


def test_a_full_disk_is_said_and_costs_nothing(offered, tmp_path, monkeypatch):
    notes = []
    append = jsonl.append
    full = {"disk": False}

    def append_if_room(*arguments, **options):
        if full["disk"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(*arguments, **options)

    monkeypatch.setattr(jsonl, "append", append_if_room)
    with Recording(tmp_path, offered, on_note=notes.append) as recording:
        tools = EpisodeTools(offered, recording)
        full["disk"] = True
        assert solve(tools, data_idx=0)["success"]  # nobody's episode breaks
        assert recording.unwritten == 1 and len(notes) == 1
        assert "No space left on device" in notes[0] and "make room" in notes[0]

        full["disk"] = False
        tools.call("reset", {"data_idx": 1})
        assert recording.unwritten == 0 and notes[1].endswith("nothing is missing")
        full["disk"] = True
        tools.close()
    assert recording.unwritten == 1
    assert [episode.success for episode in recorded(tmp_path)] == [True]

    # The last one is in its steps still.
    full["disk"] = False
    Recording(tmp_path, offered).close()
    assert ends(tmp_path) == [None, "Interrupted: the server was killed after 0 steps"]


def test_a_client_that_says_who_it_is_has_no_long_name(offered, tmp_path):
    with Recording(tmp_path, offered) as recording:
        tools = EpisodeTools(offered, recording)
        tools.client = "<b>" + "x" * 999
        tools.call("reset", {})
        tools.close()
    (episode,) = recorded(tmp_path)
    assert episode.settings["client"].startswith("<b>xx")
    assert len(episode.settings["client"]) == 200


def test_one_task_has_one_episode(offered, tmp_path):
    task = gym.make(ALFWORLD, **OPTIONS).unwrapped.tasks.ids[4]
    with Recording(tmp_path, offered) as recording:
        tools = EpisodeTools(offered, recording, task)
        assert [tool["name"] for tool in tools.listed()] == ["observe", "act"]
        refused = tools.call("reset", {"data_idx": 0})
        assert refused.message is None and "expected one of the tools" in refused.text
        assert tools.call("act", {"action": "look"}).message["step"] == 1
        tools.close()
    (episode,) = recorded(tmp_path)
    assert (episode.task, episode.seed, len(episode.steps)) == (task, 0, 1)


def test_mistakes(tmp_path):
    words = ["serve", "env", "--env", ALFWORLD, "--env-option", "source=generated"]
    folder = ["--record", str(tmp_path / "record")]
    mcp = ["--style", "mcp", "--stdio"]
    cases = [
        ([*folder], "--record is for --style mcp alone"),
        (["--task", "x", "--style", "openenv"], "--task is for --style mcp alone"),
        (["--private-network"], "--private-network is for --style mcp alone"),
        ([*mcp, "--agent", "x"], "--agent is about --record"),
        ([*mcp, "--task", "nothing"], "'nothing'"),
        (["--style", "mcp", "--no-token", "--host", "0.0.0.0"], "expected a token"),
    ]
    for options, message in cases:
        code, _, error = say(*words, *options)
        assert code == 2 and message in error, (options, error)
    assert not (tmp_path / "record").exists()
