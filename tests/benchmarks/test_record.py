from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest

from comap.benchmarks.record import circumstances, resident_bytes, spread, write_result


def test_circumstances_name_versions_and_no_one() -> None:
    record = circumstances(["gymnasium", "no-such-package"])
    assert record["versions"]["no-such-package"] is None
    assert record["versions"]["gymnasium"]
    assert record["hardware"]["cores"] >= 1
    text = json.dumps(record)
    assert str(Path.home()) not in text


def test_spread_of_one_value() -> None:
    assert set(spread([2.0]).values()) == {2.0}


def test_resident_bytes_follow_what_is_held() -> None:
    before = resident_bytes()
    if before is None:
        pytest.skip("this system does not tell")
    with mmap.mmap(-1, 64 * 2**20) as held:  # an array could get memory that was held before
        held.write(b"\1" * len(held))
        assert (resident_bytes() or 0) - before > 32 * 2**20


def test_a_failed_write_leaves_the_old_result(tmp_path: Path) -> None:
    path = tmp_path / "results" / "a.json"
    write_result(path, {"n": 1})
    with pytest.raises(TypeError):
        write_result(path, {"n": object()})
    assert json.loads(path.read_text()) == {"n": 1}
