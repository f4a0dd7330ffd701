"""What is pushed comes back as it was; what is not as it should be is refused, whole."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from comap.agents.run import TRAJECTORIES
from comap.cli import main
from comap.errors import CoMapError, DataCorrupt, DataNotFound, OptionError
from comap.integrations.cards import Results, shown
from comap.integrations.hub import (
    load_model,
    load_trajectories,
    push_model,
    push_trajectories,
)
from comap.lm import shipped_models
from comap.trajectory import Trajectory, read_trajectories, write_trajectories
from comap.worldmodel.naming import NOT_TO_REPORT

TOKEN = "hf_" + "Secret0Token" * 2
HOSTILE = (
    "`x` <script>alert(1)</script> | [a](http://b.c) \u202e\x1b[2J\n---\nlicense: mit\n"
    "# big {{ y }}"
)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    out = tmp_path_factory.mktemp("played") / "run"
    words = ["--episodes", "3", "--env-option", "source=generated", "--out", str(out)]
    assert main(["run", "--agent", "random", *words]) == 0
    return out


def test_a_run_comes_back_byte_for_byte(played, tmp_path):
    place, back = f"local:{tmp_path / 'pushed'}", tmp_path / "back"
    words = ["hub", "push", "trajectories", str(played), place, "--license", "cc-by-4.0"]
    assert main(words) == 0
    load = ["hub", "load", "trajectories", place, "--out", str(back)]
    assert main([*load, "--revision", "0" * 40]) == 2 and not back.exists()
    assert main(load) == 0
    for name in ("trajectories.jsonl", "run.json", "summary.json", "timings.jsonl"):
        assert (back / name).read_bytes() == (played / name).read_bytes(), name
    assert sorted(path.name for path in back.iterdir()) == sorted(
        ["README.md", "hub.json", "run.json", "summary.json", "timings.jsonl", "trajectories.jsonl"]
    )
    assert main(["verify", str(back)]) == 0
    text = (back / "README.md").read_text("utf-8")
    for part in (
        "license: cc-by-4.0",
        "`comap/ALFWorld-v0`",
        "`valid_unseen`",
        "`random`",
        "(n=3)",
        "95 % interval",
        "comap run --agent random",
        "gymnasium",
    ):
        assert part in text, part
    assert str(tmp_path) not in text and str(played.parent) not in text


def test_a_card_says_that_tasks_were_generated_and_that_the_oracle_answered(played, tmp_path):
    def card(name, **changes):
        run = tmp_path / name
        run.mkdir()
        episodes = [
            replace(episode, **changes) for episode in read_trajectories(played / TRAJECTORIES)
        ]
        write_trajectories(run / TRAJECTORIES, episodes)
        push_trajectories(run, f"local:{tmp_path / 'card' / name}", license="mit")
        return (tmp_path / "card" / name / "README.md").read_text("utf-8")

    generated = card("generated")
    assert "| 3 generated tasks |" in generated and "cannot be compared" in generated
    assert "oracle" not in generated
    for name in ("oracle", "OracleWorldModel"):  # as records of before call it
        assert f"the oracle, {NOT_TO_REPORT}" in card(f"asked-{name}", world_model=name)
    of_others = Results()
    for world_model in ("retrieval", "oracle"):
        for episode in read_trajectories(played / TRAJECTORIES):
            task = episode.task.removeprefix("generated/")
            of_others.add(replace(episode, task=task, world_model=world_model))
    parts = "\n".join(of_others.parts())
    assert parts.count("| 3 tasks |") == 2 and "cannot be compared" not in parts
    reported = of_others.evaluated()
    assert {evaluation.metric_args["world_model"] for evaluation in reported} == {"retrieval"}
    assert {evaluation.dataset_name for evaluation in reported} == {"comap/ALFWorld-v0"}


def test_a_card_names_the_command_that_made_the_run(played, tmp_path):
    for words in (["verify"], ["run", "--agent", "expert", "--out"]):
        main([*words, str(played)])  # another agent's run into this folder is refused
    push_trajectories(played, f"local:{tmp_path / 'pushed'}", license="mit")
    text = (tmp_path / "pushed" / "README.md").read_text("utf-8")
    assert "comap run --agent random" in text
    assert "comap verify runs" not in text and "--agent expert" not in text
    (played / "journal.jsonl").rename(tmp_path / "journal.jsonl")
    push_trajectories(played, f"local:{tmp_path / 'unknown'}", license="mit")
    assert "| command |" not in (tmp_path / "unknown" / "README.md").read_text("utf-8")
    (tmp_path / "journal.jsonl").rename(played / "journal.jsonl")


def test_datasets_reads_what_was_pushed(played, tmp_path):
    datasets = pytest.importorskip("datasets")
    push_trajectories(played, f"local:{tmp_path / 'pushed'}", license="mit")
    dataset = datasets.load_dataset(  # the run is of an evaluation's split
        str(tmp_path / "pushed"), split="test", cache_dir=str(tmp_path / "cache")
    )
    episodes = list(read_trajectories(played / "trajectories.jsonl"))
    assert dataset["task"] == [episode.task for episode in episodes]
    assert dataset[0]["actions"] == [step.action for step in episodes[0].steps]
    assert dataset[0]["length"] == len(episodes[0].steps) > 0
    assert dataset["reward"] == [sum(step.reward for step in episode.steps) for episode in episodes]
    (row, *_) = dataset
    assert row["prompt"] + row["completion"] == row["messages"]
    assert row["prompt"][-1]["content"].endswith(episodes[0].observation)
    assert [message["content"] for message in row["completion"][::2]] == [
        f"Action: {action}" for action in row["actions"]
    ]
    assert [message["content"] for message in row["completion"][1::2]] == row["observations"][:-1]
    assert [Trajectory.from_json(json.loads(line)) for line in dataset["record"]] == episodes


def test_splits_keep_training_apart_from_evaluation(played, tmp_path):
    datasets = pytest.importorskip("datasets")
    (original, *_) = read_trajectories(played / "trajectories.jsonl")
    split_envs = [
        ("train", "comap/ALFWorld-v0"),
        ("valid_seen", "comap/ALFWorld-v0"),
        ("dev", "my/Own"),
    ]
    split_envs += [("train", "my/Own"), ("", "my/Own")]
    episodes = [
        replace(original, split=split, env_id=env_id, task=split) for split, env_id in split_envs
    ]
    write_trajectories(tmp_path / "mixed.jsonl", episodes)
    push_trajectories(tmp_path / "mixed.jsonl", f"local:{tmp_path / 'to'}", license="mit")
    dataset = datasets.load_dataset(str(tmp_path / "to"), cache_dir=str(tmp_path / "cache"))
    assert dataset["train"]["split"] == ["train", "train", ""]
    assert dataset["test"]["split"] == ["valid_seen", "dev"]
    loaded = load_trajectories(f"local:{tmp_path / 'to'}", tmp_path / "back")
    assert list(read_trajectories(loaded.path / "trajectories.jsonl")) == episodes


def test_sfttrainer_takes_a_pushed_data_set(tmp_path):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from comap.lm.tiny import build_tiny

    words = ["run", "--agent", "expert", "--split", "train", "--env-option", "source=generated"]
    assert main([*words, "--episodes", "2", "--out", str(tmp_path / "run")]) == 0
    push_trajectories(tmp_path / "run", f"local:{tmp_path / 'to'}", license="mit")
    cache = str(tmp_path / "cache")
    data = datasets.load_dataset(str(tmp_path / "to"), split="train", cache_dir=cache)
    assert {"messages", "prompt", "task", "reward"} < {*data.column_names}
    texts = [message["content"] for row in data for message in row["messages"]]
    model = build_tiny(tmp_path / "tiny", texts, parameters=200_000, dtype="float32")
    options = {"max_steps": 1, "per_device_train_batch_size": 1, "save_strategy": "no"}
    for columns in (["prompt", "completion"], ["messages"], data.column_names):
        trainer = trl.SFTTrainer(
            AutoModelForCausalLM.from_pretrained(model),
            args=trl.SFTConfig(
                str(tmp_path / "sft"), use_cpu=True, report_to="none", max_length=2048, **options
            ),
            train_dataset=data.select_columns(columns),
            processing_class=AutoTokenizer.from_pretrained(model),
        )
        assert trainer.train().training_loss > 0, columns


def test_a_card_only_shows_what_others_wrote(played, trained, tmp_path):
    import yaml
    from huggingface_hub import DatasetCard, ModelCard

    (episode, *_) = read_trajectories(played / "trajectories.jsonl")
    strange = replace(
        episode,
        agent=HOSTILE,
        split=HOSTILE,
        env_id=HOSTILE,
        error=f"{HOSTILE}: \ud800",
        task=HOSTILE,
        settings={"model": HOSTILE},
    )
    write_trajectories(tmp_path / "strange.jsonl", [strange])
    push_trajectories(
        tmp_path / "strange.jsonl", f"local:{tmp_path / 'to'}", license="other", title=HOSTILE
    )
    text = (tmp_path / "to" / "README.md").read_text("utf-8")
    _, front, body = text.split("---\n", 2)
    metadata = yaml.safe_load(front)
    assert metadata["license"] == "other" and metadata["task_categories"][0] == "text-generation"
    assert DatasetCard.load(tmp_path / "to" / "README.md").data.to_dict() == metadata
    assert "\u202e" not in text and "\x1b" not in text
    bare = re.sub(r"```.*?```", "", body, flags=re.DOTALL)
    bare = re.sub(r"`[^`\n]*`", "", bare)
    assert not re.search(r"<|http|\[a\]|big|license|---\n(?!\|)", bare), bare
    loaded = load_trajectories(f"local:{tmp_path / 'to'}", tmp_path / "back")
    assert list(read_trajectories(loaded.path / "trajectories.jsonl")) == [strange]
    push_options = {"license": "mit", "title": HOSTILE, "evaluation": tmp_path / "strange.jsonl"}
    push_model(trained, f"local:{tmp_path / 'model'}", **push_options)
    data = ModelCard.load(tmp_path / "model" / "README.md").data
    assert not data.eval_results and data.license == "mit" and "base_model" not in data.to_dict()
    assert "\u202e" not in (tmp_path / "model" / "README.md").read_text("utf-8")


def test_code_in_a_line_cannot_be_left():
    assert shown("``a``\n\n# b") == "`''a'' # b`"
    assert shown("") == shown(" \n") == "–"
    assert len(shown("x" * 9999)) < 250


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training leaves: a policy, an adapter, and things that nobody else needs."""
    import numpy
    from safetensors.numpy import save_file

    out = tmp_path_factory.mktemp("trained")
    shutil.copytree(shipped_models().agent, out / "models" / "agent")
    wm = out / "models" / "wm"
    wm.mkdir()
    save_file({"a.lora_A.weight": numpy.zeros((2, 3), "float32")}, wm / "adapter_model.safetensors")
    adapter_config = {
        "peft_type": "LORA",
        "r": 2,
        "base_model_name_or_path": "/home/me/secret/base",
    }
    (wm / "adapter_config.json").write_text(json.dumps(adapter_config))
    (wm / "optimizer.pt").write_bytes(b"\x80\x04.")
    (out / "run.json").write_text(json.dumps({"config": {"method": "sft", "seed": 0}}))
    return out


def test_the_card_of_a_training_says_what_it_was_trained_on(trained, tmp_path):
    env = {"id": "comap/ALFWorld-v0", "tasks": {"train": "9 generated tasks"}}
    described = {"method": "comap", "preset": "tiny", "config": {"seed": 3}, "env": env}
    record = trained / "run.json"
    before = record.read_text()
    record.write_text(json.dumps({"format": "any", "described": described, "sessions": []}))
    push_model(trained, f"local:{tmp_path / 'pushed'}", license="mit")
    record.write_text(before)
    text = (tmp_path / "pushed" / "README.md").read_text("utf-8")
    for part in ("`train: 9 generated tasks`", "`comap/ALFWorld-v0`", "`comap`", "`tiny`", "`3`"):
        assert part in text, part


def test_models_come_back_without_pickles_and_places(trained, played, tmp_path, capsys):
    place = f"local:{tmp_path / 'pushed'}"
    words = ["hub", "push", "models", str(trained), place, "--license", "apache-2.0"]
    assert main([*words, "--evaluation", str(played)]) == 0
    assert "left out: wm/optimizer.pt" in capsys.readouterr().err
    text = (tmp_path / "pushed" / "README.md").read_text("utf-8")
    for part in ("LORA, r=2, on base", "library_name: peft", "(n=3)", "`sft`", "`agent`", "`wm`"):
        assert part in text, part
    from huggingface_hub import ModelCard

    data = ModelCard.load(tmp_path / "pushed" / "README.md").data  # raises where it is malformed
    success_rate, score = data.eval_results
    assert (success_rate.task_type, success_rate.dataset_name, success_rate.dataset_split) == (
        "reinforcement-learning",
        "comap/ALFWorld-v0, generated tasks",
        "valid_unseen",
    )
    summary = json.loads((played / "summary.json").read_text())
    assert success_rate.metric_type == "success_rate" and score.metric_type == "score"
    assert success_rate.metric_value == round(summary["success"]["value"], 4)
    assert success_rate.metric_args == {"agent": "random", "tasks": 3, "generated_tasks": 3}
    assert data.model_name == trained.name
    loaded = load_model(place, tmp_path / "back")
    back = loaded.path
    assert (back / "agent" / "model.safetensors").read_bytes() == (
        trained / "models" / "agent" / "model.safetensors"
    ).read_bytes()
    assert "secret" not in (back / "wm" / "adapter_config.json").read_text("utf-8")
    assert not list(back.rglob("*.pt"))
    from comap.lm import HFLanguageModel

    assert HFLanguageModel(back / "agent").count_tokens("put apple 1 in fridge 1") > 0


HEADER = json.dumps({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode()
HARM = {
    ".ssh/config.md": b"hello",
    "a.py": b"hello",
    "a\\b.md": b"hello",
    "model.pt": b"hello",
    "data.safetensors": b"\x80\x04\x95pickle" * 9,
    "agent/config.json": b'{"a": ',
    "comap.json": b'{"format": "comap hub 1", "kind": "model", "files": [1]}',
    "model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + b"1234",  # too few bytes
    "README.md": None,  # a link to somewhere else
}


@pytest.mark.parametrize(("name", "content"), HARM.items(), ids=HARM)
def test_what_is_not_as_it_was_pushed_is_refused(name, content, trained, tmp_path):
    place = tmp_path / "deep" / "pushed"
    push_model(trained, place, license="mit")
    (place / name).parent.mkdir(exist_ok=True)
    if content is None:
        (place / name).unlink()
        (place / name).symlink_to("/etc/hostname")
    else:
        (place / name).write_bytes(content)
    with pytest.raises(DataCorrupt):
        load_model(place, tmp_path / "deep" / "back")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["pushed"]
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@pytest.mark.parametrize(
    "records",
    [["no json"], ['{"schema": 2}'], ["{}\n{}"], [None], ["[" * 100_000]],
    ids=["text", "half", "lines", "null", "deep"],
)
def test_rows_that_are_no_episodes_are_refused(records, played, tmp_path):
    import pyarrow
    import pyarrow.parquet

    place = tmp_path / "pushed"
    push_trajectories(played, place, license="mit")
    table = pyarrow.Table.from_pylist([{"record": record} for record in records])
    pyarrow.parquet.write_table(table, tmp_path / "new.parquet")
    shutil.copyfile(tmp_path / "new.parquet", place / "data" / "part-00000.parquet")
    with pytest.raises(DataCorrupt):
        load_trajectories(place, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_limits_and_places(played, trained, tmp_path):
    place = tmp_path / "pushed"
    push_trajectories(played, place, license="mit")
    with pytest.raises(OptionError, match="most-bytes"):
        load_trajectories(place, tmp_path / "back", most_bytes=1000)
    with pytest.raises(DataCorrupt, match="expected model"):
        load_model(place, tmp_path / "back")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    with pytest.raises(OptionError, match="empty"):
        load_trajectories(place, tmp_path / "mine")
    with pytest.raises(OptionError, match="pushed to"):
        push_trajectories(played, tmp_path / "mine", license="mit")
    with pytest.raises(OptionError, match="license"):
        push_trajectories(played, place, license="my license\nx: y")
    with pytest.raises(DataNotFound):
        push_trajectories(tmp_path / "none.jsonl", place, license="mit")
    with pytest.raises(OptionError, match="safe tensors"):
        push_model(played, place, license="mit")
    push_trajectories(played, place, license="mit")  # in the place of what was there


@pytest.mark.parametrize("target", ["me", "a/b/c", "me/..", "me/a b", "https://x/y", "local:", ""])
def test_names_of_nothing(target, tmp_path):
    with pytest.raises(CoMapError):
        load_model(target, tmp_path / "back")


class FakeHub:
    """The calls of `huggingface_hub.HfApi` that comap makes; each push is a commit."""

    commits: ClassVar[list[dict[str, bytes]]] = []
    refusal = ""

    def create_repo(self, name, **options):
        assert options["repo_type"] in ("dataset", "model")
        if self.refusal:
            raise OSError(self.refusal)

    def upload_folder(self, *, repo_id, folder_path, **options):
        assert options["delete_patterns"] == "*"
        paths = filter(Path.is_file, folder_path.rglob("*"))
        files = {path.relative_to(folder_path).as_posix(): path for path in paths}
        self.commits.append({name: path.read_bytes() for name, path in files.items()})
        return SimpleNamespace(oid=f"{len(self.commits) - 1:040}")

    def repo_info(self, name, *, revision, **options):
        if self.refusal:
            raise OSError(self.refusal)
        number = len(self.commits) - 1 if revision is None else int(revision)
        sizes = [SimpleNamespace(size=len(content)) for content in self.commits[number].values()]
        return SimpleNamespace(sha=f"{number:040}", siblings=sizes)

    def snapshot_download(self, name, *, revision, local_dir, **options):
        assert "*.pt" not in options["allow_patterns"]
        for file, content in self.commits[int(revision)].items():
            (local_dir / file).parent.mkdir(parents=True, exist_ok=True)
            (local_dir / file).write_bytes(content)


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    monkeypatch.setattr(FakeHub, "commits", [])
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return FakeHub


def test_push_and_load(hub, played, tmp_path):
    push = ["hub", "push", "trajectories", str(played), "me/runs", "--license", "mit"]
    assert main(push) == 0 and main([*push, "--title", "again"]) == 0
    assert sorted(hub.commits[0]) == [
        "README.md",
        "comap.json",
        "data/part-00000-test.parquet",
        "run/run.json",
        "run/summary.json",
        "run/timings.jsonl",
    ]
    loads = ["hub", "load", "trajectories", "me/runs", "--out"]
    assert main([*loads, str(tmp_path / "back"), "--revision", f"{0:040}"]) == 0
    name = "trajectories.jsonl"
    assert (tmp_path / "back" / name).read_bytes() == (played / name).read_bytes()
    assert "again" not in (tmp_path / "back" / "README.md").read_text("utf-8")
    hub.commits[-1]["data/part-00000-test.parquet"] = b"another"
    assert main([*loads, str(tmp_path / "other")]) == 1 and not (tmp_path / "other").exists()


def test_what_the_hub_refuses_is_told_without_the_token(
    hub, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(hub, "refusal", f"401 of Bearer {TOKEN}\nand more")
    for words in (
        ["push", "models", str(trained), "me/agent", "--license", "mit"],
        ["load", "models", "me/none", "--out", str(tmp_path / "back")],
    ):
        assert main(["hub", *words]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "on the Hub" in line and "HF_TOKEN" in line and TOKEN not in line
