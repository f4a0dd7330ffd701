"""The runner: in order, past failures, and on from where it was stopped."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from comap.benchmarks.experiments import runner
from comap.benchmarks.experiments.collect import collect
from comap.benchmarks.experiments.definition import (
    Column,
    EnvSetup,
    Experiment,
    Method,
    Recipe,
    scale_named,
)
from comap.benchmarks.experiments.plan import Job, Paths, Plan, PlannedCell
from comap.benchmarks.experiments.runner import job_record, run_jobs
from comap.cli import main
from comap.envs.storage import locked
from comap.errors import DataCorrupt, DownloadError, OptionError

ENV = "comap/ALFWorld-v0"


@pytest.fixture(autouse=True)
def _light(monkeypatch):
    monkeypatch.setattr(runner, "PRELOADED", ("comap.cli",))


def job(name, agent, needs=None, **settings):
    setup = EnvSetup(
        env=ENV, options={"source": "generated", "max_episode_steps": 8}, splits=("valid_seen",)
    )
    return Job(
        id=name,
        recipe=Recipe(name=name, kind="play", agent=agent),
        policy=None,
        backbone=None,
        setup=setup,
        seed=0,
        preset="",
        settings={"episodes": 2, **settings},
        needs=needs or {},
        config_hash=f"hash-{name}",
    )


def plan_of(*jobs):
    cells = tuple(
        PlannedCell(
            "x", Method(name=planned_job.id, recipe="play-react"), None, ENV, 0, planned_job.id
        )
        for planned_job in jobs
    )
    return Plan(
        scale=scale_named("tiny"),
        jobs={planned_job.id: planned_job for planned_job in jobs},
        cells=cells,
    )


EXPERIMENT = Experiment(
    id="x",
    paper="CoMap",
    published="Table 0",
    kind="table",
    title="",
    about="",
    backbones=(),
    methods=(),
    columns=(Column(label="seen", metric="success_rate", env=ENV, split="valid_seen"),),
)


def test_jobs_run_past_one_that_fails_and_what_needs_it_is_left_out(tmp_path):
    good, bad = job("good", "expert"), job("bad", "nobody")
    after = job("after", "expert", {"bad": "bad"})
    second = job("second", "random", {"good": "good"})
    events = []
    plan, paths = plan_of(good, bad, after, second), Paths(tmp_path)
    results = run_jobs(
        plan,
        paths,
        main,
        workers=2,
        listener=lambda event, planned_job, word: events.append((event, planned_job.id)),
    )
    assert {name: result.ok for name, result in results.items()} == {
        "good": True, "bad": False, "after": False, "second": True
    }  # fmt: skip
    assert "exit code 2" in results["bad"].why and "nobody" in results["bad"].why
    assert results["after"].why == "needs bad, which failed"
    assert ("begun", "after") not in events and ("left out", "after") in events
    assert events.index(("done", "good")) < events.index(("begun", "second"))
    rows = {row.method: row for row in collect(plan, [EXPERIMENT], paths)}
    assert rows["good"].n == 2 and rows["good"].value is not None and rows["good"].low is not None
    assert rows["bad"].value is None and "nobody" in str(rows["bad"].error)
    assert rows["good"].trajectories is not None
    assert (tmp_path / rows["good"].trajectories).is_file()
    assert rows["good"].hardware and rows["good"].code_version and rows["good"].fingerprint
    record = json.loads((tmp_path / "jobs" / "good" / "job.json").read_text())
    assert str(tmp_path) not in json.dumps(record) and record["cost"]["cpu_seconds"] > 0


def test_what_has_ended_is_not_run_again_and_what_failed_is(tmp_path):
    paths = Paths(tmp_path)
    run_jobs(plan_of(job("one", "expert"), job("two", "nobody")), paths, main, workers=2)
    first = (tmp_path / "jobs" / "one" / "job.json").read_bytes()
    mended = dataclasses.replace(job("two", "random"), config_hash="hash-two")
    events = []
    results = run_jobs(
        plan_of(job("one", "expert"), mended),
        paths,
        main,
        listener=lambda event, planned_job, word: events.append((event, planned_job.id, word)),
    )
    assert all(result.ok for result in results.values())
    assert events[0] == ("done", "one", "before") and ("begun", "two", "") in events
    assert (tmp_path / "jobs" / "one" / "job.json").read_bytes() == first
    assert job_record(paths, mended) is not None
    assert job_record(paths, dataclasses.replace(mended, config_hash="other")) is None


def test_a_worker_that_is_killed_is_told_and_its_job_goes_on_later(tmp_path):
    paths = Paths(tmp_path)
    lines = paths.of("long") / "valid_seen" / "trajectories.jsonl"

    def kill(event, planned_job, word):
        if event == "begun":
            wait_until(lambda: lines.is_file() and lines.stat().st_size > 0)
            multiprocessing.active_children()[0].kill()

    long_job = job("long", "expert", episodes=400, live=1)
    results = run_jobs(plan_of(long_job), paths, main, listener=kill)
    assert not results["long"].ok and results["long"].why.startswith("signal 9")
    played = len(lines.read_bytes().splitlines())
    assert run_jobs(plan_of(long_job), paths, main)["long"].ok
    assert len(lines.read_bytes().splitlines()) > played


def test_one_runner_at_a_time_works_in_a_folder_of_sound_records(tmp_path):
    with locked(tmp_path / "lock", wait=0), pytest.raises(OptionError, match="at work in it"):
        run_jobs(plan_of(job("one", "expert")), Paths(tmp_path), main)
    (tmp_path / "jobs" / "one").mkdir(parents=True)
    (tmp_path / "jobs" / "one" / "job.json").write_text("{")
    with pytest.raises(DataCorrupt, match="remove it"):
        job_record(Paths(tmp_path), job("one", "expert"))


RUNNER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from comap.benchmarks.experiments import runner
from comap.benchmarks.experiments.plan import Paths
from comap.cli import main
from test_runner import job, plan_of
runner.PRELOADED = ("comap.cli",)
runner.run_jobs(plan_of(job("long", "expert", episodes=400, live=1)), Paths(Path({out!r})), main)
"""


def test_workers_end_when_the_runner_is_killed(tmp_path):
    code = RUNNER.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    started = subprocess.Popen([sys.executable, "-c", code])
    lines = tmp_path / "jobs" / "long" / "out" / "valid_seen" / "trajectories.jsonl"
    wait_until(lambda: lines.is_file() and lines.stat().st_size > 0)
    started.kill()
    started.wait()
    wait_until(lambda: is_free(lines.parent / "lock"))  # the worker held it while it played
    assert not (lines.parent / "summary.json").exists(), "it played to the end"


def wait_until(true):
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "not within a minute"
        time.sleep(0.1)


def is_free(path):
    with suppress(DownloadError), locked(path, wait=0):
        return True
    return False


def test_a_job_names_the_gpus_that_held_its_tensors(monkeypatch):
    """A job on a CPU names none, and asking does not begin to use a GPU."""
    assert runner._gpus_used() == []
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        max_memory_reserved=[0, 4096].__getitem__,
        get_device_name=["a card", "another card"].__getitem__,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert runner._gpus_used() == ["another card"]
    cuda.is_initialized = lambda: False
    assert runner._gpus_used() == []


def test_memory_is_measured_where_python_can(monkeypatch):
    """Windows has no module `resource`: jobs run there without that number."""
    peak = runner._peak_mib()
    assert peak is not None and peak > 1
    monkeypatch.setitem(sys.modules, "resource", None)
    assert runner._peak_mib() is None
