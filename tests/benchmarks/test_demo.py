"""The main job, end to end: on generated tasks, on official files, and with learned models."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zlib
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest

import comap
from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.benchmarks import demo
from comap.benchmarks.demo import (
    DemoConfig,
    learned_in,
    learned_models,
    learned_table,
    play_learned,
    predicted,
    rollouts,
    run_demo,
)
from comap.benchmarks.tables import format_cells
from comap.cli import main
from comap.errors import DataNotFound, MissingExtra
from comap.lm import create
from comap.trajectory import read_trajectories
from comap.worldmodel import (
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    RetrievalWorldModel,
)

ENV = "comap/ALFWorld-v0"
LEAST = {"train_tasks": 1, "test_tasks": 1, "lengths": (1,), "error_rates": ()}
SMALL = ["--train-tasks", "2", "--test-tasks", "1", "--lengths", "1", "4"]


def results(out):
    return json.loads((out / "results.json").read_text("utf-8"))


def lasting(demo_results):
    """Return the results without what may differ from run to run."""
    return {key: value for key, value in demo_results.items() if key not in ("date", "seconds")}


def no_models(env_id):
    raise DataNotFound("no models here")


AGAIN = """
import sys, comap
from test_demo import demo, main, no_models
assert comap.__file__ == sys.argv.pop(1), comap.__file__
demo.learned_models = no_models
main(sys.argv[1:])
"""


def test_the_demo_writes_everything_and_repeats_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "learned_models", no_models)
    out = tmp_path / "first"
    assert main(["demo", "--out", str(out), *SMALL]) == 0
    demo_results, printed = results(out), capsys.readouterr().out
    share, plan = (
        demo_results["one_step"]["all"]["retrieval"]["nonempty_mean"],
        demo_results["plans"]["retrieval"],
    )
    sentence = f"The retrieval world model predicts {100 * share:.0f} % of the changes; "
    assert sentence in printed and printed.rstrip().endswith(f"report: {out / 'report.html'}")
    if plan["imagined"]["value"]:
        assert f"{100 * plan['precision']:.0f} % of the plans made in it hold up" in printed
    assert set(demo_results["one_step"]) == {"expert", "random", "all"}
    for reports in demo_results["one_step"].values():
        assert reports["oracle"]["mean"] == 1.0 > reports["noisy 0.3"]["mean"]
        assert len({report["n"] for report in reports.values()}) == 1
    parts = [demo_results["one_step"][agent]["null"]["n"] for agent in ("expert", "random")]
    assert sum(parts) == demo_results["counts"]["test transitions"]
    assert all(point["delta_f1"] == 1.0 for point in demo_results["rollouts"]["oracle"])
    assert demo_results["plans"]["oracle"]["agreement"] == 1.0
    rates = {(agent, world): rate for agent, world, rate, _ in demo_results["agents"]}
    assert rates["expert", "real"] == rates["expert", "oracle"]

    trajectories = list(read_trajectories(out / "trajectories.jsonl"))
    assert len(trajectories) == 2 and not any(t.imagined for t in trajectories)
    learner = RetrievalWorldModel(out / "retrieval.jsonl")
    assert len(learner) == demo_results["counts"]["training transitions"]
    page = (out / "report.html").read_text("utf-8")
    assert (
        sentence in page[: page.index("<img")] and "<table>" not in page[: page.index("<details>")]
    )
    assert "Delta-F1" in page and "http://" not in page.replace("http://www.w3.org", "")

    second = tmp_path / "second"
    words = [str(comap.__file__), "demo", "--out", str(second), *SMALL]
    path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    env = {**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", AGAIN, *words], check=True, env=env)
    assert lasting(results(second)) == lasting(demo_results)


# -- what is scored ----


def real(**options):
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


@pytest.fixture(scope="module")
def episodes():
    env = real()
    agents = (ExpertAgent(), RandomAgent(1, 0.2))
    return [run_episode(env, agent, seed=seed) for seed in range(6) for agent in agents]


def test_rows_are_the_real_transitions(episodes):
    models = {"oracle": OracleWorldModel(), "null": NullWorldModel()}
    rows_by_model = predicted(real(), models, episodes)
    steps = [pair for trajectory in episodes for pair in trajectory.transitions()]
    for rows in rows_by_model.values():
        assert [(row[0], row[2]) for row in rows] == [(b, step.facts) for b, step in steps]
    assert all(guess == after for _, guess, after in rows_by_model["oracle"])
    assert all(guess.facts == before.facts for before, guess, _ in rows_by_model["null"])


def test_rollouts_of_the_oracle_are_exact_to_the_end(episodes):
    models = {"oracle": OracleWorldModel(), "noisy": NoisyWorldModel(0.5)}
    lengths = (1, 3, 9)
    points = rollouts(real(), models, episodes, lengths)
    for point in points["oracle"]:
        assert (point.delta_f1, point.exact, point.stderr) == (1.0, 1.0, 0.0)
    for point in points["noisy"]:
        assert point.delta_f1 < 1.0 and point.exact < 1.0
    for length, point in zip(lengths, points["oracle"], strict=True):
        window_count = sum(len(range(0, len(t.steps) - length + 1, 4)) for t in episodes)
        assert (point.length, point.n) == (length, window_count)
    assert rollouts(real(), models, [], lengths)["oracle"] == []


# -- the learned agent, with models that stand in for the shipped ones ----


@pytest.fixture
def models(stand_ins, monkeypatch):
    monkeypatch.setattr(create, "_package_folder", lambda: stand_ins)
    return learned_models(ENV)


def test_one_policy_plays_with_three_world_models(models):
    make_env = partial(gym.make, ENV, source="generated", max_episode_steps=2)
    tasks, advances = make_env().get_wrapper_attr("tasks").ids[:3], []
    summaries, episodes = play_learned(
        make_env, tasks, models, advance=lambda: advances.append(None)
    )
    names = ["ReAct, without a world model", "CoMap", "CoMap, with the oracle"]
    assert [summary["agent"] for summary in summaries] == names
    assert [episode.agent for episode in episodes] == [name for name in names for _ in tasks]
    assert len(advances) == 9 and not [e.error for e in episodes if e.error]
    react, comap, oracle = summaries
    assert comap["success"]["n"] == 3 and comap["steps"]["per_episode"] == 2.0
    assert comap["reflected"] == oracle["reflected"] == 6
    steps = [step for episode in episodes[3:6] for step in episode.steps]
    assert comap["revised"] == sum(
        step.notes["exec_action"] != step.notes["draft_action"] for step in steps
    )
    assert react["reflected"] == react["revised"] == 0
    settings = episodes[3].settings
    assert settings["decoding"] == "masked" and settings["model"] == "shipped:agent"
    assert episodes[0].settings["temperature"] == 0.0, "the same policy, asked the same way"
    table = learned_table(summaries, models.parameters)
    assert all("(n=3)" in str(row[1]) for row in table.rows) and table.rows[0][-1] is None
    assert "0.2 M parameters" in table.note and "failed" not in table.note
    assert "3 generated tasks" in table.title


def test_a_sentence_says_what_the_world_model_is_worth():
    """Of 100 tasks, 40 are won without, 52 with it: 20 that were lost, and 8 lost that were won."""
    without_model = [True] * 40 + [False] * 60
    with_model = [False] * 8 + [True] * 52 + [False] * 40
    sentence = learned_in(
        [
            {"won": outcomes, "success": {"value": sum(outcomes) / 100}}
            for outcomes in (without_model, with_model, [True] * 60 + [False] * 40)
        ]
    )
    assert "wins 40 % of 100 generated tasks without a world model, 52 % with its own" in sentence
    assert "its own world model helps (+12 points, 95 % interval +2 to +22)" in sentence
    small_rows = [
        {"won": outcomes, "success": {"value": sum(outcomes) / 4}}
        for outcomes in ([True, False, False, False], [False, True, True, False], [True] * 4)
    ]
    assert "so few tasks cannot tell whether its own world model helps" in learned_in(small_rows)


def test_tables_explain_their_columns_and_have_sensible_decimals(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "learned_models", no_models)
    tables = []
    monkeypatch.setattr(demo, "print_table", tables.append)
    run_demo(DemoConfig(out=str(tmp_path), **LEAST))
    explained = {
        "of changes",
        "s.e.",
        "exact",
        "unreadable",
        "goal conditions",
        "held up",
        "agreement",
    }
    tables_by_column = {
        name: table for table in tables for name in table.columns if name in explained
    }
    assert set(tables_by_column) == explained
    for name, table in tables_by_column.items():
        assert f"'{name}'" in table.note, name
    (errors,) = [table for table in tables if "s.e." in table.columns]
    place = errors.columns.index("s.e.")
    assert all(re.fullmatch(r"\d+\.\d", cells[place]) for cells in format_cells(errors))

    page = (tmp_path / "report.html").read_text("utf-8")
    head = page[: page.index("<main")]
    assert "Household tasks in text" in head and "A world model learned from" in head
    assert "of 1 generated task" in head


@pytest.fixture
def short(monkeypatch):
    """Episodes of the demo end early."""
    step_limit = {"max_episode_steps": 4}
    environments = demo.Environments
    monkeypatch.setattr(
        demo, "Environments", lambda name, options: environments(name, {**options, **step_limit})
    )
    monkeypatch.setattr(demo, "MOST", 2)


@pytest.mark.usefixtures("short")
def test_the_demo_shows_it(models, tmp_path, capsys):
    assert run_demo(DemoConfig(out=str(tmp_path), **LEAST)) == f"report: {tmp_path / 'report.html'}"
    page = (tmp_path / "report.html").read_text("utf-8")
    printed = capsys.readouterr().out
    assert "A learned agent: success" in printed and "CoMap, with the oracle" in page
    assert "One learned policy wins" in printed and "One learned policy wins" in page
    packed = re.findall(r"<script[^>]*>([A-Za-z0-9+/=]+)</script>", page)
    unpacked = "".join(zlib.decompress(base64.b64decode(script)).decode() for script in packed)
    assert "CoMap, learned: " in page + unpacked
    assert "draft_action" in unpacked and "predicted_next_state" in unpacked
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert len(results["learned"]) == 3
    assert len(list(read_trajectories(tmp_path / "learned.jsonl"))) == 6


@pytest.mark.usefixtures("short")
def test_without_packages_or_models_a_line_says_what_adds_it(
    stand_ins, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(create, "_package_folder", lambda: tmp_path)
    with pytest.raises(DataNotFound, match="benchmarks/measure/shipped"):
        learned_models(ENV)
    monkeypatch.setattr(create, "_package_folder", lambda: stand_ins)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtra):
            learned_models(ENV)
        patch.setitem(sys.modules, "jinja2", None)
        report_line = run_demo(DemoConfig(out=str(tmp_path), **LEAST))
    assert "report: none; a report needs the extra 'viz'; run: pip install" in report_line
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "learned" in line]
    assert line.startswith("No learned agent is shown: ") and 'comap-agents[local]"' in line
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["learned"] == []
