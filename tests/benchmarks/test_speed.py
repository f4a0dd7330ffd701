from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from comap import cli
from comap.benchmarks import speed
from comap.benchmarks.alfworld_script import script_of
from comap.benchmarks.speed_report import PARTS
from comap.envs.alfworld.engine import NativeEngine
from comap.envs.alfworld.game import Game
from comap.envs.alfworld.generate import generate
from comap.errors import DataNotFound, OptionError


@pytest.fixture(autouse=True)
def no_official_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    speed.add_parser(parser.add_subparsers())
    return parser.parse_args(["speed", *words])


def test_scripts_win_at_the_last_command_only() -> None:
    for number in range(5):
        game = Game(generate("train", number).problem)
        script = script_of(game, seed=number)
        assert script == script_of(game, seed=number)
        assert len(game.problem.walkthrough) < len(script) <= 50
        engine = NativeEngine(game)
        for command in script:
            assert not engine.won()
            assert engine.act(command)[1], command
        assert engine.won()


def test_result_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    assert speed.main(parsed("alfworld", "--games", "2", "--out", str(out))) == 0
    result = json.loads(out.read_text())
    assert result["games"] == len(result["per_game"]) == 2
    assert result["steps"] == sum(game["steps"] for game in result["per_game"])
    parts = sum(result["step_parts"][name] for name in PARTS)
    assert parts == pytest.approx(result["ours"]["mean"]["step"])
    assert "theirs" not in result
    assert str(tmp_path) not in out.read_text()
    assert "reset, next game" in capsys.readouterr().out


def test_a_peer_needs_official_games(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataNotFound):
        speed.run("alfworld", "textworld")
    assert cli.main(["bench", "speed", "alfworld", "--peer", "textworld"]) == 1
    assert "comap data get alfworld" in capsys.readouterr().err


def test_unknown_names_are_refused() -> None:
    with pytest.raises(OptionError, match="did you mean 'alfworld'"):
        speed.run("alfwrld")
    with pytest.raises(OptionError, match="did you mean 'textworld'"):
        speed.run("alfworld", "textwold")
