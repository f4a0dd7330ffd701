"""A mistake in a command is told in one line, before any work: what was expected, what to do."""

from __future__ import annotations

import shlex
import socket

import pytest

from comap.cli import main

MISTAKES = [
    ("demo --env comap/ALFWord-v0", "ALFWorld"),
    ("demo --env Nowhere-v0", "Nowhere"),
    ("demo --env CartPole-v1", "CartPole"),
    ("demo --test-split valid_sen", "valid_seen"),
    ("demo --data-dir no/such/folder", "json_2.1.1"),
    ("demo --train-tasks 0", "train_tasks"),
    ("demo --error-rates 2", "error_rate"),
    ("demo --lengths 3 -4", "lengths"),
    ("data get alfwold", "alfworld"),
    ("data verify alfworld --data-dir no/such/folder", "folder"),
    ("fly", "there is no command 'fly'"),
    ("data lst", "did you mean 'data list'?"),
    ("rn", "did you mean 'run'?"),
    ("--versoin", "did you mean '--version'?"),
    ("--verbose", "there is no option '--verbose'"),
    ("demo --train-tasks many", "expected a whole number or none as --train-tasks"),
    ("demo --train-task 3", "did you mean '--train-tasks'?"),
    ("demo --seed 1e3", "expected a whole number as --seed"),
    ("demo --seed", "--seed: expected a value after it"),
    ("data get", "required: DATA_SET"),
    ("hub push model a b", "expected one of trajectories, models"),
    ("--print-completion ksh", "there is no shell 'ksh'"),
    ("run --agent random --env ../x:Y-v0", "a module that registers 'Y-v0'"),
    ("run --agent random --live 0", "--live must be a whole number of at least 1"),
    ("run --agent random --seed -1", "--seed must be a whole number of at least 0"),
    ("run --agent random --horizon 3", "add --imagined"),
    ("run --agent random --real-every 2", "add --imagined"),
    ("run --agent random --env-option split=dev", "give split as --split"),
    ("run --agent random --env-option max_episode_steps=x", "'max_episode_steps': 'x'"),
    ("run --agent random --world-model orcle", "did you mean 'oracle'"),
    ("run --agent react --model tny", "did you mean 'tiny'"),
    (
        "run --agent react --model 'http://127.0.0.1:9/v1#m' --decoding masked",
        "set decoding='free', or if the server is vLLM say so (--model-option choices_mode=vllm)",
    ),
    ("run --agent rap --model 'http://127.0.0.1:9/v1#m'", "evaluation_weight=0"),
    ("run --agent react --model 'http://127.0.0.1:9/v1#m'", "a broken connection"),
    ("run --agent random --world-model 'http://127.0.0.1:9/v1#m'", "a broken connection"),
    ("run --agent comap --model tiny --p-source head", "give head=FILE, or leave p_source out"),
    ("run --agent comap --model tiny --tau-q 1", "expected a gate that can open"),
    ("run --agent random --env ALFWorld", "did you mean 'comap/ALFWorld-v0'?"),
    ("run --agent comap --env comap/AlfWorld-v0", "did you mean 'comap/ALFWorld-v0'?"),
    ("run --agent react --model ./nosuchdir", "expected a folder with a model"),
    ("run --agent random --config broken.json", "expected YAML or JSON in the file of --config"),
    ("run --agent random --episodes many", "expected a whole number or none as --episodes"),
    ("bench run comap-t99", "(comap bench list)"),
    ("serve env --env comap/ALFWorld-v0 --port USED", "choose another --port"),
    ("serve env --env comap/ALFWorld-v0 --style openenv --port USED", "choose another --port"),
    ("serve env --env comap/ALFWorld-v0 --style mcp --port USED", "choose another --port"),
    ("serve search --port USED", "choose another --port"),
    ("run --agent react --model 'http://127.0.0.1:9/v1#m' --agent-adapter a", "--adapter a="),
    ("run --agent random --episodes 0", "--episodes must be a whole number of at least 1"),
    ("run --agent random --split valid_sen", "valid_seen"),
    ("run --agent random --tasks generated/none", "generated/none"),
    ("run --agent random --env-option expert", "--env-option expects NAME=VALUE"),
    ("run --agent random --env-option exprt=plan", "expert"),
    ("run --agent random --agent-option sed=3", "seed"),
    ("run --agent random --imagined", "--world-model"),
    ("run --agent random --world-model no.jsonl", "no.jsonl"),
    ("run --agent random --world-model noisy --error-rate 2", "error_rate"),
    ("run --agent react --base-url http://127.0.0.1:9/v1", "--model"),
    ("run --agent react --model shiped", "did you mean 'shipped'"),
    ("run --agent react --model shipped:world", "shipped:agent or shipped:wm"),
    ("run --agent react --model ''", "empty text"),
    ("run --agent react --model replay:no/such/file", "found no file"),
    ("run --agent react --model http://127.0.0.1:9/v1", "#NAME"),
    ("run --agent react --model m --base-url ftp://x", "another scheme"),
    ("run --agent react --model 'http://h/v1#m' --device cpu", "device"),
    ("view no/such/run", "comap run"),
    ("view .", "trajectories.jsonl"),
    ("view . --episodes 0", "episodes must be at least 1"),
    ("run", "--agent"),
    ("run --agent react --decodin free", "did you mean '--decoding'?"),
    ("run --agent random free", "free"),
    ("run --agent random --seed x", "a whole number as --seed"),
    ("run --agent raect", "did you mean 'react'"),
    ("run --agent random --decoding free", "--decoding"),
    ("run --agent react --decoding fre", "masked"),
    ("run --agent random --keep all", "expected one of replies, prompts, tokens"),
    ("run --agent react --max-length long", "--max-length"),
    ("view", "RUNS"),
    ("train comap", "add --model"),
    ("train comap --preset tny", "did you mean 'tiny'?"),
    ("train comap --preset tiny --no-wmds", "did you mean '--no-wmsd'?"),
    ("train comap --preset tiny --rounds many", "expected a whole number as --rounds"),
    ("train comap --preset tiny --weights fll", "one of lora, full"),
    (
        "train comap --preset tiny --batch-rows 2 --batch-tokens 9",
        "either batch_rows or batch_tokens",
    ),
    ("train comap --preset tiny --data-dir no/such/folder", "json_2.1.1"),
    ("train comap --preset tiny --env comap/ALFWord-v0", "ALFWorld"),
    ("train comap --preset tiny --env-option split=train", "--train-split"),
    ("train comap --preset tiny --train-split trin", "did you mean 'train'?"),
    ("train comap --preset tiny --model http://127.0.0.1:1/v1#m", "cannot be trained"),
    ("train comap --preset tiny --weights lora --policy a", "two adapters or none"),
    ("train comap --preset tiny --report-to wnadb", "did you mean 'wandb'?"),
    ("train itp --episods 3", "there is no option --episods; did you mean '--episodes'"),
    ("train sft --preset small", "there is no preset 'small'"),
    ("train wkm --preset tiny --task-knowledge", "a knowledge model is an adapter"),
    ("train paw --preset tiny --loss.alpha 2", "alpha must be"),
    ("train paw --preset tiny --vllm-server 127.0.0.1:8000", "expected a URL"),
    ("train paw --preset zerosearch --model some/model", "add --simulator"),
    ("train paw --preset tiny_search_r1 --simulator tiny", "--engine simulated"),
    ("train paw --env comap/NoSuchBench-v0 --model some/model", "NoSuchBench"),
    ("bench run comap-t9", "there is no experiment 'comap-t9'; did you mean"),
    ("bench run comap-t4 --scale tinny", "there is no scale 'tinny'; did you mean 'tiny'"),
    ("bench run comap-t2 --scale paper", "expected official data for comap/ALFWorld-v0"),
    ("bench run comap-t4 --data-dir games", "--data-dir expects NAME=VALUE, found 'games'"),
    ("bench run comap-t4 --seeds -1", "expected seeds of 0 or more"),
    ("bench run comap-t5 --jobs 0", "--jobs must be at least 1"),
    ("bench report nowhere", "expected results of 'comap bench run' in nowhere, found none"),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_told_in_a_line_before_any_work(words, told, tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"a": ')
    with socket.create_server(("127.0.0.1", 0)) as used:
        words = words.replace("USED", str(used.getsockname()[1]))
        assert main(shlex.split(words)) in (1, 2)
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("comap") and told in line and "from the hub" not in said.out
    made = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert made - {"broken.json"} <= {"lock", "journal.jsonl", "plan.json"}
