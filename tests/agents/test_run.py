"""Runs and the disk: full, closed, killed, another version; nothing that was recorded is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Decision, ExpertAgent, RandomAgent, View, create_agent, run_episode
from comap.agents.run import Run, run_to
from comap.cli import main
from comap.errors import DataCorrupt, OptionError
from comap.integrations.adapter import Wording, adapt
from comap.trajectory import Trajectory, read_trajectories
from comap.worldmodel import ImaginedEnv
from kits.scripted import HashedModel


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0",
        **{"split": "valid_seen", "source": "generated", "max_episode_steps": 4, **options},
    )


LONG = {"max_episode_steps": 50}
TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:10]  # type: ignore[attr-defined]


def plan(agent: Any = None, **options: Any) -> Run:
    return Run(**{"make_env": real, "agent": agent or RandomAgent(1), "tasks": TASKS, **options})


def text(folder: Path) -> bytes:
    return (folder / "trajectories.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    run_to(folder, plan(), concurrency=1)
    return folder


class Fragile:
    """Looks around; breaks in some tasks, as long as a file says so."""

    name = "fragile"
    first = 1

    def __init__(self, trouble: Path):
        self._trouble = trouble

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield []
        if view.task in self._trouble.read_text().split() and view.step == self.first:
            raise RuntimeError("it broke\x1b[31m\nTraceback: no\u202e")
        return Decision("look")


class Retrier:
    """Solves a task in its second trial."""

    name = "retrier"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield []
        return Decision(view.expert_action() if view.trial == 2 else None)

    def review(self, trajectory: Trajectory, memory: Any) -> Generator[Any, Any, bool]:
        yield []
        return trajectory.trial < 2


def test_a_run_is_recorded(whole: Path) -> None:
    episodes = list(read_trajectories(whole / "trajectories.jsonl"))
    assert [t.task for t in episodes] == list(TASKS)
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["n"] == 10 and summary["steps"]["all"] == sum(len(t.steps) for t in episodes)
    assert summary["success"]["value"] == sum(t.success for t in episodes) / 10
    assert summary["success"]["low"] < summary["success"]["high"] and summary["errors"] == {}
    types = summary["by_type"]
    assert len(types) == 6 and sum(type_summary["n"] for type_summary in types.values()) == 10
    assert sum(type_summary["value"] * type_summary["n"] for type_summary in types.values()) == sum(
        t.success for t in episodes
    )
    assert summary["seconds"]["all"] >= 0 and "trials" not in summary
    record = json.loads((whole / "run.json").read_text())
    assert record["agent"]["name"] == "random" and record["environment"]["split"] == "valid_seen"
    assert str(Path.home()) not in (whole / "run.json").read_text()
    assert all("seconds" not in line for line in text(whole).decode().splitlines())


def test_the_file_does_not_depend_on_how_many_were_live(whole: Path, tmp_path: Path) -> None:
    for concurrency in (3, 32):
        run_to(tmp_path / str(concurrency), plan(), concurrency=concurrency)
        assert text(tmp_path / str(concurrency)) == text(whole)


@pytest.mark.parametrize("cut", [0, 1, 700, -2, -40])
def test_half_written_lines_are_cut_off(whole: Path, tmp_path: Path, cut: int) -> None:
    run_to(tmp_path, plan(), concurrency=2)
    lines = text(tmp_path).splitlines(keepends=True)
    cut_text = b"".join(lines[:4]) + lines[4][:cut]
    (tmp_path / "trajectories.jsonl").write_bytes(cut_text)
    played: list[str] = []
    before: list[int] = []
    run_to(
        tmp_path,
        plan(),
        on_start=before.append,
        on_done=lambda trials: played.append(trials[0].task),
    )
    assert before == [4] and sorted(played) == sorted(TASKS[4:])
    assert text(tmp_path) == text(whole)


def test_a_finished_run_plays_nothing(whole: Path) -> None:
    played: list[Any] = []
    before = text(whole)
    run_to(whole, plan(), on_done=played.append)
    assert played == [] and text(whole) == before
    assert len(json.loads((whole / "run.json").read_text())["sessions"]) == 2


def test_failed_tasks_are_kept_or_played_again(tmp_path: Path) -> None:
    trouble = tmp_path / "trouble"
    trouble.write_text(f"{TASKS[2]} {TASKS[5]}")
    folder, agent = tmp_path / "run", Fragile(trouble)
    summary = run_to(folder, plan(agent), concurrency=4)
    assert summary["errors"] == {"RuntimeError": 2}
    assert summary["first_errors"]["RuntimeError"].startswith("it broke\x1b")
    trouble.write_text("")
    text_before = text(folder)
    assert (
        run_to(folder, plan(agent))["errors"] == {"RuntimeError": 2} and text(folder) == text_before
    )
    played: list[str] = []
    summary = run_to(
        folder, plan(agent), retry_failed=True, on_done=lambda trials: played.append(trials[0].task)
    )
    assert played == [TASKS[2], TASKS[5]] and summary["errors"] == {}
    run_to(tmp_path / "clean", plan(agent))
    assert text(folder) == text(tmp_path / "clean")


def test_trials_stay_together(tmp_path: Path) -> None:
    env = {
        "make_env": lambda: gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
    }
    summary = run_to(tmp_path / "a", plan(Retrier(), **env), concurrency=3)
    assert summary["n"] == 10 and summary["trials"]["all"] == 20
    assert summary["trials"]["first"]["value"] == 0.0 and summary["success"]["value"] == 1.0
    episodes = list(read_trajectories(tmp_path / "a" / "trajectories.jsonl"))
    assert [(t.task, t.trial) for t in episodes] == [(task, n) for task in TASKS for n in (1, 2)]
    folder = tmp_path / "b"
    run_to(folder, plan(Retrier(), **env), concurrency=1)
    lines = text(folder).splitlines(keepends=True)
    (folder / "trajectories.jsonl").write_bytes(b"".join(lines[:7]))  # task 4 lacks its second
    (folder / "summary.json").unlink()
    run_to(folder, plan(Retrier(), **env), concurrency=5)
    assert text(folder) == text(tmp_path / "a")


class Lucky:
    """Solves the second task with seed 5, the third with odd seeds, others never."""

    name = "lucky"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield []
        odds = {TASKS[1]: (5,), TASKS[2]: (5, 7)}.get(view.task, ())
        return Decision(view.expert_action() if view.seed in odds else None)


def test_seeds_are_attempts(tmp_path: Path) -> None:
    run_options = {"tasks": TASKS[:3], "seeds": 4, "seed": 5, "make_env": lambda: real(**LONG)}
    summary = run_to(tmp_path, plan(Lucky(), **run_options), concurrency=5)
    lines = text(tmp_path).splitlines(keepends=True)
    task_seeds = [(t.task, t.seed) for t in read_trajectories(tmp_path / "trajectories.jsonl")]
    assert task_seeds == [(task, seed) for task in TASKS[:3] for seed in (5, 6, 7, 8)]
    assert (summary["n"], summary["episodes"]) == (3, 12) and "trials" not in summary
    assert summary["pass_at_k"] == {
        "1": pytest.approx(0.25),
        "2": pytest.approx((1 / 2 + 5 / 6) / 3),  # Chen et al.'s estimate
        "4": pytest.approx(2 / 3),
    }
    assert summary["pass_hat_k"] == {
        "1": pytest.approx(0.25),
        "2": pytest.approx((0 + 0 + 1 / 6) / 3),  # of tau-bench: two of four attempts, both chosen
        "4": 0.0,
    }
    assert (summary["success"]["value"], summary["success"]["n"]) == (pytest.approx(0.25), 3)
    (tmp_path / "trajectories.jsonl").write_bytes(b"".join(lines[:6]))
    played: list[Any] = []
    resumed_summary = run_to(tmp_path, plan(Lucky(), **run_options), on_done=played.append)
    assert len(played) == 6 and text(tmp_path) == b"".join(lines)
    assert resumed_summary["pass_at_k"] == summary["pass_at_k"]
    with pytest.raises(OptionError, match=r"config\.seeds: 4 there, nothing now"):
        run_to(tmp_path, plan(Lucky(), **run_options | {"seeds": 1}))
    with pytest.raises(OptionError, match="seeds must be"):
        plan(seeds=0)


class SlowModel(HashedModel):  # type: ignore[misc, valid-type]
    def _answer(self, requests: Any) -> Any:
        time.sleep(0.02)
        return super()._answer(requests)


class SlowEnv(gym.Wrapper[str, str, str, str]):
    def step(self, action: str) -> Any:
        time.sleep(0.005)
        return super().step(action)


@pytest.mark.parametrize("options", [{}, {"overlap": True}, {"concurrency": 1}], ids=str)
def test_how_long_steps_took(options: dict[str, Any], tmp_path: Path) -> None:
    agent = create_agent("react", decoding="free")
    run = plan(agent, make_env=lambda: SlowEnv(real()), lm=SlowModel(), tasks=TASKS[:4])
    summary = run_to(tmp_path, run, **options)
    env, model = (summary["latency"][name] for name in ("env", "model"))
    assert 0.005 <= env["p50"] <= env["p90"] <= env["p99"] and env["p50"] < 0.02
    assert 0.02 <= model["p50"] <= model["p90"] <= model["p99"]
    lines = (tmp_path / "timings.jsonl").read_text().splitlines()
    assert sum(len(json.loads(line)["steps"]) for line in lines) == summary["steps"]["all"]
    alone = run_episode(run.make_env(), agent, task=TASKS[0], lm=SlowModel()).steps[0].seconds
    assert alone is not None and alone[0] >= 0.005 and alone[1] >= 0.02


CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("tasks.number: 10 there, 9 now", {"tasks": TASKS[:9]}),
    ("seed: None there, 3 now", {"seed": 3}),
    ("agent.name: 'random' there, 'expert' now", {"agent": ExpertAgent()}),
    ("world_model: None there, 'null' now", {"world_model": "null"}),
    ("environment.dialect: 'move' there, 'put' now", {"make_env": lambda: real(dialect="put")}),
    ("imagined", {"make_env": lambda: ImaginedEnv(real(), "null")}),
]


@pytest.mark.parametrize(("message", "options"), CHANGED, ids=[message for message, _ in CHANGED])
def test_another_run_is_refused(whole: Path, message: str, options: dict[str, Any]) -> None:
    before = text(whole), (whole / "run.json").read_bytes()
    with pytest.raises(OptionError) as error:
        run_to(whole, plan(**options))
    assert message in str(error.value) and "another folder" in str(error.value)
    assert before == (text(whole), (whole / "run.json").read_bytes())


@pytest.mark.parametrize("content", [b"my notes", b'{"my": "notes"', b'{"my": "notes"}\n'])
def test_what_is_no_run_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").write_bytes(content)
    with pytest.raises((OptionError, DataCorrupt), match=r"trajectories\.jsonl"):
        run_to(tmp_path, plan(tasks=TASKS[:1]))
    assert text(tmp_path) == content


@pytest.mark.parametrize("name", ["lock", "trajectories.jsonl", "timings.jsonl"])
def test_links_are_not_followed(name: str, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / name).symlink_to(elsewhere)
    with pytest.raises((OptionError, DataCorrupt), match="found a link"):
        run_to(folder, plan(tasks=TASKS[:1]))
    assert not elsewhere.exists()


def test_drafts_follow_no_links_either(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_text("precious")
    for name in ("run.json", "summary.json"):
        (folder / f"{name}.part").symlink_to(elsewhere)
    run_to(folder, plan(tasks=TASKS[:1]))
    assert elsewhere.read_text() == "precious" and not (folder / "run.json").is_symlink()
    (folder / "journal.jsonl").symlink_to(elsewhere)
    words = ["run", "--agent", "random", "--episodes", "1", "--out", str(folder)]
    assert main(words) != 0 and elsewhere.read_text() == "precious"


def test_a_run_in_which_nothing_can_begin_is_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("comap.agents.run.MOST_HOPELESS", 3)
    trouble = tmp_path / "trouble"
    trouble.write_text(" ".join(TASKS))
    broken = Fragile(trouble)
    broken.first = 0
    with pytest.raises(OptionError, match=r"(?s)3 in a row .*--retry-failed"):
        run_to(tmp_path / "run", plan(broken), concurrency=1)
    assert len(list(read_trajectories(tmp_path / "run" / "trajectories.jsonl"))) == 3
    trouble.write_text("")
    summary = run_to(tmp_path / "run", plan(broken), retry_failed=True)
    assert summary["n"] == len(TASKS) and not summary["errors"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run.json", lambda run: run | {"config": DEEP}),
        ("run.json", lambda run: run | {"sessions": [DEEP]}),
        ("trajectories.jsonl", lambda line: line | {"settings": DEEP}),
        ("trajectories.jsonl", lambda line: line | {"trial": [1]}),
        ("trajectories.jsonl", lambda line: line | {"env_id": 5}),
        ("trajectories.jsonl", lambda line: line | {"steps": [line["steps"][0] | {"notes": "x"}]}),
        ("trajectories.jsonl", lambda line: line | {"steps": [line["steps"][0] | {"reward": {}}]}),
        ("trajectories.jsonl", lambda line: line | {"steps": [line["steps"][0] | {"success": 1}]}),
        ("timings.jsonl", lambda line: line | {"seconds": "soon"}),
        ("timings.jsonl", lambda line: line | {"steps": [["soon", 1]]}),
        ("timings.jsonl", lambda line: DEEP),
        ("summary.json", lambda summary: summary | {"files": None}),
        ("summary.json", lambda summary: DEEP),
        ("journal.jsonl", lambda line: DEEP),
    ],
)
def test_a_tampered_run_is_told_or_shown(
    name: str, change: Any, tmp_path: Path, capsys: Any
) -> None:
    """Never an internal error: whatever reads a run says in a line what is wrong with it, or goes on."""
    words = [
        "run",
        "--agent",
        "random",
        "--episodes",
        "1",
        "--max-episode-steps",
        "2",
        "--out",
        str(tmp_path),
    ]
    assert main(words) == 0
    file = tmp_path / name
    original_record = json.loads(file.read_text())  # lines too: there is one
    file.write_text(json.dumps(change(original_record)) + "\n")
    pushed = ["hub", "push", "trajectories", str(tmp_path), f"local:{tmp_path / 'pushed'}"]
    commands = (["view", str(tmp_path), "--no-open"], ["verify", str(tmp_path)], words)
    for command in (*commands, [*pushed, "--license", "mit"]):
        assert main(command) in (0, 1, 2, 3), command
    assert "an internal error" not in capsys.readouterr().err


DEEP: dict[str, Any] = {}
for _ in range(300):
    DEEP = {"deeper": DEEP}


def test_rubbish_is_told(whole: Path, tmp_path: Path) -> None:
    run_to(tmp_path, plan())
    lines = text(tmp_path).splitlines(keepends=True)
    (tmp_path / "trajectories.jsonl").write_bytes(lines[0] + b"rubbish\n" + lines[2])
    with pytest.raises(DataCorrupt, match="line 2"):
        run_to(tmp_path, plan())
    for rubbish in ("", "[]", "{}", '{"format": "another", "sessions": []}'):
        (tmp_path / "run.json").write_text(rubbish)
        with pytest.raises(DataCorrupt, match="expected a run of comap"):
            run_to(tmp_path, plan())
    with pytest.raises(OptionError, match="listed twice"):
        plan(tasks=("a", "a"))
    with pytest.raises(OptionError, match="not the text"):
        plan(tasks="abc")


WORDS = ["run", "--agent", "random", "--env-option", "source=generated", "--episodes", "12"]
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals and limits")
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from comap.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def whole_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*WORDS, "--out", str(folder)]) == 0
    return folder


def limited(size: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(size), *words],
        capture_output=True,
        text=True,
        check=False,
    )


@POSIX
def test_a_full_disk_is_told_in_a_line_and_costs_nothing_recorded(
    tmp_path: Path, whole_command: Path
) -> None:
    lines = text(whole_command).splitlines(keepends=True)
    room = sum(map(len, lines[:5])) + 100
    process = limited(room, *WORDS, "--live", "1", "--out", str(tmp_path))
    assert process.returncode == 2
    (message,) = process.stderr.splitlines()
    assert message.startswith("comap: cannot write the run in ") and "File too large" in message
    assert "what was recorded is kept" in message
    assert text(tmp_path) == b"".join(lines[:5]), "and nothing half written is left"
    assert not (tmp_path / "summary.json").exists()
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    assert text(tmp_path) == text(whole_command)


def test_a_place_that_cannot_be_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/run"):
        assert main([*WORDS, "--out", str(tmp_path / place)]) == 2
        (message,) = capsys.readouterr().err.splitlines()
        assert "no folder that one may write in" in message and "--out" in message


KILLED = """
import os, signal, sys
from comap.agents.scripted import RandomAgent
decide, left = RandomAgent.decide, [220]
def until_killed(self, view):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return (yield from decide(self, view))
RandomAgent.decide = until_killed
from comap.cli import main
sys.exit(main(sys.argv[1:]))
"""


@POSIX
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_killed_command_goes_on(concurrency: int, tmp_path: Path, whole_command: Path) -> None:
    words = [*WORDS, "--live", str(concurrency), "--out", str(tmp_path)]
    command = [sys.executable, "-c", KILLED, *words]
    killed = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    assert killed.returncode == -signal.SIGKILL
    file = tmp_path / "trajectories.jsonl"
    assert file.read_bytes().count(b"\n") == 4, "220 steps are 4 episodes of 50, and some more"
    file.write_bytes(file.read_bytes() + b'{"schema": 2, "task": "gen')  # as a kill may leave it
    assert main(words) == 0
    assert text(tmp_path) == text(whole_command)
    lines = (tmp_path / "timings.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["session"] for line in lines] == [1] * 4 + [2] * 8
    assert len(list(read_trajectories(file))) == 12


# What models were told.


def prompts_in(folder: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((folder / "run.json").read_text())["prompts"]
    return recorded


def test_a_run_records_its_prompts_and_goes_on_with_no_others(tmp_path: Path) -> None:
    prompt_folder = tmp_path / "prompts"
    (prompt_folder / "agents" / "standard").mkdir(parents=True)
    (prompt_folder / "agents" / "standard" / "act.txt").write_text(
        "[system]\n$instructions\nAct now.\n"
    )
    folder, lm = tmp_path / "run", HashedModel()
    usual = create_agent("react", decoding="masked")
    run_to(folder, plan(usual, tasks=TASKS[:1], lm=lm))
    assert len(prompts_in(folder)["sha256"]) == 64

    changed = create_agent("react", decoding="masked", prompt_folder=str(prompt_folder))
    with pytest.raises(OptionError, match=r"prompts\.sha256"):
        run_to(folder, plan(changed, tasks=TASKS[:1], lm=lm))

    second_folder = tmp_path / "other"
    run_to(second_folder, plan(changed, tasks=TASKS[:1], lm=lm))
    assert prompts_in(second_folder) != prompts_in(folder)
    assert str(tmp_path) not in (second_folder / "run.json").read_text(), "no path of a machine"


def test_a_run_from_before_prompts_were_recorded_goes_on(tmp_path: Path) -> None:
    agent, lm = create_agent("react", decoding="masked"), HashedModel()
    run_to(tmp_path, plan(agent, tasks=TASKS[:2], lm=lm))
    recorded = json.loads((tmp_path / "run.json").read_text())
    del recorded["prompts"]
    (tmp_path / "run.json").write_text(json.dumps(recorded))
    assert run_to(tmp_path, plan(agent, tasks=TASKS[:2], lm=lm))["n"] == 2


def test_the_words_of_an_own_environment_are_recorded_for_exports(tmp_path: Path) -> None:
    moves = ["left", "down", "right", "up"]
    words = Wording(
        observe=lambda cell: f"cell {cell}",
        act=moves.index,
        legal=lambda state: moves,
        instructions="Say a direction.",
    )

    def lake() -> gym.Env[str, str]:
        return adapt(gym.make("FrozenLake-v1", is_slippery=False), {}, words)

    agent = create_agent("react", decoding="masked")
    run = Run(make_env=lake, agent=agent, tasks=lake().unwrapped.tasks.ids[:1], lm=HashedModel())
    run_to(tmp_path / "run", run)
    assert prompts_in(tmp_path / "run")["instructions"] == "Say a direction."

    out = tmp_path / "rows.jsonl"
    assert main(["export", str(tmp_path / "run"), "--to", "sharegpt", "--out", str(out)]) == 0
    row = json.loads(out.read_text().splitlines()[0])
    assert row["conversations"][0]["value"].startswith("Say a direction.")
