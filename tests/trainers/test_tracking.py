"""Curves of trainings in a tracker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from dataclasses import replace

import gymnasium
import pytest

from comap.agents import RandomAgent, run_episode
from comap.agents.convert import turns_of
from comap.cli import main
from comap.errors import OptionError
from comap.trainers.tracking import Curves, TableOfRollouts, check_tracker, tracked
from comap.worldmodel.naming import NOT_TO_REPORT
from kits.event_files import curves_of, text_of

EVENTS = [
    {"event": "known", "stage": "warmup-policy", "result": {"updates": 4, "success": 1.0}},
    {"event": "update", "stage": "round-1-policy", "step": 2, "steps": 3, "loss": 0.5},
    {"event": "episode", "done": 1, "of": 2, "won": 1},
    {"event": "done", "stage": "round-1-policy", "result": {"updates": 3, "rows": 7, "log": []}},
    {"event": "update", "stage": "round-2-policy", "step": 1, "steps": 3, "loss": 0.25},
    {
        "event": "done",
        "stage": "round-2-evaluation",
        "result": {"splits": {"valid_seen": {"success": 0.5, "greedy": {"success": 0.25}}}},
    },
]
OF_PAW = [
    {"event": "update", "update": 1, "of": 2, "success": 0.5, "return": 5.0, "steps": 3.5},
    {"event": "evaluated", "update": 1, "split": "valid_seen", "success": 0.75, "won": {"a": 1}},
]


class Seen:
    def __init__(self):
        self.lines = []

    def log(self, values, step):
        self.lines.append((step, values))


def test_curves_go_on_from_round_to_round():
    tracker = Seen()
    curves = Curves(tracker)
    for event in EVENTS:
        curves.add(event)
    assert tracker.lines == [
        (6, {"policy/loss": 0.5}),
        (7, {"policy/updates": 3.0, "policy/rows": 7.0}),
        (8, {"policy/loss": 0.25}),
        (
            8,
            {
                "evaluation/splits/valid_seen/success": 0.5,
                "evaluation/splits/valid_seen/greedy/success": 0.25,
            },
        ),
    ]


def test_tensorboard_has_success_return_and_evaluations(tmp_path):
    pytest.importorskip("tensorboard")
    events = []
    with tracked(events.append, "tensorboard", tmp_path, {"seed": 0}) as report:
        for event in OF_PAW:
            report(event)
    assert events == OF_PAW
    assert curves_of(tmp_path) == {
        "success": [(1, 0.5)],
        "return": [(1, 5.0)],
        "steps": [(1, 3.5)],
        "evaluation/valid_seen/success": [(1, 0.75)],
    }


RUN = ["run", "--agent", "comap", "--model", "tiny", "--tiny-parameters", "200000", "--decoding"]
RUN += ["masked", "--env-option", "max_episode_steps=3", "--live", "1", "--episodes", "3"]
RUN += ["--draft-tokens", "8", "--agent-option", "reflect_tokens=8"]


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


def test_a_run_reports_each_episode_and_its_summary(tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    out = tmp_path / "run"
    words = [*RUN, "--world-model", "noisy", "--error-rate", "0.4", "--out", str(out)]
    assert main([*words, "--report-to", "tensorboard"]) == 0
    summary, curves = summary_of(out), curves_of(out)
    for name, value in {
        "success/value": summary["success"]["value"],
        "score": summary["score"],
        "steps/per_episode": 3.0,
        "invalid_actions": summary["invalid_actions"],
        "predictions/delta_f1": summary["predictions"]["delta_f1"],
        "gate/opened": summary["gate"]["opened"],
        "language_model/per_step/prompt_tokens": summary["language_model"]["per_step"][
            "prompt_tokens"
        ],
        "latency/model/p90": summary["latency"]["model"]["p90"],
    }.items():
        assert curves[f"run/{name}"] == [(3, pytest.approx(value, rel=1e-6))], name
    assert summary["predictions"]["n"] > 0
    assert curves["episode/predictions/delta_f1"], "of episodes with a prediction of what was done"
    for name in ("success", "invalid_actions"):
        assert [step for step, _ in curves[f"episode/{name}"]] == [1, 2, 3], name
    mean = sum(value for _, value in curves["episode/invalid_actions"]) / 3
    assert mean == pytest.approx(summary["invalid_actions"])
    assert not [name for name in curves if "trajectories.jsonl" in name]
    assert "3 generated tasks" in text_of(out) and NOT_TO_REPORT in text_of(out)
    assert main(["verify", str(out)]) == 0


def test_a_run_that_is_refused_reports_nothing(tmp_path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    words = ["run", "--agent", "random", "--episodes", "1", "--out", str(out)]
    assert main(words) == 0
    assert main([*words, "--seed", "7", "--report-to", "tensorboard"]) == 2
    assert not (out / "tensorboard").exists()


ASK = """
import sys
from trackio.cli import main
for query in sys.argv[1:]:
    sys.argv = ["trackio", *query.split(), "--project", "comap", "--run", "mine", "--json"]
    main()
    print(";")
"""


def test_trackio_gets_the_same_without_a_network(tmp_path):
    pytest.importorskip("trackio")
    home = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}

    def output_of(*command):
        words = [sys.executable, *command]
        process = subprocess.run(
            words, env=os.environ | home, capture_output=True, text=True, check=True
        )
        return process.stdout

    words = ["run", "--agent", "random", "--episodes", "2", "--env-option", "max_episode_steps=3"]
    output_of("-m", "comap", *words, "--report-to", "trackio", "--out", str(tmp_path / "mine"))
    metrics = [f"get metric --metric {name}" for name in ("episode/score", "run/score")]
    answers = output_of("-c", ASK, *metrics, "list traces").split(";\n")
    episodes, run, traces = (json.loads(answer) for answer in answers[:3])
    assert [point["step"] for point in episodes["values"]] == [1, 2]
    (last,) = run["values"]
    assert last["value"] == summary_of(tmp_path / "mine")["score"]
    assert len(traces["traces"]) == 2


class ShownRollouts:
    def __init__(self):
        self.shown = []

    def add(self, trajectory, part, step):
        self.shown.append((trajectory.task, part, step))

    def finish(self):
        self.shown.append("finished")


def test_texts_that_no_file_can_hold_are_shown_without_that(episodes):
    """Half a surrogate pair in a reply, which JSON can carry: a tracker would drop the rollout."""
    (step, *rest) = episodes[0].steps
    hostile = replace(episodes[0], steps=(replace(step, action="look \ud800"), *rest))
    turns = turns_of(hostile)
    assert turns[2]["content"] == "> look \ufffd"
    assert json.dumps(turns, ensure_ascii=False).encode()


def test_the_first_rollouts_of_each_part_are_shown(episodes):
    """Eight of each update and each stage; what is known from before shows nothing."""
    tracker, rollouts = Seen(), ShownRollouts()
    tracker.finish = lambda: None
    curves = Curves(tracker, rollouts)
    for update in (1, 2):
        for done_count in range(1, 13):
            counts = {"update": update, "done": done_count, "of": 12, "won": 0}
            curves.add({"event": "episode", **counts, "trials": episodes[:1]})
        curves.add({"event": "update", "update": update, "of": 2, "success": 0.0})
    for stage in ("round-1-rollouts", "round-2-rollouts"):
        counts = {"done": 1, "of": 1, "won": 0}
        curves.add({"event": "episode", **counts, "stage": stage, "trials": episodes})
    curves.add({"event": "episode", "done": 1, "of": 1, "won": 0})
    curves.finish()
    task = episodes[0].task
    assert rollouts.shown == [
        *[(task, "update 1", 0)] * 8,
        *[(task, "update 2", 1)] * 8,
        *[(episode.task, "round-1-rollouts", 2) for episode in episodes],
        *[(episode.task, "round-2-rollouts", 2) for episode in episodes],
        "finished",
    ]


@pytest.fixture(scope="module")
def episodes():
    env = gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=3)
    return [run_episode(env, RandomAgent(), seed=seed) for seed in range(2)]


def test_a_table_of_rollouts_has_a_row_each(episodes, monkeypatch):
    """W&B's table is its own; here it is looked at before it is sent."""
    wandb = types.ModuleType("wandb")
    wandb.Table = lambda columns, data: {"columns": columns, "data": data}
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logged = []
    tracker = types.SimpleNamespace(log=logged.append)
    table = TableOfRollouts(tracker)
    table.finish()
    assert not logged, "there is nothing to show"
    table.add(episodes[0], "update 1", 2)
    for episode in episodes:
        table.add(episode, "update 2", 3)
    assert len(logged) == 1, "an update's rollouts are sent when the next one's come"
    table.finish()
    table.finish()
    (before, last_table) = (line["rollouts"] for line in logged)
    assert [row[:2] for row in before["data"]] == [[2, "update 1"]]
    assert last_table["columns"][:4] == ["step", "part", "environment", "task"]
    assert [row[3] for row in last_table["data"]] == [episode.task for episode in episodes]
    for row, episode in zip(last_table["data"], episodes, strict=True):
        assert row[-1].startswith(f"[system]\nTask: {episode.goal}\n\n[user]\n")
        assert all(f"> {step.action}" in row[-1] for step in episode.steps)


def test_trackers_that_are_not_there(monkeypatch):
    with pytest.raises(OptionError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        check_tracker("tensorbord")
    monkeypatch.setattr("comap.trainers.tracking.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install wandb"):
        check_tracker("wandb")
    check_tracker("none")
