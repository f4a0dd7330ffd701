"""Steps through servers are those without one, and what they cost is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks import serving_speed
from comap.benchmarks.serving_speed import WAYS, Played, Way, measure_serving
from comap.cli import main
from comap.errors import EngineError, OptionError


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(serving_speed, "WAYS", {name: WAYS[name] for name in names})


def test_a_server_is_measured_by_its_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, "no server", "AgentGym's style", "the same, a connection a request")
    out = tmp_path / "serving.json"
    words = ["bench", "serving", "--episodes", "2", "--turns", "1", "--out", str(out)]
    assert main(words) == 0
    found = json.loads(out.read_bytes())
    here, served, anew = found["ways"].values()
    assert here["steps"] == served["steps"] == anew["steps"] > 4
    assert here["same"] and served["same"] and anew["same"]
    assert 0 < here["ms"]["median"] <= here["ms"]["p95"] < served["ms"]["p95"]
    assert here["server_cpu_ms"] is None and served["server_cpu_ms"] >= 0
    assert found["versions"]["gymnasium"] and "the same, a connection" in capsys.readouterr().out


def test_another_text_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = WAYS["no server"]

    def wrong(url: str, episodes: object) -> Played:
        played = right.play(url, episodes)  # type: ignore[arg-type]
        return Played(played.seconds, [*played.texts[:-1], "another"])

    monkeypatch.setattr(serving_speed, "WAYS", {"right": right, "wrong": Way(None, (), wrong)})
    found = measure_serving(1, 1)["ways"]
    assert found["right"]["same"] and not found["wrong"]["same"]
    assert main(["bench", "serving", "--episodes", "1", "--turns", "1"]) == 1


def test_what_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="at least 1"):
        measure_serving(0)
    missing = Way("openenv", ("no_such_module",), WAYS["OpenEnv"].play)
    broken = Way("no-such-style", (), WAYS["AgentGym's style"].play)
    monkeypatch.setattr(serving_speed, "WAYS", {"here": WAYS["no server"], "missing": missing})
    assert list(measure_serving(1, 1)["ways"]) == ["here"]
    monkeypatch.setattr(serving_speed, "WAYS", {"broken": broken})
    with pytest.raises(EngineError, match="no-such-style"):
        measure_serving(1, 1)
