"""A mistake in a command is told in one line, before any work: what was expected, what to do."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
    (
        "run --agent random --env-option max_episode_steps=x",
        "max_episode_steps must be a whole number",
    ),
    ("run --agent random --world-model orcle", "did you mean 'oracle'"),
    ("run --agent random --world-model language", "--world-model Qwen/Qwen3-4B"),
    ("run --agent random --world-model cached", "--world-model-cache"),
    ("score world-model --world-model language", "an id of Python"),
    ("score world-model --world-model null --model tiny", "give the one that is scored"),
    ("run --agent react --model tny", "did you mean 'tiny'"),
    (
        "run --agent react --model 'http://127.0.0.1:9/v1#m' --decoding masked",
        "set decoding='free', or if the server is vLLM give it as the engine (--engine http://HOST:PORT)",
    ),
    ("run --agent rap --model 'http://127.0.0.1:9/v1#m'", "evaluation_weight=0"),
    ("run --agent react --model tiny --engine vllm", "leave the engine out"),
    ("run --agent react --model tiny --engine vlm", "did you mean 'vllm'"),
    ("run --agent react --model . --engine vllm", "comap-agents[vllm]"),
    ("serve tools --simulator tiny --engine vllm", "leave the engine out"),
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
    ("score world-model --world-model noisy --set v1", "leave --set out"),
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
    ("compare no/first", "two or more runs"),
    ("compare no/first no/second", "no such file"),
    ("compare", "RUNS"),
    ("run", "--agent"),
    ("run --agent react --decodin free", "did you mean '--decoding'?"),
    ("run --agent random free", "free"),
    ("run --agent random --seed x", "a whole number as --seed"),
    ("run --agent raect", "did you mean 'react'"),
    ("run --agent random --decoding free", "--decoding"),
    ("run --agent react --decoding fre", "masked"),
    ("run --agent random --keep all", "expected one of auto, replies, prompts, tokens"),
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
    ("train paw --preset tiny --vllm-server 127.0.0.1:8000", "write --engine http://HOST:PORT"),
    ("train paw --preset tiny --vllm-colocate=0.3", "write --engine vllm --engine-memory SHARE"),
    ("train sft --preset tiny --engine vlm", "engine"),
    ("train sft --preset tiny --engine http://127.0.0.1:1", "not 'tiny'; name such a model"),
    ("train paw --preset zerosearch --model some/model", "add --simulator"),
    ("train paw --preset tiny_search_r1 --simulator tiny", "--search-engine simulated"),
    ("train paw --env comap/NoSuchBench-v0 --model some/model", "NoSuchBench"),
    ("bench run comap-t9", "there is no experiment 'comap-t9'; did you mean"),
    ("bench run comap-t4 --scale tinny", "there is no scale 'tinny'; did you mean 'tiny'"),
    ("bench run comap-t2 --scale paper", "expected official data for comap/ALFWorld-v0"),
    ("bench run comap-t4 --data-dir games", "--data-dir expects NAME=VALUE, found 'games'"),
    ("bench run comap-t4 --seeds -1", "expected seeds of 0 or more"),
    ("bench run comap-t5 --jobs 0", "--jobs must be at least 1"),
    ("bench report nowhere", "expected results of 'comap bench run' in nowhere, found none"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_told_in_a_line_before_any_work(words, message, tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"a": ')
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        words = words.replace("USED", str(busy_socket.getsockname()[1]))
        assert main(shlex.split(words)) in (1, 2)
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert [line.startswith("comap") for line in lines] == [True] and message in lines[0]
    assert "from the hub" not in output.out
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files - {"broken.json"} <= {"lock", "journal.jsonl", "plan.json"}


FOUND = json.loads(Path(__file__).with_name("mistakes.json").read_text("utf-8"))
"""Mistakes as a new user makes them, in `world`, and what their messages must have."""
ANSWERS = {
    "html": (200, "<html>It works</html>"),
    "key": (401, '{"error": {"message": "wrong key"}}'),
    "none": (404, '{"detail": "Not Found"}'),
    "list": (200, "[]"),
    "other": (404, '{"error": {"message": "The model `m` does not exist"}}'),
}
FILES: dict[str, str | bytes] = {
    "noimport.py": "import not_a_package\n",
    "syntax.py": "def f(:\n",
    "broken.json": '{"a": ',
    "list.json": "[1, 2]",
    "empty.json": "",
    "empty.jsonl": "",
    "unknown.yaml": "episods: 3\n",
    "wrongtype.yaml": "episodes: many\n",
    "binary.bin": bytes(range(256)) * 4,
    "binary.jsonl": bytes(range(256)) * 4,
    "tasks.txt": "generated/none\n",
    "latin.txt": "café\n".encode("latin-1"),
    "foreign.jsonl": '{"text": "hello"}\n',
    "corpus.jsonl": '{"id": "0", "contents": "Ada\\nAda was a mathematician."}\n',
    "emptymodel/config.json": "{}",
    "own.py": """
import gymnasium
class NoDecide:
    name = "x"
class NoPredict:
    pass
class Needs:
    name = "n"
    def __init__(self, k): pass
    def decide(self, view): yield
class Raises:
    name = "r"
    def __init__(self): raise ValueError("no k")
    def decide(self, view): yield
class Wrong:
    name = "wrong"
    def decide(self, view): return "look"
class WrongWM:
    def predict(self, queries): return "x"
def function(episode): return 1.0
number = 3
gymnasium.register("mine/Plain-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
gymnasium.register("mine/Gone-v0", "own:Gone")
""",
}


class Nonsense(BaseHTTPRequestHandler):
    """A server that is no model's, in several ways."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status, body = ANSWERS[self.path.split("/")[1]]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int, int]]:
    """A folder with files of all kinds and two runs, a server's port, and a port in use."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "emptymodel").mkdir()
    (folder / "empty").mkdir()
    for name, content in FILES.items():
        content = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        small = "--episodes 2 --env-option source=generated --out run1"
        assert main(shlex.split(f"run --agent random {small}")) == 0
        assert (
            main(shlex.split("run --agent expert --episodes 2 --env comap/WebShop-v0 --out shop"))
            == 0
        )
        for name in ("cutrun", "norecord", "badrecord", "emptied", "garbage"):
            shutil.copytree("run1", name)
        text = Path("run1/trajectories.jsonl").read_text("utf-8")
        Path("cutrun/trajectories.jsonl").write_text(text[: len(text) // 2], "utf-8")
        Path("emptied/trajectories.jsonl").write_text("", "utf-8")
        Path("garbage/trajectories.jsonl").write_text(f"{text}garbage\n", "utf-8")
        Path("norecord/run.json").unlink()
        Path("badrecord/run.json").write_text('{"format": 1', "utf-8")
        with (
            ThreadingHTTPServer(("127.0.0.1", 0), Nonsense) as server,
            socket.create_server(("127.0.0.1", 0)) as busy_socket,
        ):
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield folder, server.server_address[1], busy_socket.getsockname()[1]
            server.shutdown()


@pytest.mark.parametrize("row", FOUND, ids=[row.get("command") or row["python"] for row in FOUND])
def test_what_a_newcomer_does_wrong_is_explained(row, world, capsys, monkeypatch):
    pytest.importorskip("trl")
    folder, port, busy_port = world
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if "python" in row:
        with monkeypatch.context() as patch, pytest.raises(Exception) as caught:
            patch.setitem(sys.modules, "torch", sys.modules.get("torch"))
            exec(row["python"], {})
        message = f"{type(caught.value).__name__}: {caught.value}"
    else:
        words = row["command"].replace("PORT", str(port)).replace("USED", str(busy_port))
        if words.startswith("without "):
            lacking, _, words = words.removeprefix("without ").partition(": ")
            monkeypatch.setitem(sys.modules, lacking, None)
        assert main(shlex.split(words)) == row["exit"] != 0
        output = capsys.readouterr()
        message = output.err or output.out
        assert "Traceback" not in message
    message = " ".join(message.split()).replace(f"{folder}/", "")
    assert [
        part for part in row["message"] if part not in message.replace(str(busy_port), "USED")
    ] == []
