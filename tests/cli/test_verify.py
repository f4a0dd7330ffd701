"""`comap verify`: what is recorded replays, and what was changed since is found."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import gymnasium
import pytest

import comap  # noqa: F401
from comap.agents import Decision, RandomAgent, Run, run_to
from comap.agents.tally import ADDED
from comap.benchmarks.verify import verify
from comap.cli import main
from comap.envs.registry import env_class
from comap.envs.scienceworld import keep_idle
from comap.envs.scienceworld.simulator import find_java, simulator_jar
from comap.envs.searchqa.tasks import choose_retriever
from comap.errors import CoMapError
from comap.jsonl import read

HOUSE = ["--env-option", "source=generated", "--episodes", "3"]
ENVS = ("ALFWorld", "WebShop", "StableToolBench", "SearchQA", "ScienceWorld")
HOSTILE = "\x1b[2J<script>\u202e"


def lines(folder):
    """The episodes of a file."""
    return [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]


def write(folder, episodes):
    """Change a file on purpose: what has its SHA-256 no longer does."""
    forget(folder)
    text = "".join(json.dumps(episode) + "\n" for episode in episodes)
    (folder / "trajectories.jsonl").write_text(text)


def forget(folder):
    summary = folder / "summary.json"
    if summary.exists():
        summary_fields = json.loads(summary.read_text())
        summary_fields.pop("files", None)
        summary.write_text(json.dumps(summary_fields))


def first_of(result):
    """The first difference of a result."""
    for entry in (*result["episodes"], *result["files"]):
        if entry["difference"] is not None:
            return entry["difference"]
    raise AssertionError("no difference")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run that random actions made."""
    out = tmp_path_factory.mktemp("verify") / "run"
    assert main(["run", "--agent", "random", *HOUSE, "--out", str(out)]) == 0
    return out


@pytest.fixture
def copy(played, tmp_path):
    return Path(shutil.copytree(played, tmp_path / "copy"))


def test_a_run_verifies(played, tmp_path, capsys):
    out = tmp_path / "result.json"
    capsys.readouterr()
    assert main(["verify", str(played), "--episodes", "2", "--out", str(out)]) == 0
    output = capsys.readouterr()
    assert "2 agrees; steps compared: 100" in output.out and output.err == ""
    result = json.loads(out.read_text())
    assert result["agree"] and result["recorded"] == 3 and len(result["episodes"]) == 2
    assert result["files"][0]["status"] == "agrees" and str(tmp_path) not in out.read_text()
    assert main(["verify", str(played), "--episodes", "all"]) == 0
    assert main(["verify", str(played / "trajectories.jsonl")]) == 0  # its summary lies beside it
    sampled = verify(played, sample=1, seed=3)
    assert sampled["episodes"] == verify(played, sample=1, seed=3)["episodes"]
    journal_entries = [
        (line["command"][0], line["exit"]) for line in read(played / "journal.jsonl")
    ]
    assert journal_entries == [("run", 0), ("verify", 0), ("verify", 0)]
    assert str(played) not in (played / "journal.jsonl").read_text()


@pytest.fixture(scope="module")
def idle():
    before = keep_idle(2)
    yield
    keep_idle(before)


@pytest.mark.parametrize("agent", ["expert", "random"])
@pytest.mark.parametrize("name", ENVS)
def test_embedded_tasks_verify(name, agent, idle, tmp_path):
    env_id, number = f"comap/{name}-v0", "3"
    options = env_class(env_id).generated_options
    if name == "ScienceWorld":
        try:
            simulator_jar(), find_java()
        except CoMapError as error:
            pytest.skip(str(error))
        options, number = {"task_names": "find-plant"}, "1"
    words = ["--env", env_id, "--agent", agent, "--episodes", number, "--out", str(tmp_path)]
    for key, value in (options | {"max_episode_steps": 40}).items():
        words += ["--env-option", f"{key}={value}"]
    assert main(["run", *words]) == 0
    assert main(["verify", str(tmp_path)]) == 0
    (tmp_path / "run.json").unlink()  # then the fingerprint and the steps must do
    if name != "ScienceWorld":
        result = verify(tmp_path / "trajectories.jsonl")
        assert result["counts"] == {"agrees": int(number)}, result["episodes"]


def changed(step, name, value):
    return lambda episode: episode["steps"][step].update({name: value})


CHANGES = {
    "observation": (changed(4, "observation", "You win."), "observation", 5),
    "a space": (
        lambda e: changed(4, "observation", e["steps"][4]["observation"] + " ")(e),
        "observation",
        5,
    ),
    "reward": (changed(7, "reward", 1.0), "reward", 8),
    "success": (changed(49, "success", True), "success", 50),
    "score": (changed(20, "score", 0.5), "score", 21),
    "end": (changed(49, "truncated", False), "truncated", 50),
    "deleted": (lambda e: e["steps"].pop(9), "step", 10),
    "added": (lambda e: e["steps"].append(e["steps"][-1] | {"t": 51}), "step", 51),
    "facts": (lambda e: changed(0, "delta", {"added": [["x"]], "removed": []})(e), "facts", 1),
    "first": (lambda e: e.update(observation="Hello."), "observation", 0),
    "goal": (lambda e: e.update(goal="win"), "goal", 0),
    "task": (lambda e: e.update(task="generated/../../etc/passwd"), "task", 0),
    "environment": (lambda e: e.update(env_id="os:system"), "env_id", 0),
    "action": (changed(2, "action", ["look"]), "line 2", 0),
    "seed": (lambda e: e.update(seed="0"), "line 2", 0),
}


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_what_was_changed_is_found(kind, copy, capsys):
    change, field, step = CHANGES[kind]
    episodes = lines(copy)
    change(episodes[1])
    write(copy, episodes)
    assert main(["verify", str(copy)]) == 1
    printed = capsys.readouterr().out
    assert "first difference: trajectories.jsonl, line 2" in printed and f"step {step}" in printed
    result = verify(copy)
    difference = first_of(result)
    assert (difference["field"], difference["step"]) == (field, step)
    assert result["counts"] == {"agrees": 2, "differs": 1} and not result["agree"]


def test_a_changed_letter_is_found_by_the_sha256(copy):
    file = copy / "trajectories.jsonl"
    first, rest = file.read_text().split("\n", 1)
    file.write_text(first.replace('"agent": "', '"agent": "x') + "\n" + rest)
    difference = first_of(verify(copy))
    assert difference["field"] == "files" and "trajectories.jsonl of " in difference["found"]


def test_other_numbers_and_lost_episodes_are_found(copy):
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps(summary | {"score": 0.75}))
    difference = first_of(verify(copy))
    assert (difference["field"], difference["found"]) == ("summary.score", "0.75")
    write(copy, lines(copy)[:2])
    summary_copy = json.loads(json.dumps(summary))
    assert first_of(verify(copy))["field"] == "number of episodes"
    (copy / "summary.json").unlink()
    result = verify(copy)
    assert (
        not result["agree"]
        and not result["differ"]
        and "did not end" in result["files"][0]["reason"]
    )
    assert main(["verify", str(copy)]) == 3
    (copy / "summary.json").write_text(json.dumps(summary_copy))


def test_a_summary_of_before_lacks_what_was_added_and_no_more(copy):
    forget(copy)
    summary, run = (json.loads((copy / f"{name}.json").read_text()) for name in ("summary", "run"))
    for name in ADDED:
        summary.pop(name, None)
    del run["tasks"]["generated"]
    (copy / "summary.json").write_text(json.dumps(summary))
    (copy / "run.json").write_text(json.dumps(run))
    assert verify(copy)["agree"]
    (copy / "summary.json").write_text(json.dumps(summary | {"generated_tasks": 0}))
    assert first_of(verify(copy))["field"] == "summary.generated_tasks"
    del summary["score"]
    (copy / "summary.json").write_text(json.dumps(summary))
    assert first_of(verify(copy))["field"] == "summary.score"


def test_another_version_is_told_as_such(copy, capsys):
    episodes = lines(copy)
    for episode in episodes:
        episode["fingerprint"]["comap"] = "0.0.7"
    write(copy, episodes)
    assert main(["verify", str(copy)]) == 0
    assert "recorded elsewhere: comap: 0.0.7 there" in capsys.readouterr().out
    changed(4, "observation", "You win.")(episodes[0])
    write(copy, episodes)
    assert main(["verify", str(copy)]) == 1
    result = verify(copy)
    assert result["counts"] == {"agrees": 2, "other version": 1}


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"null",
        b"[" * 100_000,
        b'{"schema": 2}',
        b"\xff\xfe",
        json.dumps({"schema": 2, "facts": HOSTILE, "steps": []}).encode(),
    ],
    ids=range(6),
)
def test_hostile_lines(line, copy, capsys):
    with (copy / "trajectories.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert main(["verify", str(copy), "--episodes", "all"]) == 1
    output = capsys.readouterr()
    assert "line 4" in output.out and "\x1b" not in output.out + output.err


def test_hostile_words_and_options(copy, capsys):
    run = json.loads((copy / "run.json").read_text())
    run["config"]["env_options"] |= {"data_dir": "/etc", "nonsense": HOSTILE}
    forget(copy)
    (copy / "run.json").write_text(json.dumps(run))
    assert main(["verify", str(copy)]) == 3
    printed = capsys.readouterr().out
    assert "has no option 'nonsense'" in printed and "\x1b" not in printed
    (copy / "run.json").write_text("[" * 100_000)
    assert main(["verify", str(copy)]) == 1
    write(copy, [episode | {"task": HOSTILE} for episode in lines(copy)])
    assert main(["verify", str(copy / "trajectories.jsonl")]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_folder_of_jobs(played, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(played, tmp_path / "jobs" / name / "run")
    result = verify(tmp_path, sample=0)
    assert [file["file"] for file in result["files"]] == [
        f"jobs/{name}/run/trajectories.jsonl" for name in ("one", "two")
    ]
    assert result["counts"] == {"agrees": 6} and result["agree"]


def test_missing_data_is_no_damage(copy, capsys):
    """The record is of official games, which are not here."""
    write(
        copy,
        [episode | {"task": episode["task"].removeprefix("generated/")} for episode in lines(copy)],
    )
    run = json.loads((copy / "run.json").read_text())
    run["config"]["env_options"] = {"source": "official"}
    run["sessions"][-1]["data_dir"] = "/somewhere/games"
    (copy / "run.json").write_text(json.dumps(run))
    result = verify(copy)
    assert result["counts"] == {"not checked": 3}
    assert "'games': give --data-dir" in result["episodes"][0]["reason"]


@pytest.mark.parametrize("world", [["null"], ["oracle", "--real-every", "3"], ["noisy"]])
def test_imagined_steps_are_read_again(world, tmp_path):
    words = ["--agent", "random", "--imagined", "--horizon", "12", "--world-model", *world]
    assert main(["run", *HOUSE, *words, "--out", str(tmp_path)]) == 0
    result = verify(tmp_path)
    assert result["agree"], result["episodes"]
    imagined = [entry["imagined"] for entry in result["episodes"]]
    assert imagined == [8 if "--real-every" in world else 12] * 3
    episodes = lines(tmp_path)
    changed(1, "observation", "You arrive at shelf 1. On the shelf 1, you see a mug 7.")(
        episodes[0]
    )
    write(tmp_path, episodes)
    assert "facts" in first_of(verify(tmp_path))["field"]


class Says:
    """Takes given actions, and asks a world model about each."""

    name = "says"

    def __init__(self, *actions):
        self.actions = actions

    def decide(self, view):
        """Take the next action."""
        yield []
        over = view.step >= len(self.actions)
        return Decision(None if over else self.actions[view.step])


def test_predictions_are_read_again(tmp_path):
    pytest.importorskip("transformers")
    words = ["--agent", "comap", "--model", "tiny", "--tiny-parameters", "200000"]
    words += ["--world-model", "oracle", "--decoding", "masked", "--draft-tokens", "8"]
    words += ["--q-source", "token_geo_mean"]  # so low that every draft is taken
    short = ["--episodes", "1", "--env-option", "max_episode_steps=3"]
    assert main(["run", *HOUSE, *words, *short, "--out", str(tmp_path)]) == 0
    assert verify(tmp_path)["agree"]
    episodes = lines(tmp_path)
    prediction = episodes[0]["steps"][1]["prediction"]
    prediction["delta"]["added"] = [["in", "moon 1", "fridge 1"]]
    write(tmp_path, episodes)
    assert first_of(verify(tmp_path))["field"] == "prediction"


def test_a_servers_answers_are_taken_from_the_record(tmp_path):
    """The retriever was a server then; nobody asks it again."""
    env_id = "comap/SearchQA-v0"
    local = choose_retriever("fts5", None, generated=True)
    options = {"source": "generated", "split": "test"}
    make_env = partial(gymnasium.make, env_id, retriever=local.search, **options)
    tasks = make_env().get_wrapper_attr("tasks").ids[:2]
    recorded_options = {"source": "generated", "retriever": "http://127.0.0.1:1/retrieve"}
    config = {"env": env_id, "split": "test", "env_options": recorded_options}
    search = "<search>{}</search>"
    agent = Says(search.format("river"), "hm", search.format("a town"), "<answer>x</answer>")
    run_to(tmp_path, Run(make_env=make_env, agent=agent, tasks=tasks, config=config))
    result = verify(tmp_path)
    assert result["agree"], result["episodes"]
    assert [entry["recalled"] for entry in result["episodes"]] == [2, 2]
    episodes = lines(tmp_path)
    changed(3, "reward", 1.0)(episodes[0])
    write(tmp_path, episodes)
    assert first_of(verify(tmp_path))["field"] == "reward"


def test_faults_are_no_differences(tmp_path):
    """An agent that fails, and a task that did not start."""

    class Fails(RandomAgent):
        def decide(self, view):
            """Fail at the third step."""
            if view.step == 2:
                raise KeyError("boxes")
            return (yield from super().decide(view))

    make_env = partial(gymnasium.make, "comap/ALFWorld-v0", split="train", source="generated")
    tasks = [*make_env().get_wrapper_attr("tasks").ids[:2], "generated/train/nothing"]
    options = {"env": "comap/ALFWorld-v0", "split": "train", "env_options": {"source": "generated"}}
    run_to(tmp_path, Run(make_env=make_env, agent=Fails(), tasks=tasks, config=options))
    result = verify(tmp_path)
    assert result["counts"] == {"agrees": 2, "not checked": 1}
    assert "it failed at its start: TaskNotFound" in result["episodes"][2]["reason"]
