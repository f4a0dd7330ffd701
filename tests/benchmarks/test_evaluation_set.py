"""Frozen sets of transitions: never others, whole or refused, and drawn again the same."""

from __future__ import annotations

import json
import lzma
import shutil
from collections import Counter
from contextlib import closing

import pytest

from comap.benchmarks import evaluation_set, load_evaluation_set, scores_of_set
from comap.envs.registry import text_env_of
from comap.envs.scienceworld.simulator import find_java
from comap.errors import CoMapError, DataCorrupt, MissingExtra, OptionError
from comap.worldmodel import NullWorldModel

V1 = "9d703ab2fc3206ea964ee80a064f964c65b32cb91dac1d2337c9d6ef5418a239"
STORED = [
    "comap/ALFWorld-v0",
    "comap/WebShop-v0",
    "comap/StableToolBench-v0",
    "comap/SearchQA-v0",
    "comap/Web-v0",
]
SCIENCEWORLD = evaluation_set.SCIENCEWORLD


@pytest.fixture(scope="module")
def v1():
    return load_evaluation_set("v1")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A folder of sets that may be damaged."""
    folder = tmp_path / "sets"
    shutil.copytree(evaluation_set.FOLDER, folder)
    monkeypatch.setenv("COMAP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(evaluation_set, "FOLDER", folder)
    evaluation_set.manifest_of.cache_clear()
    yield folder
    evaluation_set.manifest_of.cache_clear()


def test_v1_never_changes(v1):
    assert v1.sha256 == V1
    assert list(v1.parts) == STORED
    for items in v1.parts.values():
        assert len(items) == 200
        assert len({item.id for item in items}) == 200


def test_no_kind_is_most_of_an_environment(v1):
    for env_id, items in v1.parts.items():
        kinds = Counter(item.kind for item in items)
        assert kinds["refused"] == 44 and kinds["end"] <= 16, env_id
        assert sum(item.changes for item in items) >= 100, env_id
        assert len({item.task for item in items}) >= 50, env_id
        assert {item.play for item in items} == {"expert", "half-random", "refused"}, env_id


def test_beliefs_are_those_that_the_texts_lead_to(v1):
    for env_id, items in v1.parts.items():
        canonicalizer = text_env_of(env_id).canonicalizer
        for item in items:
            query, observation = item.transition
            assert canonicalizer.update(query.state, query.action, observation) == item.after, (
                item.id
            )


def test_the_truth_is_all_right_and_that_nothing_happens_is_right_where_nothing_does(v1):
    truth = {}
    silence = {}
    null = NullWorldModel()
    for items in v1.parts.values():
        for item in items:
            query, observation = item.transition
            truth[item.id] = observation
            silence[item.id] = null.predict([query])[0].observation

    scores = scores_of_set(v1, truth)
    assert scores["mean"] == {"environments": 5, "delta_f1": 1.0, "low": 1.0, "high": 1.0}
    assert scores["mean_all"] is None
    for numbers in scores["environments"].values():
        assert (numbers["same_text"], numbers["unreadable"]) == (1.0, 0.0)

    floor = scores_of_set(v1, silence)["environments"]["comap/ALFWorld-v0"]
    assert floor["foreseeable"] == floor["revealing"] == 0.0
    assert floor["refused"] == floor["idle"] == 1.0
    assert floor["low"] < floor["delta_f1"] < floor["high"]


def test_what_models_learn_from_are_other_tasks(v1):
    for env_id, items in v1.parts.items():
        with closing(evaluation_set.environment(env_id, "train")) as env:
            train = set(env.get_wrapper_attr("tasks").ids)
        assert train.isdisjoint(item.task for item in items), env_id


@pytest.mark.parametrize("env_id", ["comap/ALFWorld-v0", "comap/StableToolBench-v0"])
def test_a_part_is_drawn_again_the_same(env_id, tmp_path, monkeypatch):
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    expected = evaluation_set.manifest_of("v1")["environments"][env_id]["sha256"]
    assert evaluation_set.digest(evaluation_set.draw("v1", env_id)) == expected


def test_a_drawn_part_is_the_sets_or_left_out(tmp_path, monkeypatch):
    """ScienceWorld's simulator draws other transitions of fewer tasks: as another Java might."""
    try:
        find_java()
        with closing(evaluation_set.environment(SCIENCEWORLD, "test")):
            pass
    except CoMapError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    monkeypatch.setattr(evaluation_set, "_SLOW_TASKS", 2)
    lines = []
    parts = load_evaluation_set("v1", drawn=True, tell=lines.append)
    assert SCIENCEWORLD not in parts.parts
    assert "found others" in parts.missing[SCIENCEWORLD]
    assert any("left out" in line for line in lines)


def test_without_java_the_others_are_there(tmp_path, monkeypatch):
    def environment(*_):
        raise MissingExtra.of("scienceworld", "playing ScienceWorld")

    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    monkeypatch.setattr(evaluation_set, "environment", environment)
    lines = []
    parts = load_evaluation_set("v1", drawn=True, tell=lines.append)
    assert list(parts.parts) == STORED and list(parts.missing) == [SCIENCEWORLD]
    assert "scienceworld" in lines[0]


def test_a_damaged_set_is_refused(copied):
    stored = copied / "v1.jsonl.xz"
    whole = stored.read_bytes()

    stored.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataCorrupt, match="install comap again"):
        load_evaluation_set("v1")

    lines = lzma.decompress(whole).splitlines(keepends=True)
    row = json.loads(lines[7])
    row["observation"] += " Something else."
    lines[7] = json.dumps(row, sort_keys=True).encode() + b"\n"
    for damaged in (b"".join(lines), b"".join(lines[1:]), b"[]\n", b"{}\n", b"\xff\n"):
        stored.write_bytes(lzma.compress(damaged, preset=0))
        with pytest.raises(DataCorrupt):
            load_evaluation_set("v1")

    stored.unlink()
    with pytest.raises(DataCorrupt):
        load_evaluation_set("v1")


def test_other_rules_of_facts_need_another_set(copied):
    manifest = json.loads((copied / "v1.json").read_bytes())
    manifest["environments"]["comap/Web-v0"]["facts"] = "web-0"
    (copied / "v1.json").write_text(json.dumps(manifest))
    with pytest.raises(OptionError, match="newer set"):
        load_evaluation_set("v1")


def test_an_unknown_set_is_refused_and_no_path():
    for name in ("v2", "../v1", ""):
        with pytest.raises(OptionError, match="no set"):
            load_evaluation_set(name)
