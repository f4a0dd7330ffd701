"""`comap bench paw-overhead`: rows of the right lengths, turns, and honest ratios."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("trl")

from comap.benchmarks.overhead import PaWOverhead, episode_rows, overhead_of
from comap.cli import main
from comap.errors import OptionError


def test_rows_are_as_many_and_as_long_as_asked():
    options = PaWOverhead(rows=1001, groups=4, members=5, architecture="qwen2.5-1.5b")
    rows = episode_rows(options)
    assert len(rows) == 1001 and {row.trajectory for row in rows} == set(range(20))
    assert [row.group for row in rows] == [row.trajectory // 5 for row in rows]
    for name, mean in {"prompt": 600, "response": 120, "observation": 60}.items():
        sizes = np.array([len(getattr(row, f"{name}_ids")) for row in rows])
        assert sizes.mean() == pytest.approx(mean, rel=0.1)
        assert sizes.std() > 0.1 * sizes.mean() and sizes.min() >= 1
    lengths = {row.trajectory: row.episode_length for row in rows}
    assert sum(lengths.values()) == 1001 and max(lengths.values()) - min(lengths.values()) <= 1
    won = {row.trajectory: row.success for row in rows}
    assert 0 < sum(won.values()) < 20  # or there would be nothing to learn
    assert all(
        (row.reward > 0) == (row.success and row.t == row.episode_length - 1) for row in rows
    )
    small = PaWOverhead(rows=8, groups=2, members=2)
    assert episode_rows(small) == episode_rows(small)


@pytest.mark.parametrize("change", [{"rows": 3}, {"updates": 0}, {"members": -1}])
def test_impossible_rows_are_refused(change):
    with pytest.raises(OptionError, match=r"expected a row for each|at least 1"):
        PaWOverhead(**change)


def line(paw, whole, peak=100):
    parts = {"old_logps": 1.0, "advantages": 0.0, "update": whole - 1.0, "all": whole}
    return {"paw": paw, **parts, "cpu": 2 * whole, "peak_bytes": peak}


def test_ratios_are_of_pairs_whichever_came_first():
    found = overhead_of([line(False, 4), line(True, 5, 103), line(True, 12), line(False, 10)])
    ratio = found["ratio"]["all"]
    assert (found["pairs"], ratio["min"], ratio["max"]) == (2, pytest.approx(1.2), 1.25)
    assert found["ratio"]["advantages"] is None  # nothing is no measure of anything
    assert found["ratio"]["cpu"]["median"] == ratio["median"] == pytest.approx(1.225)
    assert found["extra_seconds"]["median"] == 1.5
    assert found["peak_bytes"] == {"off": 100, "on": 103, "ratio": 1.03}
    assert overhead_of([line(False, 4, None), line(True, 5, 7)])["peak_bytes"] is None


def test_paw_is_on_and_off_by_turns_on_the_same_rows(tmp_path, capsys):
    path = tmp_path / "result.json"
    few = ["--rows", "8", "--groups", "2", "--members", "2", "--updates", "2", "--device", "cpu"]
    assert main(["bench", "paw-overhead", *few, "--out", str(path)]) == 0
    result = json.loads(path.read_bytes())
    lines = result["measured"]
    assert [one["paw"] for one in lines] == [True, False, False, True]
    assert [one["observations_read"] for one in lines] == [6, 0, 0, 6]  # 3/4 of 8 rows
    assert result["device"] == "cpu" and 300_000 < result["parameters"] < 700_000
    assert result["tokens"]["header"] == 8 * 4 and result["pairs"] == 2
    for one in lines:
        parts = one["old_logps"] + one["advantages"] + one["update"]
        assert 0 < one["update"] < one["all"] == pytest.approx(parts) and one["cpu"] > 0
    assert "2 pairs: update with PaW" in capsys.readouterr().out
