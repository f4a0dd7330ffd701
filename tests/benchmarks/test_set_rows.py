"""Rows on a frozen set: the same in each process, resumed, checked, and never a traceback."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from comap.benchmarks import evaluation_set, load_evaluation_set, scores_of_set
from comap.benchmarks.set_rows import ROWS, checked_row, read_row_file, reference_rows
from comap.cli import main
from comap.errors import DataCorrupt, OptionError
from kits.hostile_server import HostileServer, raw, says, sends
from kits.processes import OTHER

SUBMITTED = ROWS / "world-models" / "v1"
ALFWORLD = "comap/ALFWorld-v0"
WEB = "comap/Web-v0"
OWN = '''
from comap.worldmodel import Prediction

ASKED = []

class Speaks:
    """Answers what no environment says, and says what it was asked."""

    stops = None
    text = "I think: {}"

    def predict(self, queries):
        if self.stops is not None and len(ASKED) >= self.stops:
            raise KeyboardInterrupt
        ASKED.extend(query.action for query in queries)
        return [Prediction(self.text.format(query.action)) for query in queries]

class Stops(Speaks):
    name = "Speaks"
    stops = 64

class Hostile(Speaks):
    text = "\\ud800\\x00\\x1b[31m</script>{{{{ 7 * 7 }}}}| `a` |" + "(((" * 50_000 + "{}"

class Breaks(Speaks):
    def predict(self, queries):
        raise RuntimeError("out of memory")
'''


@pytest.fixture(scope="module")
def whole():
    return load_evaluation_set("v1")


@pytest.fixture
def small(whole, tmp_path, monkeypatch):
    """The first transitions of two environments."""
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    parts = {ALFWORLD: whole.parts[ALFWORLD][:80], WEB: whole.parts[WEB][:20]}
    small_set = replace(whole, parts=parts)
    monkeypatch.setattr(evaluation_set, "load_evaluation_set", lambda name, **_: small_set)
    return small_set


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"model_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    yield name
    sys.modules.pop(name, None)


def score(*words, code=0):
    assert main(["score", "world-model", *map(str, words)]) == code


def refused(*words):
    """Data that are wrong exit with 1, options that are with 2."""
    assert main(["score", "world-model", *map(str, words)]) in (1, 2)


def printed(capsys):
    captured = capsys.readouterr()
    return " ".join(captured.out.split()), " ".join(captured.err.split())


def without_circumstances(path):
    result = json.loads(path.read_bytes())
    return {name: part for name, part in result.items() if name not in ("date", "hardware")}


def test_a_row_is_told_kept_and_checked(small, tmp_path, capsys):
    out = tmp_path / "row.json"
    score("--set", "v1", "--world-model", "null", "--out", out)
    output, _ = printed(capsys)
    assert "null on the set v1" in output and "World models on the set v1" in output
    assert "oracle" in output, "the recorded rows are beside it"
    assert "needs Java" in output

    result = json.loads(out.read_bytes())
    assert (result["name"], result["set"], result["sha256"]) == ("null", "v1", small.sha256)
    assert result["complete"] and len(result["predictions"]) == 100
    assert result["scores"] == scores_of_set(small, result["predictions"])
    assert {"cpu", "cores"} <= set(result["hardware"]) and result["versions"]["comap"]

    score("--check", out)
    assert "all numbers follow" in printed(capsys)[0]


def test_a_model_that_tries_actions_out_is_put_into_the_episodes(small, tmp_path):
    out = tmp_path / "row.json"
    score("--set", "v1", "--world-model", "oracle", "--out", out)
    environments = json.loads(out.read_bytes())["scores"]["environments"]
    for numbers in environments.values():
        assert numbers["delta_f1"] == numbers["same_text"] == 1.0


def test_an_interrupted_score_goes_on_and_is_the_same_to_the_byte(small, module, tmp_path, capsys):
    whole = tmp_path / "whole.json"
    out = tmp_path / "row.json"
    score("--set", "v1", "--world-model", f"{module}:Speaks", "--out", whole)
    asked_queries = sys.modules[module].ASKED
    assert len(asked_queries) == 100

    asked_queries.clear()
    score("--set", "v1", "--world-model", f"{module}:Stops", "--out", out, code=130)
    interrupted = json.loads(out.read_bytes())
    assert not interrupted["complete"] and len(interrupted["predictions"]) == 64
    assert "give the same command again" in printed(capsys)[0]
    with pytest.raises(OptionError, match="same --out, to go on"):
        checked_row(out, small)

    # The same command with a model that no longer fails, and asks for nothing twice.
    sys.modules[module].Stops.stops = None
    score("--set", "v1", "--world-model", f"{module}:Stops", "--out", out)
    assert "going on after 64 predictions" in printed(capsys)[0]
    assert len(asked_queries) == 100
    first, second = without_circumstances(whole), without_circumstances(out)
    assert first.pop("world_model") != second.pop("world_model")
    assert json.dumps(first) == json.dumps(second)

    score("--set", "v1", "--world-model", f"{module}:Stops", "--out", out)
    assert len(asked_queries) == 100, "what is complete is shown again, and no model asked"

    before = out.read_bytes()
    score("--set", "v1", "--world-model", "null", "--out", out, code=2)
    assert "choose another --out" in printed(capsys)[1]
    assert out.read_bytes() == before


def test_nonsense_and_hostile_texts_get_a_row(small, module, tmp_path, capsys):
    out = tmp_path / "row.json"
    score("--set", "v1", "--world-model", f"{module}:Hostile", "--out", out)
    output, _ = printed(capsys)
    assert "\x1b" not in output
    result = json.loads(out.read_bytes())
    assert len(result["predictions"]) == 100
    assert max(map(len, result["predictions"].values())) <= 20_000
    assert result["scores"]["environments"][ALFWORLD]["delta_f1"] < 0.5
    score("--check", out)


def test_a_model_that_breaks_is_an_error_and_keeps_what_there_is(small, module, tmp_path, capsys):
    out = tmp_path / "row.json"
    score("--set", "v1", "--world-model", f"{module}:Breaks", "--out", out, code=1)
    assert "out of memory" in printed(capsys)[1]
    assert not out.exists(), "nothing was predicted"


def test_a_model_behind_a_server_and_its_key_is_nowhere(small, tmp_path, monkeypatch, capsys):
    pytest.importorskip("openai")
    key = "sk-abcdefghijklmnopqrstuvwxyz123456"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    out = tmp_path / "row.json"
    listed = sends({"object": "list", "data": [{"id": "small", "object": "model"}]})
    answers = says("Observation: Nothing happens.")

    def serve(handler):
        (listed if handler.command == "GET" else answers)(handler)

    with HostileServer(serve) as running:
        url = f"{running.url}#small"
        score("--set", "v1", "--world-model", url, "--model-option", "max_retries=0", "--out", out)
        assert any(key in headers.get("authorization", "") for headers in running.headers)
    text = out.read_text()
    assert key not in text and "127.0.0.1" not in text
    result = json.loads(text)
    assert result["name"] == "language:small"
    assert set(result["prompts"]) == {ALFWORLD, WEB}
    assert set(result["predictions"].values()) == {"Nothing happens."}
    assert result["scores"]["environments"][ALFWORLD]["refused"] == 1.0
    score("--check", out)


def test_a_server_that_fails_is_told_and_the_command_can_go_on(small, tmp_path, capsys):
    pytest.importorskip("openai")
    out = tmp_path / "row.json"
    listed = sends({"object": "list", "data": [{"id": "small", "object": "model"}]})
    answered = []

    def serve(handler):
        if handler.command == "GET":
            return listed(handler)
        answered.append(1)
        if len(answered) > 40 and failing:
            return raw(b"{}", 401)(handler)
        return says("Nothing happens.")(handler)

    with HostileServer(serve) as running:
        words = ("--set", "v1", "--world-model", f"{running.url}#small", "--out", out)
        failing = True
        score(*words, "--model-option", "max_retries=0", code=2)
        assert "Traceback" not in printed(capsys)[1]
        assert len(json.loads(out.read_bytes())["predictions"]) == 32
        failing = False
        score(*words, "--model-option", "max_retries=0")
    assert len(json.loads(out.read_bytes())["predictions"]) == 100


def test_a_result_that_was_changed_is_refused(small, tmp_path, capsys):
    out = tmp_path / "row.json"
    score("--set", "v1", "--world-model", "null", "--out", out)
    honest = out.read_text()

    def changed(change):
        result = json.loads(honest)
        change(result)
        out.write_text(json.dumps(result))
        refused("--check", out)
        return printed(capsys)[1]

    def better(result):
        result["scores"]["environments"][ALFWORLD]["delta_f1"] = 0.99

    def one_text(result):
        result["predictions"]["alfworld-001"] = small.parts[ALFWORLD][0].transition.observation

    assert "do not follow" in changed(better)
    assert "do not follow" in changed(one_text)
    assert "found 79" in changed(lambda result: result["predictions"].pop("alfworld-001"))
    assert "found one on" in changed(lambda result: result.update(sha256="0" * 64))
    assert "no missing" in changed(lambda result: result.update(missing=None))
    assert "no predictions" in changed(lambda result: result.update(predictions=[1]))
    assert "no scores" in changed(lambda result: result.update(scores=None))
    assert "others of" in changed(lambda result: result["facts"].update({ALFWORLD: "x"}))
    for text in ("", "[]", "{", '{"benchmark": "world model"}', "[" * 100_000):
        out.write_text(text)
        refused("--check", out)
        assert "Traceback" not in printed(capsys)[1]
    refused("--check", tmp_path / "none.json")


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "v2", "--world-model", "null"),
        ("--set", "v1"),
        ("--set", "v1", "--world-model", "noisy"),
        ("--set", "v1", "--world-model", "null", "--samples", "9"),
        ("--set", "v1", "--world-model", "null", "--env", "comap/Web-v0"),
        ("--set", "v1", "--world-model", "null", "--transitions", "x"),
        ("--check", "x", "--world-model", "null"),
    ],
)
def test_mistakes_are_told(words, small, capsys):
    score(*words, code=2)
    assert "Traceback" not in printed(capsys)[1]


def cut_texts(evaluation_set):
    """Predictions that are partly right."""
    items = itertools.chain(*evaluation_set.parts.values())
    return {item.id: item.transition.observation[:60] for item in items}


def test_rows_are_the_same_in_each_process(whole, tmp_path):
    """The bootstrap and the belief's order depend on no hash."""
    program = (
        "import itertools, json\n"
        "from comap.benchmarks import load_evaluation_set, scores_of_set\n"
        "whole = load_evaluation_set('v1')\n"
        f"{inspect.getsource(cut_texts)}\n"
        "print(json.dumps(scores_of_set(whole, cut_texts(whole))))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": OTHER, "COMAP_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    scores = json.dumps(scores_of_set(whole, cut_texts(whole)))
    assert process.stdout == f"{scores}\n" and len(scores) > 1000


def test_the_recorded_rows_are_of_this_set(small):
    rows = {row["name"]: row["scores"] for row in reference_rows("v1")}
    assert {"null", "retrieval", "oracle"} <= set(rows)
    for numbers in rows["oracle"]["environments"].values():
        assert numbers["delta_f1"] == 1.0
    for name, scores in rows.items():
        assert len(scores["environments"]) == 6, name
        assert rows["oracle"]["mean"]["delta_f1"] >= scores["mean"]["delta_f1"], name


@pytest.mark.parametrize("path", sorted(SUBMITTED.glob("*.json")), ids=lambda path: path.stem)
def test_submitted_rows_follow_from_their_texts(path: Path, whole):
    result = checked_row(path, whole)
    recorded = {row["name"]: row["scores"] for row in reference_rows("v1")}
    assert recorded[result["name"]] == result["scores"]


def test_a_file_of_another_kind_is_no_row(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataCorrupt, match="--set v1 --out"):
        read_row_file(path)
