"""Definitions, recipes, scales and published numbers: data that fits together."""

from __future__ import annotations

import math

import gymnasium as gym
import pytest

import comap  # noqa: F401  registers the environments
from comap.benchmarks.experiments import definition
from comap.benchmarks.experiments.cited import cited_ids, cited_tables, load_cited
from comap.benchmarks.experiments.definition import (
    KINDS,
    SCALES,
    experiment,
    experiment_ids,
    recipe,
    recipes,
    scale_named,
)
from comap.benchmarks.experiments.plan import plan
from comap.errors import DataCorrupt, OptionError

NAMES = [f"comap-t{n}" for n in range(1, 7)] + [f"comap-f{n}" for n in range(3, 9)]
NAMES += [
    f"paw-{x}" for x in ["t1", "t2", "t3", "t4", "t5", "f2c", "f2d", "f4", "f5", "f6", "f10", "f11"]
]

OTHERS = ["webevolver-t1"]
LAB = [
    "lab-comap",
    "lab-comap-ladder",
    "lab-comap-models",
    "lab-comap-real",
    "lab-paw",
    "lab-paw-curves",
    "lab-paw-real",
    "lab-sft-real",
    "lab-shipped",
    "lab-zero-shot-real",
]


def test_every_table_and_figure_of_both_papers_is_there_in_order():
    assert sorted(LAB) == LAB and list(experiment_ids()) == [*NAMES, *OTHERS, *LAB]


@pytest.mark.parametrize("name", [*NAMES, *OTHERS, *LAB])
def test_a_definition_names_known_recipes_and_different_columns(name):
    one = experiment(name)
    assert one.id == name and one.paper in ("CoMap", "PaW", "WebEvolver", "lab")
    if name in NAMES:
        assert one.published.split()[0] == ("Table" if one.kind == "table" else "Figure")
    assert (one.axis is not None) == (one.kind == "figure")
    for method in one.methods:
        assert method.recipe is None or method.recipe in recipes()
        assert set(method.backbones or ()) <= set(one.backbones)
    shown = [(c.metric, c.env, c.split, c.group) for c in one.columns if not c.average]
    assert len(set(shown)) == len(shown) and all(metric for metric, *_ in shown)
    groups = {method.group for method in one.methods}
    assert all(column.group is None or column.group in groups for column in one.columns)
    names = {method.name for method in one.methods}
    assert len(names) == len(one.methods) and names.issuperset(sum(one.compared, ()))


def test_every_recipe_is_used_and_of_a_known_kind():
    used = {method.recipe for name in experiment_ids() for method in experiment(name).methods}
    left = [*used]
    while left:
        if (name := left.pop()) in recipes():
            made = recipe(str(name))
            assert made.kind in KINDS
            left += {made.start, made.policy, made.world_model} - used
            used |= {made.start, made.policy, made.world_model}
    for scale in map(scale_named, SCALES):
        used |= set(scale.kinds["paw"].get("starts", {}).values())
    assert set(recipes()) <= used


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_has_something_to_run_at_every_scale(scale):
    baselines = ["lab-sft-real", "lab-zero-shot-real"]
    lab = {
        "lab": LAB,
        "lab-real": LAB,
        "lab-real-official": baselines,
        "tiny": [*NAMES, *OTHERS, *LAB],
    }
    for one in map(experiment, lab.get(scale, NAMES)):
        found = plan([one], scale_named(scale))
        assert any(cell.job is not None for cell in found.cells), one.id
        refused = {cell.why for cell in found.cells if cell.job is None} - {"cited only"}
        assert all("slot" in str(why) for why in refused), refused


def test_the_scale_paper_has_the_papers_models_and_presets():
    found = plan([experiment("comap-t1"), experiment("paw-t1")], scale_named("paper"))
    models = {job.backbone.model for job in found.jobs.values() if job.backbone}
    assert {"Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct"} <= models
    presets = {(job.recipe.kind, job.preset) for job in found.jobs.values()}
    assert {("comap", "paper"), ("paw", "alfworld"), ("paw", "webshop")} <= presets
    assert {job.seed for job in found.jobs.values()} == {0, 1, 2}


def test_unknown_names_are_refused():
    for read, name in ((experiment, "comap-t7"), (scale_named, "huge"), (recipe, "../etc/passwd")):
        with pytest.raises(OptionError, match="there is no"):
            read(name)


def test_a_damaged_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "comap-t1.json").write_text('{"id": "comap-t1"}')
    monkeypatch.setattr(definition, "FOLDER", tmp_path)
    with pytest.raises(DataCorrupt, match=r"comap-t1\.json"):
        experiment("comap-t1")


# -- published numbers ----

SETS = {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"}
SPLITS = {  # None is all of them
    "comap/ALFWorld-v0": {None, "train", "valid_seen", "valid_unseen"},
    "comap/ScienceWorld-v0": {None, "dev", "test"},  # which the paper calls seen and unseen
}
LARGEST = {"%": 100, "share": 1} | dict.fromkeys(
    ("count", "nats", "s", "h", "GPU-h", "GB"), math.inf
)
PAPERS = {
    "comap": ("CoMap", "2606.02372"),
    "paw": ("PaW", "2606.02388"),
    "webevolver": ("WebEvolver", "2504.21024"),
}
EACH = pytest.mark.parametrize("name", cited_ids())


@EACH
def test_a_file_says_what_its_numbers_are_of_and_where_they_were_seen(name):
    found = load_cited(name)
    kind = "Table" if "-t" in name else "Figure"
    prefix, _, number = name.partition("-")
    assert name in experiment_ids() and found.id == name and found.source
    assert bool(found.rows) == (found.status != "none")
    assert (found.paper, found.arxiv) == PAPERS[prefix]
    if name in NAMES:
        assert found.table == f"{kind} {number[1:]}"
    else:  # its number was not seen
        assert found.status == "partial" and "second-hand" in found.source
    cells = [(row.method, row.backbone, row.env, row.split, row.metric) for row in found.rows]
    assert len(set(cells)) == len(cells)
    ids = [note.id for note in found.footnotes]
    assert len(set(ids)) == len(ids) and all(note.text for note in found.footnotes)
    for note in found.footnotes:
        assert not note.applies_to or any(note.about(row) for row in found.rows)
    assert {row.note for row in found.rows} <= {None, *ids}


@EACH
def test_rows_are_numbers_of_our_environments_and_splits(name):
    for row in load_cited(name).rows:
        smallest = -LARGEST.get(row.unit, math.inf) if row.unit in ("points", "") else 0
        assert row.unit in (*LARGEST, "points", "") and type(row.value) in (int, float)
        assert math.isfinite(row.value) and smallest <= row.value <= LARGEST.get(row.unit, math.inf)
        assert (row.spread is None or row.spread >= 0) and (row.n is None or row.n > 0)
        assert row.env is None or row.env in gym.registry
        assert row.split in SPLITS.get(row.env or "", {row.split})
        if row.env == "comap/SearchQA-v0":
            assert (row.split in SETS) == (row.metric == "exact_match")
        if row.n is not None:  # a whole number of tasks, but that cells are printed to 0.01
            times = row.value * row.n / 100
            assert abs(times - round(times)) <= 0.0125 * row.n / 100, row


@EACH
def test_each_value_is_shown_once_in_a_column_or_in_the_list(name):
    in_columns, others = cited_tables(experiment(name), load_cited(name))
    entries = [row.entries[1:] for b in in_columns.blocks for row in b.rows] if in_columns else []
    shown = sum(entry.status == "value" for line in entries for entry in line)
    listed = len(others.blocks[0].rows) if others else 0
    assert shown + listed == len(load_cited(name).rows)
    assert all(one.title.startswith("Cited: ") for one in (in_columns, others) if one)


def test_what_has_no_file_has_no_numbers():
    assert load_cited("comap-t9") is None
    assert load_cited("../definitions/comap-t1") is None
    assert cited_tables(experiment("comap-t1"), None) == (None, None)
