"""A real pretrained model plays all environments: nothing that it says breaks a run.

`make interop DOORS=smollm2` makes the model in an environment of its own (which needs gguf and accelerate).
It skips where pip cannot serve the model. COMAP_SMOLLM2 names a folder that has it already.
"""

# installs: comap[local,train,scienceworld,search,viz] accelerate gguf

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kits.smollm2 import MEASURE, model_folder, narrow_copy

pytest.importorskip("gguf", reason="making the model needs gguf: make interop DOORS=smollm2 has it")

LISTED = ("ALFWorld", "WebShop")
"""Environments in which all that can be done is listed, so that a masked action is never refused."""
TASKS = 3
STEPS = 2
"""Few enough for two cores: the table in docs/results.md has more of both."""
TESTS = Path(__file__).parents[1]
ENVIRONMENTS = ("ALFWorld", "ScienceWorld", "WebShop", "StableToolBench", "SearchQA", "Web")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory)


def test_the_model_is_whole(model: Path) -> None:
    from comap.lm import Generate, HFLanguageModel, Message, Sampling

    lm = HFLanguageModel(model)
    question = (Message("user", "What is the capital of France?"),)
    (reply,) = lm.generate([Generate(question, Sampling(max_new_tokens=16))])
    assert "Paris" in reply.text


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_it_plays_freely_and_masked(name: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(MEASURE / "smollm2.py"), str(model), "--out", str(out)]
    sizes = ["--tasks", str(TASKS), "--steps", str(STEPS)]
    subprocess.run([*command, *sizes, "--env", f"comap/{name}-v0"], check=True)
    free, masked = (row["summary"] for row in json.loads(out.read_text())["rows"])
    for summary in (free, masked):
        check_summary(summary)
    if name in LISTED:  # there is always something to choose from
        assert masked["unread_replies"]["without_action"]["all"] == 0
        assert masked["invalid_actions"] == 0


def check_summary(summary: dict[str, Any]) -> None:
    """What holds of a run, whatever the model says."""
    assert summary["n"] == TASKS and summary["errors"] == {}
    assert summary["steps"]["all"] >= TASKS
    replies = summary["unread_replies"]["without_action"]
    assert replies["of"] == summary["steps"]["all"]
    assert bool(replies["examples"]) == bool(replies["all"])
    assert summary["generated_tasks"] in (0, summary["n"]), "they are all of one kind"
    assert 0 <= summary["invalid_actions"] <= 1


def test_a_killed_training_of_comap_ends_as_if_nothing_had_happened(
    model: Path, tmp_path: Path
) -> None:
    """With the real tokenizer and its chat template, to the bit; the model is a narrow one."""
    narrow_copy(model, tmp_path / "model")
    script = TESTS / "trainers" / "coevolution" / "test_killed_training.py"
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, str(script), str(tmp_path)], env=environ, check=True)
    kills = json.loads((tmp_path / "report.json").read_text())
    check = runpy.run_path(str(script))["check_killed"]
    check(tmp_path, kills)
