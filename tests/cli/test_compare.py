"""`comap compare`, as one types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from comap.cli import main
from comap.trajectory import read_trajectories
from kits.commands import run, say


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    for agent in ("random", "expert"):
        options = ["--env-option", "max_episode_steps=20", "--out", str(folder / agent)]
        assert run("--agent", agent, *options) == 0
    return [str(folder / "random"), str(folder / "expert")]


def test_two_runs_are_compared(runs: list[str], tmp_path: Path) -> None:
    file = tmp_path / "comparison.json"
    code, table, mistakes = say("compare", *runs, "--out", str(file))
    assert (code, mistakes) == (0, "")
    assert "expert against random: 4 generated tasks" in table
    # Of four tasks all are the expert's alone: 2 / 2^4.
    assert re.search(r"success, % +0\.0 +100\.0 +\+100\.0 \[\+100\.0, \+100\.0\] +0\.12", table)
    assert "  expert: 4 (generated/valid_unseen/" in table and "  random: 0" in table
    assert "agent.name: 'random' in random, 'expert' in expert" in table
    assert say("compare", *runs, "--out", str(file))[1] == table, "the bootstrap has a fixed seed"

    (comparison,) = json.loads(file.read_text("utf-8"))["comparisons"]
    assert comparison["p_value"] == 0.125 and len(comparison["second_wins"]) == 4
    steps = comparison["differences"]["steps"]
    assert steps["first"] == 20.0 and steps["low"] <= steps["value"] <= steps["high"] < 0
    assert str(tmp_path) not in json.dumps(comparison)


def test_one_task_is_called_so(runs: list[str], tmp_path: Path) -> None:
    (first, *_) = read_trajectories(Path(runs[0], "trajectories.jsonl"))
    one_task_run = str(tmp_path / "one")
    assert run("--agent", "expert", "--tasks", first.task, "--out", one_task_run) == 0
    assert "with 1 task the intervals" in say("compare", runs[0], one_task_run)[1]


def test_the_other_order_turns_the_signs(runs: list[str]) -> None:
    _, table, _ = say("compare", *runs[::-1])
    assert "random against expert" in table and "-100.0 [-100.0, -100.0]" in table


def test_the_comparison_is_on_the_page_of_both(runs: list[str], tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="the extra viz is not installed")
    page = tmp_path / "page.html"
    assert main(["view", *runs, "--no-open", "--out", str(page)]) == 0
    markup = page.read_text("utf-8")
    assert "expert against random" in markup and "+100.0 [+100.0, +100.0]" in markup
    assert "solved by" in markup and "McNemar" in markup


def test_runs_of_other_tasks_are_refused(runs: list[str], tmp_path: Path) -> None:
    other_split_run = str(tmp_path / "other")
    assert run("--agent", "expert", "--split", "valid_seen", "--out", other_split_run) == 0
    code, printed, mistake = say("compare", runs[0], other_split_run)
    assert (code, printed) == (2, "") and len(mistake.splitlines()) == 1
    assert "split: valid_unseen in random, valid_seen in other" in mistake
    code, _, mistake = say("compare", runs[0], other_split_run, "--accept", "split")
    assert code == 2 and "tasks that both runs played, found none" in mistake
