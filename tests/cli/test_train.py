"""`comap train METHOD`, as one types it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from comap.agents.comap import CoMapConfig
from comap.agents.create import create_agent
from comap.benchmarks.training_record import play_command
from comap.cli.main import understood
from comap.trainers.baselines.config import BASELINES, WebEvolverTraining, baseline_preset
from comap.trainers.comap.config import CoMapTraining
from comap.trainers.paw.config import PRESETS, PaWTraining, preset
from comap.trainers.run_folder import FORMAT
from comap.trajectory import read_trajectories
from kits.commands import say

PACKAGES = ("torch", "trl", "peft", "jinja2", "matplotlib")
FEW = ["--preset", "tiny", "--tiny-parameters", "200000", "--env-option", "max_episode_steps=2"]
SMALL = [
    *("train", "comap", *FEW, "--rounds", "1", "--demonstrations", "2", "--warmup-rollouts", "1"),
    *("--reflection-tasks", "1", "--states-per-episode", "1", "--tasks-per-round", "1"),
    *("--evaluation-tasks", "2", "--evaluation-splits", "valid_seen", "--diagnosed", "1"),
    *("--frozen-transitions", "2", "--warmup-epochs", "1", "--logging-steps", "1"),
    *("--save-steps", "0", "--entry-tasks", "1"),
]
SMALL_WKM = [
    *("train", "wkm", *FEW, "--demonstrations", "3", "--evaluation-tasks", "1", "--epochs", "1"),
    *("--evaluation-splits", "valid_seen", "--save-steps", "0"),
]
UPDATE = {"update": 1, "success": 0.25, "return": 2.5, "policy_loss": 0.125}
EVALUATION = {"update": 1, "split": "valid_seen", "n": 4, "success": 0.5, "score": 0.625}


def command(method, *words):
    return understood(["train", method, *words])


def comap(*words):
    return command("comap", *words).config


def paw(*words):
    return command("paw", *words).config


# -- settings ------------------------------------------------------------------------------------


def test_every_setting_of_comap_is_an_option(tmp_path):
    assert comap() == CoMapTraining()
    assert comap("--no-wmsd", "--no-expert-sft").ablations() == ("w/o Expert SFT", "w/o WMSD")
    assert comap("--batch-tokens", "512").optimization.batch_rows is None
    assert comap("--preset", "tiny", "--batch-rows", "2").optimization.batch_tokens is None
    assert comap("--micro-batch-tokens", "4096").optimization.micro_batch_tokens == 4096
    assert comap("--gradient-checkpointing", "false").optimization.gradient_checkpointing is False
    assert comap("--preset", "tiny", "--evaluation-tasks", "none").evaluation_tasks is None
    assert comap("--form-loss", "true").form_loss is True
    assert comap("--topk", "20", "--topk", "none").distillation.topk is None
    assert comap("--evaluation-splits", "a", "b").evaluation_splits == ("a", "b")
    assert comap("--agent.tau_p", "0.4") == comap("--agent.tau-p", "0.4") == comap("--tau-p", "0.4")
    assert comap("--prompts", "brief").agent.prompts == "brief", "a style, and no folder"
    file = tmp_path / "train.yaml"
    file.write_text("preset: tiny\nagent: {tau_p: 0.4}\noptimization: {batch_rows: 2}\n")
    read = comap("--config", str(file), "--rounds", "1")
    assert (read.agent.tau_p, read.rounds, read.weights) == (0.4, 1, "full")
    assert read.optimization.batch_tokens is None


@pytest.mark.parametrize("method", ["comap", "paw", "sft", "iwm", "wkm", "itp", "webevolver"])
def test_what_is_printed_can_be_read(method, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ["--preset", "tiny", "--seed", "3", "--out", str(tmp_path)]
    assert say("train", method, *words, "--print-config")[0] == 0
    capsys.readouterr()
    file = tmp_path / "all.yaml"
    file.write_text(say("train", method, *words, "--print-config")[1])
    assert command(method, "--config", str(file)) == command(method, *words)
    assert say("train", method, "--preset", "tiny", "--help")[1].count("\n") <= 100


def test_every_setting_of_paw_is_an_option():
    assert paw() == PaWTraining()
    assert paw("--algorithm", "gigpo", "--no-paw").title == "GiGPO"
    assert paw("--micro-batch-rows", "4").optimization.micro_batch_tokens is None
    assert paw("--preset", "tiny", "--mini-batch-rows", "8").optimization.mini_batch_rows == 8
    assert paw("--mini-batch-rows", "none", "--updates", "none").updates is None
    assert paw("--dual-clip", "none").optimization.dual_clip is None
    assert paw("--max-updates", "3").max_updates == 3 and paw().max_updates is None
    for name in PRESETS:
        assert paw("--preset", name, "--seed", "4", "--warmup-tokens", "7") == preset(
            name, seed=4, warmup={"warmup_tokens": 7}
        )


def test_preset_and_environment_follow_each_other():
    def resolved(*words):
        paw_command = command("paw", *words)
        return paw_command.preset, paw_command.env

    assert resolved() == ("alfworld", "comap/ALFWorld-v0")
    assert resolved("--env", "comap/WebShop-v0") == ("webshop", "comap/WebShop-v0")
    assert resolved("--env", "comap/SearchQA-v0") == ("search", "comap/SearchQA-v0")
    assert resolved("--preset", "search_r1") == ("search_r1", "comap/SearchQA-v0")
    assert resolved("--preset", "tiny") == ("tiny", "comap/ALFWorld-v0")
    assert paw("--env", "comap/WebShop-v0").optimization.mini_batch_rows == 64


def test_options_of_the_environment():
    def env_options(*words):
        return command("paw", *words).env_options()

    assert env_options() == {"max_episode_steps": 50}
    assert env_options("--preset", "tiny") == {"max_episode_steps": 30, "source": "generated"}
    tiny = ["--preset", "tiny", "--data-dir", "d"]
    assert env_options(*tiny) == {"max_episode_steps": 30, "data_dir": "d"}
    custom_words = ["--max-episode-steps", "9", "--env-option", "dialect=put"]
    assert env_options(*custom_words) == {"max_episode_steps": 9, "dialect": "put"}
    searched = {"max_episode_steps": 4, "source": "generated", "topk": 1}
    for name in ("tiny_search_r1", "tiny_zerosearch"):
        assert env_options("--preset", name) == searched
        assert env_options("--preset", name, "--env-option", "topk=2") == {**searched, "topk": 2}
        assert paw("--preset", name).evaluation_splits == ("test",)


@pytest.mark.parametrize("method", ["comap", "sft"])
def test_the_preset_tiny_has_small_rooms_unless_tasks_are_chosen(method):
    def env_options(*words):
        return command(method, "--preset", "tiny", *words).env_options()

    small = {"difficulty": "r6-8.o3-6.f45", "expert": "explore", "source": "generated"}
    assert env_options() == {**small, "max_episode_steps": 20}
    custom_words = ("--env-option", "max_episode_steps=9", "--env-option", "difficulty=easy")
    assert env_options(*custom_words) == {**small, "max_episode_steps": 9, "difficulty": "easy"}
    assert env_options("--env-option", "source=generated") == {"source": "generated"}
    assert env_options("--data-dir", "d") == {"data_dir": "d"}
    assert env_options("--env", "comap/WebShop-v0") == {"source": "generated"}


# -- a small training ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training of the smallest size, and what was said of it."""
    for package in PACKAGES:
        pytest.importorskip(package)
    place = tmp_path_factory.mktemp("train") / "out"
    code, out, err = say("--traceback", *SMALL, "--out", str(place))
    assert code == 0, err
    return place, out, err


def episodes(folder):
    files = sorted(folder.glob("**/trajectories.jsonl"))
    return {episode.task: episode for path in files for episode in read_trajectories(path)}


def test_a_training_is_shown_and_written(trained):
    place, out, err = trained
    lines = out.splitlines()
    stages = [int(match[1]) for line in lines if (match := re.match(r"\[(\d+)/13\] .* s$", line))]
    assert stages == list(range(1, 14)) and err == ""
    assert "{" not in out and "Warning" not in out  # nothing of what libraries print
    for name in ("report.html", "metrics.jsonl", "summary.json", "models/agent/config.json"):
        assert (place / name).is_file(), name
    metrics = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 13 and metrics[-1]["splits/valid_seen/episodes"] == 2
    run = json.loads((place / "run.json").read_text())
    described, session = run["described"], run["sessions"][0]
    assert described["preset"] == "tiny" and described["config"]["rounds"] == 1
    small = {"difficulty": "r6-8.o3-6.f45", "expert": "explore", "source": "generated"}
    assert described["env"]["options"] == {**small, "max_episode_steps": 2}
    assert set(described["env"]["fingerprint"]) == {"train", "valid_seen"}
    assert described["model"]["name"] == "tiny" and len(described["model"]["model_sha256"]) == 64
    assert described["demonstrations"] == {"from": "expert", "number": 2}
    assert {"torch", "trl", "peft"} <= set(session["versions"])
    assert str(place.parent) not in (place / "run.json").read_text()
    assert str(place.parent) not in (place / "report.html").read_text("utf-8")


def test_the_models_play_as_they_were_evaluated(trained, tmp_path):
    place, out, _ = trained
    words = shlex.split(out.splitlines()[-1])
    assert words[:2] == ["comap", "run"]
    evaluated = episodes(place / "stages" / "12-round-1-evaluation" / "valid_seen-0")
    played = tmp_path / "played"
    code, _, err = say(*words[1:], "--tasks", *sorted(evaluated), "--out", str(played))
    assert code == 0, err
    replayed = episodes(played)
    assert len(replayed) == 2 and replayed.keys() == evaluated.keys()
    for task, trajectory in replayed.items():
        assert trajectory.error is None
        for step, original in zip(trajectory.steps, evaluated[task].steps, strict=True):
            assert (step.action, step.observation) == (original.action, original.observation)
            assert step.notes == original.notes


def test_a_training_goes_on_only_as_it_was(trained):
    place = str(trained[0])
    resumed_command = command("comap", "--config", f"{place}/run.json", "--out", place)
    assert resumed_command == understood([*SMALL, "--out", place])
    code, _, err = say("train", "iwm", "--config", f"{place}/run.json")
    assert code == 2 and "one of another command" in err
    code, out, err = say(*SMALL, "--out", place, "--live", "2")
    assert (code, err) == (0, "")
    assert out.count(": done before") == 13
    assert out.splitlines()[-1] == trained[1].splitlines()[-1]
    code, _, err = say(*SMALL, "--out", place, "--eta", "0.25")
    assert code == 2 and len(err.splitlines()) == 1
    assert "found other settings (config.distillation.eta: 0.5 there, 0.25 now)" in err
    code, _, err = say(*SMALL, "--out", place, "--tiny-parameters", "300000")
    assert code == 2 and "expected the tiny model" in err


def test_a_training_ends_well_without_the_extra_viz(trained, tmp_path, monkeypatch):
    place = shutil.copytree(trained[0], tmp_path / "out")
    for name in ("report.html", "metrics.jsonl"):
        (place / name).unlink()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, out, err = say(*SMALL, "--out", str(place))
    assert (code, err) == (0, "") and out.splitlines()[-1].startswith("comap run ")
    assert "\nreport: none; a report needs the extra 'viz'; run: pip install" in out
    assert (place / "metrics.jsonl").is_file() and not (place / "report.html").exists()


def test_a_baseline_is_trained_and_goes_on(tmp_path):
    for package in PACKAGES:
        pytest.importorskip(package)
    place = tmp_path / "out"
    code, out, err = say("--traceback", *SMALL_WKM, "--out", str(place))
    assert (code, err) == (0, "")
    assert "[1/3] state-knowledge: " in out and " entries, " in out
    assert shlex.split(out.splitlines()[-1])[:4] == ["comap", "run", "--agent", "wkm"]
    run = json.loads((place / "run.json").read_text())
    assert run["described"]["method"] == "wkm" and run["described"]["preset"] == "tiny"
    assert str(tmp_path) not in (place / "run.json").read_text()
    code, resumed_output, err = say(*SMALL_WKM, "--out", str(place))
    assert (code, err) == (0, "") and resumed_output.count(": done before") == 3
    assert resumed_output.splitlines()[-1] == out.splitlines()[-1]
    code, _, err = say(*SMALL_WKM, "--out", str(place), "--gamma", "0.5")
    assert code == 2 and "gamma: 0.7 there, 0.5 now" in err
    code, _, err = say("train", "sft", *SMALL_WKM[2:], "--out", str(place))
    assert code == 2 and "other settings" in err


# -- PaW, but for the training -------------------------------------------------------------------


@pytest.fixture
def training_requests(monkeypatch):
    """What `train` was asked; it writes a training's files, and trains nothing."""
    for package in PACKAGES:
        pytest.importorskip(package)
    requests = []

    def train_nothing(config, *, out, tell, **arguments):
        requests.append({"config": config, "out": out, **arguments})
        described = {"method": "paw", "config": config.describe(), **arguments["about"]}
        out.mkdir(parents=True, exist_ok=True)
        (out / "run.json").write_text(
            json.dumps({"format": FORMAT, "described": described, "sessions": []})
        )
        (out / "metrics.jsonl").write_text(json.dumps(UPDATE) + "\n")
        (out / "evaluations.jsonl").write_text(json.dumps(EVALUATION) + "\n")
        print("{'loss': 1.0}")  # as libraries do
        tell({"event": "update", "of": config.updates, **UPDATE})
        tell({"event": "evaluated", **EVALUATION})
        return out / "models" / "agent"

    monkeypatch.setattr("comap.trainers.paw.training.train", train_nothing)
    return requests


def test_a_paw_training_is_asked_for_and_shown(training_requests, tmp_path):
    out, model = tmp_path / "out", tmp_path / "policy-1"
    model.mkdir()
    words = ("--preset", "tiny", "--algorithm", "gigpo", "--seed", "3", "--max-updates", "2")
    model_words = ("--model", str(model), "--engine", "http://127.0.0.1:8000", "--live", "2")
    code, printed, err = say("train", "paw", *words, *model_words, "--out", str(out))
    assert (code, err) == (0, "")
    (request,) = training_requests
    config = request["config"]
    assert (config.algorithm, config.seed, config.max_updates, config.concurrency) == (
        "gigpo",
        3,
        2,
        2,
    )
    assert (request["out"], request["model"]) == (out, model)
    assert (request["engine"], request["report_to"]) == ("http://127.0.0.1:8000", "none")
    assert request["about"]["preset"] == "tiny" and request["about"]["row"] == "GiGPO+PaW"
    assert request["about"]["model"]["name"] == "policy-1"
    assert set(request["about"]["env"]["fingerprint"]) == {"train", "valid_seen", "valid_unseen"}
    assert str(tmp_path) not in json.dumps(request["about"])
    assert request["make_env"]("train").spec.max_episode_steps == 30
    lines = printed.splitlines()
    assert lines[0] == "update 1 of 4: success 25.0 %, return 2.500, loss 0.125"
    assert lines[1].startswith("evaluation after update 1: valid_seen 50.0 % [15.0, 85.0] (n=4)")
    assert f"report: {out / 'report.html'}" in lines and (out / "report.html").is_file()
    assert lines[-1].startswith("comap run --agent paw --env comap/ALFWorld-v0")
    assert "{" not in printed


def test_the_models_of_paw(training_requests, tmp_path, monkeypatch):
    tiny = ("train", "paw", "--preset", "tiny")
    assert say(*tiny, "--out", str(tmp_path / "a"))[0] == 0
    assert training_requests[-1]["about"]["model"]["name"] == "shipped:agent"
    assert training_requests[-1]["config"].warmup.warmup_tokens == 0
    builds = []

    def build(folder, env_id, *, parameters, seed):
        builds.append((folder, env_id, parameters, seed))
        return folder

    monkeypatch.setattr("comap.trainers.setup.tiny_for_training", build)
    words = (*tiny, "--tiny-parameters", "200000", "--seed", "5", "--model", "tiny")
    assert say(*words, "--out", str(tmp_path / "b"))[0] == 0
    assert builds == [(tmp_path / "b" / "untrained", "comap/ALFWorld-v0", 200_000, 5)]
    assert training_requests[-1]["about"]["model"] == {"name": "tiny", "parameters": 200_000}
    name = "Qwen/Qwen2.5-1.5B-Instruct"
    hub = ("--preset", "alfworld", "--model", name, "--env-option", "source=generated")
    code, printed, err = say("train", "paw", *hub, "--out", str(tmp_path / "c"))
    assert code == 0, err
    assert (
        training_requests[-1]["model"] == name and training_requests[-1]["config"] == PaWTraining()
    )
    assert printed.splitlines()[0].startswith(f"loading {name} from the hub")


def test_a_simulator_is_passed_on(training_requests, tmp_path):
    def trained_with(*words):
        out = tmp_path / str(len(training_requests))
        code, _, err = say("train", "paw", *words, "--out", str(out))
        assert code == 0, err
        return training_requests[-1]

    request = trained_with("--preset", "tiny_zerosearch", "--model", "m/m", "--warmup-tokens", "0")
    assert request["simulator"] == "tiny"
    assert request["about"]["simulator"] == {"name": "tiny", "kind": "local"}
    folder = tmp_path / "player-1"
    folder.mkdir()
    model_words = ("--model", "some/model", "--env-option", "source=generated")
    request = trained_with("--preset", "zerosearch", "--simulator", str(folder), *model_words)
    assert request["simulator"] == str(folder) and request["about"]["row"] == "ZeroSearch"
    assert request["about"]["simulator"]["name"] == "player-1"
    assert str(tmp_path) not in json.dumps(request["about"])
    server = "http://127.0.0.1:1/v1#played"
    request = trained_with("--preset", "zerosearch", "--simulator", server, *model_words)
    assert request["about"]["simulator"] == {"name": "played", "kind": "remote"}
    request = trained_with("--preset", "search_r1", *model_words)
    assert request["simulator"] is None and "simulator" not in request["about"]


# -- what lets the models play -------------------------------------------------------------------


def played(words):
    return understood(words[1:])


def test_adapters_are_played_with_their_base():
    config = CoMapTraining(
        seed=3,
        agent=CoMapConfig(future_state=False),
        predict_tokens=9,
        evaluation_temperature=0.0,
    )
    base = "Qwen/Qwen3-4B"
    options = {"data_dir": "my data", "dialect": "put"}
    play = played(play_command(config, Path("m"), "comap/ALFWorld-v0", options, base))
    assert (play.model, play.world_model, play.data_dir) == (base, base, "my data")
    assert play.adapter == {"agent": "m/agent", "wm": "m/wm"} and play.world_model_adapter == "wm"
    agent_settings = {"adapter": "agent", "seed": 3, "future_state": False, "temperature": 0.0}
    limits = {"max_length": 2048, "draft_tokens": 64, "reflect_tokens": 128}  # not the model's own
    assert play.config == {
        **agent_settings, **limits, "p_source": "head", "q_source": "token_geo_mean"
    }  # fmt: skip
    assert play.agent_option == {"head": "m/head.safetensors", "with_thought": False}
    assert play.dtype is None
    assert play.env_option == {"dialect": "put"}
    assert play.world_model_option == {"max_length": 2048, "max_new_tokens": 9}
    lora = PaWTraining(weights="lora")
    play = played(play_command(lora, Path("m"), "e", {"data_dir": "my data"}, base))
    assert (play.model, play.adapter, play.data_dir) == (base, {"agent": "m/agent"}, "my data")
    assert play.config["adapter"] == "agent"


@pytest.mark.parametrize("method", BASELINES)
def test_baselines_play_as_in_evaluations(method):
    config = baseline_preset(method, "paper", seed=3)
    play = played(play_command(config, Path("m"), "comap/ALFWorld-v0", {}, "base"))
    assert play.agent == {"sft": "react"}.get(method, method) and play.model == "base"
    assert play.adapter is not None and play.adapter["agent"] == "m/agent"
    assert ("wm" in play.adapter) == (method in ("itp", "webevolver"))
    assert play.config["seed"] == 3
    assert play.config.get("encoder") == getattr(config.agent, "encoder", None)


def test_webevolver_plays_as_in_evaluations():
    config = baseline_preset("webevolver", "tiny", depth=2)
    play = played(play_command(config, Path("m"), "comap/ALFWorld-v0", {}))
    assert (play.agent, play.model, play.world_model) == ("webevolver", "m/agent", "m/wm")
    assert play.config["depth"] == 2 and play.world_model_option["temperature"] == 0.7
    alone = baseline_preset("webevolver", "tiny", imagined_from=None)
    play = played(play_command(alone, Path("m"), "comap/ALFWorld-v0", {}))
    assert (play.agent, play.world_model) == ("react", None)


def test_webevolver_on_the_web_has_a_preset_of_its_own():
    web_config, alfworld_config = (
        command("webevolver", "--preset", "tiny", "--env", env).config
        for env in ("comap/Web-v0", "comap/ALFWorld-v0")
    )
    assert web_config.epochs > alfworld_config.epochs and web_config.evaluation_splits == ("test",)
    training = command(
        "webevolver", "--preset", "tiny", "--env", "comap/Web-v0", "--demonstrations", "7"
    )
    assert (
        training.config.demonstrations == 7 and command("webevolver").config == WebEvolverTraining()
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_policy_plays_as_in_evaluations(name):
    config = preset(name, seed=3)
    place = ("comap/ALFWorld-v0", {"dialect": "put"})
    play = played(play_command(config, Path("my models"), *place, "its base"))
    trained = "my models/agent"
    if config.weights == "lora":
        assert (play.model, play.adapter) == ("its base", {"agent": trained})
    else:
        assert (play.model, play.adapter) == (trained, {})
    assert play.agent == "paw"
    assert play.split == config.evaluation_splits[-1] and play.env_option == {"dialect": "put"}
    agent = create_agent("paw", **{**play.config, **play.agent_option})
    # In training the policy's adapter is the model's default; in a run it is named.
    expected = config.acting(config.evaluation_temperature)
    adapter = "agent" if config.weights == "lora" else None
    assert agent.config == dataclasses.replace(expected, adapter=adapter)
