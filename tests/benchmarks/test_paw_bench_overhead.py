"""`comap bench paw-overhead`: rows of the right lengths, turns, and honest ratios."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

from comap.benchmarks import paw_bench_overhead
from comap.benchmarks.paw_bench_arms import arm_of, training_of
from comap.benchmarks.paw_bench_overhead import MODELS, measure, overhead_of
from comap.benchmarks.paw_bench_overhead_rows import RowShape, episode_rows, real_lengths
from comap.errors import OptionError

SHAPE = RowShape(rows=8, groups=2, members=2, prompt=24, response=5, observation=9)


def test_rows_are_as_many_and_as_long_as_asked() -> None:
    shape = RowShape(rows=1001, groups=4, members=5, prompt=300, response=60, observation=30)
    rows = episode_rows(shape, 500)
    assert len(rows) == 1001 and {row.trajectory for row in rows} == set(range(20))
    assert [row.group for row in rows] == [row.trajectory // 5 for row in rows]
    for name in ("prompt", "response", "observation"):
        sizes = np.array([len(getattr(row, f"{name}_ids")) for row in rows])
        assert sizes.mean() == pytest.approx(getattr(shape, name), rel=0.1)
        assert sizes.std() > 0.1 * sizes.mean() and sizes.min() >= 1
    used = {token for row in rows for token in row.prompt_ids}
    assert min(used) >= 5 and max(used) < 500
    lengths = {row.trajectory: row.episode_length for row in rows}
    assert sum(lengths.values()) == 1001 and max(lengths.values()) - min(lengths.values()) <= 1
    assert all(len(row.sampled_logprobs or ()) == len(row.response_ids) for row in rows)
    won = {row.trajectory: row.success for row in rows}
    assert 0 < sum(won.values()) < 20  # or there would be nothing to learn
    assert all(
        (row.reward > 0) == (row.success and row.t == row.episode_length - 1) for row in rows
    )


def test_rows_are_the_same_for_the_same_seed() -> None:
    assert episode_rows(SHAPE, 320, 1) == episode_rows(SHAPE, 320, 1) != episode_rows(SHAPE, 320, 2)
    assert real_lengths(tasks=2) == real_lengths(tasks=2)


@pytest.mark.parametrize("change", [{"rows": 3}, {"prompt": 0}, {"members": -1}])
def test_impossible_rows_are_refused(change: dict[str, int]) -> None:
    given = {name: getattr(SHAPE, name) for name in RowShape.__dataclass_fields__}
    with pytest.raises(OptionError, match=r"expected a row for each|must be a whole number"):
        RowShape(**{**given, **change})


def test_the_large_model_has_the_size_of_the_published_one() -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = MODELS["qwen2.5-1.5b"]
    assert shape is not None
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    assert sum(weight.numel() for weight in model.parameters()) == 1_543_714_304


# -- what is measured ----------------------------------------------------------------------------


def line(paw: bool, whole: float, peak: int | None = 100) -> dict[str, Any]:
    parts = {"old_logps": 1.0, "advantages": 0.0, "update": whole - 1.0, "all": whole}
    return {"paw": paw, **parts, "cpu": 2 * whole, "peak_bytes": peak}


def test_ratios_are_of_pairs_whichever_came_first() -> None:
    told = overhead_of([line(False, 4), line(True, 5), line(True, 12), line(False, 10)], 90.0)
    ratio = told["ratio"]["all"]
    assert (told["pairs"], ratio["min"], ratio["max"]) == (2, pytest.approx(1.2), 1.25)
    assert told["ratio"]["advantages"] is None  # nothing is no measure of anything
    assert told["ratio"]["cpu"]["median"] == ratio["median"] == pytest.approx(1.225)
    assert told["extra_seconds"]["median"] == 1.5
    assert told["whole_step"]["overhead"] == pytest.approx(1.5 / 97)
    assert told["goals"] == {"time": True, "memory": True}


def test_goals_need_what_they_are_about() -> None:
    told = overhead_of([line(False, 4, None), line(True, 5, 7)])
    assert told["goals"] == {"time": None, "memory": None} and told["peak_bytes"] is None
    told = overhead_of([line(False, 4, 1000), line(True, 5, 1030)], 10.0)
    assert told["goals"] == {"time": False, "memory": False}
    assert told["peak_bytes"] == {"off": 1000, "on": 1030, "ratio": 1.03}


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    config = training_of(arm_of("grpo+paw"), 0, {"groups": 2, "members": 2, "save_updates": 0})
    told: list[Mapping[str, Any]] = []
    return measure(config, SHAPE, "tiny", updates=2, device="cpu", tell=told.append), told


def test_paw_is_on_and_off_by_turns_on_the_same_rows(measured: Any) -> None:
    result, told = measured
    lines = result["measured"]
    assert [one["paw"] for one in lines] == [True, False, False, True]
    assert [one["observations_read"] for one in lines] == [6, 0, 0, 6]  # 3/4 of 8 rows
    assert result["device"] == "cpu" and 300_000 < result["parameters"] < 700_000
    assert result["tokens"]["header"] == 8 * 4
    for one in lines:
        parts = one["old_logps"] + one["advantages"] + one["update"]
        assert 0 < one["update"] < one["all"] == pytest.approx(parts) and one["cpu"] > 0
    assert [len(part["measured"]) for part in told] == [2, 4]  # what is there if it is killed
    assert told[1] == result


def test_the_command_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Any, capsys: Any
) -> None:
    asked: list[Any] = []

    def known(*given: Any, tell: Any, **options: Any) -> None:
        asked.append((*given, options))
        tell(measured[0])

    monkeypatch.setattr(paw_bench_overhead, "measure", known)
    parser = argparse.ArgumentParser("comap bench")
    paw_bench_overhead.add_parser(parser.add_subparsers())
    path = tmp_path / "result.json"
    words = ["--architecture", "qwen2.5-1.5b", "--prompt", "50", "--rollout-seconds", "9"]
    options = parser.parse_args(["paw-overhead", *words, "--result", str(path)])
    assert options.run(options) == 0
    config, shape, name, _ = asked[0]
    assert (name, config.precision, config.mini_batch_rows) == ("qwen2.5-1.5b", "bfloat16", 256)
    assert (shape.prompt, shape.response, shape.observation) == (50, 120, 60)
    result = json.loads(path.read_bytes())
    assert result["pairs"] == 2 and result["whole_step"]["rollout_seconds"] == 9
    assert result["goals"]["time"] in (True, False) and result["hardware"]["cores"]
    assert "of a whole step" in capsys.readouterr().out
    options = parser.parse_args(["paw-overhead", "--mini-batch-rows", "0", "--device", "cpu"])
    assert options.run(options) == 0
    config, shape, name, given = asked[1]
    assert (name, config.mini_batch_rows, config.old_logprobs) == ("tiny", None, "sampled")
    assert given["device"] == "cpu" and config.precision == "float32"
