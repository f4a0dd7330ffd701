"""The simulation on paper: sums that can be checked by hand, and what a run of it tells."""

from __future__ import annotations

from typing import Any

import pytest

from comap.benchmarks import capacity
from comap.benchmarks.capacity_measure import measure_texts
from comap.benchmarks.capacity_model import Costs, assumptions, demand
from comap.benchmarks.readme import result
from comap.cli import main

COSTS = Costs(
    steps=10,
    step_seconds=1e-3,
    reset_seconds=1e-2,
    runner_seconds=1e-3,
    record_seconds=1e-4,
    pool_seconds=1e-3,
    first_bytes=100e6,
    further_bytes=1e6,
    prompt_tokens=1000,
    new_tokens=100,
    action_tokens=8,
    request_bytes=4000,
    record_bytes=1000,
)
GIVEN = assumptions() | {
    "seconds_per_decision": 2.0,
    "thought_tokens": 42,
    "core_use": 0.5,
    "environments_per_process": 50,
    "prompt_tokens_per_second": 10_000,
    "reply_tokens_per_second": 1_000,
    "gpu_kv_gigabytes": 50,
    "kv_bytes_per_token": 100_000,
}


def test_the_sums() -> None:
    found = demand(COSTS, GIVEN, 1000, cached=False)
    need = found["need"]
    assert found["steps_per_second"] == 500
    assert found["episodes_per_hour"] == 180_000
    assert need["recorders"] == pytest.approx(500 * 2e-4)
    assert need["cores"] == pytest.approx(500 * 3e-3 / 0.5 + 0.1)
    assert need["memory_bytes"] == pytest.approx(20 * 99e6 + 1000e6)
    assert need["gpus_by_speed"] == pytest.approx(500 * (0.1 + 0.05))
    assert need["gpus_by_memory"] == pytest.approx(1000 * 1050 * 1e5 / 50e9)
    assert need["gpus"] == 75 and found["bottleneck"] == "GPU speed"
    assert need["request_bytes_per_second"] == 2e6
    spent = found["cost_per_hour"]
    assert spent["gpus"] == 75 * GIVEN["price_gpu_hour"]
    assert spent["all"] == pytest.approx(sum(spent[key] for key in spent if key != "all"))
    assert found["cost_per_million_steps"] == pytest.approx(1e6 * spent["all"] / 1.8e6)
    cached = demand(COSTS, GIVEN, 1000, cached=True)
    assert cached["need"]["gpus_by_speed"] == pytest.approx(500 * (0.01 + 0.05))
    assert cached["computed_prompt_tokens_per_second"] == 50_000


def test_the_bottleneck_moves() -> None:
    assert demand(COSTS, GIVEN, 20_000, cached=True)["bottleneck"] == "recording"
    slow = GIVEN | {"price_gpu_hour": 1e-9}
    assert demand(COSTS, slow, 1000, cached=True)["bottleneck"] == "cores"
    small = GIVEN | {"gpu_kv_gigabytes": 1}
    assert demand(COSTS, small, 1000, cached=True)["bottleneck"] == "GPU memory"


def test_prompts_are_measured() -> None:
    few = measure_texts("comap/ALFWorld-v0", {"source": "generated"}, 2, 10)
    more = measure_texts("comap/ALFWorld-v0", {"source": "generated"}, 2, 40)
    assert few["generated"] and few["episodes"] == 2
    assert 0 < few["new_tokens"] < few["prompt_tokens"] < more["prompt_tokens"]
    assert few["request_bytes"] > 3 * few["prompt_tokens"]
    assert few["record_seconds"] > 0 and few["record_bytes"] > 0


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def instead(measure: Any, *given: Any) -> dict[str, Any]:
        if measure is capacity.measure_pool:
            return {"seconds": 1e-3}
        if measure is capacity.measure_environments:
            return {"resident_bytes": 50e6 + given[2] * 1e6}
        return measure_texts(given[0], given[1] | {"source": "generated"}, 1, given[3])

    monkeypatch.setattr(capacity, "in_fresh_process", instead)
    words = ["bench", "capacity", "--env", "comap/ALFWorld-v0", "--episodes", "50"]
    assert main([*words, "--assume", "price_gpu_hour=1000"]) == 0
    said = capsys.readouterr().out
    assert "| ALFWorld | 50 | 12 |" in said and "$1000 a GPU-hour" in said
    for wrong in (["--assume", "prise=1"], ["--assume", "core_use=much"], ["--episodes", "0"]):
        assert main([*words, *wrong]) == 1


def test_the_recorded_result_follows_from_what_it_tells() -> None:
    record = result("capacity")
    for row in record["environments"].values():
        for told in row["demands"]:
            again = demand(
                Costs(**row["costs"]),
                record["assumptions"],
                told["episodes"],
                cached=told["cached"],
            )
            assert again == told
    assert {told["episodes"] for told in row["demands"]} == {1_000, 100_000}
