"""The demo's learned agent, with models that stand in for the shipped ones."""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest

from comap.benchmarks.demo import DemoConfig, run_demo
from comap.benchmarks.learned import MOST, chosen, learned_models, learned_table, play_learned
from comap.envs.conformance.transcripts import load
from comap.errors import DataNotFound, MissingExtra
from comap.facts import Delta, State
from comap.lm import shipped as module
from comap.trajectory import Step, Trajectory, read_trajectories

STAND_IN = f"{Path(__file__).parents[1] / 'lm' / 'shipped_stand_in.py'}:stand_in"
ENV = "comap/ALFWorld-v0"
SMALL = {"train_tasks": 1, "test_tasks": 1, "lengths": (1,), "error_rates": ()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    place: Path = load(STAND_IN)(tmp_path_factory.mktemp("models"))
    return place


@pytest.fixture
def models(root: Path, monkeypatch: pytest.MonkeyPatch) -> module.Shipped:
    monkeypatch.setattr(module, "_package_folder", lambda: root)
    return learned_models(ENV)


def test_both_agents_play_with_the_shipped_policy(models: module.Shipped) -> None:
    make_env = partial(gym.make, ENV, source="generated", max_episode_steps=2)
    tasks = make_env().unwrapped.tasks.ids[: MOST + 5]
    done: list[None] = []
    found, episodes = play_learned(make_env, tasks, models, advance=lambda: done.append(None))
    assert [told.agent for told in found] == ["comap", "react"]
    assert [episode.agent for episode in episodes] == ["comap"] * MOST + ["react"] * MOST
    assert len(done) == 2 * MOST and not [e.error for e in episodes if e.error]
    comap, react = found
    assert comap.success.n == MOST and comap.steps == 2.0 and comap.reflected == 2 * MOST
    steps = [step for episode in episodes[:MOST] for step in episode.steps]
    assert comap.revised == sum(
        step.notes["exec_action"] != step.notes["draft_action"] for step in steps
    )
    assert react.reflected == react.revised == 0
    settings = episodes[0].settings
    assert settings["decoding"] == "masked" and settings["model"] == "shipped:agent"
    assert episodes[-1].settings["temperature"] == 0.0, "the same policy, asked the same way"
    again, same = play_learned(make_env, tasks, models)
    assert again == found and [e.to_json() for e in same] == [e.to_json() for e in episodes]
    table = learned_table(found, models.parameters)
    assert [row[-1] for row in table.rows] == [MOST, MOST] and table.rows[1][5] is None
    assert "0.2 M parameters" in table.note and "failed" not in table.note


def test_what_shows_most_comes_first() -> None:
    def episode(task: str, agent: str, success: bool, *gates: bool) -> Trajectory:
        notes = [{"path": "reflected", "gate": gate} for gate in gates]
        notes.append({"path": "draft_only_fallback", "gate": False})
        steps = tuple(
            Step(
                t,
                "look",
                "",
                0.0,
                False,
                False,
                False,
                State(),
                Delta(),
                success=success,
                notes=note,
            )
            for t, note in enumerate(notes, 1)
        )
        return Trajectory(ENV, task, "dev", "", agent, "", State(), steps)

    some = [
        episode("lost", "comap", False, True),
        episode("won, never revised", "comap", True, False),
        episode("another agent's", "react", True),
        episode("won, revised", "comap", True, False, True),
    ]
    assert [e.task for e in chosen(some)] == ["won, revised", "won, never revised"]
    assert [e.task for e in chosen(some, 9)][-1] == "lost" and len(chosen(some, 9)) == 3


def test_the_demo_shows_it(
    models: module.Shipped, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = run_demo(DemoConfig(out=str(tmp_path), **SMALL)).read_text("utf-8")  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert "A learned agent: success" in told and "CoMap, with its own world model" in page
    packed = re.findall(r"<script[^>]*>([A-Za-z0-9+/=]+)</script>", page)
    shown = "".join(zlib.decompress(base64.b64decode(one)).decode() for one in packed)
    assert "comap, learned: " in page + shown
    assert "draft_action" in shown and "predicted_next_state" in shown
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert [row["agent"] for row in results["learned"]] == ["comap", "react"]
    assert len(list(read_trajectories(tmp_path / "learned.jsonl"))) == 2


def test_without_packages_or_models_a_line_says_what_adds_it(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "_package_folder", lambda: tmp_path)
    with pytest.raises(DataNotFound, match="comap bench shipped"):
        learned_models(ENV)
    monkeypatch.setattr(module, "_package_folder", lambda: root)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtra):
            learned_models(ENV)
        run_demo(DemoConfig(out=str(tmp_path), **SMALL))  # type: ignore[arg-type]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "learned" in line]
    assert line.startswith("No learned agent is shown: ") and 'pip install "comap[local]"' in line
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["learned"] == []
