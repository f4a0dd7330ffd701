from __future__ import annotations

import dataclasses
import hashlib
import pickle

import pytest

from comap.envs import Panel
from comap.errors import TaskNotFound


def test_order_and_digest_come_from_the_ids_alone() -> None:
    from_list = Panel.of(["b/2", "a/1", "b/10", "a/1"], "dev", ("train", "dev"))
    from_set = Panel.of({"b/10", "a/1", "b/2"}, "dev", ["train", "dev"])
    assert from_list == from_set
    assert from_list.ids == ("a/1", "b/10", "b/2")
    assert from_list.sha256 == hashlib.sha256(b"a/1\nb/10\nb/2\n").hexdigest()
    assert from_list.sha256 != Panel.of(["a/1"], "dev", ("dev",)).sha256
    assert from_list.sha256 == Panel.of(from_list.ids, "other", ()).sha256


def test_it_is_a_collection() -> None:
    panel = Panel.of(["b", "a"], "dev", ("dev",))
    assert (len(panel), list(panel), "a" in panel, "c" in panel, 3 in panel) == (
        2,
        ["a", "b"],
        True,
        False,
        False,
    )
    assert pickle.loads(pickle.dumps(panel)) == panel
    with pytest.raises(dataclasses.FrozenInstanceError):
        panel.split = "x"  # type: ignore[misc]


def test_it_prints_as_a_line_however_many_tasks_it_has() -> None:
    small, large = (Panel.of(map(str, range(n)), "dev", ("dev",)) for n in (2, 3_553))
    assert "2 tasks ('0', '1')" in repr(small)
    assert "3,553 tasks" in repr(large) and large.sha256[:8] in repr(large)
    assert len(repr(large)) < 120


def test_a_missing_task_is_explained() -> None:
    panel = Panel.of([f"dev/{i:04}" for i in range(500)], "dev", ("dev",))
    error = panel.missing("dev/042")
    assert isinstance(error, TaskNotFound)
    for part in ("500 tasks", "'dev'", "'dev/042'", "did you mean", "env.unwrapped.tasks.ids"):
        assert part in str(error)
    assert "and 497 more" in str(panel.missing("zzz"))
