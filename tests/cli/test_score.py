"""`comap score tools`: what lies in folders is scored, and mistakes are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from comap.cli import main
from comap.cli.bench import ScoreWorldModel
from comap.cli.models import _IN_PYTHON, _WORLDS
from comap.cli.options import Options
from comap.facts import State
from comap.trajectory import Trajectory, write_trajectories
from comap.worldmodel import WORLD_MODELS
from kits.hostile_server import HostileServer, says, sends

SHARED = Path(__file__).parents[3] / "shared" / "data" / "stabletoolbench"
TOOLS = ["--env", "comap/StableToolBench-v0", "--env-option", "source=generated"]


@pytest.fixture
def official():
    if not (SHARED / "example_answers").is_dir():
        pytest.skip(f"no StableToolBench data at {SHARED}")
    return SHARED


@pytest.fixture(autouse=True)
def _no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))


API = {
    "category_name": "Data",
    "tool_name": "Words",
    "api_name": "Find",
    "api_description": "",
    "required_parameters": [{"name": "word", "type": "STRING", "description": "", "default": ""}],
    "optional_parameters": [],
    "method": "GET",
}


def reference(folder, answers, method="CoT@1"):
    """Write answer files as the reference pipeline does: one call, then Finish with an answer."""
    folder.mkdir(parents=True, exist_ok=True)
    for key, answer in answers.items():
        call = {"node_type": "Action", "description": "find_for_words"}
        action_input = {
            "node_type": "Action Input",
            "description": '{"word": "a"}',
            "observation": '{"error": "", "response": "b"}',
        }
        final_answer = json.dumps({"return_type": "give_answer", "final_answer": answer})
        answer_record = {
            "query": f"query {key}?",
            "function": [{"name": "find_for_words"}],
            "final_answer": final_answer if answer else "",
        }
        data = {"answer_generation": answer_record, "trys": [{"chain": [call, action_input]}]}
        (folder / f"{key}_{method}.json").write_text(json.dumps(data))
    return folder


def queries(folder, keys, group="G1_instruction"):
    (folder / "test_instruction").mkdir(parents=True, exist_ok=True)
    records = [
        {
            "query_id": int(key),
            "query": f"query {key}?",
            "api_list": [API],
            "relevant APIs": [["Words", "Find"]],
        }
        for key in keys
    ]
    (folder / "test_instruction" / f"{group}.json").write_text(json.dumps(records))
    return folder


def verdicts(path, verdicts_by_query):
    rows = {
        key: {
            "is_solved": {
                str(n): f"AnswerStatus.{verdict.title()}" for n, verdict in enumerate(row)
            }
        }
        for key, row in verdicts_by_query.items()
    }
    path.write_text(json.dumps(rows))
    return path


def score(*words, code=0):
    assert main(["score", "tools", *map(str, words)]) == code


def test_reference_answers_are_scored(tmp_path, capsys):
    mine = reference(tmp_path / "mine" / "G1_instruction", {"1": "x", "2": "y", "3": "", "4": "z"})
    recorded = verdicts(
        tmp_path / "v.json",
        {"1": ("solved",) * 2, "2": ("solved", "unsure"), "4": ("unsolved",) * 2},
    )
    data = queries(tmp_path / "data", "1234")
    out = tmp_path / "scores.json"
    score(mine.parent, "--data-dir", data, "--verdicts", recorded, "--out", out)
    result = json.loads(out.read_text())
    sopr = result["sopr"]
    assert (sopr["mean"], sopr["runs"], sopr["n"]) == (0.4375, [0.5, 0.375], 4)
    assert sopr["low"] < 0.4375 < sopr["high"] and sopr["judge"] == "recorded: v.json"
    assert sopr["verdicts"]["G1_instruction/3"] == ["unsolved", "unsolved"]
    counted = {"errors": 0.0, "cache_misses": None, "finished": 0.75, "answered": 0.75}
    assert result["process"] == counted | {"calls": 1.0, "sources": {}}
    assert result["answers"]["queries"] == 4 and not result["answers"]["missing"]
    assert result["sowr"] is None and result["notes"] == []
    assert result["answers"]["groups"] == {"G1_instruction": 4}
    assert str(tmp_path) not in out.read_text()
    printed = capsys.readouterr().out
    assert "43.8 % [" in printed and "recorded: v.json" in printed


def test_missing_and_empty_answers_are_unsolved_and_named(tmp_path, capsys):
    mine = reference(tmp_path / "mine" / "G1_instruction", {"1": "x", "2": "y"})
    (mine / "3_CoT@1.json").write_text("{}")
    data = queries(tmp_path / "data", ["1", "2", "3", "4", "10"])
    queries(tmp_path / "data", ["5"], group="G1_tool")
    recorded = verdicts(tmp_path / "v.json", dict.fromkeys("12", ("solved",)))
    out = tmp_path / "scores.json"
    words = ["--verdicts", recorded, "--out", out]
    score(mine.parent, "--data-dir", data, *words)
    result = json.loads(out.read_text())
    assert (result["sopr"]["mean"], result["sopr"]["n"]) == (0.4, 5)
    assert result["sopr"]["of_answers"]["value"] == pytest.approx(2 / 3)
    answers = result["answers"]
    assert (answers["n"], answers["queries"], answers["sizes"]) == (3, 5, {"G1_instruction": 5})
    assert answers["missing"] == ["G1_instruction/4", "G1_instruction/10"]
    assert answers["empty"] == ["G1_instruction/3"]
    printed = capsys.readouterr().out
    assert "G1_instruction/10" in printed and "WARNING" not in printed
    (mine / "2_CoT@1.json").unlink()
    score(mine.parent, "--data-dir", data, *words)
    assert json.loads(out.read_text())["sopr"]["mean"] == 0.2, (
        "no answer is no better than a wrong one"
    )


def test_where_the_queries_are_not_known_the_denominator_is_called_what_it_is(tmp_path, capsys):
    mine = reference(tmp_path / "mine", {"1": "x", "2": "y"})
    recorded = verdicts(tmp_path / "v.json", {"1": ("solved",), "2": ("unsolved",)})
    out = tmp_path / "scores.json"
    score(mine, "--verdicts", recorded, "--out", out)
    result = json.loads(out.read_text())
    assert (result["sopr"]["mean"], result["answers"]["queries"]) == (0.5, None)
    printed = capsys.readouterr().out
    assert "SoPR of the answers found" in printed and "WARNING" in printed
    assert "--data-dir" in "".join(result["notes"])


def test_answers_to_queries_of_no_split_are_left_out_and_named(tmp_path):
    mine = reference(tmp_path / "mine" / "G1_instruction", {"1": "x", "99": "y"})
    data = queries(tmp_path / "data", "12")
    out = tmp_path / "scores.json"
    recorded = verdicts(tmp_path / "v.json", dict.fromkeys(("1", "99"), ("solved",)))
    score(mine, "--data-dir", data, "--verdicts", recorded, "--out", out)
    result = json.loads(out.read_text())
    assert result["answers"]["others"] == ["G1_instruction/99"]
    assert (result["sopr"]["mean"], result["sopr"]["n"]) == (0.5, 2)
    (mine / "1_CoT@1.json").unlink()
    score(mine, "--data-dir", data, "--verdicts", recorded, code=2)


def test_a_missing_answer_loses_to_any_other(tmp_path):
    data = queries(tmp_path / "data", "123")
    mine = reference(tmp_path / "mine" / "G1_instruction", {"1": "x"})
    opponent = reference(tmp_path / "other" / "G1_instruction", {"1": "x", "2": "y"})
    ours = verdicts(tmp_path / "o.json", {"1": ("solved",)})
    theirs = verdicts(tmp_path / "t.json", {"1": ("solved",), "2": ("unsolved",)})
    out = tmp_path / "s.json"
    words = [mine, "--data-dir", data, "--verdicts", ours, "--against", opponent, "--out", out]
    score(*words, "--against-verdicts", theirs)
    sowr = json.loads(out.read_text())["sowr"]
    assert (sowr["wins"], sowr["ties"], sowr["losses"], sowr["n"]) == (0, 1, 1, 2)


def test_tasks_of_a_run_that_has_not_ended_count_as_unsolved(tmp_path, capsys):
    run = tmp_path / "run"
    words = ["--agent", "expert", "--episodes", "4", "--split", "G1_tool", "--out", str(run)]
    assert main(["run", *TOOLS, *words]) == 0
    lines = (run / "trajectories.jsonl").read_text().splitlines(keepends=True)
    (run / "trajectories.jsonl").write_text("".join(lines[:3]))
    (run / "summary.json").unlink()
    out = tmp_path / "s.json"
    capsys.readouterr()
    score(run, "--out", out)
    result = json.loads(out.read_text())
    assert result["sopr"]["mean"] == 0.75 and len(result["answers"]["missing"]) == 1
    assert "4 generated tasks of the run" in capsys.readouterr().out


def test_sowr_by_verdicts_on_both(tmp_path):
    mine = reference(tmp_path / "mine", {"1": "x", "2": "y", "3": "z"})
    opponent = reference(tmp_path / "other", {"1": "x", "2": "y", "3": "z", "9": "n"}, "DFS@1")
    ours = verdicts(tmp_path / "o.json", dict.fromkeys("123", ("solved",)))
    theirs = verdicts(
        tmp_path / "t.json", {"1": ("unsolved",), "2": ("unsolved",), "3": ("solved",)}
    )
    out = tmp_path / "s.json"
    words = [mine, "--verdicts", ours, "--against", opponent, "--out", out]
    score(*words, "--against-verdicts", theirs)
    sowr = json.loads(out.read_text())["sowr"]
    assert (sowr["wins"], sowr["ties"], sowr["losses"], sowr["by_verdict"]) == (2, 1, 0, 2)
    assert sowr["rate"] == pytest.approx(2.5 / 3) and sowr["n"] == 3
    assert sowr["low"] < sowr["rate"] < sowr["high"] and sowr["against"]["name"] == "other"
    score(*words, code=2)


def test_runs_are_scored_by_their_checkers(tmp_path, capsys):
    for agent in ("expert", "random"):
        words = ["--agent", agent, "--episodes", "4", "--split", "G1_tool"]
        env_words = ["--env-option", "admissible_actions=true", "--env-option", "generator_seed=5"]
        assert main(["run", *TOOLS, *words, *env_words, "--out", str(tmp_path / agent)]) == 0
    out = tmp_path / "s.json"
    capsys.readouterr()
    score(tmp_path / "expert", "--against", tmp_path / "random", "--out", out)
    result = json.loads(out.read_text())
    assert result["answers"]["kind"] == "run" and result["sopr"]["mean"] == 1.0
    assert result["sopr"]["judge"] == "the generated tasks' checker"
    assert result["process"]["finished"] == 1.0 and set(result["process"]["sources"]) == {"local"}
    assert (result["sowr"]["rate"], result["sowr"]["wins"]) == (1.0, 4)
    printed = capsys.readouterr().out
    assert "calls answered by" in printed and "local " in printed
    score(tmp_path / "expert" / "trajectories.jsonl")


def judging():
    """A server that finds short answers solved and long ones unsolved, and prefers the first."""

    def reply(handler):
        prompt = handler.body["messages"][-1]["content"]
        if "good" in prompt and "bad" in prompt:
            text = "1" if prompt.index("good") < prompt.index("bad") else "2"
        else:
            text = "Solved" if "good" in prompt else "Unsolved" if "bad" in prompt else "Unsure"
        says(text)(handler)

    return reply


def test_a_model_behind_a_server_judges(tmp_path):
    pytest.importorskip("openai")
    mine = reference(tmp_path / "mine", {"1": "good", "2": "bad", "3": "middling"})
    opponent = reference(tmp_path / "other", {"1": "bad", "2": "bad", "3": "middling"})
    out, rescored_path = tmp_path / "s.json", tmp_path / "again.json"
    with HostileServer(judging()) as running:
        url = f"{running.url}#critic"
        words = ["--judge", url, "--runs", 2, "--rounds", 2, "--against", opponent]
        score(mine, *words, "--judge-option", "max_retries=0", "--out", out)
        request_count = len(running.requests)
    result = json.loads(out.read_text())
    sopr, sowr = result["sopr"], result["sowr"]
    assert (sopr["mean"], sopr["judge"]) == (0.5, "critic") and len(sopr["prompt_sha256"]) == 64
    assert sopr["verdicts"]["3"] == ["unsure", "unsure"]
    assert (sowr["wins"], sowr["by_verdict"], sowr["judge"]) == (1, 1, "critic")
    assert sowr["ties"] + sowr["losses"] == 2
    assert request_count == 2 * (3 + 1) * 2 + 2 * 2, "answers, unsure ones again, and pairs left"
    score(mine, "--verdicts", out, "--out", rescored_path)
    rescored = json.loads(rescored_path.read_text())["sopr"]
    assert {name: rescored[name] for name in ("mean", "judge", "prompt_sha256", "verdicts")} == {
        name: sopr[name] for name in ("mean", "judge", "prompt_sha256", "verdicts")
    }


def test_a_judge_that_never_answers_is_an_error(tmp_path, capsys):
    pytest.importorskip("openai")
    mine = reference(tmp_path / "mine", {"1": "good"})
    with HostileServer(sends({}, 500)) as running:
        words = ["--judge", f"{running.url}#critic", "--judge-option", "max_retries=0"]
        score(mine, *words, "--out", tmp_path / "s.json", code=1)
    assert "gave no verdict on any answer" in capsys.readouterr().err
    assert not (tmp_path / "s.json").exists()


def test_mistakes_are_told(tmp_path, capsys):
    mine = reference(tmp_path / "answer" / "cot", {"1": "x"})
    reference(tmp_path / "answer" / "dfs", {"2": "x"})
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    other_verdicts = verdicts(tmp_path / "v.json", {"7": ("solved",)})
    cases = [
        ([tmp_path / "none"], "found nothing there"),
        ([tmp_path / "answer"], "cot, dfs: name one of these"),
        ([tmp_path / "run"], "no task has ended"),
        ([mine, "--verdicts", other_verdicts], "found those on other queries (7)"),
        ([mine, "--against-verdicts", other_verdicts], "add that"),
        ([mine, "--judge", "http://127.0.0.1:1/v1#m", "--temperature", 3], "from 0 to 2"),
        ([mine, "--out", tmp_path], "is a folder"),
        ([mine, "--out", tmp_path / "notes.txt" / "s.json"], "no folder that one may write in"),
        ([mine, "--runs", 0], "--runs must be"),
        ([mine, "--against", tmp_path / "answer" / "dfs"], "SoWR needs a --judge"),
    ]
    for words, message in cases:
        score(*words, code=2)
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error, (words, error)
    ours = verdicts(tmp_path / "o.json", {"1": ("solved",)})
    theirs = verdicts(tmp_path / "t.json", {"2": ("solved",)})
    words = [mine, "--verdicts", ours, "--against", tmp_path / "answer" / "dfs"]
    score(*words, "--against-verdicts", theirs, code=2)
    assert "both answer, found none" in capsys.readouterr().err
    score(mine, "--judge", "a", "--verdicts", "b", code=2)


@pytest.mark.parametrize(
    "task", ["../../etc/1", "G1_tool/\0/1", "/1", "\x1b[31m/7", "G1_tool/" + "9" * 5000, ""]
)
def test_ids_are_not_paths(tmp_path, task, capsys):
    episode = Trajectory(
        "comap/StableToolBench-v0", task, "G1_tool", "?", "me", "", State(), fingerprint={}
    )
    write_trajectories(tmp_path / "run" / "trajectories.jsonl", [episode])
    score(tmp_path / "run")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "1 of a run of comap" in printed
    converted = tmp_path / "converted.json"
    answer = {"answer_details": [], "final_answer": ""}
    converted.write_text(
        json.dumps({task: {"query": "?", "available_tools": [], "answer": answer}})
    )
    score(converted)
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "expected"), [("cot", 2 / 3), ("dfs", 1.0)])
def test_the_example_answers(official, tmp_path, kind, expected):
    base, name, out = official / "example_answers", f"virtual_chatgpt_{kind}", tmp_path / "s.json"
    recorded = base / "pass_rate_results" / name / f"G1_instruction_{name}.json"
    for folder in ("answer", "model_predictions_converted"):
        words = [base / folder / name, "--data-dir", official, "--verdicts", recorded]
        score(*words, "--out", out)
        result = json.loads(out.read_text())
        assert result["sopr"]["of_answers"]["value"] == pytest.approx(expected)
        assert result["sopr"]["mean"] == pytest.approx(expected * 3 / 163)
        assert len(result["answers"]["missing"]) == 160
        assert result["answers"]["groups"] == {"G1_instruction": 3}
        assert result["process"]["answered"] == pytest.approx(expected)


def test_help_on_scoring_a_world_model_is_about_scoring(capsys):
    assert main(["score", "world-model", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "World model to score" in help_text
    assert "agents that use one" not in help_text
    assert "--model MODEL" not in help_text.replace("--world-model MODEL", "")


def test_each_id_of_a_world_model_is_the_command_lines_or_says_what_is():
    assert set(WORLD_MODELS) - {*_WORLDS} == set(_IN_PYTHON)


def test_the_shipped_world_model_is_scored_and_not_the_shipped_policy(tmp_path):
    for words in (["--world-model", "shipped"], ["--model", "shipped"]):
        options = Options(ScoreWorldModel, words, "comap score world-model")
        command = ScoreWorldModel(**options.read(words)[0])._with_scored_model()
        assert command.world_model == "shipped:wm"


def predicted(capsys, *words, code=0):
    command = ["score", "world-model", "--env-option", "source=generated", *map(str, words)]
    assert main(command) == code
    return capsys.readouterr()


OWN = '''
from comap.worldmodel import Prediction

class Speaks:
    """Answers in a form that no environment knows, and is interrupted at the third batch."""

    asked = 0
    stops = None

    def predict(self, queries):
        self.asked += 1
        if self.asked == self.stops:
            raise KeyboardInterrupt
        return [Prediction(f"I think: {query.action}") for query in queries]

class Stops(Speaks):
    stops = 3
'''


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"speaks_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    yield name
    sys.modules.pop(name, None)


def test_predicted_texts_are_kept_and_unreadable_ones_are_shown(tmp_path, own_model, capsys):
    out = tmp_path / "scores.json"
    words = ("--world-model", f"{own_model}:Speaks", "--samples", "6", "--out", out)
    printed = predicted(capsys, *words).out
    result = json.loads(out.read_text())
    assert result["complete"] and len(result["predictions"]) == result["scores"]["transitions"] == 6
    assert all(
        prediction["predicted"] == f"I think: {prediction['action']}"
        for prediction in result["predictions"]
    )
    assert not any(prediction["readable"] for prediction in result["predictions"])
    assert printed.count("'I think: ") == 3 and str(out) in printed


def test_an_interrupted_score_keeps_what_was_predicted(tmp_path, own_model, capsys):
    out = tmp_path / "scores.json"
    words = ("--world-model", f"{own_model}:Stops", "--samples", "100", "--out", out)
    output = predicted(capsys, *words, code=130)
    result = json.loads(out.read_text())
    assert not result["complete"] and len(result["predictions"]) == 64
    assert "the first 64 transitions" in " ".join(output.out.split()) and "stopped" in output.err


@pytest.mark.parametrize("name", ["oracle", "noisy"])
def test_models_that_try_actions_out_are_scored_on_drawn_transitions(name, tmp_path, capsys):
    out = tmp_path / "scores.json"
    saved = tmp_path / "transitions.jsonl"
    words = ("--world-model", name, "--error-rate", "0.5", "--samples", "20", "--out", out)
    predicted(capsys, *words, "--save-transitions", saved)
    scores = json.loads(out.read_text())["scores"]
    assert (scores["all"]["delta_f1"] == 100) == (name == "oracle")
    output = predicted(capsys, "--world-model", name, "--transitions", saved, code=2)
    assert "leave --transitions out" in output.err


def test_scores_of_world_models_say_on_which_tasks_and_of_which_model(tmp_path, capsys):
    frozen, out = tmp_path / "frozen.jsonl", tmp_path / "s.json"
    words = ["score", "world-model", "--world-model", "null", "--out", str(out)]
    assert main([*words, "--samples", "8", "--save-transitions", str(frozen)]) == 0

    def printed():
        return " ".join(capsys.readouterr().out.split())

    assert "valid_unseen: transitions of generated tasks" in printed()
    assert main([*words, "--transitions", str(frozen)]) == 0
    assert "transitions of generated tasks" in printed()
    result = json.loads(out.read_text())
    assert (result["world_model"], result["tasks"]) == ("null", "generated tasks")
    head, *lines = frozen.read_text().splitlines(keepends=True)
    before = {name: part for name, part in json.loads(head).items() if name != "tasks"}
    frozen.write_text(json.dumps(before) + "\n" + "".join(lines))
    assert main([*words, "--transitions", str(frozen)]) == 0
    assert "transitions of unknown tasks" in printed()
