"""Runs against each other: what is compared, what is refused, and how it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.comparison import (
    compare_runs,
    comparison_lines,
    comparison_table,
    outcome_of,
    wins_table,
)
from comap.benchmarks.display import print_table
from comap.errors import DataNotFound, OptionError
from comap.trajectory import Trajectory, write_trajectories
from kits.episode_pages import EVIL, START, foreseen, step, trajectory

TASKS = tuple(f"generated/train/{number}" for number in range(6))
FINGERPRINT = {"env": "comap/ALFWorld-v0", "comap": "1", "panel": "p", "data": "generated"}


def episode(task: str = TASKS[0], success: bool = False, **overrides: Any) -> Trajectory:
    last = step(1, START, START, terminated=True, success=success, score=float(success))
    fields: dict[str, Any] = {
        "env_id": "comap/ALFWorld-v0",
        "task": task,
        "split": "train",
        "agent": "react",
        "seed": 0,
        "fingerprint": FINGERPRINT,
        **overrides,
    }
    return replace(trajectory(last), **fields)


def run_of(
    folder: Path, episodes: list[Trajectory], prompts: str | None = None, **record: Any
) -> Path:
    """Write a folder as `comap run` does, and return it."""
    folder.mkdir(parents=True)
    write_trajectories(folder / "trajectories.jsonl", episodes)
    described: dict[str, Any] = {"format": "comap run 1", "sessions": [], **record}
    if prompts is not None:
        described["prompts"] = {"sha256": prompts}
    (folder / "run.json").write_text(json.dumps(described), "utf-8")
    return folder


def task_episodes(**fields: Any) -> list[Trajectory]:
    return [episode(task, number < 2, **fields) for number, task in enumerate(TASKS)]


def single_comparison(runs: list[Path], **options: Any) -> dict[str, Any]:
    (comparison,) = compare_runs(runs, **options)["comparisons"]
    return comparison


def test_predictions_are_scored_as_in_summaries() -> None:
    outcome = outcome_of(foreseen().real)
    assert (outcome.delta_f1, outcome.delta_f1_nonempty) == (0.8, 0.8)
    assert (outcome.success, outcome.steps) == (foreseen().real.success, 2)
    unasked = outcome_of(episode())
    assert unasked.delta_f1 is None and unasked.delta_f1_nonempty is None


OTHERS = {
    "environment": {"env_id": "comap/WebShop-v0"},
    "split": {"split": "valid_unseen"},
    "data": {"fingerprint": FINGERPRINT | {"data": "official"}},
    "catalog": {"fingerprint": FINGERPRINT | {"catalog": "b"}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_runs_of_other_conditions_are_refused(tmp_path: Path, name: str) -> None:
    fingerprint = FINGERPRINT | {"catalog": "a"}
    runs = [
        run_of(tmp_path / "first", task_episodes(fingerprint=fingerprint)),
        run_of(tmp_path / "second", task_episodes(**{"fingerprint": fingerprint, **OTHERS[name]})),
    ]
    with pytest.raises(OptionError, match=name) as refusal:
        compare_runs(runs)
    assert " in first" in str(refusal.value) and " in second" in str(refusal.value)
    if name == "environment":
        return

    assert f"--accept '{name}'" in str(refusal.value)
    comparison = single_comparison(runs, accept=(name,))
    assert comparison["n"] == 6 and comparison["notes"][0].startswith(f"not the same {name}: ")


def test_generated_and_official_tasks_have_no_overlap(tmp_path: Path) -> None:
    generated = run_of(tmp_path / "generated", task_episodes())
    official = run_of(tmp_path / "official", [episode("train/pick_one/trial_1")])
    with pytest.raises(OptionError, match="generated in generated, official in official"):
        compare_runs([generated, official])
    train_run = run_of(tmp_path / "other", [episode("generated/train/77")])
    with pytest.raises(OptionError, match=r"cannot compare other with generated.*found none"):
        compare_runs([generated, train_run])


def test_other_prompts_are_refused(tmp_path: Path) -> None:
    standard = {"settings": {"prompts": "standard"}}
    first = run_of(tmp_path / "first", task_episodes(**standard), prompts="aaa")
    changed = run_of(tmp_path / "changed", task_episodes(**standard), prompts="bbb")
    with pytest.raises(OptionError, match=r"prompts: aaa in first, bbb in changed"):
        compare_runs([first, changed])
    assert single_comparison([first, changed], accept=["prompts"])["n"] == 6

    # A file without its folder says the style alone; agents without a model have no prompts.
    brief = tmp_path / "brief.jsonl"
    write_trajectories(brief, task_episodes(settings={"prompts": "brief"}))
    with pytest.raises(OptionError, match=r"prompts: standard in first, brief in brief\.jsonl"):
        compare_runs([first, brief])
    unprompted = run_of(tmp_path / "random", task_episodes(agent="random"))
    assert single_comparison([first, unprompted])["n"] == 6


def test_what_else_differs_is_said(tmp_path: Path) -> None:
    first = run_of(
        tmp_path / "first",
        [*task_episodes(), episode(TASKS[0], seed=1)],
        language_model={"name": "small", "timeout": 1},
        config={"env_options": {"max_episode_steps": 20}},
    )
    second = run_of(
        tmp_path / "second",
        [
            episode(TASKS[4], True, agent="comap", error="EngineError: x"),
            *task_episodes(agent="comap", fingerprint=FINGERPRINT | {"comap": "2", "panel": "q"})[
                1:4
            ],
            episode("generated/train/9"),
        ],
        language_model={"name": "large", "timeout": 9},
        config={"env_options": {"max_episode_steps": 30}},
    )
    comparison = single_comparison([first, second])
    notes = "\n".join(comparison["notes"])
    assert "compared of first: 4 of 6 tasks, 4 of 7 episodes" in notes
    assert "compared of second: 4 of 5 tasks, 4 of 5 episodes" in notes
    assert "episodes of second that a fault ended: 1;" in notes
    assert "with 4 tasks the intervals are too narrow" in notes
    for difference in (
        "agent.name: 'react' in first, 'comap' in second",
        "language_model.name: 'small' in first, 'large' in second",
        "env_options.max_episode_steps: 20 in first, 30 in second",
        "versions.comap: '1' in first, '1, 2' in second",
    ):
        assert difference in notes
    assert "timeout" not in notes, "answers do not depend on it"


def test_runs_are_two_or_more_and_different(tmp_path: Path) -> None:
    first = run_of(tmp_path / "first", task_episodes())
    with pytest.raises(OptionError, match="two or more runs to compare, found 1"):
        compare_runs([first])
    with pytest.raises(OptionError, match="twice"):
        compare_runs([first, first / "trajectories.jsonl"])
    with pytest.raises(DataNotFound, match="no such file"):
        compare_runs([first, tmp_path / "none"])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataNotFound, match="no whole line"):
        compare_runs([first, tmp_path / "empty.jsonl"])


def test_tables_have_what_was_compared(tmp_path: Path) -> None:
    first = run_of(tmp_path / "first", task_episodes())
    second = run_of(tmp_path / "second", [episode(task, task != TASKS[0]) for task in TASKS])
    comparison = single_comparison([first, second])
    table = comparison_table(comparison)
    assert table.title == "second against first: 6 generated tasks"
    rows = {row[0]: row[1:] for row in table.rows}
    low, high = (comparison["differences"]["success"][end] for end in ("low", "high"))
    interval = f"[{100 * low:+.1f}, {100 * high:+.1f}]"
    # Four tasks that the second wins alone, one of the first: 2 (1 + 5) / 2^5.
    assert rows["success, %"] == ("33.3", "83.3", f"+50.0 {interval}", "0.38")
    assert rows["steps in an episode"] == ("1.0", "1.0", "+0.0 [+0.0, +0.0]", "")
    assert "McNemar" in table.note

    wins = wins_table(comparison)
    assert wins.rows == (*((task, "second") for task in TASKS[2:]), (TASKS[0], "first"))
    assert comparison_lines(comparison)[:3] == [
        "Tasks that one run solves and the other does not:",
        f"  second: 4 ({', '.join(TASKS[2:])})",
        f"  first: 1 ({TASKS[0]})",
    ]
    json.dumps(comparison, allow_nan=False)


def test_with_several_seeds_the_test_is_another(tmp_path: Path) -> None:
    runs = []
    for name, wins in (("first", 1), ("second", 2)):
        episodes = []
        for task in TASKS:
            episodes += [episode(task, seed < wins, seed=seed) for seed in range(3)]
        runs.append(run_of(tmp_path / name, episodes))
    comparison = single_comparison(runs)
    assert (comparison["n"], comparison["episodes"]) == (6, (18, 18))
    table = comparison_table(comparison)
    assert "sign test over tasks" in table.note and table.rows[0][-1] == "0.031"
    labels = [row[0] for row in table.rows]
    assert labels[-2:] == ["pass@2, %", "pass^2, %"]
    assert wins_table(comparison).title.endswith("more often than the other")


def test_hostile_runs_are_only_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2", reason="the extra viz is not installed")
    from comap.benchmarks import view_run

    hostile = {
        "env_id": EVIL,
        "split": EVIL,
        "goal": EVIL,
        "settings": {EVIL: EVIL, "prompts": EVIL},
        "fingerprint": {EVIL: EVIL},
    }
    first = run_of(tmp_path / "[red]a", [episode(EVIL, agent=EVIL, **hostile)])
    second = run_of(tmp_path / "[bold]b", [episode(EVIL, True, agent="b" + EVIL, **hostile)])
    comparison = single_comparison([first, second])
    print_table(comparison_table(comparison))
    for line in comparison_lines(comparison):
        print(line)
    printed = capsys.readouterr().out
    assert "[red]a" in printed and "[bold]b" in printed, "no markup of rich's"
    assert not {"\x1b", "\x00", "\u202e", "\u2028"} & set(printed)

    markup = view_run([first, second]).read_text("utf-8")
    assert "[bold]b against [red]a" in markup and "McNemar" in markup
    assert "<script>document" not in markup and "<img src=x" not in markup
    assert not {"\x1b", "\x00", "\u202e", "\u2028"} & set(markup)


def test_a_page_says_why_runs_are_not_compared(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="the extra viz is not installed")
    from comap.benchmarks import view_run

    first = run_of(tmp_path / "first", task_episodes())
    second = run_of(tmp_path / "second", task_episodes(split="valid_seen"))
    markup = view_run([first, second]).read_text("utf-8")
    assert "second against first" in markup and "split: train in first" in markup
    assert "McNemar" not in markup
