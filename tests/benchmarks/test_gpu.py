"""The programs that count operations and measure a GPU: they stay alive without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

MEASURE = Path(__file__).parents[2] / "benchmarks" / "measure"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with random weights."""
    from comap.agents.create import corpus
    from comap.lm.tiny import build_tiny

    folder = tmp_path_factory.mktemp("model") / "tiny"
    return str(build_tiny(folder, corpus(episodes=2), parameters=200_000, seed=0))


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program that counts."""
    monkeypatch.syspath_prepend(str(MEASURE))
    return __import__("operations")


def test_operations_synchronizations_and_views_are_counted(operations: Any) -> None:
    counts = operations.Counts()
    numbers = torch.arange(6.0, requires_grad=True)
    with operations.Transfers(counts), operations.Operations(counts):
        table = numbers.view(2, 3)
        doubled = table * 2
        is_large = doubled > 4
        bool(is_large.any())
        doubled[is_large].sum().backward()
        doubled.detach().cpu().tolist()
        torch.tensor([1, 2])

    assert counts.launches["mul"] == 2  # one of them in the backward pass
    assert counts.views >= 2 and counts.operations == counts.launches.total() + counts.views
    assert counts.synchronizations["_local_scalar_dense"] == 1
    assert counts.synchronizations["index by mask"] == 2  # forward and backward
    assert counts.synchronizations["cpu"] == 1 and "tolist" not in counts.synchronizations
    assert counts.uploads == 1


def test_a_narrow_copy_writes_and_its_passes_are_counted(
    operations: Any, model: str, tmp_path: Path
) -> None:
    operations.narrow_copy(model, str(tmp_path))
    counted = operations.generation(str(tmp_path), masked=True)
    assert counted["tokens"] > operations.GENERATED_ROWS and counted["passes"] > 0
    assert counted["before_the_first_pass"] + counted["inside_passes"] < counted["operations"]
    assert counted["per_1000_tokens"]["operations"] > counted["operations"] / counted["tokens"]

    masked_counts = operations.generation(str(tmp_path), masked=True)
    assert masked_counts == counted


def test_a_job_that_fails_or_lacks_vllm_costs_no_other_one(model: str, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    jobs = ["rollouts/135m", "trl/trl", "hf/135m"]  # TRL has no tasks before our own job drew them
    words = [sys.executable, str(MEASURE / "gpu.py"), model, "--small", "--out", str(out)]
    environment = {**os.environ, "MODELS": str(tmp_path / "models")}
    subprocess.run([*words, "--only", *jobs], env=environment, check=True, capture_output=True)

    result = json.loads(out.read_bytes())
    assert result["gpu"] == "none" and result["small"] and list(result["jobs"]) == jobs
    measured = result["jobs"]["hf/135m"]
    assert measured["concat"]["steps"] == 2 and measured["react"]["reply_tokens"] > 0
    assert any("tasks.json" in line for line in result["jobs"]["trl/trl"]["failed"])
    if "vllm" not in sys.modules and result["versions"]["vllm"] is None:
        assert result["jobs"]["rollouts/135m"]["skipped"] == "vLLM is not installed"
