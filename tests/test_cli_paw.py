"""`comap train paw`, as one types it."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from comap import cli_paw
from comap.agents.create import create_agent
from comap.benchmarks.options import pairs
from comap.benchmarks.paw_options import env_options, resolve, settings_of
from comap.benchmarks.paw_play import paw_play_command
from comap.benchmarks.run_options import declare
from comap.benchmarks.training_options import TrainParser
from comap.envs.conformance.transcripts import load
from comap.errors import MissingExtra, OptionError
from comap.trainers.paw.config import PaWTraining
from comap.trainers.paw.presets import PAW_PRESETS, paw_preset

say = load(f"{Path(__file__).with_name('cli_kit.py')}:say")
UPDATE = {"update": 1, "success": 0.25, "return": 2.5, "policy_loss": 0.125}
EVALUATION = {"update": 1, "split": "valid_seen", "n": 4, "success": 0.5, "score": 0.625}


def options_of(*words: str) -> Namespace:
    parser = ArgumentParser("comap train")
    cli_paw.add_method(parser.add_subparsers(parser_class=TrainParser))
    return parser.parse_args(["paw", *words])


def parsed(*words: str) -> PaWTraining:
    return settings_of(options_of(*words))


# -- options -------------------------------------------------------------------------------------


def test_every_setting_of_paw_is_an_option() -> None:
    assert parsed() == PaWTraining()
    assert parsed("--algorithm", "gigpo", "--no-paw").row == "GiGPO"
    assert parsed("--no-adaptive", "--wm-loss", "ce").ablations() == ("w/o Ada. Coef.", "w/ CE")
    assert parsed("--micro-batch-rows", "4").micro_batch_tokens is None
    assert parsed("--preset", "tiny", "--mini-batch-rows", "8").mini_batch_rows == 8
    assert parsed("--mini-batch-rows", "none", "--updates", "none").updates is None
    assert parsed("--dual-clip", "none").dual_clip is None
    assert parsed("--max-updates", "3").max_updates == 3 and parsed().max_updates is None
    splits = parsed("--evaluation-splits", "valid_seen").evaluation_splits
    assert splits == ("valid_seen",)
    for name in PAW_PRESETS:
        assert parsed("--preset", name, "--seed", "4") == paw_preset(name, seed=4)


def test_ppo_on_the_command_line_has_no_groups() -> None:
    config = parsed("--algorithm", "ppo")
    assert (config.groups, config.members) == (128, 1)
    assert parsed("--algorithm", "ppo", "--members", "2").groups == 16


def test_preset_and_environment_follow_each_other() -> None:
    def resolved(*words: str) -> tuple[str, str]:
        return resolve(options_of(*words))

    assert resolved() == ("alfworld", "comap/ALFWorld-v0")
    assert resolved("--env", "comap/WebShop-v0") == ("webshop", "comap/WebShop-v0")
    assert resolved("--env", "comap/SearchQA-v0") == ("search", "comap/SearchQA-v0")
    assert resolved("--preset", "search_r1") == ("search_r1", "comap/SearchQA-v0")
    assert resolved("--preset", "tiny") == ("tiny", "comap/ALFWorld-v0")
    assert resolved("--preset", "tiny", "--env", "mine/Maze-v0") == ("tiny", "mine/Maze-v0")
    assert resolved("--env", "mine/Maze-v0") == ("alfworld", "mine/Maze-v0")
    assert parsed("--env", "comap/WebShop-v0").mini_batch_rows == 64


def test_options_of_the_environment() -> None:
    def made(*words: str) -> dict[str, Any]:
        options = options_of(*words)
        return env_options(options, settings_of(options))

    assert made() == {"max_episode_steps": 50}
    assert made("--preset", "tiny") == {"max_episode_steps": 30, "source": "generated"}
    assert made("--preset", "tiny", "--data-dir", "d") == {
        "max_episode_steps": 30,
        "data_dir": "d",
    }
    assert made("--max-episode-steps", "9", "--env-option", "dialect=put") == {
        "max_episode_steps": 9,
        "dialect": "put",
    }
    for name, told in (("max_episode_steps", "--max-episode-steps"), ("split", "--train-split")):
        with pytest.raises(OptionError, match=told):
            made("--env-option", f"{name}=3")


def test_search_presets_on_the_command_line() -> None:
    def made(*words: str) -> dict[str, Any]:
        options = options_of(*words)
        return env_options(options, settings_of(options))

    tiny = {"max_episode_steps": 4, "source": "generated", "topk": 1}
    for name in ("tiny_search_r1", "tiny_zerosearch"):
        assert made("--preset", name) == tiny
        assert made("--preset", name, "--env-option", "topk=2") == {**tiny, "topk": 2}
        assert parsed("--preset", name).evaluation_splits == ("test",)
    assert made("--preset", "search_r1", "--data-dir", "d") == {
        "max_episode_steps": 4,
        "data_dir": "d",
    }
    assert parsed("--preset", "search", "--context", "concat").context == "concat"


MISTAKES = [
    ("", 1, "add --model"),
    ("--preset alfworld", 1, "Qwen/Qwen2.5-1.5B-Instruct"),
    ("--preset tny", 1, "did you mean 'tiny'?"),
    ("--preset tiny --no-pwa", 2, "did you mean '--no-paw'?"),
    ("--preset tiny --paw 3", 2, "found '3'"),
    ("--preset tiny --groups many", 2, "--groups"),
    ("--preset tiny --algorithm gpro", 2, "'gigpo'"),
    ("--preset tiny --alpha 2", 1, "alpha must be"),
    ("--preset tiny --micro-batch-rows 2 --micro-batch-tokens 9", 1, "either micro_batch_rows or"),
    ("--preset tiny --prompts tags", 1, "prompts='brief'"),
    ("--preset tiny --data-dir no/such/folder", 1, "json_2.1.1"),
    ("--preset tiny --env comap/ALFWord-v0", 1, "ALFWorld"),
    ("--preset tiny --train-split trin", 1, "did you mean 'train'?"),
    ("--preset tiny --env-option split=train", 1, "--train-split"),
    ("--preset tiny --model http://127.0.0.1:1/v1#m", 1, "cannot be trained"),
    ("--preset tiny --vllm-server 127.0.0.1:8000", 1, "expected a URL"),
    ("--preset tiny --report-to wnadb", 1, "did you mean 'wandb'?"),
    ("--preset zerosearch --model some/model", 1, "add --simulator"),
    ("--preset tiny_search_r1 --simulator tiny", 1, "--engine simulated"),
]


@pytest.mark.parametrize(("words", "code", "told"), MISTAKES, ids=[words for words, *_ in MISTAKES])
def test_mistakes_with_paw_are_told_in_a_line(
    words: str, code: int, told: str, tmp_path: Path
) -> None:
    for package in ("trl", "rich", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    found, _, err = say("train", "paw", *words.split(), "--out", str(tmp_path / "out"))
    assert found == code and told in err, err
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_an_environment_that_is_not_here_is_told(tmp_path: Path) -> None:
    for package in ("trl", "rich", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    words = ("train", "paw", "--env", "comap/NoSuchBench-v0", "--model", "some/model")
    code, _, err = say(*words, "--out", str(tmp_path / "out"))
    assert code == 1 and "NoSuchBench" in err and len(err.strip().splitlines()) == 1


def test_a_missing_extra_for_paw_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cli_paw.find_spec
    monkeypatch.setattr(cli_paw, "find_spec", lambda n: None if n == "rich" else known(n))
    with pytest.raises(MissingExtra, match="'viz'"):
        cli_paw.run(Namespace())


# -- a training, but for the training ------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `train` was asked; it writes a training's files, and trains nothing."""
    for package in ("torch", "trl", "rich", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    found: list[dict[str, Any]] = []

    def train(
        config: PaWTraining,
        *,
        out: Path,
        tell: Callable[[Mapping[str, Any]], None],
        **given: Any,
    ) -> Path:
        found.append({"config": config, "out": out, **given})
        described = {"config": config.describe(), **given["about"]}
        out.mkdir(parents=True, exist_ok=True)
        (out / "run.json").write_text(json.dumps({"described": described, "sessions": []}))
        (out / "metrics.jsonl").write_text(json.dumps(UPDATE) + "\n")
        (out / "evaluations.jsonl").write_text(json.dumps(EVALUATION) + "\n")
        print("{'loss': 1.0}")  # as libraries do
        tell({"event": "update", "of": config.updates, **UPDATE})
        tell({"event": "evaluated", **EVALUATION})
        return out / "models" / "agent"

    monkeypatch.setattr("comap.trainers.paw.training.train", train)
    return found


def test_a_paw_training_is_asked_for_and_shown(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    out, model = tmp_path / "out", tmp_path / "policy-1"
    model.mkdir()
    words = ("--preset", "tiny", "--algorithm", "gigpo", "--seed", "3", "--max-updates", "2")
    more = ("--model", str(model), "--vllm-server", "http://127.0.0.1:8000", "--live", "2")
    code, said, err = say("train", "paw", *words, *more, "--out", str(out))
    assert (code, err) == (0, "")
    (told,) = asked
    config = told["config"]
    assert (config.algorithm, config.seed, config.max_updates, config.live) == ("gigpo", 3, 2, 2)
    assert (told["out"], told["model"]) == (out, model)
    assert (told["server"], told["report_to"]) == ("http://127.0.0.1:8000", "none")
    assert told["about"]["preset"] == "tiny" and told["about"]["row"] == "GiGPO+PaW"
    assert told["about"]["model"]["name"] == "policy-1"
    assert told["about"]["env"]["options"] == {"max_episode_steps": 30, "source": "generated"}
    assert set(told["about"]["env"]["fingerprint"]) == {"train", "valid_seen", "valid_unseen"}
    assert str(tmp_path) not in json.dumps(told["about"])
    assert {"torch", "trl"} <= set(told["session"]["versions"])
    assert told["session"]["hardware"]["processes"] == 1
    env = told["make_env"]("train")
    assert env.spec.max_episode_steps == 30
    lines = said.splitlines()
    assert lines[0] == "update 1 of 4: success 25.0 %, return 2.500, loss 0.125"
    assert lines[1].startswith("evaluation after update 1: valid_seen 50.0 % [15.0, 85.0] (n=4)")
    assert any("rollouts" in line and "25.0 % (update 1)" in line for line in lines)
    assert f"report: {out / 'report.html'}" in lines and (out / "report.html").is_file()
    assert f"policy: {out / 'models' / 'agent'} (to let it play:)" in lines
    assert lines[-1].startswith("comap run --agent react --env comap/ALFWorld-v0")
    assert "{" not in said


def test_the_preset_tiny_begins_with_the_shipped_policy(
    asked: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert say("train", "paw", "--preset", "tiny", "--out", str(tmp_path))[0] == 0
    assert asked[0]["about"]["model"]["name"] == "shipped:agent"
    assert asked[0]["config"].warmup_tokens == 0


def test_a_tiny_model_is_built_where_that_is_asked_for(
    asked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[Any, ...]] = []

    def build(folder: Path, env_id: str, *, parameters: int, seed: int) -> Path:
        built.append((folder, env_id, parameters, seed))
        return folder

    monkeypatch.setattr("comap.trainers.setup_models.tiny_for_training", build)
    words = ("train", "paw", "--preset", "tiny", "--parameters", "200000", "--seed", "5")
    assert say(*words, "--model", "tiny", "--out", str(tmp_path))[0] == 0
    assert built == [(tmp_path / "untrained", "comap/ALFWorld-v0", 200_000, 5)]
    assert asked[0]["model"] == tmp_path / "untrained"
    assert asked[0]["about"]["model"] == {"name": "tiny", "parameters": 200_000}


def test_a_name_on_the_hub_is_passed_on(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    name = "Qwen/Qwen2.5-1.5B-Instruct"
    words = ("--preset", "alfworld", "--model", name, "--env-option", "source=generated")
    code, said, err = say("train", "paw", *words, "--out", str(tmp_path))
    assert code == 0, err
    assert asked[0]["model"] == name and asked[0]["server"] is None
    assert asked[0]["config"] == PaWTraining()
    assert said.splitlines()[0].startswith(f"loading {name} from the hub")
    assert shlex.split(said.splitlines()[-1])[:4] == ["comap", "run", "--agent", "paw"]


def test_a_simulator_is_passed_on(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    def train(*words: str) -> dict[str, Any]:
        out = tmp_path / str(len(asked))
        code, _, err = say("train", "paw", *words, "--out", str(out))
        assert code == 0, err
        return asked[-1]

    told = train("--preset", "tiny_zerosearch", "--model", "some/model", "--warmup-tokens", "0")
    assert told["simulator"] == "tiny"
    assert told["about"]["simulator"] == {"name": "tiny", "kind": "local"}
    folder = tmp_path / "player-1"
    folder.mkdir()
    more = ("--model", "some/model", "--env-option", "source=generated")
    told = train("--preset", "zerosearch", "--simulator", str(folder), *more)
    assert told["simulator"] == str(folder) and told["about"]["row"] == "ZeroSearch"
    assert told["about"]["simulator"]["name"] == "player-1"
    assert str(tmp_path) not in json.dumps(told["about"])
    server = "http://127.0.0.1:1/v1#played"
    told = train("--preset", "zerosearch", "--simulator", server, *more)
    assert told["about"]["simulator"] == {"name": "played", "kind": "remote"}
    told = train("--preset", "search_r1", *more)
    assert told["simulator"] is None and "simulator" not in told["about"]


def test_the_report_is_written_meanwhile(
    asked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(
        "comap.benchmarks.paw_report.write_report",
        lambda folder: written.append(folder) or folder / "report.html",
    )
    monkeypatch.setattr(cli_paw, "_REPORT_SECONDS", 0.0)
    words = ("--env-option", "source=generated", "--model", "some/model")
    assert say("train", "paw", *words, "--out", str(tmp_path))[0] == 0
    assert written == [tmp_path] * 3  # an update, an evaluation, the end


# -- what lets the policy play -------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PAW_PRESETS))
def test_the_policy_plays_as_in_evaluations(name: str) -> None:
    config = paw_preset(name, seed=3)
    words = paw_play_command(
        Path("my models/agent"), config, "comap/ALFWorld-v0", {"dialect": "put"}
    )
    parser = ArgumentParser("comap run")
    declare(parser)
    told = parser.parse_args(words[2:])
    assert (told.agent, told.model, told.agent_seed) == (config.agent, "my models/agent", 3)
    assert told.split == config.evaluation_splits[-1] and told.env_option == ["dialect=put"]
    given = vars(told)
    chosen = {field: given[name] for name, field in told.fields.items() if name in given}
    chosen |= pairs(told.agent_option, "--agent-option")
    wanted = create_agent(config.agent, **config.agent_settings(config.evaluation_temperature))
    made = create_agent(told.agent, **chosen)
    assert made.config == wanted.config  # type: ignore[attr-defined]


def test_an_adapter_is_played_with_its_base() -> None:
    config = PaWTraining(weights="lora")
    words = paw_play_command(Path("m/agent"), config, "e", {"data_dir": "my data"}, "Qwen/Qwen3-4B")
    parser = ArgumentParser("comap run")
    declare(parser)
    told = parser.parse_args(words[2:])
    assert (told.model, told.adapter, told.data_dir) == (
        "Qwen/Qwen3-4B",
        ["agent=m/agent"],
        "my data",
    )
    assert told.agent_adapter == "agent"
