"""What selective imagination saves: arms, differences and the table, on a few steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks import selective
from comap.cli import main

WORDS = ["--env", "comap/ALFWorld-v0", "--env-option", "source=generated"]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    some = ("always", "never", "always, beliefs cached")
    monkeypatch.setattr(selective, "ARMS", {name: selective.ARMS[name] for name in some})
    result = tmp_path / "result.json"
    words = ["bench", "selective", "--episodes", "2", "--fitted", "2", "--pairs", "1"]
    words += ["--latency", "0", "--result", str(result), "--", *WORDS]
    assert main([*words, "--env-option", "max_episode_steps=6"]) == 0
    told = json.loads(result.read_text("utf-8"))
    always, never, cached = (told["arms"][name] for name in some)
    assert (always["saved"], never["saved"]) == (0.0, 1.0)
    assert always["calls"] == always["questions"] > 0 and never["questions"] == 0
    assert cached["questions"] == always["questions"] >= cached["calls"] > 0
    assert never["policy_calls"] == never["steps"] < always["policy_calls"]
    assert all(arm["success"]["n"] == 2 and arm["errors"] == 0 for arm in told["arms"].values())
    assert sum(told["history"][0]["seen"].values()) > 0
    assert told["overlap"]["same"] and told["overlap"]["ratio"]["median"] > 0
    said = capsys.readouterr().out
    assert "Selective imagination" in said and "overlapped rounds" in said


@pytest.mark.parametrize(
    "words", [["--episodes", "0"], ["--latency", "-1"], ["--pairs", "0"]], ids=str
)
def test_numbers_that_cannot_be(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "selective", *words]) == 1
    assert words[0] in capsys.readouterr().err


def test_a_world_model_that_is_no_language_model(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    from comap.benchmarks.selective import _prepared
    from comap.benchmarks.selective_overlap import measure_overlap
    from comap.errors import OptionError

    run = _prepared([*WORDS, "--world-model", "null"], (), 1, 0, Path("nowhere"))
    with pytest.raises(OptionError, match="two language models"):
        measure_overlap(run, 1, 1, 0.0)
