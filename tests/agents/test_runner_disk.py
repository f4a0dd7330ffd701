"""Runs and the disk: full, closed, killed, another version; nothing that was recorded is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from comap.agents.records import Records, writing
from comap.cli import main
from comap.errors import OptionError
from comap.facts import State
from comap.trajectory import Trajectory, read_trajectories

WORDS = ["run", "--agent", "random", "--env-option", "source=generated", "--episodes", "12"]
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs signals and limits")
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from comap.cli import main
sys.exit(main(sys.argv[2:]))
"""


def text(folder: Path) -> bytes:
    return (folder / "trajectories.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*WORDS, "--out", str(folder)]) == 0
    return folder


def limited(size: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(size), *words],
        capture_output=True,
        text=True,
        check=False,
    )


@POSIX
def test_a_full_disk_is_told_in_a_line_and_costs_nothing_recorded(
    tmp_path: Path, whole: Path
) -> None:
    lines = text(whole).splitlines(keepends=True)
    room = sum(map(len, lines[:5])) + 100
    done = limited(room, *WORDS, "--live", "1", "--out", str(tmp_path))
    assert done.returncode == 1
    (told,) = done.stderr.splitlines()
    assert told.startswith("comap: cannot write the run in ") and "File too large" in told
    assert "what was recorded is kept" in told
    assert text(tmp_path) == b"".join(lines[:5]), "and nothing half written is left"
    assert not (tmp_path / "summary.json").exists()
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    assert text(tmp_path) == text(whole)


@POSIX
def test_a_tiny_model_that_finds_no_room(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = ["run", "--agent", "react", "--model", "tiny", "--episodes", "1"]
    done = limited(50_000, *words, "--out", str(tmp_path))
    assert done.returncode == 1
    (told,) = done.stderr.splitlines()
    assert told.startswith("comap: cannot write the tiny model into ")
    assert not (tmp_path / "model" / "tiny.json").exists(), "it is built anew the next time"


@POSIX
def test_what_cannot_be_appended_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    records = Records(tmp_path / "trajectories.jsonl")
    trial = Trajectory("id", "one", "dev", "goal", "agent", "Hello.", State())
    records.add([trial])
    before = text(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.add([trial])
    assert text(tmp_path) == before and records.tasks == {"one"}


def test_a_place_that_cannot_be_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/run"):
        assert main([*WORDS, "--out", str(tmp_path / place)]) == 1
        (told,) = capsys.readouterr().err.splitlines()
        assert "expected a folder for the run at" in told and "--out" in told


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_a_folder_that_may_not_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert main([*WORDS, "--out", str(closed / "run")]) == 1
    assert "may not" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from comap.agents.run import Run, run_to

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    run = Run(make_env=lambda: None, agent=None, tasks=())  # type: ignore[arg-type,return-value]
    with pytest.raises(OptionError, match=r"cannot make the folder .*: Permission denied; give"):
        run_to(tmp_path / "run", run)


KILLED = """
import os, signal, sys
from comap.agents.random import RandomAgent
decide, left = RandomAgent.decide, [220]
def until_killed(self, view):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return (yield from decide(self, view))
RandomAgent.decide = until_killed
from comap.cli import main
sys.exit(main(sys.argv[1:]))
"""


@POSIX
@pytest.mark.parametrize("live", [1, 4])
def test_a_killed_command_goes_on(live: int, tmp_path: Path, whole: Path) -> None:
    words = [*WORDS, "--live", str(live), "--out", str(tmp_path)]
    command = [sys.executable, "-c", KILLED, *words]
    killed = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    assert killed.returncode == -signal.SIGKILL
    file = tmp_path / "trajectories.jsonl"
    assert file.read_bytes().count(b"\n") == 4, "220 steps are 4 episodes of 50, and some more"
    file.write_bytes(file.read_bytes() + b'{"schema": 2, "task": "gen')  # as a kill may leave it
    assert main(words) == 0
    assert text(tmp_path) == text(whole)
    lines = (tmp_path / "timings.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["session"] for line in lines] == [1] * 4 + [2] * 8
    assert len(list(read_trajectories(file))) == 12


def test_another_version_that_goes_on_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "", "it is the same version"
    said = json.loads((tmp_path / "run.json").read_text())
    del said["crc32"]
    said["sessions"][-1]["versions"]["comap"] = "0.0.1\x1b[31m"
    (tmp_path / "run.json").write_text(json.dumps(said))
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    (told,) = capsys.readouterr().err.splitlines()
    assert "goes on with other versions than before: comap 0.0.1[U+001B][31m, now " in told


@POSIX
def test_weights_that_find_no_room_are_told_as_other_files_are(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    weights = {"a": torch.ones(1000)}
    for save in (
        lambda: torch.save(weights, "/dev/full"),
        lambda: save_file(weights, tmp_path / "no folder" / "a"),
    ):
        told = r"cannot write the run in run: .*disk full"
        with pytest.raises(OptionError, match=told), writing(Path("run")):
            save()
    with pytest.raises(RuntimeError, match="another"), writing(Path("run")):
        raise RuntimeError("another")
