"""The files of a PaW training that grow by lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comap.errors import DataCorrupt
from comap.trainers.paw.journal import EVALUATIONS, METRICS, Journal, read_lines

LINES: list[dict[str, Any]] = [
    {"update": number, "success": 0.1 * number, "kl": None} for number in (1, 2, 3)
]


def written(out: Path, lines: list[dict[str, Any]] = LINES) -> Journal:
    journal = Journal(out)
    journal.begin_after(0)
    for line in lines:
        journal.update(line)
    return journal


def test_lines_come_back_as_they_were(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_lines(tmp_path / METRICS) == LINES
    assert read_lines(tmp_path / "nothing.jsonl") == []


@given(cut=st.integers(1, 200))
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_line_that_is_half_written_is_none(tmp_path: Path, cut: int) -> None:
    """A kill at any byte loses the last line alone; the next session writes on behind the others."""
    path = tmp_path / METRICS
    path.unlink(missing_ok=True)
    written(tmp_path)
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: len(whole) - min(cut, last)])
    assert read_lines(path) == LINES[:2]
    journal = Journal(tmp_path)
    journal.begin_after(3)
    journal.update(LINES[2])
    assert path.read_bytes() == whole


def test_what_is_done_again_is_forgotten(tmp_path: Path) -> None:
    journal = written(tmp_path)
    for update in (0, 2, 3):
        journal.evaluation({"update": update, "split": "valid_seen", "success": 0.5})
    before = (tmp_path / METRICS).read_bytes().splitlines(keepends=True)
    again = Journal(tmp_path)
    again.begin_after(2)
    assert (tmp_path / METRICS).read_bytes() == b"".join(before[:2])
    assert [update for update in range(4) if again.evaluated(update, "valid_seen")] == [0, 2]
    assert not again.evaluated(0, "test")
    again.evaluation({"update": 3, "split": "test"})
    assert again.evaluated(3, "test") and not again.evaluated(3, "valid_seen")
    again.begin_after(0)
    assert not (tmp_path / METRICS).read_bytes() and again.evaluated(0, "valid_seen")
    assert not again.evaluated(2, "valid_seen")


@pytest.mark.parametrize(
    "damage", ["", "not JSON", "[1]", '"text"', "{}", '{"update": "1"}', "null", "\x00\x00", "\xff"]
)
def test_a_damaged_line_is_told_with_its_number(tmp_path: Path, damage: str) -> None:
    written(tmp_path)
    path = tmp_path / METRICS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + damage.encode("latin-1") + b"\n" + lines[2])
    for attempt in (lambda: read_lines(path), lambda: Journal(tmp_path).begin_after(3)):
        with pytest.raises(DataCorrupt, match=r"in line 2 of .*metrics\.jsonl.*remove that line"):
            attempt()
    assert len(path.read_bytes().splitlines()) == 3, "nothing is thrown away"
    path.write_bytes(lines[0] + damage.encode("latin-1") + b"\n")
    assert read_lines(path) == LINES[:1]


@pytest.mark.parametrize("split", [None, 3, ["valid_seen"]])
def test_an_evaluation_says_of_which_split(tmp_path: Path, split: Any) -> None:
    line = {"update": 1, **({} if split is None else {"split": split})}
    right = json.dumps({"update": 1, "split": "test"})
    (tmp_path / EVALUATIONS).write_text(f"{json.dumps(line)}\n{right}\n")
    with pytest.raises(DataCorrupt, match=r"line 1 of .*evaluations\.jsonl"):
        Journal(tmp_path).begin_after(1)


def test_only_the_first_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    monkeypatch.setenv("RANK", "1")
    journal.update(LINES[0])
    journal.evaluation({"update": 1, "split": "test"})
    assert not list(tmp_path.iterdir())
    assert journal.evaluated(1, "test"), "all processes know what was evaluated"
