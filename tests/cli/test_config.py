"""`--config FILE` and `--print-config`: what is printed or recorded is read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from comap.cli.main import understood
from kits.commands import episodes, run, say

COMMANDS = [
    "run --agent react --decoding masked --episodes 3 --tasks a b --no-overlap --agent-seed 4 "
    "--env-option source=generated --env-option n=[1,2] --world-model null --adapter a=b",
    "run --agent expert --split valid_seen --horizon 3 --seed 7",
    "train comap --preset tiny --rounds 2 --tau-p 0.25 --evaluation-splits valid_seen --seed 3",
    "train paw --preset tiny --loss.alpha 0.5 --updates 2 --lora.targets q k --max-updates 1",
]


@pytest.mark.parametrize("words", COMMANDS)
def test_what_is_printed_is_read_again(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed, _ = say(*words.split(), "--print-config")
    assert code == 0
    Path("all.yaml").write_text(printed)
    Path("all.json").write_text(json.dumps(yaml.safe_load(printed)))
    name = words.split()[: 1 + words.startswith("train")]
    for file in ("all.yaml", "all.json"):
        assert understood([*name, "--config", file]) == understood(words.split())
    changed = understood([*name, "--seed", "9", "--config=all.yaml", "-o", "there"])
    seed = changed.seed if name == ["run"] else changed.config.seed
    assert (seed, changed.out) == (9, Path("there")), "the command line wins, whatever its order"


def test_what_a_run_recorded_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--agent", "random", "--agent-option", "mixed=1", "--seed", "5", "--tasks"]
    tasks = [f"generated/valid_seen/easy/0-{n:06}" for n in (3, 5)]
    words += [*tasks, "--split", "valid_seen", "--env-option", "difficulty=easy", "--live", "3"]
    words += ["--max-episode-steps", "4", "--error-rate", "0.25", "--world-model", "noisy"]
    assert say("run", *words, "--out", "first")[0] == 0
    recorded = understood(["run", "--config", "first/run.json", "--out", "first"])
    assert recorded == understood(["run", *words, "--out", "first"])
    assert say("run", "--config", "first/run.json", "--out", "second")[0] == 0
    assert episodes(Path("first")) == episodes(Path("second"))
    fewer = understood(["run", "--tasks", tasks[0], "-s", "6", "--config", "first/run.json"])
    assert (fewer.tasks, fewer.seed, fewer.out) == ((tasks[0],), 6, None)
    assert say("run", *words, "--data-dir", str(tmp_path), "--out", "third")[0] == 2
    code, _, errors = say("train", "paw", "--config", "first/run.json")
    assert code == 2 and "one of another command" in errors


def test_folders_and_secrets_are_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option = ["--model-option", "api_key=sk-0123456789abcdefghij"]
    code = run("--agent", "random", "--tasks", str(tmp_path / "tasks.txt"), "--out", "first")
    assert code == 2
    (tmp_path / "tasks.txt").write_text("generated/valid_unseen/normal/0-000000\n")
    local_words = ["--tasks", str(tmp_path / "tasks.txt"), *option, "--out", "first"]
    assert run("--agent", "random", *local_words) == 0
    text = Path("first", "run.json").read_text()
    assert "sk-01" not in text and str(tmp_path) not in text
    code, _, errors = say("run", "--config", "first/run.json")
    assert code == 2 and "expected --model-option" in errors
    code, _, errors = say("run", "--config", "first/run.json", *option)
    assert code == 2 and "expected --tasks" in errors and len(errors.splitlines()) == 1
    played = understood(["run", "--config", "first/run.json", *local_words])
    assert played.agent == "random" and played.out == Path("first")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "expected options in"),
        ("episods: 3", "episods"),
        ("episodes: many", "a whole number or none as --episodes"),
        ('{"format": "comap run 1", "sessions": [{}]}', "of Python"),
        ('{"format": "comap run 1", "sessions": 3}', "of Python"),
        ('{"format": "comap training 2", "described": 5, "sessions": [{}]}', "another command"),
    ],
)
def test_another_file_is_refused(text, message, tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    code, _, errors = say("run", "--agent", "random", "--config", str(file))
    assert code == 2 and message in errors and len(errors.splitlines()) == 1
    assert say("run", "--agent", "random", "--config", str(tmp_path / "none"))[0] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "maximum recursion depth"),
        ("a: " + "[" * 200 + "]" * 200, "levels within each other"),
        ("5: 6", "the name 5, which is no text"),
        ("agent_option: {2020-01-01: 6}", "which is no text"),
        ("? [a, b]\n: 6", "unhashable"),
        ("a: &a [x, x]\nb: &b [*a, *a]", "an alias"),
        ("a: &a {b: *a}", "an alias"),
    ],
)
def test_a_file_that_is_no_config_is_refused_in_a_line(text, message, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    code, _, errors = say("run", "--config", str(file), "--out", str(tmp_path / "out"))
    assert code == 2 and message in errors and len(errors.splitlines()) == 1


MAKES = """
from pathlib import Path

class Makes:
    def __init__(self, *arguments, **options):
        Path("made").touch()
"""


@pytest.mark.parametrize(
    "options",
    [
        {"agent": "maker:Makes"},
        {"agent": "builtins:str"},
        {"agent": "subprocess:Popen", "agent_option": ["args=touch made"]},
        {"agent": "random", "world_model": "maker:Makes", "imagined": True},
    ],
)
def test_a_file_s_class_is_made_only_if_it_is_an_agent_or_a_model(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("maker.py").write_text(MAKES)
    Path("config.json").write_text(json.dumps(options))
    code, _, errors = say("run", "--config", "config.json", "--episodes", "1", "--out", "out")
    assert code == 2 and len(errors.splitlines()) == 1, errors
    assert "expected a" in errors and not Path("made").exists()
