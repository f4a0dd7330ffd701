"""``comap bench list | run | report`` as a user meets them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import comap
from comap.benchmarks.experiments.definition import experiment_ids, read_rows
from comap.benchmarks.experiments.session import experiments_named
from comap.cli import main

TINY = Path(comap.__file__).parent / "benchmarks" / "results" / "experiments-tiny"


def test_all_and_each_paper_stand_for_many():
    assert [definition.id for definition in experiments_named(["all", "lab"])] == list(
        experiment_ids()
    )
    assert {definition.paper for definition in experiments_named(["paw"])} == {"PaW"}
    assert [
        definition.id for definition in experiments_named(["paw-t1", "comap-t1", "paw-t1"])
    ] == [
        "comap-t1",
        "paw-t1",
    ]


def test_list_tells_every_table_and_figure(capsys):
    assert main(["bench", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in experiment_ids())


def test_a_dry_run_prints_commands_and_cost_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    words = ["bench", "run", "comap-t2", "paw-t1", "--scale", "paper", "--dry-run"]
    assert main([*words, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert not out.exists()
    assert "comap train comap --preset paper --model Qwen/Qwen3-8B" in printed
    assert "GPU-hours" in printed and "cited" in printed and "the cost is not known" in printed


def test_results_without_their_jobs_are_reported_as_they_are(tmp_path, capsys):
    shutil.copytree(TINY, tmp_path / "tiny")
    assert main(["bench", "report", str(tmp_path / "tiny"), "--formats", "tex"]) == 0
    assert "Measured here" in capsys.readouterr().out
    for name in ("rows.jsonl", "report.tex"):
        assert (tmp_path / "tiny" / name).read_bytes() == (TINY / name).read_bytes(), name


def test_tables_that_need_no_run_are_there_at_once_and_what_a_folder_held_stays(tmp_path, capsys):
    for name in ("comap-t5", "comap-t4"):
        assert main(["bench", "run", name, "--out", str(tmp_path), "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "BCE weight" in printed and "5 of 5 jobs done" in printed
    rows = list(read_rows(tmp_path / "rows.jsonl"))
    assert {row.experiment for row in rows} == {"comap-t4", "comap-t5"}
    assert all(row.job and row.config_hash and row.code_version for row in rows if not row.error)
    for name in ("report.md", "report.tex", "report.html", "plan.json", "journal.jsonl"):
        assert (tmp_path / name).stat().st_size, name
    shutil.rmtree(tmp_path / "jobs" / next(row.job for row in rows if row.experiment == "comap-t4"))
    assert main(["bench", "report", str(tmp_path), "--formats", "md"]) == 0
    assert sorted(map(repr, read_rows(tmp_path / "rows.jsonl"))) == sorted(map(repr, rows)), "kept"
    assert main(["bench", "run", "comap-t4", "--out", str(tmp_path), "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "from another machine: 1\n" in printed and "4 of 4 jobs done" in printed
    out = tmp_path / "again"
    words = ["bench", "report", str(tmp_path), "comap-t5", "--formats", "md", "--out", str(out)]
    assert main(words) == 0
    assert [path.name for path in out.glob("report.*")] == ["report.md"]
    assert main(["bench", "run", "comap-t5", "--scale", "small", "--out", str(tmp_path)]) == 2
    assert "found one of scale tiny" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "[]", '{"scale": 3}', '{"scale": "tiny"}'])
def test_a_damaged_plan_is_told(tmp_path, content, capsys):
    (tmp_path / "plan.json").write_text(content)
    assert main(["bench", "report", str(tmp_path)]) == 1
    assert "expected what was run in" in capsys.readouterr().err
