"""``comap bench list | run | report`` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks.experiments.definition import experiment_ids
from comap.benchmarks.experiments.rows import read_rows
from comap.cli import main
from comap.cli_bench import wanted


def test_all_and_each_paper_stand_for_many() -> None:
    assert [one.id for one in wanted(["all"])] == list(experiment_ids())
    assert {one.paper for one in wanted(["paw"])} == {"PaW"}
    assert [one.id for one in wanted(["paw-t1", "comap-t1", "paw-t1"])] == ["comap-t1", "paw-t1"]


def test_list_tells_every_table_and_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in experiment_ids())


def test_a_dry_run_prints_configuration_commands_and_cost_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [
        "bench",
        "run",
        "comap-t2",
        "paw-t1",
        "--scale",
        "paper",
        "--dry-run",
        "--out",
        str(out),
    ]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert not out.exists()
    assert "comap train comap --preset paper --model Qwen/Qwen3-8B" in told
    assert '"eta": 0.5' in told and '"lora_r": 8' in told  # every setting, the preset's included
    assert '"rho": 0.2' in told and '"updates": 150' in told
    assert "GPU-hours" in told and "cited" in told and "the cost is not known" in told


def test_tables_that_need_no_run_are_there_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "run", "comap-t4", "comap-t5", "--out", str(tmp_path), "--workers", "1"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "tau_p, tau_q" in told and "6 of 6 jobs done" in told
    rows = list(read_rows(tmp_path / "rows.jsonl"))
    assert {row.experiment for row in rows} == {"comap-t4", "comap-t5"}
    assert all(row.job and row.config_hash and row.code_version for row in rows if not row.error)
    for name in ("report.md", "report.tex", "report.html", "plan.json", "journal.jsonl"):
        assert (tmp_path / name).stat().st_size, name
    assert main(["bench", "report", str(tmp_path), "comap-t5", "--formats", "md", "--out",
                 str(tmp_path / "again")]) == 0  # fmt: skip
    assert [path.name for path in (tmp_path / "again").glob("report.*")] == ["report.md"]


def test_what_a_folder_held_before_stays(tmp_path: Path) -> None:
    for name in ("comap-t5", "comap-t4"):
        assert main(["bench", "run", name, "--out", str(tmp_path), "--workers", "1"]) == 0
    assert json.loads((tmp_path / "plan.json").read_text())["experiments"] == [
        "comap-t4",
        "comap-t5",
    ]
    assert {row.experiment for row in read_rows(tmp_path / "rows.jsonl")} == {
        "comap-t4",
        "comap-t5",
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "comap-t9"], "there is no experiment 'comap-t9'; did you mean"),
        (["run", "comap-t4", "--scale", "tinny"], "there is no scale 'tinny'; did you mean 'tiny'"),
        (["run", "comap-t2", "--scale", "paper"], "expected official data for comap/ALFWorld-v0"),
        (["run", "comap-t4", "--data", "games"], "expected --data as ENV=PLACE, found 'games'"),
        (["run", "comap-t4", "--seeds", "-1"], "expected seeds of 0 or more"),
        (["run", "comap-t5", "--workers", "0"], "--workers must be at least 1"),
        (["report", "nowhere"], "expected results of 'comap bench run' in nowhere, found none"),
    ],
)
def test_mistakes_are_told_in_a_line(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 1
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and "fault of comap" not in error


def test_a_folder_of_one_scale_is_not_gone_on_with_at_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "run", "comap-t5", "--out", str(tmp_path), "--workers", "1"]) == 0
    assert main(["bench", "run", "comap-t5", "--scale", "small", "--out", str(tmp_path)]) == 1
    assert "found one of scale tiny" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "[]", '{"scale": 3}', '{"scale": "tiny"}'])
def test_a_damaged_plan_is_told(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(content)
    assert main(["bench", "report", str(tmp_path)]) == 1
    assert "expected what was run in" in capsys.readouterr().err
