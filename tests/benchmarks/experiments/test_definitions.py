"""Definitions, recipes and scales: data that fits together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks.experiments import definition, scale
from comap.benchmarks.experiments.definition import experiment, experiment_ids
from comap.benchmarks.experiments.jobs import plan
from comap.benchmarks.experiments.recipes import recipe, recipe_names
from comap.benchmarks.experiments.scale import scale_named, scale_names
from comap.errors import DataCorrupt, OptionError

NAMES = [
    f"comap-{x}" for x in ["t1", "t2", "t3", "t4", "t5", "t6", "f3", "f4", "f5", "f6", "f7", "f8"]
]
NAMES += [
    f"paw-{x}" for x in ["t1", "t2", "t3", "t4", "t5", "f2c", "f2d", "f4", "f5", "f6", "f10", "f11"]
]


def test_every_table_and_figure_of_both_papers_is_there_in_order() -> None:
    assert list(experiment_ids()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_definition_names_recipes_that_are_there_and_columns_that_can_be_told_apart(
    name: str,
) -> None:
    one = experiment(name)
    assert one.id == name and one.paper in ("CoMap", "PaW")
    assert one.published.split()[0] == ("Table" if one.kind == "table" else "Figure")
    assert (one.axis is not None) == (one.kind == "figure")
    for method in one.methods:
        assert method.recipe is None or method.recipe in recipe_names()
        assert set(method.backbones or ()) <= set(one.backbones)
    shown = [(c.metric, c.env, c.split) for c in one.columns if not c.average]
    assert len(set(shown)) == len(shown) and all(metric for metric, _, _ in shown)
    assert len({method.name for method in one.methods}) == len(one.methods)


def test_no_recipe_is_there_for_nothing() -> None:
    used = {m.recipe for name in NAMES for m in experiment(name).methods} - {None}
    for made in [recipe(str(name)) for name in used]:
        used |= {made.start, made.policy, made.world_model}
    starts = {
        name
        for s in scale_names()
        for name in scale_named(s).kinds["paw"].get("starts", {}).values()
    }
    assert set(recipe_names()) <= used | starts


@pytest.mark.parametrize("name", scale_names())
def test_every_experiment_has_something_to_run_at_every_scale(name: str) -> None:
    told = scale_named(name)
    for one in map(experiment, NAMES):
        found = plan([one], told)
        assert any(cell.job is not None for cell in found.cells), one.id
        refused = {cell.why for cell in found.cells if cell.job is None} - {"cited only"}
        assert all("slot" in str(why) for why in refused), refused


def test_the_scale_paper_takes_the_papers_models_and_presets() -> None:
    found = plan([experiment("comap-t1"), experiment("paw-t1")], scale_named("paper"))
    models = {job.backbone.model for job in found.jobs.values() if job.backbone}
    assert {"Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B-Instruct"} <= models
    presets = {(job.recipe.kind, job.preset) for job in found.jobs.values()}
    assert {("comap", "paper"), ("paw", "alfworld"), ("paw", "webshop")} <= presets
    assert {job.seed for job in found.jobs.values()} == {0, 1, 2}


@pytest.mark.parametrize(("name", "close"), [("comap-t7", "comap-t"), ("paw", "paw-")])
def test_an_unknown_experiment_is_named_with_what_is_close(name: str, close: str) -> None:
    with pytest.raises(OptionError, match="there is no experiment"):
        experiment(name)


def test_unknown_scales_and_recipes_are_refused() -> None:
    with pytest.raises(OptionError, match="there is no scale 'huge'"):
        scale_named("huge")
    with pytest.raises(OptionError, match="there is no recipe"):
        recipe("../../etc/passwd")


def test_a_damaged_definition_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "comap-t1.json").write_text('{"id": "comap-t1"}')
    monkeypatch.setattr(definition, "_folder", lambda: tmp_path)
    with pytest.raises(DataCorrupt, match="comap-t1"):
        experiment("comap-t1")
    (tmp_path / "scales").mkdir()
    (tmp_path / "scales" / "tiny.json").write_text(json.dumps({"name": "tiny"}))
    monkeypatch.setattr(scale, "files", lambda package: tmp_path)
    with pytest.raises(DataCorrupt, match="scale"):
        scale_named("tiny")
