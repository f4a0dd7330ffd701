"""Typed results: what is written and read again is the same, and damaged files are read all the same."""

from __future__ import annotations

import json
import math

import pytest

from comap.trainers.results import (
    EvaluationResult,
    Fit,
    RoundEvaluation,
    StageResult,
    UpdateEvaluation,
    finite_number,
    from_json,
    to_json,
)

NOTHING = from_json(EvaluationResult, {})


def evaluation(**fields):
    names = {name: fields.get(name) for name in EvaluationResult.__dataclass_fields__}
    return EvaluationResult(**{**names, "world_models": ("oracle",)})


def test_what_is_not_there_is_left_out_or_null():
    plain = to_json(evaluation(episodes=2, success=0.5))
    assert plain["score"] is None and plain["world_models"] == ["oracle"]
    assert not {"pass_at_k", "greedy", "gate_shut"} & plain.keys()
    with_greedy = evaluation(episodes=2, greedy=evaluation(episodes=1))
    assert to_json(with_greedy)["greedy"]["episodes"] == 1
    assert from_json(EvaluationResult, json.loads(json.dumps(to_json(with_greedy)))) == with_greedy
    fit = Fit(role="agent", rows=0, updates=0, log=(), samples={})
    assert to_json(fit) == {"role": "agent", "rows": 0, "updates": 0, "log": [], "samples": {}}


def test_a_stage_has_all_parts_side_by_side():
    log = [{"step": 1, "loss": 0.5}]
    data = {"stage": "x", "seconds": 2, "role": "wm", "updates": 3, "log": log, "episodes": 4}
    stage = from_json(StageResult, {**data, "gates": {"steps": 9, "student_f1": {"n": 1}}})
    assert (stage.seconds, stage.fit.role, stage.fit.updates, stage.played.episodes) == (
        2,
        "wm",
        3,
        4,
    )
    assert stage.fit.log == ({"step": 1, "loss": 0.5},) and stage.evaluation.revisions is None
    gates = stage.gates
    assert gates is not None and gates.steps == 9 and gates.opened is None and gates.paths == {}
    assert gates.truth is not None and gates.truth.student_f1.n == 1
    assert gates.truth.teacher_f1.mean is None


@pytest.mark.parametrize("value", [None, "x", [], {}, math.nan, math.inf, True, 10**400, -1e300])
def test_damaged_files_are_read(value):
    for cls in (StageResult, UpdateEvaluation):
        assert from_json(cls, value) == from_json(cls, {})
        names = {"fit", "played", "labeling", "evaluation"} ^ {*cls.__dataclass_fields__}
        from_json(cls, dict.fromkeys(names, value))
    data = {"splits": {"a": value}, "world_model": {"b": value}, "gates": value, "round": value}
    evaluation_read = from_json(RoundEvaluation, data)
    assert (
        evaluation_read.splits == {"a": NOTHING} and evaluation_read.world_model["b"].all.n is None
    )
    assert evaluation_read.splits["a"].rate is None


def test_numbers_are_finite_or_none():
    assert finite_number(2) == 2 and finite_number(0.5) == 0.5
    assert [finite_number(v) for v in (True, "1", None, math.nan, -math.inf, 10**400)] == [None] * 6
    assert from_json(Fit, {"rows": 2.0, "samples": {"a": 1, "b": None, "c": "x"}}).samples == {
        "a": 1
    }
    assert from_json(Fit, {"log": [{"loss": 1.5, "step": "x"}, 3]}).log == ({"loss": 1.5}, {})


@pytest.mark.parametrize(
    ("success", "n"), [(1.5, 4), (-0.5, 4), (0.5, 0), (0.5, 10**9), (0.5, None)]
)
def test_a_rate_that_makes_no_sense_is_none(success, n):
    assert from_json(UpdateEvaluation, {"success": success, "n": n}).rate is None
    assert evaluation(success=success, episodes=n).rate is None


def test_a_rate_has_the_interval_of_the_file():
    rate = evaluation(success=0.5, episodes=4, success_low=0.1, success_high=0.9).rate
    assert rate is not None and (rate.value, rate.low, rate.high, rate.n) == (0.5, 0.1, 0.9, 4)
    rate = from_json(UpdateEvaluation, {"success": 0.75, "n": 4}).rate
    assert str(rate) == "75.0 % [30.1, 95.4] (n=4)"
