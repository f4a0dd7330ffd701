"""`comap train comap`, as one types it."""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from comap import cli_train
from comap.agents.comap import CoMapConfig
from comap.benchmarks.run_options import declare
from comap.benchmarks.training_options import settings_of
from comap.benchmarks.training_play import play_command
from comap.checksums import unseal
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, MissingExtra, OptionError
from comap.trainers.config import CoMapTraining
from comap.trainers.setup import Environments, check_tracker, show_expert
from comap.trajectory import Trajectory, read_trajectories

say = load(f"{Path(__file__).with_name('cli_kit.py')}:say")
GENERATED = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": 4})
SMALL = [
    *("train", "comap", "--preset", "tiny", "--parameters", "200000", "--rounds", "1"),
    *("--env-option", "max_episode_steps=4", "--demonstrations", "4", "--warmup-rollouts", "1"),
    *("--reflection-tasks", "1", "--states-per-episode", "1", "--tasks-per-round", "1"),
    *("--evaluation-tasks", "2", "--evaluation-splits", "valid_seen", "--diagnosed", "1"),
    *("--frozen-transitions", "4", "--warmup-epochs", "2", "--logging-steps", "1"),
    *("--save-steps", "0"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A training of the smallest size, and what was said of it."""
    for package in ("torch", "trl", "peft", "rich", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    place = tmp_path_factory.mktemp("train") / "out"
    code, out, err = say("--traceback", *SMALL, "--out", str(place))
    assert code == 0, err
    return place, out, err


def episodes(folder: Path) -> dict[str, Trajectory]:
    found = [
        t for path in sorted(folder.glob("**/trajectories.jsonl")) for t in read_trajectories(path)
    ]
    return {trajectory.task: trajectory for trajectory in found}


def test_a_training_is_shown_and_written(trained: tuple[Path, str, str]) -> None:
    place, out, err = trained
    lines = out.splitlines()
    stages = [int(found[1]) for line in lines if (found := re.match(r"\[(\d+)/12\] .* s$", line))]
    assert stages == list(range(1, 13)) and err == ""
    assert "{" not in out and "Warning" not in out  # nothing of what libraries print
    assert re.search(r"\[1/12\] warmup-policy: \d+ updates of agent, loss \d\.\d+, ", out)
    rows = [line.split() for line in lines if re.match(r" +[01]  ", line)]
    assert [row[0] for row in rows] == ["0", "1"] and all("(n=2)" in row for row in rows)
    for name in ("report.html", "metrics.jsonl", "summary.json", "models/head.safetensors"):
        assert (place / name).is_file(), name
    metrics = [unseal(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 12 and metrics[-1]["splits/valid_seen/episodes"] == 2
    assert "Delta-F1" in (place / "report.html").read_text("utf-8")


def test_what_was_trained_is_written_down(trained: tuple[Path, str, str]) -> None:
    place = trained[0]
    run = json.loads((place / "run.json").read_text())
    described, session = run["described"], run["sessions"][0]
    assert described["preset"] == "tiny" and described["config"]["rounds"] == 1
    assert described["env"]["options"] == {"max_episode_steps": 4, "source": "generated"}
    assert set(described["env"]["fingerprint"]) == {"train", "valid_seen"}
    assert described["model"]["name"] == "tiny" and len(described["model"]["model_sha256"]) == 64
    assert described["demonstrations"] == {"from": "expert", "number": 4}
    assert {"torch", "trl", "peft"} <= set(session["versions"])
    assert session["hardware"]["processes"] == 1
    assert str(place.parent) not in (place / "run.json").read_text()
    assert str(place.parent) not in (place / "report.html").read_text("utf-8")


def test_the_models_play_as_they_were_evaluated(
    trained: tuple[Path, str, str], tmp_path: Path
) -> None:
    place, out, _ = trained
    command = shlex.split(out.splitlines()[-1])
    assert command[:2] == ["comap", "run"]
    evaluated = episodes(place / "stages" / "11-round-1-evaluation" / "valid_seen-0")
    played = tmp_path / "played"
    code, _, err = say(*command[1:], "--tasks", *sorted(evaluated), "--out", str(played))
    assert code == 0, err
    again = episodes(played)
    assert len(again) == 2 and again.keys() == evaluated.keys()
    for task, trajectory in again.items():
        assert trajectory.error is None
        for here, there in zip(trajectory.steps, evaluated[task].steps, strict=True):
            assert (here.action, here.observation) == (there.action, there.observation)
            assert here.notes == there.notes


def test_a_training_goes_on_only_as_it_was(trained: tuple[Path, str, str]) -> None:
    place = str(trained[0])
    code, out, err = say(*SMALL, "--out", place, "--live", "2")
    assert (code, err) == (0, "")
    assert [f"[{n}/12]" in out for n in range(1, 13)] == [True] * 12
    assert out.count(": done before") == 12
    assert out.splitlines()[-1] == trained[1].splitlines()[-1]
    code, _, err = say(*SMALL, "--out", place, "--eta", "0.25")
    assert code == 1 and len(err.splitlines()) == 1
    assert "found other settings (config.eta: 0.5 there, 0.25 now)" in err
    code, _, err = say(*SMALL, "--out", place, "--parameters", "300000")
    assert code == 1 and "expected the tiny model" in err


MISTAKES = [
    ("", 1, "add --model"),
    ("--preset authors_code", 1, "--model Qwen/Qwen3-4B"),
    ("--preset tny", 1, "did you mean 'tiny'?"),
    ("--preset tiny --no-wmds", 2, "did you mean '--no-wmsd'?"),
    ("--preset tiny --wmsd 3", 2, "found '3'"),
    ("--preset tiny --rounds many", 2, "--rounds"),
    ("--preset tiny --weights fll", 2, "'lora', 'full'"),
    ("--preset tiny --eta -1", 1, "eta"),
    ("--preset tiny --batch-rows 2 --batch-tokens 9", 1, "either batch_rows or batch_tokens"),
    ("--preset tiny --data-dir no/such/folder", 1, "json_2.1.1"),
    ("--preset tiny --env comap/ALFWord-v0", 1, "ALFWorld"),
    ("--preset tiny --env-option split=train", 1, "--train-split"),
    ("--preset tiny --env-option data_dir=x", 1, "--data-dir"),
    ("--preset tiny --train-split trin", 1, "did you mean 'train'?"),
    ("--preset tiny --model http://127.0.0.1:1/v1#m", 1, "cannot be trained"),
    ("--preset tiny --weights lora --policy a", 1, "two adapters or none"),
    ("--preset tiny --report-to wnadb", 1, "did you mean 'wandb'?"),
]


@pytest.mark.parametrize(("words", "code", "told"), MISTAKES, ids=[words for words, *_ in MISTAKES])
def test_mistakes_are_told_in_a_line(words: str, code: int, told: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found, _, err = say("train", "comap", *words.split(), "--out", str(tmp_path / "out"))
    assert found == code and told in err, err
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err


def test_a_missing_extra_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cli_train.find_spec
    monkeypatch.setattr(cli_train, "find_spec", lambda n: None if n == "jinja2" else known(n))
    with pytest.raises(MissingExtra, match="'viz'"):
        cli_train.run(Namespace())


def parsed(*words: str) -> CoMapTraining:
    parser = ArgumentParser("comap")
    cli_train.add_parser(parser.add_subparsers())
    return settings_of(parser.parse_args(["train", "comap", *words]))


def test_every_setting_is_an_option() -> None:
    assert parsed() == CoMapTraining()
    assert parsed("--no-wmsd", "--no-expert-sft").ablations() == ("w/o Expert SFT", "w/o WMSD")
    assert parsed("--batch-tokens", "512").batch_rows is None
    assert parsed("--preset", "tiny", "--batch-rows", "2").batch_tokens is None
    assert parsed("--preset", "tiny", "--evaluation-tasks", "none").evaluation_tasks is None
    assert parsed("--form-loss", "true").form_loss is True
    assert parsed("--topk", "20", "--topk", "none").topk is None
    splits = parsed("--evaluation-splits", "valid_seen").evaluation_splits
    assert splits == ("valid_seen",)
    assert parsed("--preset", "authors_code").policy_objective == "sdpo"


def test_adapters_are_played_with_their_base() -> None:
    config = CoMapTraining(seed=3, future_state=False)
    agent = CoMapConfig(adapter="agent", seed=3, future_state=False, history_turns=None)
    base = "Qwen/Qwen3-4B"
    options = {"data_dir": "my data", "dialect": "put"}
    words = play_command(Path("m"), config, agent, "comap/ALFWorld-v0", options, base)
    parser = ArgumentParser("comap run")
    declare(parser)
    told = parser.parse_args(words[2:])
    assert (told.model, told.world_model, told.data_dir) == (base, base, "my data")
    assert told.adapter == ["agent=m/agent", "wm=m/wm"] and told.world_model_adapter == "wm"
    assert (told.agent_adapter, told.agent_seed, told.future_state) == ("agent", 3, False)
    assert told.agent_option == ["head=m/head.safetensors"] and told.env_option == ["dialect=put"]
    assert told.world_model_option is None and told.dtype is None
    brief = play_command(Path("m"), CoMapTraining(predict_tokens=9), agent, "e", {}, base)
    assert brief[-2:] == ["--world-model-option", "max_new_tokens=9"]


# -- demonstrations ------------------------------------------------------------------------------


def test_the_expert_shows_tasks_of_all_parts() -> None:
    ids = GENERATED("train").get_wrapper_attr("tasks").ids
    events = []
    found = show_expert(GENERATED, CoMapTraining(demonstrations=5), tell=events.append)
    places = [ids.index(shown.task) for shown in found]
    assert [place * 5 // len(ids) for place in places] == [0, 1, 2, 3, 4]  # one of each fifth
    assert max(len(shown.steps) for shown in found) > 4  # no limit of the training's own
    assert all(shown.success for shown in found)
    assert events[-1] == {"event": "demonstration", "done": 5, "of": 5, "won": 5}
    other = show_expert(GENERATED, CoMapTraining(demonstrations=5, seed=1))
    assert [shown.task for shown in other] != [shown.task for shown in found]


def test_demonstrations_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = show_expert(GENERATED, CoMapTraining(demonstrations=3))
    plans = [(one.task, tuple(step.action for step in one.steps)) for one in shown]
    plans[0] = (plans[0][0], plans[0][1][:-1])  # ends before the goal
    plans.append(("no/such/task", ("look",)))
    rows = list(plans)  # generated tasks have no file of demonstrations
    monkeypatch.setattr("comap.trainers.setup.read_demonstrations", lambda path: iter(rows))
    file = Path("demos.jsonl")
    found = show_expert(GENERATED, CoMapTraining(), file)
    assert [one.task for one in found] == sorted(one.task for one in shown[1:])
    rows[:] = plans[:1]
    with pytest.raises(DataCorrupt, match="found none in 1"):
        show_expert(GENERATED, CoMapTraining(), file)
    rows[:] = plans[-1:]
    with pytest.raises(DataNotFound, match="found none of its"):
        show_expert(GENERATED, CoMapTraining(), file)


def test_a_tiny_model_knows_the_words_of_all_prompts(trained: tuple[Path, str, str]) -> None:
    from comap.lm.hf_load import load_tokenizer

    tokenizer = load_tokenizer(trained[0] / "model", None)
    said = (
        "Decision: REVISE\nFinal Action: go\nDecision: KEEP\nReflection:\ndraft:\nnext:\ndo:\nseen:"
    )
    words = re.findall(r" ?[A-Za-z]+|\S|\s", said)
    assert len(tokenizer(said)["input_ids"]) == len(words)


def test_trackers_are_looked_for() -> None:
    pytest.importorskip("transformers")
    check_tracker("none")
    with pytest.raises(OptionError, match="there is no tracker"):
        check_tracker("paper")
