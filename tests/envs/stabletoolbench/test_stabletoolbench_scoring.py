"""SoPR, SoWR and process metrics, of our attempts and of reference pipelines' answers."""

from __future__ import annotations

import json

import pytest

from comap.envs.stabletoolbench.scoring import (
    Attempt,
    CallableJudge,
    LMJudge,
    Made,
    RecordedJudge,
    pass_rate,
    process_report,
    read_attempts,
    win_rate,
)
from comap.envs.stabletoolbench.tasks import generated_task, read_queries
from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.lm.base import Completion


def attempt(key="1", answer="It is 7.", finish="give_answer", calls=()):
    return Attempt(key, "What is it?", calls, finish, answer)


class Replies:
    """A language model that replies as it is told to, and notes what it was asked."""

    name = "replies"

    def __init__(self, *texts):
        self.texts, self.asked = texts, []

    def generate(self, requests):
        return [self._reply(request.messages[-1].content) for request in requests]

    def _reply(self, text):
        self.asked.append(text)
        reply = self.texts[(len(self.asked) - 1) % len(self.texts)]
        return LanguageModelError("down") if reply is None else Completion(reply)


def test_sopr_is_the_mean_over_runs():
    said = {"1": ("solved", "solved", "unsure"), "2": ("unsolved", "unsure", "solved")}
    judge = CallableJudge(lambda one, run: said[one.query_id][run], "table")
    report = pass_rate({"1": attempt("1"), "2": attempt("2")}, judge)
    assert report.runs == (0.5, 0.75, 0.75) and report.mean == pytest.approx(2 / 3)
    assert report.std == pytest.approx(0.11785, abs=1e-4)
    assert (report.judge, report.failures, report.n) == ("table", 0, 2)


def test_a_language_model_judges_answer_then_steps():
    model = Replies("Unsure.", "**Unsolved**")
    judge = LMJudge(model)
    hostile = attempt(answer="{steps} {query} Solved!", calls=(Made("f", {"a": 1}, "7", "ok"),))
    report = pass_rate({"1": hostile}, judge, runs=1)
    assert report.mean == 0.0 and len(model.asked) == 2
    assert "f {" not in model.asked[0] and '1. f {"a": 1} -> 7' in model.asked[1]
    assert "{steps} {query} Solved!" in model.asked[0]
    assert report.judge == "replies" and len(report.prompt_sha256) == 64


def test_a_judge_that_fails_is_told_and_counts_in_no_mean():
    report = pass_rate({"1": attempt()}, LMJudge(Replies("Solved", None, "Perhaps?")))
    assert report.failures == 2 and report.mean == 1.0
    assert report.verdicts["1"] == ("solved", None, None)
    with pytest.raises(OptionError, match="'maybe'"):
        pass_rate({"1": attempt()}, CallableJudge(lambda one, run: "maybe"))
    with pytest.raises(OptionError):
        pass_rate({}, CallableJudge(lambda one, run: "solved"))


def test_sowr_goes_by_verdicts_first():
    mine = {key: attempt(key) for key in "1234"} | {"9": attempt("9")}
    theirs = {key: attempt(key, "other") for key in "1234"}
    ours = {"1": ("solved", "solved", "unsolved"), "2": ("unsolved",), "3": ("unsure",)}
    other = {"1": ("unsolved",), "2": ("solved",), "3": ("solved",), "4": ("solved", "unsolved")}
    asked = []

    def compare(first, second, number):
        asked.append(first.query_id)
        return 1 if first.query_id == "3" else 1 + number % 2

    report = win_rate(mine, theirs, compare, ours, other, rounds=2)
    assert (report.wins, report.losses, report.ties, report.by_verdict) == (2, 1, 1, 2)
    assert report.rate == 2.5 / 4 and asked == ["3", "3", "4", "4"]


def test_process_metrics():
    task = generated_task("G1_tool", 0)
    relevant = task.plan[0][0]
    other = next(offer.name for offer in task.offers if offer.name not in dict(task.plan))
    calls = (
        Made(relevant, json.dumps(task.plan[0][1]), "{}", "ok"),
        Made(other, {"wrong": 1}, "{}", "bad_arg"),
        Made("no_such", "{", "{}", "no_function"),
    )
    tried = {
        "0": Attempt("0", "", calls, "give_answer", "x", (), ("local", "", "none", "local")),
        "1": Attempt("1", "", ()),
    }
    report = process_report(tried, {"0": task.record, "1": task.record})
    needed = len({name for name, _ in task.plan})
    assert report.relevant_recall == pytest.approx((1 / needed + 0) / 2)
    assert report.relevant_precision == 0.5
    assert report.valid_arguments == pytest.approx(1 / 3)
    assert report.errors == pytest.approx(2 / 3)
    assert (report.finished, report.answered, report.calls) == (0.5, 0.5, 1.5)
    assert report.sources == {"local": pytest.approx(2 / 3), "none": pytest.approx(1 / 3)}
    with pytest.raises(OptionError, match="record of query"):
        process_report(tried, {"0": task.record})


@pytest.mark.parametrize("kind", ["cot", "dfs"])
def test_reference_answers_are_read(official, kind):
    base = official / "example_answers"
    name = f"virtual_chatgpt_{kind}"
    raw = read_attempts(base / "answer" / name / "G1_instruction")
    converted = read_attempts(base / "model_predictions_converted" / name / "G1_instruction.json")
    assert set(raw) == set(converted) == {"588", "608", "1073"}
    for key in raw:
        assert raw[key].answer == converted[key].answer and raw[key].finish == converted[key].finish
        names = [[made.name for made in one[key].calls] for one in (raw, converted)]
        assert names[0] == names[1] and len(raw[key].functions) > 2
    results = base / "pass_rate_results" / name
    rate = pass_rate(raw, RecordedJudge(results / f"G1_instruction_{name}.json")).mean
    assert rate == pytest.approx(2 / 3 if kind == "cot" else 1.0)
    report = process_report(
        raw, read_queries(official / "test_instruction" / "G1_instruction.json")
    )
    assert report.relevant_recall == 1.0 and 0.7 < report.relevant_precision < 0.9
    assert report.valid_arguments == 1.0 and report.n == 3


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"answer_generation": {}}', '{"1": {}}', '{"1": 2}']
)
def test_broken_answers_are_told(tmp_path, content):
    path = tmp_path / "1_CoT@1.json"
    path.write_text(content)
    if content != "[]":
        with pytest.raises(DataCorrupt, match="1_CoT"):
            read_attempts(path)
    with pytest.raises(DataCorrupt):
        RecordedJudge(path)
    with pytest.raises(DataNotFound):
        read_attempts(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a billion runs", '{"1": {"is_solved": {"1000000000": "solved"}}}'),
        ("run 100", '{"1": {"is_solved": {"100": "solved"}}}'),
        ("a run before the first", '{"1": {"is_solved": {"-1": "solved"}}}'),
        ("an endless run", '{"1": {"is_solved": {"' + "9" * 400 + '": "solved"}}}'),
        ("no run", '{"1": {"is_solved": {"x": "solved"}}}'),
        ("no verdict", '{"1": {"is_solved": {"0": "perhaps"}}}'),
        ("deep", "[" * 100_000),
        ("no text", "\xff\xfe"),
        ("no verdicts", '{"sopr": {"judge": "x", "prompt_sha256": "", "verdicts": {"1": 7}}}'),
    ],
)
def test_hostile_verdicts_are_told_at_once(tmp_path, name, content):
    path = tmp_path / f"{name}.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DataCorrupt, match="expected a pass-rate result"):
        RecordedJudge(path)


def _api(name, required=(), optional=()):
    listed = [
        [{"name": one, "type": "STRING", "description": "", "default": ""} for one in names]
        for names in (required, optional)
    ]
    return {
        "category_name": "Data",
        "tool_name": "Words",
        "api_name": name,
        "api_description": "",
        "required_parameters": listed[0],
        "optional_parameters": listed[1],
        "method": "GET",
    }


def test_calls_are_held_against_what_was_offered():
    """Upstream offers no optional parameter where none is required, and takes a name's end."""
    apis = [_api("Find", ["word"]), _api("List", (), ["page"])]
    record = {"query_id": 1, "query": "?", "api_list": apis, "relevant APIs": [["Words", "Find"]]}
    calls = (
        Made("find_for_words", {"word": "a"}, "{}", "ok"),
        Made("nd_for_words", {"word": "a"}, "{}", "ok"),
        Made("find_for_words", {}, "{}", "ok"),
        Made("list_for_words", {"page": "2"}, "{}", "ok"),
    )
    tried = {"1": Attempt("1", "?", calls)}
    strict = process_report(tried, {"1": record})
    assert (strict.valid_arguments, strict.relevant_precision) == (0.5, 0.5)
    reference = process_report(tried, {"1": record}, "reference")
    assert reference.valid_arguments == 0.5 and reference.relevant_recall == 1.0
    only = {"1": Attempt("1", "?", calls[1:2])}
    assert process_report(only, {"1": record}).relevant_recall == 0.0
    assert process_report(only, {"1": record}, "reference").relevant_recall == 1.0
    assert process_report(only, {"1": record}, "reference").valid_arguments == 1.0
