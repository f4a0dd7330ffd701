"""The models that `comap run` makes of its options, builds, and ships."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.agents.create import AGENTS
from comap.cli import models as models_module
from comap.cli.models import ModelOptions, Models
from comap.cli.run import Play
from comap.errors import OptionError
from comap.lm import EngineChoice, create
from comap.trainers.setup import Environments
from kits.commands import episodes, run
from kits.hostile_server import HostileServer, says, sends

SERVER, OTHER = "http://127.0.0.1:9/v1#m", "http://127.0.0.1:9/v1#other"


def options_of(monkeypatch, spec, **options):
    """What a model is made with."""
    calls = []

    def make(spec, **arguments):
        del arguments["build_tiny"]
        calls.append({name: value for name, value in arguments.items() if value is not None})
        return spec

    monkeypatch.setattr(models_module, "create_language_model", make)
    Models(ModelOptions(**options), Path(), Environments("comap/ALFWorld-v0"), 0)(spec)
    return calls[0]


def test_options_of_models_go_to_models_of_their_kind(monkeypatch):
    tiny = {"model": "tiny", "world_model": SERVER, "dtype": "float32"}
    assert options_of(monkeypatch, "tiny", **tiny) == {"dtype": "float32"}
    assert options_of(monkeypatch, SERVER, **tiny) == {}, (
        "what a server computes with is its affair"
    )
    two_servers = {"model": SERVER, "world_model": OTHER, "model_option": {"concurrency": 3}}
    assert (
        options_of(monkeypatch, SERVER, **two_servers)
        == options_of(monkeypatch, OTHER, **two_servers)
        == {"concurrency": 3}
    )
    named_model = {"model": "m", "world_model": "tiny", "base_url": "http://127.0.0.1:9/v1"}
    assert options_of(monkeypatch, "m", **named_model) == {"base_url": "http://127.0.0.1:9/v1"}
    assert options_of(monkeypatch, "tiny", **named_model) == {}
    assert options_of(monkeypatch, "other", **named_model) == {"base_url": "http://127.0.0.1:9/v1"}
    alone = {"world_model": "tiny", "dtype": "float32"}
    assert options_of(monkeypatch, "tiny", **alone) == {"dtype": "float32"}


def test_adapters_go_where_they_are_asked_for(monkeypatch):
    adapter_options = {"adapter": {"actor": "a", "wm": "w"}, "world_model_adapter": "wm"}
    both_adapters = {"actor": "a", "wm": "w"}
    shared = adapter_options | {"model": "tiny", "world_model": "tiny"}
    assert options_of(monkeypatch, "tiny", **shared) == {"adapters": both_adapters}
    apart = adapter_options | {"model": "tiny", "world_model": SERVER}
    assert options_of(monkeypatch, "tiny", **apart) == {"adapters": {"actor": "a"}}
    assert options_of(monkeypatch, SERVER, **apart) == {"adapters": {"wm": "w"}}
    assert options_of(monkeypatch, "tiny", adapter={"actor": "a"}, model="tiny") == {
        "adapters": {"actor": "a"}
    }


SHORT = ["--env-option", "max_episode_steps=2", "--device", "cpu"]


@pytest.fixture
def shipping(stand_ins, monkeypatch):
    """Tiny models in the place of those that comap ships."""
    monkeypatch.setattr(create, "_package_folder", lambda: stand_ins)
    return stand_ins


def test_comap_plays_out_of_the_box(shipping, tmp_path, capsys):
    assert run("--agent", "comap", *SHORT, "--out", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "model: the small one that comap ships (0.2 M parameters" in printed
    steps = [step for trajectory in episodes(tmp_path) for step in trajectory.steps]
    assert len(steps) == 8 and {step.notes["path"] for step in steps} == {"reflected"}
    assert {step.notes["p_source"] for step in steps} == {"verbalizer"}
    assert {step.notes["decoding"] for step in steps} == {"masked"}
    record = json.loads((tmp_path / "run.json").read_text())
    assert "head" not in record["config"]["agent"] and record["agent"]["tau_p"] == 0.4
    assert record["config"]["world_model"] == record["world_model"]["lm"]["name"] == "shipped:wm"
    assert record["language_model"]["name"] == "shipped:agent"
    assert (
        record["world_model"]["max_new_tokens"] == 4 and record["world_model"]["prompts"] == "brief"
    )
    assert str(shipping) not in json.dumps(record)
    assert run("--agent", "comap", "--model", "shipped", *SHORT, "--out", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "the small one" not in printed and "4 of 4 tasks had ended before" in printed, (
        "the same run"
    )


def writes(handler):
    """Draft one action, and revise it to another."""
    prompt = handler.body["messages"][-1]["content"]
    reply = "Thought: Hm.\nAction: look"
    if "Final Action:" in prompt:
        reply = (
            "Reflection: No.\nDecision: REVISE\nFinal Action: inventory\nRevise Probability: 0.9"
        )
    says(reply)(handler)


def test_comaps_gate_opens_with_a_model_behind_a_server(tmp_path, capsys):
    words = ["--agent", "comap", *SHORT[:2], "--world-model", "null", "--out", str(tmp_path)]
    with HostileServer(writes) as server:
        assert run(*words, "--model", f"{server.url}#m") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "CoMap's gate opened at 8 of 8 reflections; p: verbal, q: proxy" in printed
    assert {s.action for t in episodes(tmp_path) for s in t.steps} == {"inventory"}
    assert json.loads((tmp_path / "run.json").read_text())["agent"]["p_source"] == "verbal"
    assert run(*words, "--model", f"{server.url}#m") == 0, "there is nothing to ask the server"


def test_a_server_that_refuses_ends_a_run_before_it_begins(tmp_path, capsys):
    words = ["--agent", "random", "--imagined"]
    with HostileServer(sends({"error": "no"}, 401)) as server:
        assert run(*words, "--world-model", f"{server.url}#m", "--out", str(tmp_path / "a")) == 2
        assert "OPENAI_API_KEY" in capsys.readouterr().err
        assert len([body for body in server.requests if body]) == 1, "beside the list of models"
    assert not (tmp_path / "a" / "run.json").exists()


def test_what_is_asked_for_wins_over_what_ships(shipping, tmp_path, capsys):
    words = ["--agent", "comap", "--tau-p", "0.9", "--decoding", "scored", "--world-model", "null"]
    assert run(*words, *SHORT, "--p-source", "verbalizer", "--out", str(tmp_path / "a")) == 0
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    agent_settings = {
        name: record["agent"][name] for name in ("tau_p", "decoding", "p_source", "prompts")
    }
    assert agent_settings == {
        "tau_p": 0.9, "decoding": "scored", "p_source": "verbalizer", "prompts": "brief"
    }  # fmt: skip
    assert record["world_model"] == "null"
    words = ["--agent", "comap", "--world-model-option", "max_new_tokens=2", *SHORT]
    assert run(*words, "--world-model-prompts", "standard", "--out", str(tmp_path / "b")) == 0
    world = json.loads((tmp_path / "b" / "run.json").read_text())["world_model"]
    assert world["max_new_tokens"] == 2 and world["prompts"] == "standard"


def test_other_agents_play_out_of_the_box_too(shipping, tmp_path, capsys):
    assert run("--agent", "react", *SHORT, "--out", str(tmp_path / "react")) == 0
    record = json.loads((tmp_path / "react" / "run.json").read_text())
    settings = json.loads((shipping / "alfworld" / "settings.json").read_text())["agent"]
    for name in ("prompts", "state_text", "decoding", "draft_tokens", "temperature"):
        assert record["agent"][name] == settings[name], f"{name} is as it was trained with"
    assert record["world_model"] is None and "--model for yours" in capsys.readouterr().out
    dream = ["--agent", "random", "--imagined", "--world-model", "shipped", "--horizon", "2"]
    assert run(*dream, "--out", str(tmp_path / "dream")) == 0
    record = json.loads((tmp_path / "dream" / "run.json").read_text())
    assert (
        record["language_model"] is None
        and record["imagined"]["world_model"]["max_new_tokens"] == 4
    )
    for name in sorted(set(AGENTS) - {"paw"}):  # which has no brief prompts
        _, agent_options = Play(agent=name, model="shipped:agent")._agent()
        assert bool(set(agent_options) - {"seed"}) == (name not in ("expert", "random"))


def test_without_shipped_models_a_model_must_be_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(create, "_package_folder", lambda: tmp_path / "none")
    for agent in ("react", "comap"):
        assert run("--agent", agent, "--out", str(tmp_path / "run")) == 2
        assert "--model" in capsys.readouterr().err
    assert run("--agent", "react", "--model", "shipped", "--out", str(tmp_path / "run")) == 2
    assert "python benchmarks/measure/shipped.py" in capsys.readouterr().err


# Engines: what runs Hugging Face models.


def test_the_engine_goes_to_hugging_face_models_alone(monkeypatch, capsys):
    auto = {"model": "Qwen/Q", "world_model": "tiny"}
    hf = {"engine": "hf"}
    assert options_of(monkeypatch, "Qwen/Q", **auto) == hf
    assert "engine: hf (vLLM is not installed)\n" in capsys.readouterr().out
    assert options_of(monkeypatch, "tiny", **auto) == {}
    assert options_of(monkeypatch, SERVER, model=SERVER) == {}
    assert capsys.readouterr().out == ""

    monkeypatch.setattr("comap.lm.engine_choice.has_vllm", lambda: True)
    named_engine = {"model": "Qwen/Q", "engine": "vllm"}
    vllm = {"engine": "vllm"}
    assert options_of(monkeypatch, "Qwen/Q", **named_engine) == vllm
    assert "engine: vllm (named)\n" in capsys.readouterr().out
    assert options_of(monkeypatch, "tiny", **named_engine, world_model="tiny") == {}
    assert options_of(monkeypatch, "Qwen/Q", **named_engine, world_model="Qwen/Q") == vllm
    assert (
        options_of(monkeypatch, "Qwen/W", world_model="Qwen/W", model=SERVER, engine="vllm") == vllm
    )

    server = {"model": "Qwen/Q", "engine": "http://127.0.0.1:9#q"}
    assert options_of(monkeypatch, "Qwen/Q", **server) == {"engine": "http://127.0.0.1:9#q"}


def test_two_engines_divide_the_memory(monkeypatch):
    monkeypatch.setattr("comap.lm.engine_choice.has_vllm", lambda: True)
    two_models = {"model": "Qwen/Q", "world_model": "Qwen/W", "engine": "vllm"}
    for spec in ("Qwen/Q", "Qwen/W"):
        assert options_of(monkeypatch, spec, **two_models) == {
            "engine": "vllm",
            "engine_memory": 0.45,
        }
    with_share = {"model": "Qwen/Q", "engine": "vllm", "engine_memory": 0.3}
    assert options_of(monkeypatch, "Qwen/Q", **with_share) == {
        "engine": "vllm",
        "engine_memory": 0.3,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "tiny", "engine": "vllm"}, "runs a Hugging Face model"),
        ({"model": SERVER, "engine": "vllm"}, "runs a Hugging Face model"),
        ({"model": "tiny", "engine": "vlm"}, "did you mean 'vllm'"),
        ({"model": "Qwen/Q", "engine": "http://127.0.0.1:9", "world_model": "Qwen/W"}, "one model"),
        ({"model": "Qwen/Q", "engine": "hf", "engine_memory": 0.5}, "--engine-memory"),
    ],
)
def test_engines_that_cannot_be_are_refused(monkeypatch, options, message):
    with pytest.raises(OptionError, match=message):
        options_of(monkeypatch, options["model"], **options)


def test_auto_is_hf_where_that_alone_can_do_it(monkeypatch):
    vllm = EngineChoice("vllm", "it is installed and there is a CUDA GPU")
    monkeypatch.setattr(models_module, "resolved_engine", lambda engine, settings: vllm)
    environments = Environments("comap/ALFWorld-v0")

    def engine(needs=(), **options):
        models = Models(ModelOptions(model="Qwen/Q"), Path(), environments, 0, needs=needs)
        if options:
            play = Play(agent="react", model="Qwen/Q", **options)
            models = Models(play, Path(), environments, 0)
        return models._engine_choice("Qwen/Q", {}).name

    assert engine() == "vllm"
    assert engine(needs=["encode"]) == "hf"
    assert engine(workers="ray:2") == "hf"
    with pytest.raises(OptionError, match="vllm serve"):
        engine(workers="ray:2", engine="vllm")


def test_a_run_records_its_engine(tmp_path, stand_ins, capsys):
    agent = str(stand_ins / "alfworld" / "agent")
    assert run("--agent", "react", "--model", agent, *SHORT, "--out", str(tmp_path)) == 0
    assert "engine: hf (vLLM is not installed)\n" in capsys.readouterr().out
    (session,) = json.loads((tmp_path / "run.json").read_text())["sessions"]
    assert session["engines"] == {"agent": "hf (vLLM is not installed)"}
