"""A command that is stopped says what is kept, and that the same command goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from comap.cli import main
from comap.cli.main import Terminated

AGENT = '''
import time
from pathlib import Path
from comap.agents import Decision

class Slow:
    """Ends one task, then says that it is there and waits."""

    name = "slow"

    def decide(self, view):
        yield from ()
        if Path("slow/trajectories.jsonl").exists():
            Path("waits").touch()
            time.sleep(90)
        return Decision("look")
'''
# A shell starts what runs in its background with SIGINT ignored, and children inherit that.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from comap.cli import main
sys.exit(main())
"""
WORDS = ["run", "--agent", "slowly:Slow", "--episodes", "2", "--max-episode-steps", "1"]
WORDS += ["--live", "1", "--env-option", "source=generated", "--out", "slow"]


@pytest.mark.parametrize(("stop_signal", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_says_how_to_go_on(stop_signal, status, tmp_path):
    (tmp_path / "slowly.py").write_text(AGENT)
    command = [sys.executable, "-c", INTERRUPTIBLE, *WORDS]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "waits").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(stop_signal)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert errors.splitlines()[-1] == (
        "comap: stopped; what has ended is kept in slow: give the same command again to go on"
    )
    (tmp_path / "slowly.py").write_text(AGENT.replace("90", "0"))
    resumed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0 and "1 of 2 tasks had ended before" in resumed.stdout


@pytest.mark.parametrize(
    ("words", "goes_on"),
    [
        ("train paw --preset tiny --out RUN", True),
        ("train sft --preset tiny --out RUN", True),
        ("bench run comap-t1 --out RUN", True),
        ("verify RUN", False),
    ],
)
def test_only_commands_that_resume_say_so(words, goes_on, tmp_path, monkeypatch, capsys):
    pytest.importorskip("trl")

    def stops(*_):
        raise KeyboardInterrupt

    run = tmp_path / "run"
    run.mkdir()
    (run / "begun").touch()
    for name in ("train.Training", "bench.Run", "run.Verify"):
        module, _, command = name.partition(".")
        monkeypatch.setattr(f"comap.cli.{module}.{command}.run", stops)
    assert main(words.replace("RUN", str(run)).split()) == 130
    assert ("give the same command again" in capsys.readouterr().err) is goes_on


def test_stopping_before_anything_was_begun_promises_nothing(tmp_path, monkeypatch, capsys):
    def stops(*_):
        raise Terminated

    monkeypatch.setattr("comap.cli.run.Play.run", stops)
    assert main(["run", "--agent", "random", "--out", str(tmp_path / "new")]) == 143
    assert capsys.readouterr().err == "comap: stopped\n"


def test_the_signals_of_a_program_that_calls_main_are_its_own():
    before = signal.getsignal(signal.SIGTERM)
    assert main(["--version"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
