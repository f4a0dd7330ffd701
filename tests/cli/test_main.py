"""The command line: quick help, one line for a mistake, and never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

import comap.benchmarks.demo
from comap import __version__
from comap.cli import main
from comap.cli.main import COMMANDS, FOR_MAINTAINERS, load, understood
from comap.cli.options import SHORT_NAMES, Options

HEAVY = {"gymnasium", "numpy", "torch", "transformers", "jsonargparse", "comap.benchmarks"}


def test_corrupt_and_missing_data(tmp_path, capsys):
    (tmp_path / "a" / "json_2.1.1" / "train").mkdir(parents=True)
    out = ["--out", str(tmp_path / "out")]
    assert main(["demo", "--data-dir", str(tmp_path / "a"), *out]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    for split in ("train", "valid_unseen"):
        folder = tmp_path / "b" / "json_2.1.1" / split / "pick_and_place_simple-A-None-B-1" / "t"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_bytes(b'{"pddl_domain": ')
    assert main(["demo", "--data-dir", str(tmp_path / "b"), *out]) == 1
    error = capsys.readouterr().err
    assert "game.tw-pddl" in error and "Traceback" not in error


def test_faults_of_comap_itself_and_a_user_who_stops_it(monkeypatch, capsys):
    run_demo = Mock(side_effect=KeyError("two\nlines"))
    monkeypatch.setattr(comap.benchmarks.demo, "run_demo", run_demo)
    assert main(["demo"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "KeyError" in line and "comap --traceback" in line
    with pytest.raises(KeyError):
        main(["--traceback", "demo"])
    run_demo.side_effect = KeyboardInterrupt
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "comap: stopped\n"


def test_help_lists_the_commands(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"comap {__version__}\n"
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all((f"  {name}" in listed) == (name not in FOR_MAINTAINERS) for name in COMMANDS)
    assert "--print-completion" in listed
    assert main([]) == 0 and capsys.readouterr().out == listed
    assert main(["bench", "--help-all"]) == 0
    assert all(f"  {name}" in capsys.readouterr().out for name in FOR_MAINTAINERS[:1])
    assert main(["data", "--help"]) == 0
    listed = capsys.readouterr().out
    assert "data list" in listed and "serve env" not in listed
    assert main(["data"]) == 2
    assert "usage: comap data COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_fits_two_screens(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 100 and lines[0].startswith(f"usage: comap {name}")
    parser = Options(load(name), ["--help-all"], f"comap {name}")
    assert all(action.help for action in parser._actions), "an option that nothing explains"


def test_completion_names_commands_and_options(capsys):
    assert main(["--print-completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert "--train-tasks" in script and "noise-gradients" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize("words", ["--help", "--version", "bench --help"])
def test_help_and_version_import_nothing_heavy(words):
    process = subprocess.run(
        [sys.executable, "-m", "comap", *words.split()],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert "comap.cli.main" in imported and not HEAVY & imported


def test_one_s_own_code_has_all_of_comap_on_the_command_line(tmp_path):
    (tmp_path / "own.py").write_text(
        "import comap, gymnasium\n"
        "assert comap.NoEpisode is comap.errors.NoEpisode and not hasattr(comap, 'Nothing')\n"
        "assert 'comap/ALFWorld-v0' in gymnasium.registry\n"
        "gymnasium.register('own/Lake-v0', 'gymnasium.envs.toy_text:FrozenLakeEnv')\n"
    )
    command = [
        sys.executable,
        "-m",
        "comap",
        "run",
        "--agent",
        "random",
        "--env",
        "own:own/Lake-v0",
    ]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "expected an environment of comap" in process.stderr


@pytest.mark.parametrize(
    ("words", "code"), [("--env Nowhere-v0", 2), ("--agent expert --episodes 2", 0)]
)
def test_a_process_at_a_terminal_that_knows_ascii_alone(words, code, tmp_path):
    command = [sys.executable, "-m", "comap", "run", *words.split(), "--out", str(tmp_path / "out")]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = subprocess.run(command, capture_output=True, env=env, encoding="ascii", check=False)
    assert process.returncode == code and "Traceback" not in process.stderr
    assert (process.stderr == "") == ("success" in process.stdout) == (code == 0)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell's pipe")
def test_a_reader_that_goes_away():
    command = [sys.executable, "-m", "comap", "data", "list"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        process = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (process.returncode, process.stderr) == (141, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("module", ["gymnasium", "docstring_parser"])
def test_ctrl_c_while_modules_are_loaded(module, tmp_path):
    interrupted = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    (tmp_path / f"{module}.py").write_text(interrupted)
    process = subprocess.run(
        [sys.executable, "-m", "comap", "run", "--agent", "random"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may ignore it
    )
    assert (process.returncode, process.stderr) == (130, "comap: stopped\n")


NAMES = {
    "agent": "text",
    "data-dir": "text",
    "env": "text",
    "episodes": "a whole number",
    "license": "text",
    "max-episode-steps": "a whole number",
    "model": "text",
    "out": "text",
    "seed": "a whole number",
    "split": "text",
    "tiny-parameters": "a whole number",
    "world-model": "text",
}
"""Options that mean the same wherever they are."""
INSTEAD = {"n", "sample", "result", "save", "licence", "path", "max", "parameters", "max-steps"}
"""Names that one of those replaced."""


def kind_of(action):
    """What an option takes, however many: a path is text."""
    kind = re.sub(r" or none| \(several\)", "", getattr(action, "kind", ""))
    return {"a path": "text"}.get(kind, kind)


def test_options_of_one_name_mean_the_same_in_all_commands():
    kinds = {}
    for name in COMMANDS:
        words = ["--agent", "comap"] if name == "run" else []
        for action in Options(load(name), ["--help-all", *words], f"comap {name}")._actions:
            option = next(iter(action.option_strings), "")[2:]
            assert option not in INSTEAD, f"comap {name} --{option}"
            if option and name not in FOR_MAINTAINERS and kind_of(action) != "another value":
                kinds.setdefault(option, {}).setdefault(kind_of(action), []).append(name)
            if option in NAMES and name not in FOR_MAINTAINERS:
                assert kind_of(action) in (NAMES[option], "another value"), f"{name} --{option}"
            short = SHORT_NAMES.get(action.dest)
            if short and action.option_strings:
                assert short in action.option_strings, f"comap {name} --{option}"
    repeated_options = {option: by for option, by in kinds.items() if len(by) > 1}
    assert set(repeated_options) <= {"scale", "optimization.schedule", "weights", "engine"}, (
        repeated_options
    )
    assert set(NAMES) <= set(kinds)


def test_short_and_former_names_still_work():
    words = "run -a react -e comap/ALFWorld-v0 -n8 -o out -s=3 -w null"
    play = understood(words.split())
    assert (play.agent, play.episodes, play.seed, play.world_model) == ("react", 8, 3, "null")
    assert understood(["verify", "run", "--sample", "all"]).episodes == "all"
    push = understood(["hub", "push", "models", "a", "b", "--licence", "mit"])
    assert push.license == "mit"
