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
    "lab-comap-real-arms",
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
    spec = experiment(name)
    assert spec.id == name and spec.paper in ("CoMap", "PaW", "WebEvolver", "lab")
    if name in NAMES:
        assert spec.published.split()[0] == ("Table" if spec.kind == "table" else "Figure")
    assert (spec.axis is not None) == (spec.kind == "figure")
    for method in spec.methods:
        assert method.recipe is None or method.recipe in recipes()
        assert set(method.backbones or ()) <= set(spec.backbones)
    column_keys = [(c.metric, c.env, c.split, c.group) for c in spec.columns if not c.average]
    assert len(set(column_keys)) == len(column_keys) and all(metric for metric, *_ in column_keys)
    groups = {method.group for method in spec.methods}
    assert all(column.group is None or column.group in groups for column in spec.columns)
    names = {method.name for method in spec.methods}
    assert len(names) == len(spec.methods) and names.issuperset(sum(spec.compared, ()))


def test_every_recipe_is_used_and_of_a_known_kind():
    used_recipes = {
        method.recipe for name in experiment_ids() for method in experiment(name).methods
    }
    pending = [*used_recipes]
    while pending:
        if (name := pending.pop()) in recipes():
            parsed_recipe = recipe(str(name))
            assert parsed_recipe.kind in KINDS
            pending += {
                parsed_recipe.start,
                parsed_recipe.policy,
                parsed_recipe.world_model,
            } - used_recipes
            used_recipes |= {parsed_recipe.start, parsed_recipe.policy, parsed_recipe.world_model}
    for scale in map(scale_named, SCALES):
        used_recipes |= set(scale.kinds["paw"].get("starts", {}).values())
    assert set(recipes()) <= used_recipes


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_has_something_to_run_at_every_scale(scale):
    baselines = ["lab-sft-real", "lab-zero-shot-real"]
    lab = {
        "lab": LAB,
        "lab-real": LAB,
        "lab-real-official": baselines,
        "tiny": [*NAMES, *OTHERS, *LAB],
    }
    for spec in map(experiment, lab.get(scale, NAMES)):
        job_plan = plan([spec], scale_named(scale))
        assert any(cell.job is not None for cell in job_plan.cells), spec.id
        refused = {cell.why for cell in job_plan.cells if cell.job is None} - {"cited only"}
        assert all("slot" in str(why) for why in refused), refused


def test_the_scale_paper_has_the_papers_models_and_presets():
    job_plan = plan([experiment("comap-t1"), experiment("paw-t1")], scale_named("paper"))
    models = {job.backbone.model for job in job_plan.jobs.values() if job.backbone}
    assert {"Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct"} <= models
    presets = {(job.recipe.kind, job.preset) for job in job_plan.jobs.values()}
    assert {("comap", "paper"), ("paw", "alfworld"), ("paw", "webshop")} <= presets
    assert {job.seed for job in job_plan.jobs.values()} == {0, 1, 2}


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
    cited = load_cited(name)
    kind = "Table" if "-t" in name else "Figure"
    prefix, _, number = name.partition("-")
    assert name in experiment_ids() and cited.id == name and cited.source
    assert bool(cited.rows) == (cited.status != "none")
    assert (cited.paper, cited.arxiv) == PAPERS[prefix]
    if name in NAMES:
        assert cited.table == f"{kind} {number[1:]}"
    else:  # its number was not seen
        assert cited.status == "partial" and "second-hand" in cited.source
    cells = [(row.method, row.backbone, row.env, row.split, row.metric) for row in cited.rows]
    assert len(set(cells)) == len(cells)
    ids = [note.id for note in cited.footnotes]
    assert len(set(ids)) == len(ids) and all(note.text for note in cited.footnotes)
    for note in cited.footnotes:
        assert not note.applies_to or any(note.about(row) for row in cited.rows)
    assert {row.note for row in cited.rows} <= {None, *ids}


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
    cell_count = sum(entry.status == "value" for line in entries for entry in line)
    listed = len(others.blocks[0].rows) if others else 0
    assert cell_count + listed == len(load_cited(name).rows)
    assert all(table.title.startswith("Cited: ") for table in (in_columns, others) if table)


def test_what_has_no_file_has_no_numbers():
    assert load_cited("comap-t9") is None
    assert load_cited("../definitions/comap-t1") is None
    assert cited_tables(experiment("comap-t1"), None) == (None, None)
