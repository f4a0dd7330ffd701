"""Jobs are shared, and named by all that their results depend on."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from comap.benchmarks.experiments.commands import Places, commands, option_words
from comap.benchmarks.experiments.costs import estimate
from comap.benchmarks.experiments.definition import experiment, experiment_ids
from comap.benchmarks.experiments.jobs import plan
from comap.benchmarks.experiments.scale import scale_named
from comap.benchmarks.options import pairs
from comap.cli import _parser
from comap.errors import OptionError
from comap.lm import create_language_model

ALL = [experiment(name) for name in experiment_ids()]


def test_jobs_are_shared_between_experiments() -> None:
    tiny = scale_named("tiny")
    alone = [plan([one], tiny).jobs for one in ALL]
    together = plan(ALL, tiny).jobs
    assert set(together) == set().union(*alone)
    assert len(together) < 0.8 * sum(map(len, alone))


def test_what_a_job_needs_comes_before_it() -> None:
    found = plan(ALL, scale_named("tiny"))
    seen: set[str] = set()
    for name, job in found.jobs.items():
        assert set(job.needs.values()) <= seen
        seen.add(name)


def test_a_configuration_is_named_by_all_that_it_depends_on() -> None:
    tiny = scale_named("tiny")
    one = experiment("comap-t2")

    def hashes(told: object) -> dict[str, str]:
        found = plan([one], told)  # type: ignore[arg-type]
        return {
            f"{j.recipe.name} {j.place and j.place.env}": j.config_hash for j in found.jobs.values()
        }

    before = hashes(tiny)
    kinds = {**tiny.kinds, "comap": {**tiny.kinds["comap"], "set": {"rounds": 7}}}
    changed = hashes(dataclasses.replace(tiny, kinds=kinds))
    assert all(before[name] != changed[name] for name in before)
    places = dict(tiny.places)
    shop = places["comap/WebShop-v0"]
    places["comap/WebShop-v0"] = dataclasses.replace(shop, options={**shop.options, "x": 1})
    other = hashes(dataclasses.replace(tiny, places=places))
    assert {name for name in before if before[name] != other[name]} == {
        name for name in before if "WebShop" in name
    }
    # what a job begins with counts: another warm-up is another CoMap
    recipes = {"sft": {"warmup_epochs": 9}}
    warm = hashes(
        dataclasses.replace(
            tiny, kinds={**tiny.kinds, "comap": {**tiny.kinds["comap"], "recipes": recipes}}
        )
    )
    assert warm["comap comap/ALFWorld-v0"] != before["comap comap/ALFWorld-v0"]
    assert warm["wm-vanilla comap/ALFWorld-v0"] == before["wm-vanilla comap/ALFWorld-v0"]


def test_a_plan_is_the_same_in_every_process() -> None:
    code = (
        "from comap.benchmarks.experiments.definition import *\n"
        "from comap.benchmarks.experiments.jobs import plan\n"
        "from comap.benchmarks.experiments.scale import scale_named\n"
        "print(*plan([experiment('comap-t1'), experiment('paw-f6')], scale_named('tiny')).jobs)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "7")
    }
    assert len(told) == 1


def test_names_of_jobs_are_names_of_files() -> None:
    for name in plan(ALL, scale_named("paper")).jobs:
        assert set(name) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+"
        )
        assert len(name) < 120


@pytest.mark.parametrize("scale", ["tiny", "small", "paper"])
def test_every_command_is_one_that_comap_understands(scale: str, tmp_path: Path) -> None:
    found = plan(ALL, scale_named(scale), [0])
    places, parser = Places(tmp_path, named=True), _parser()
    seen: set[str] = set()
    for job in found.jobs.values():
        if job.recipe.name in seen:
            continue
        seen.add(job.recipe.name)
        for words in commands(found, job, places):
            # what `comap run` understands depends on the agent that was named first
            known = _parser() if words[0] == "run" else parser
            known.parse_args(words)  # ends the process where it does not understand


def test_official_data_is_asked_for_before_anything_runs(tmp_path: Path) -> None:
    found = plan([experiment("comap-t2")], scale_named("paper"), [0])
    job = next(iter(found.jobs.values()))
    with pytest.raises(OptionError, match=r"add --data comap/ALFWorld-v0=PLACE"):
        commands(found, job, Places(tmp_path))
    given = Places(
        tmp_path, data={"comap/ALFWorld-v0": "/games"}, demos={"comap/ALFWorld-v0": "/d"}
    )
    words = commands(found, job, given)[0]
    assert words[words.index("--data-dir") + 1] == "/games"
    assert words[words.index("--demos") + 1] == "/d"


def test_adapters_of_large_models_are_named_as_such(tmp_path: Path) -> None:
    found = plan([experiment("comap-t1")], scale_named("paper"), [0])
    job = next(
        job for job in found.jobs.values() if job.recipe.name == "play-comap" and "8B" in job.id
    )
    words = shlex.join(commands(found, job, Places(tmp_path, named=True))[0])
    assert "--model Qwen/Qwen3-8B --adapter agent=" in words and "--agent-adapter agent" in words
    assert "--world-model Qwen/Qwen3-8B --world-model-adapter wm --adapter wm=" in words
    assert "--agent-option head=" in words  # the preset paper reads p from a head


def _command(name: str, *parts: str, scale: str = "paper") -> list[list[str]]:
    """The commands of the first job of an experiment whose id has these parts."""
    found = plan([experiment(name)], scale_named(scale), [0])
    job = next(job for job in found.jobs.values() if all(part in job.id for part in parts))
    return commands(found, job, Places(Path("out"), named=True, device="cuda"))


def test_a_server_is_told_its_key_and_no_device() -> None:
    (words,) = _command("comap-t1", "play-react-webshop", "Gemini")
    assert "--device" not in words
    assert words[words.index("--model-option") + 1] == "api_key_env=GEMINI_API_KEY"
    for words in _command("comap-t1", "play-react-alfworld", "4B"):
        assert words[words.index("--device") + 1] == "cuda"


def test_what_a_server_is_told_is_what_its_client_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-key")
    (words,) = _command("comap-t1", "play-react-webshop", "Gemini")
    args = _parser().parse_args(words)
    model = create_language_model(args.model, **pairs(args.model_option, "--model-option"))
    assert model.name == "gemini-2.5-pro"


def test_official_answers_on_tools_are_judged() -> None:
    words = _command("comap-t1", "play-react-stable", "4B")
    assert [one[0] for one in words] == ["run"] * 6 + ["score"] * 6
    for played, scored in zip(words[:6], words[6:], strict=True):
        assert scored[2] == played[played.index("--out") + 1]
        assert "--judge" in scored and "--data-dir" in scored
    assert [one[0] for one in _command("comap-t1", "play-react-stable", scale="tiny")] == ["run"]


def test_search_takes_index_and_questions_from_one_folder() -> None:
    (words,) = _command("paw-t2", "gigpo+paw-")
    assert words[words.index("--data-dir") + 1] == "DATA/index"
    assert "questions=DATA/questions" in words
    place = words.index("--evaluation-splits")
    assert words[place + 1] == "test" and words[place + 2].startswith("--")


def test_the_knowledge_model_plays_as_well() -> None:
    (words, _) = _command("comap-t1", "play-wkm-alfworld", "4B")
    assert words[words.index("--knowledge-adapter") + 1] == "knowledge"
    adapters = [words[place + 1] for place, word in enumerate(words) if word == "--adapter"]
    assert [one.partition("=")[0] for one in adapters] == ["agent", "knowledge"]
    assert all("--knowledge-adapter" not in one for one in _command("comap-t1", "play-iwm-alf"))


def test_settings_become_options() -> None:
    told = {"paw": False, "topk": None, "alpha": 0.5, "agent_option": "decoding=masked"}
    assert option_words(told) == [
        "--no-paw", "--topk", "none", "--alpha", "0.5", "--agent-option", "decoding=masked"
    ]  # fmt: skip


def test_costs_grow_with_models_and_say_where_they_come_from() -> None:
    found = plan([experiment("comap-t2")], scale_named("paper"), [0])
    jobs = [job for job in found.jobs.values() if job.recipe.name == "comap"]
    (all_of_them,) = estimate(found, jobs)
    small, large = ([j for j in jobs if size in j.id] for size in ("4B", "8B"))
    assert estimate(found, large)[0].hours == pytest.approx(4 * 4.48)
    assert estimate(found, small)[0].hours == pytest.approx(4 * 4.48 * 4 / 8.2)
    assert all_of_them.gpu_hours == pytest.approx(4 * all_of_them.hours)
    assert "cited" in all_of_them.basis[0]


def test_seeds_are_checked() -> None:
    for seeds in ([], [-1]):
        with pytest.raises(OptionError, match="seeds"):
            plan([experiment("comap-t2")], scale_named("tiny"), seeds)
