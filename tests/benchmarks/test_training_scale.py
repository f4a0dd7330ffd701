"""Time and memory of training: rows of real lengths, honest counts, goals that a run can tell of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comap.benchmarks import training_scale
from comap.benchmarks.training_scale_parts import (
    ARCHITECTURES,
    Material,
    decision_requests,
    material,
)
from comap.benchmarks.training_scale_result import Findings, ScaleConfig, result_of
from comap.cli import main
from comap.errors import OptionError
from comap.lm import Encode, Generate, Score
from comap.trainers.config import CoMapTraining

CONFIG = CoMapTraining(max_length=2048, predict_tokens=192)


class Counter:
    """Counts a token for every four letters, and can do nothing else."""

    name = "counter"

    def count_tokens(self, text: str) -> int:
        return -(-len(text) // 4)


@pytest.fixture(scope="module")
def rows() -> Material:
    return material(Counter(), CONFIG, 6, 60)  # type: ignore[arg-type]


def size(messages: Any) -> int:
    return sum(Counter().count_tokens(message.content) for message in messages)


# -- what is trained -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_architectures_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    shape = ARCHITECTURES[name]
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape.config()))
    assert sum(weight.numel() for weight in model.parameters()) == shape.parameters
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_prompts_fill_the_room_there_is(rows: Material) -> None:
    for sample in rows.world:
        assert 0.8 * 1856 < size(sample.messages) < 1856  # 2048 less 192
        assert size(sample.teacher) < 1856
        assert 45 <= Counter().count_tokens(sample.text) <= 60
    for messages in (*rows.drafts, *rows.reflections):
        assert 0.7 * 2048 < size(messages) < 2048


def test_only_the_teacher_is_told_the_truth(rows: Material) -> None:
    for sample, plain in zip(rows.world, rows.plain, strict=True):
        assert any(sample.text in message.content for message in sample.teacher)
        assert not any(sample.text in message.content for message in sample.messages)
        assert (sample.distill_weight, plain.distill_weight, plain.teacher) == (0.5, 0.0, ())
        assert plain.messages == sample.messages and plain.reply == sample.reply


def test_anchors_and_reflections_take_turns(rows: Material) -> None:
    assert [sample.kind for sample in rows.policy] == ["anchor", "keep_draft"] * 3
    assert [sample.label for sample in rows.policy] == [None, 0.0, None, 1.0, None, 0.0]
    assert all(sample.weight == 2.0 for sample in rows.policy)  # as many of each
    assert [sample.label_weight for sample in rows.policy] == [0.0, 0.02] * 3


def test_rows_are_all_different_and_always_the_same(rows: Material) -> None:
    assert len({sample.messages for sample in rows.world}) == 6
    assert material(Counter(), CONFIG, 6, 60) == rows  # type: ignore[arg-type]


def test_a_decision_asks_the_models_in_turn(rows: Material) -> None:
    asked = decision_requests(rows, CONFIG, 2)
    told = {name: [item.adapter for item in items] for name, items in asked.items()}
    assert list(told) == ["draft", "predict", "teacher", "state", "reflect", "final", "confidence"]
    assert told.pop("predict") == ["wm"] * 2 and told.pop("teacher") == ["wm_ema"] * 2
    assert all(adapters == ["agent"] * 2 for adapters in told.values())
    most = {
        name: item.sampling.max_new_tokens
        for name, (item, _) in asked.items()
        if isinstance(item, Generate)
    }
    assert most == {"draft": 64, "predict": 192, "teacher": 192, "reflect": 128, "final": 16}
    assert isinstance(asked["state"][0], Encode) and isinstance(asked["confidence"][0], Score)


# -- what is told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "qwen3-4B"}, "did you mean 'qwen3-4b'"),
        ({"checkpointing": "maybe"}, "checkpointing cannot be 'maybe'"),
        ({"device": "tpu"}, "device cannot be 'tpu'"),
        ({"updates": 0}, "updates must be a whole number of at least 1"),
        ({"fit_rows": -1}, "fit_rows must be a whole number of at least 0"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ScaleConfig(**settings)


def trained(*seconds: float) -> Any:
    """Updates of four rows, of 100 tokens each."""
    count = 4 * len(seconds)
    return SimpleNamespace(
        seconds=seconds,
        rows=count,
        tokens=100 * count,
        read=250 * count,
        peak_bytes=7,
        resident_bytes=None,
    )


def findings(ratio: float = 2.0, fits: bool = True) -> Findings:
    def asked(seconds: float, written: int) -> Any:
        return SimpleNamespace(seconds=seconds, written=written, peak_bytes=9)

    found = Findings()
    found.trained = {"checkpointing": {"world_model_ce": [trained(1.0, 3.0), trained(2.0, 2.0)]}}
    found.ratios["checkpointing"] = [ratio, ratio, ratio]
    found.rollouts = [asked(6.0, 1200)]
    found.decisions = [{"draft": asked(1.0, 64), "state": asked(0.5, 0)}]
    found.fits = {"checkpointing": {"warm_up": {"fits": True}, "policy": {"fits": fits}}}
    return found


def test_numbers_by_hand() -> None:
    config = ScaleConfig(batch_rows=4, accumulate=1, updates=2, decisions=2)
    told = result_of(config, findings(), "cuda")
    done = told["training"]["checkpointing"]["world_model_ce"]
    assert done["seconds_per_1000"] == {
        "min": 250,
        "q1": 437.5,
        "median": 500,
        "q3": 562.5,
        "max": 750,
    }
    assert done["tokens_per_second"]["median"] == 200 and done["read_per_row"] == 250
    assert done["peak_bytes"] == 7 and done["resident_bytes"] is None
    rollouts = told["student_rollouts"]  # of 12 rows
    assert rollouts["seconds_per_1000"]["median"] == 500
    assert rollouts["written_tokens_per_second"]["median"] == 200
    decisions = told["decisions"]
    assert decisions["seconds_per_1000"]["median"] == 750 and decisions["peak_bytes"] == 9
    assert decisions["seconds_per_1000_by_call"]["state"]["median"] == 250


@pytest.mark.parametrize(
    ("settings", "device", "found", "met"),
    [
        ({}, "cuda", findings(), (True, True)),
        ({}, "cuda", findings(ratio=2.21), (True, False)),
        ({}, "cuda", findings(fits=False), (False, True)),
        ({"fit_rows": 8}, "cuda", findings(), (None, True)),
        ({"max_length": 1024}, "cuda", findings(), (None, True)),
        ({"architecture": "qwen3-0.6b"}, "cuda", findings(), (None, None)),
        ({}, "cpu", findings(), (None, None)),
    ],
)
def test_goals_are_told_only_where_a_run_can_tell(
    settings: dict[str, Any], device: str, found: Findings, met: tuple[bool | None, ...]
) -> None:
    goals = result_of(ScaleConfig(**settings), found, device)["goals"]
    assert (goals["memory"]["met"], goals["wmsd"]["met"]) == met


def test_those_that_are_compared_take_turns_in_being_first() -> None:
    pytest.importorskip("trl")
    order: list[tuple[str, bool]] = []

    class Fake:
        def train(self, name: str, batching: Any, updates: int, way: bool) -> Any:
            order.append((name, way))
            return trained(5.0 if name == "world_model_wmsd" else 2.0)

    found = Findings()
    for number in (1, 2):
        training_scale._train(ScaleConfig(), Fake(), found, number, print)  # type: ignore[arg-type]
    compared = [name[12:] for name, way in order if way and name.startswith("world_model")]
    assert compared == ["ce", "wmsd", "wmsd", "ce"]
    assert dict(found.ratios) == {"checkpointing": [2.5, 2.5], "no_checkpointing": [2.5, 2.5]}


# -- with a model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    from comap.benchmarks.training_scale_model import random_roles
    from comap.benchmarks.training_scale_phases import Phases
    from comap.lm.tiny import tokenizer_of

    config = CoMapTraining(max_length=1024, predict_tokens=8, prompts="brief")
    words = tokenizer_of([message.content for message in material_words()])
    shape = replace(ARCHITECTURES["tiny"], hidden=32, layers=1, heads=2, key_heads=1, inner=32)
    roles = random_roles(shape, config, words, torch.device("cpu"))
    rows = material(roles.language_model(), config, 4, 6)
    return Phases(roles, config, rows, tmp_path_factory.mktemp("phases"))


def material_words() -> list[Any]:
    found = material(Counter(), CONFIG, 2, 60)  # type: ignore[arg-type]
    return [message for sample in found.world for message in sample.messages]


def test_counts_are_of_what_was_timed(phases: Any) -> None:
    from comap.trainers.plan import Batching, plan_updates

    asked = phases.roll_out(0, phases.roles.language_model())
    assert asked.written == sum(map(len, phases.continuations)) > 0 and asked.peak_bytes is None
    batching = Batching(rows=1, accumulate=2)
    rows = phases.examples["world_model_wmsd"]
    plan = plan_updates([[len(row) for row in rows]], batching)
    seen = [row for batch in plan[2:] for row in batch.rows]  # of the second update
    own = sum(len(rows[n].prompt) + len(rows[n].answer) for n in seen)
    more = sum(len(rows[n].prompt) + len(rows[n].teacher) for n in seen)
    more += 2 * sum(len(phases.continuations[n]) for n in seen)
    done = phases.train("world_model_wmsd", batching, 1, checkpointing=True)
    assert (done.rows, done.tokens, done.read) == (2, own, own + more)
    assert len(done.seconds) == 1 and done.seconds[0] > 0 and done.peak_bytes is None
    plain = phases.train("world_model_ce", batching, 1, checkpointing=False)
    assert (plain.rows, plain.tokens, plain.read) == (2, own, own)


def test_the_large_batch_has_all_its_tokens(phases: Any) -> None:
    for row in (phases.examples["world_model_wmsd"][0], phases.examples["policy"][1]):
        long = phases._longest(row)
        assert (len(long), len(long.answer), sum(long.scored)) == (1024, 8, 8)
        assert len(long.teacher) == (1016 if row.teacher else 0)
    assert phases.examples["policy"][1].label is not None
    assert phases.examples["policy"][1].decision is None  # the head learns it


def test_too_little_memory_is_a_result(phases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from comap.trainers.plan import Batching

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(phases, "_train", full)
    assert phases.fits("warm_up", 2, checkpointing=True) is None
    with pytest.raises(OptionError, match="expected warm_up with micro-batches of 1 rows to fit"):
        phases.train("warm_up", Batching(rows=1), 1, checkpointing=True)


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    monkeypatch.setitem(ARCHITECTURES, "tiny", replace(ARCHITECTURES["tiny"], hidden=32, layers=1))
    out = tmp_path / "result.json"
    words = (
        "--architecture tiny --device cpu --max-length 1024 --predict-tokens 4 --target-tokens 4"
    )
    words += (
        " --accumulate 1 --updates 1 --repeats 1 --decisions 1 --fit-rows 1 --checkpointing off"
    )
    assert main(["bench", "training-scale", *words.split(), "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "peak memory is not measured on a CPU" in told.out and "repeat 1 of 1" in told.err
    assert "WMSD, no_checkpointing: " in told.out and told.out.count("not told by this run") == 2
    text = out.read_text("utf-8")
    result = json.loads(text)
    names = {"warm_up", "policy", "world_model_ce", "world_model_wmsd"}
    assert set(result["training"]["no_checkpointing"]) == names
    assert set(result["fits"]["no_checkpointing"]) == names
    assert all(one["fits"] for one in result["fits"]["no_checkpointing"].values())
    assert result["wmsd_ratio"]["no_checkpointing"]["min"] > 1
    assert result["model"]["adapters"] == ["agent", "wm", "wm_ema"] and result["repeats_done"] == 1
    assert result["versions"]["torch"] and "gpu" not in result["hardware"]
    assert str(tmp_path) not in text
