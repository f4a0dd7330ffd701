"""Jobs that a cluster runs: submitit's local executor stands in for Slurm."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from types import SimpleNamespace

import pytest

from comap.benchmarks.experiments.cluster import Cluster, Submitted
from comap.benchmarks.experiments.plan import Paths
from comap.benchmarks.experiments.runner import run_jobs
from comap.benchmarks.experiments.session import run_experiments
from comap.cli import main
from comap.errors import OptionError

from .test_runner import job, plan_of, wait_until

pytest.importorskip("submitit", reason="the extra slurm is not installed")


def test_a_cluster_runs_jobs_in_order_and_says_which_failed(tmp_path):
    good, bad = job("good", "expert"), job("bad", "nobody")
    second = job("second", "random", {"good": "good"})
    results = run_jobs(
        plan_of(good, bad, second), Paths(tmp_path), main, workers=3, launcher="local timeout_min=5"
    )
    assert {name: result.ok for name, result in results.items()} == {
        "good": True, "bad": False, "second": True
    }  # fmt: skip
    assert "exit code 2" in results["bad"].why and "nobody" in results["bad"].why
    record = json.loads((tmp_path / "jobs" / "good" / "job.json").read_text())
    assert record["cost"]["cpu_seconds"] > 0


def test_a_preempted_job_is_submitted_again_and_goes_on(tmp_path, monkeypatch):
    submitted = []
    submit = Cluster.submit
    monkeypatch.setattr(
        Cluster, "submit", lambda *words: submitted.append(submit(*words)) or submitted[-1]
    )
    lines = Paths(tmp_path).of("long") / "valid_seen" / "trajectories.jsonl"

    def preempt(event, planned_job, word):
        if event == "begun":
            wait_until(lambda: lines.is_file() and lines.stat().st_size > 0)
            played.append(lines.read_bytes())
            task = children(submitted[0].job._process.pid)[0]  # the executor's own process
            subprocess.run(["kill", "-USR2", str(task)], check=True)

    played = []
    long_job = job("long", "expert", episodes=100, live=1)
    results = run_jobs(
        plan_of(long_job), Paths(tmp_path), main, launcher="local timeout_min=5", listener=preempt
    )
    assert results["long"].ok, results["long"].why
    assert "Requeued" in submitted[0].job.stderr() or "Requeued" in submitted[0].job.stdout()
    assert lines.read_bytes().startswith(played[0]) and len(lines.read_bytes()) > len(played[0])


def children(pid):
    pgrep_output = subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True
    ).stdout
    return [int(word) for word in pgrep_output.split()]


def test_what_the_cluster_did_to_a_job_is_in_its_log(tmp_path):
    cluster = Cluster("local timeout_min=5", tmp_path / "submitted")
    submission = cluster.submit("killed", functools.partial(os._exit, 9), tmp_path / "log.txt")
    assert isinstance(submission, Submitted)
    submission.job._results_timeout_s = 1
    wait_until(lambda: submission.exitcode is not None)
    assert submission.exitcode == 1 and "has not produced any output" in submission.log.read_text()


def test_a_job_that_the_cluster_refuses_is_told(tmp_path, monkeypatch):
    cluster = Cluster("local timeout_min=5", tmp_path / "submitted")

    def refuse(work):
        raise RuntimeError("sbatch: error: invalid partition specified:\n gpus")

    monkeypatch.setattr(
        cluster, "_executor", SimpleNamespace(submit=refuse, update_parameters=dict)
    )
    with pytest.raises(
        OptionError, match=r"take the job one, found: sbatch.*partition specified: gpus"
    ):
        cluster.submit("one", functools.partial(abs, 1), tmp_path / "log.txt")


def test_what_a_cluster_cannot_take_is_refused_before_anything_runs(tmp_path):
    for launcher, why in [
        ("slurm gpus", "NAME=VALUE"),
        ("local no_such=1", "no_such"),
        ("slurm timeout_min=5", "srun"),
    ]:
        with pytest.raises(OptionError, match=why):
            run_experiments(
                ["comap-f5"], "tiny", tmp_path / "out", main, launcher=launcher, dry_run=False
            )
