"""Jobs are shared, and named by all that their results depend on."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from comap.benchmarks.experiments.definition import SCALES, experiment, experiment_ids, scale_named
from comap.benchmarks.experiments.plan import Paths, commands, estimate, plan
from comap.cli.main import understood
from comap.errors import OptionError

ALL = [experiment(name) for name in experiment_ids()]
ADAPTERS = [
    "--model Qwen/Qwen3-8B --adapter agent=",
    "--agent-adapter agent",
    "--world-model Qwen/Qwen3-8B --world-model-adapter wm --adapter wm=",
    "--agent-option head=",  # the preset paper reads p from a head
]


def test_jobs_are_shared_between_experiments():
    tiny = scale_named("tiny")
    alone = [plan([definition], tiny).jobs for definition in ALL]
    together = plan(ALL, tiny).jobs
    assert set(together) == set().union(*alone)
    assert len(together) < 0.8 * sum(map(len, alone))
    earlier = set()
    for name, job in together.items():
        assert set(job.needs.values()) <= earlier  # what a job needs comes before it
        assert re.fullmatch(r"[\w.+-]{1,119}", name, re.ASCII)  # it is the name of a folder
        earlier.add(name)


def test_a_configuration_is_named_by_all_that_it_depends_on():
    tiny = scale_named("tiny")
    table = experiment("comap-t2")

    def hashes(scale):
        job_plan = plan([table], scale)
        return {
            f"{j.recipe.name} {j.setup and j.setup.env}": j.config_hash
            for j in job_plan.jobs.values()
        }

    def of_comap(**settings):
        kinds = {**tiny.kinds, "comap": {**tiny.kinds["comap"], **settings}}
        return dataclasses.replace(tiny, kinds=kinds)

    before, changed = hashes(tiny), hashes(of_comap(set={"rounds": 7}))
    assert all(before[name] != changed[name] for name in before)
    shop = tiny.environments["comap/WebShop-v0"]
    shop = dataclasses.replace(shop, options={**shop.options, "x": 1})
    places = {**tiny.environments, "comap/WebShop-v0": shop}
    shop_hashes = hashes(dataclasses.replace(tiny, environments=places))
    for name in before:
        assert (before[name] != shop_hashes[name]) == ("WebShop" in name)
    # what a job begins with counts: another warm-up is another CoMap
    warm = hashes(of_comap(recipes={"sft": {"warmup_epochs": 9}}))
    assert warm["comap comap/ALFWorld-v0"] != before["comap comap/ALFWorld-v0"]
    assert warm["wm-vanilla comap/ALFWorld-v0"] == before["wm-vanilla comap/ALFWorld-v0"]


def test_a_plan_is_the_same_in_every_process():
    code = (
        "from comap.benchmarks.experiments.definition import *\n"
        "from comap.benchmarks.experiments.plan import plan\n"
        "print(*plan([experiment('comap-t1'), experiment('paw-f6')], scale_named('tiny')).jobs)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    planned_here = plan([experiment("comap-t1"), experiment("paw-f6")], scale_named("tiny")).jobs
    assert printed.split() == list(planned_here)


def test_every_command_is_one_that_comap_understands():
    """Of all jobs at all scales, the fewest commands are parsed that have every option and value."""
    paths = Paths(Path("OUT"), dry_run=True)
    plans = [plan(ALL, scale_named(scale), [0]) for scale in SCALES]
    all_words = {
        tuple(words)
        for job_plan in plans
        for job in job_plan.jobs.values()
        for words in commands(job_plan, job, paths)
    }
    covered = set()
    for words in sorted(all_words, key=lambda words: (-len(words), words)):
        new = set(option_parts(words)) - covered
        if new:
            understood(words)  # ends the process where it does not understand
        covered |= new
    assert len(all_words) > 500 and len(covered) > 300


def option_parts(words):
    """Yield each option with its value, the command and its preset; paths and numbers are alike."""
    text = " ".join(re.sub(r"^OUT/.*|=OUT/.*", "OUT", word) for word in words)
    command, *options = text.split(" --")
    preset = next((option for option in options if option.startswith("preset ")), "")
    for option in options:
        kind = re.sub(r"\b\d+\b(?![.\w])", "1", option)
        yield (" ".join(command.split()[:2]), preset, kind)


def test_official_data_is_asked_for_before_anything_runs(tmp_path):
    job_plan = plan([experiment("comap-t2")], scale_named("paper"), [0])
    job = next(iter(job_plan.jobs.values()))
    with pytest.raises(OptionError, match=r"add --data-dir comap/ALFWorld-v0=PLACE"):
        commands(job_plan, job, Paths(tmp_path))
    paths = Paths(tmp_path, data={"comap/ALFWorld-v0": "/games"}, demos={"comap/ALFWorld-v0": "/d"})
    words = commands(job_plan, job, paths)[0]
    assert words[words.index("--data-dir") + 1] == "/games"
    assert words[words.index("--demos") + 1] == "/d"


def command(name, *parts, scale="paper"):
    """The commands of the first job of an experiment whose id has these parts."""
    job_plan = plan([experiment(name)], scale_named(scale), [0])
    job = next(job for job in job_plan.jobs.values() if all(part in job.id for part in parts))
    return commands(job_plan, job, Paths(Path("out"), dry_run=True, device="cuda"))


@pytest.mark.parametrize(
    ("name", "job", "expected", "absent"),
    [
        ("comap-t1", "play-comap-alfworld-Qwen3-8B", ADAPTERS, []),
        ("comap-t1", "play-react-alfworld-Qwen3-4B", ["--device cuda"], ["adapter"]),
        ("comap-t1", "play-react-webshop-DeepSeek", ["api_key_env=DEEPSEEK_API_KEY"], ["--device"]),
        ("comap-t1", "play-iwm-alfworld-Qwen3-4B", ["--agent-adapter agent"], ["knowledge"]),
        (
            "comap-t1",
            "play-wkm-alfworld-Qwen3-4B",
            ["--knowledge-adapter knowledge", "--encoder intfloat/"],
            [],
        ),
        ("paw-t2", "gigpo+paw-", ["--data-dir DATA/index", "questions=DATA/questions"], []),
        ("paw-t2", "gigpo+paw-", ["--evaluation-splits test --"], []),
    ],
)
def test_models_servers_and_data_are_named_as_the_command_takes_them(name, job, expected, absent):
    text = shlex.join(command(name, job)[0])
    assert [part for part in expected if part not in text] == []
    assert [part for part in absent if part in text] == []


def test_models_may_lie_in_folders():
    """Where the Hub is not reachable; the configurations, and so the names of jobs, are the same."""
    paper = plan([experiment("comap-t1")], scale_named("paper"), [0])
    job = next(job for name, job in paper.jobs.items() if "play-react-alfworld-Qwen3-4B" in name)
    words = commands(paper, job, Paths(Path("out"), dry_run=True, models={"Qwen3-4B": "/here"}))[0]
    assert words[words.index("--model") + 1] == "/here"
    plain = commands(paper, job, Paths(Path("out"), dry_run=True))[0]
    assert plain[plain.index("--model") + 1] == "Qwen/Qwen3-4B"


def test_a_start_plays_as_the_trainings_that_go_on_from_it_find_it():
    """And not as the update leaves it that its own training ends with."""
    job_plan = plan([experiment("lab-paw-real")], scale_named("lab-real"), [0])
    options = {}
    for job in job_plan.jobs.values():
        (words,) = commands(job_plan, job, Paths(Path("out"), dry_run=True))
        options[job.recipe.name] = dict(itertools.pairwise(words))

    warmed_up = options["real-start"]["--out"] + "/model"
    for recipe_name in ("real-play-start", "real-grpo", "real-grpo+paw"):
        assert options[recipe_name]["--model"] == warmed_up


@pytest.mark.parametrize("weights", ["full", "lora"])
def test_what_plays_is_a_whole_model_or_an_adapter_of_what_its_training_began_with(weights):
    scale = scale_named("lab-real")
    kinds = {**scale.kinds, "paw": {**scale.kinds["paw"], "set": {"weights": weights}}}
    job_plan = plan([experiment("lab-paw")], dataclasses.replace(scale, kinds=kinds), [0])

    def words_of(recipe):
        job = next(job for job in job_plan.jobs.values() if job.recipe.name == recipe)
        (words,) = commands(job_plan, job, Paths(Path("out"), dry_run=True))
        return words, dict(itertools.pairwise(words))

    _, training = words_of("lab-grpo")
    words, played = words_of("lab-play-grpo")
    start = training["--model"]
    agent = f"{training['--out']}/models/agent"
    if weights == "full":
        assert played["--model"] == agent and "--adapter" not in words
    else:
        assert played["--model"] == start and played["--adapter"] == f"agent={agent}"
        assert start.endswith("/out/model")


def test_official_answers_on_tools_are_judged():
    words = command("comap-t1", "play-react-stable", "4B")
    assert [line[0] for line in words] == ["run"] * 6 + ["score"] * 6
    for played, scored in zip(words[:6], words[6:], strict=True):
        assert scored[2] == played[played.index("--out") + 1]
        assert "--judge" in scored and "--data-dir" in scored
    assert [line[0] for line in command("comap-t1", "play-react-stable", scale="tiny")] == ["run"]


def test_the_tables_search_as_widely_as_the_released_program():
    text = shlex.join(command("comap-t1", "play-rap-alfworld")[0])
    assert "--candidates 8 --candidate-rounds 4 --depth 6 --rollouts 32" in text


def test_costs_grow_with_models_and_say_where_they_come_from():
    job_plan = plan([experiment("comap-t2")], scale_named("paper"), [0])
    jobs = [job for job in job_plan.jobs.values() if job.recipe.name == "comap"]
    (all_of_them,) = estimate(job_plan, jobs)
    small, large = ([j for j in jobs if size in j.id] for size in ("4B", "8B"))
    assert estimate(job_plan, large)[0].hours == pytest.approx(4 * 4.48)
    assert estimate(job_plan, small)[0].hours == pytest.approx(4 * 4.48 * 4 / 8.2)
    assert all_of_them.gpu_hours == pytest.approx(4 * all_of_them.hours)
    assert "cited" in next(iter(all_of_them.basis))


def test_a_scale_limits_the_settings_of_recipes():
    """None becomes larger, and a recipe's own limit wins over that of its group."""
    jobs = {job.recipe.name: job.settings for job in plan(ALL, scale_named("tiny")).jobs.values()}
    lab = {job.recipe.name: job.settings for job in plan(ALL, scale_named("lab")).jobs.values()}
    assert (jobs["lab-grpo"]["updates"], jobs["lab-start"]["updates"]) == (4, 1)
    assert jobs["lab-grpo"]["warmup_tokens"] == 0 < jobs["lab-start"]["warmup_tokens"]
    assert jobs["lab-base"]["demonstrations"] == 600 > jobs["lab-sft"]["demonstrations"] == 100
    assert lab["lab-base"]["demonstrations"] == 3000 and lab["lab-grpo"]["updates"] == 80


def test_a_method_is_run_with_the_first_seeds_that_it_names():
    """Of the scale's seeds; a seed that the scale has not is for all methods."""

    def seeds_of(method, seeds=None):
        definition = experiment("lab-paw-real")
        cells = plan([definition], scale_named("lab-real"), seeds).cells
        return [cell.seed for cell in cells if cell.method.name == method]

    assert seeds_of("GRPO + PaW") == [1, 2, 3, 4, 5]
    assert seeds_of("GRPO + PaW, placebo") == [1, 2, 3]
    assert seeds_of("GRPO + PaW, placebo", [3, 4, 9]) == [3, 9]
    with pytest.raises(OptionError, match=r"seeds that lab-sft-real is planned for, found \[4\]"):
        plan([experiment("lab-sft-real")], scale_named("lab-real"), [4])
