"""Whole trainings: their stages, what each leaves behind, and what the models then do."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from comap.agents import CoMapAgent
from comap.agents.run import Run, recorded, run_to
from comap.errors import OptionError
from comap.jsonl import read_json
from comap.trainers.roles import Roles
from kits.event_files import TRACKER, curves_of
from kits.trainings import Recorded, files_of, make_env, small, training

pytest.importorskip("trl")
STAGES = [
    "warmup-policy",
    "warmup-rollouts",
    "warmup-world-model",
    "frozen-transitions",
    "reflection-drafts",
    "reflection-suffixes",
    "reflection-init",
    "round-0-evaluation",
    "round-1-rollouts",
    "round-1-world-model",
    "round-1-policy",
    "round-1-evaluation",
]
PLAIN = {"accumulate": 64, "concurrency": 3}  # each stage makes one update for each epoch


class Ended:
    """A training that has been run to its end."""

    def __init__(self, model, out, **settings):
        self.model, self.out = model, out
        self.config, self.events = small(**settings), list[Any]()
        options = {"report_to": TRACKER}
        self.training = training(self.config, model, out, self.events.append, **options)
        self.summary = self.training.run()

    def result(self, name):
        return self.training.folders[name].result()

    def weights(self, stage, role):
        from safetensors.torch import load_file

        return dict(load_file(self.training.folders[stage].weights(role)))

    def again(self, **settings):
        events = []
        training(small(**settings), self.model, self.out, events.append).run()
        return events


@pytest.fixture(scope="module")
def plain(player, tmp_path_factory):
    return Ended(player, tmp_path_factory.mktemp("plain") / "run", **PLAIN)


def same(first, second):
    assert first.keys() == second.keys()
    return all(bool((first[name] == second[name]).all()) for name in first)


def test_stages_and_results(plain):
    event_stages = [event["stage"] for event in plain.events if event["event"] == "stage"]
    assert event_stages == STAGES == list(plain.summary["stages"])
    assert read_json(plain.out / "summary.json") == plain.summary
    labels = plain.result("reflection-suffixes")
    assert labels["labels"] + sum(labels["counts"].values()) == 4  # 2 states of 2 tasks
    rollouts = plain.result("round-1-rollouts")
    assert (rollouts["episodes"], rollouts["errors"]) == (2, 0)
    assert rollouts["gates"]["steps"] == rollouts["steps"]
    world, policy = plain.result("round-1-world-model"), plain.result("round-1-policy")
    assert world["samples"]["world_model"] == rollouts["steps"]
    assert world["rows"] == sum(world["samples"].values()) and world["updates"] == 1
    assert {"nll", "distillation"} <= set(world["log"][0]) and "nll" in policy["log"][0]
    first, last = (plain.result(f"round-{number}-evaluation") for number in (0, 1))
    for evaluation in (first, last):
        assert evaluation["splits"]["valid_seen"]["episodes"] == 1
        assert evaluation["gates"]["context_sources"] == {}, (
            "no gate of the world state: no teacher"
        )
    prints = [evaluation["world_model"]["frozen"]["fingerprint"] for evaluation in (first, last)]
    assert prints[0] == prints[1]


def test_a_tracker_gets_success_gates_and_world_model(plain):
    pytest.importorskip("tensorboard")
    curves, updates, stages = curves_of(plain.out), 0, {}
    for name in STAGES:
        updates += plain.result(name).get("updates", 0)
        stages[name] = updates
    for name in (
        "evaluation/splits/valid_seen/success",
        "evaluation/world_model/frozen/all/delta_f1",
        "evaluation/world_model/on_policy/all/delta_f1",
        "evaluation/gates/invalid_actions",
        "rollouts/gates/agreement/mean",
        "rollouts/success",
    ):
        stage, *path = name.split("/")
        expected = []
        for whole, step in stages.items():
            if whole.endswith(f"-{stage}") and whole != "warmup-rollouts":
                value = plain.result(whole)
                for part in path:
                    value = value[part]
                expected.append((step, pytest.approx(value)))
        assert expected and curves[name] == expected, name
    losses = [step for step, _ in curves["world-model/nll"]]
    assert losses == [stages["round-1-world-model"]]


def test_saved_models_play_as_in_the_last_evaluation(plain, tmp_path):
    models = plain.out / "models"
    places = {"agent": models / "agent", "wm": models / "wm"}
    roles = Roles.open(places, kind="full", roles=("agent", "wm"), dtype="float64", device="cpu")
    assert same(roles.state("agent"), plain.weights("round-1-policy", "agent"))
    lm = roles.language_model(exact=True)
    agent = CoMapAgent(plain.training.evaluated_agent(), models / "head.safetensors")
    place = plain.training.folders["round-1-evaluation"].path / "valid_seen-0" / "rank-0-of-1"
    played = place / "trajectories.jsonl"
    recorded_bytes = played.read_bytes()
    run = Run(
        make_env=partial(make_env, "valid_seen"),
        agent=agent,
        tasks=[json.loads(line)["task"] for line in recorded_bytes.splitlines()],
        lm=lm,
        world_model=plain.training.world_model(lm),
        config={"split": "valid_seen"},
    )
    run_to(tmp_path, run, concurrency=1)
    for now, before in zip(
        recorded(tmp_path / "trajectories.jsonl"), recorded(played), strict=True
    ):
        assert [(step.action, step.notes) for step in now.steps] == [
            (step.action, step.notes) for step in before.steps
        ]


def test_a_training_that_has_ended_is_known(plain):
    files = files_of(plain.out)
    events = plain.again(**{**PLAIN, "concurrency": 1})
    assert [event["event"] for event in events] == ["known"] * len(STAGES)
    assert files_of(plain.out) == files
    with pytest.raises(OptionError, match=r"eta: 0\.5 there, 0\.25 now"):
        plain.again(**PLAIN, eta=0.25)


@pytest.mark.parametrize("buffer", ["last", "all"])
def test_rounds_and_buffers(player, tmp_path, monkeypatch, buffer):
    settings = {"frozen_transitions": 0, "diagnosed": 0, "rounds": 2, "reflection_init": False}
    config = small(**settings, buffer=buffer, evaluation_tasks=1, final_tasks=2)
    recorded_run = Recorded(config, player, tmp_path, monkeypatch)
    played = {k: recorded_run.played(f"round-{k}-rollouts") for k in (1, 2)}
    for k in (1, 2):
        rows = [
            s for s in recorded_run.samples(f"round-{k}-world-model") if s.kind == "world_model"
        ]
        rounds = range(1, k + 1) if buffer == "all" else (k,)
        assert [row.task for row in rows] == [
            t.task for r in rounds for t in played[r] for _ in t.steps
        ]


def test_stages_that_are_left_out(player, tmp_path):
    warmed = training(small(), player, tmp_path, warmed_up=True)
    assert [name for name, _ in warmed.stages()] == STAGES[3:]
    no_rounds = training(small(rounds=0), player, tmp_path)
    assert [name for name, _ in no_rounds.stages()] == STAGES[:8]


def test_several_models_at_one_server_are_refused_at_the_start(player, tmp_path):
    settings = {"exact": False, "p_source": "verbalizer", "precision": "float32"}
    at_server = {"engine": "http://127.0.0.1:1"}
    with pytest.raises(OptionError, match=r"found 3 models.*weights='lora'"):
        training(small(weights="full", **settings), player, tmp_path, **at_server)
    assert training(
        small(weights="lora", **settings), player, tmp_path, **at_server
    ).sampling.server
