"""What is written while the disk fills, and what must come of it, by kind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import CoMapError
from ...trajectory import read_trajectories
from .disk_writers import ASKED, STAGES, checkpoint, result
from .engines import RUN
from .findings import Findings

__all__ = ["KINDS", "Place", "play"]

_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from {module} import main
sys.exit(main(sys.argv[2:]))
"""
_FREE = """
import sys
from {module} import main
sys.exit(main(sys.argv[1:]))
"""
_SECONDS = 600.0
_CLI, _WRITERS = "comap.cli", "comap.benchmarks.reliability.disk_writers"
_PRODUCTS = 60


@dataclass(slots=True)
class Place:
    """Where the disk fills.

    Attributes:
        folder: A folder for everything.
        lines: The lines that a whole run records; it is in ``whole``.
        rng: Draws where the disk is full.
        found: Where to note what came.
    """

    folder: Path
    lines: list[bytes]
    rng: random.Random
    found: Findings

    def room(self, files: Iterable[Path]) -> int:
        """Draw a size that the largest of some files does not fit in."""
        return self.rng.randrange(1, max(file.stat().st_size for file in files if file.is_file()))


def _fill_run(place: Place, number: int) -> None:
    """Fill the disk under a run, look at what it left, and go on with it."""
    found, lines, folder = place.found, place.lines, place.folder / f"run-{number}"
    room = place.rng.randrange(1, sum(map(len, lines)))
    done = play(room, folder)
    _check_told(found, done, f"a run with room for {room} bytes")
    path = folder / "trajectories.jsonl"
    kept = path.read_bytes() if path.exists() else b""
    found.count("episodes kept", len(list(read_trajectories(path))) if path.exists() else 0)
    held = kept in [b"".join(lines[:number]) for number in range(len(lines) + 1)]
    found.check(held, f"with room for {room} bytes something else than whole episodes was left")
    again = play(None, folder)
    found.check(again.returncode == 0, f"the run did not go on: {again.stderr[-300:]}")
    same = path.exists() and path.read_bytes() == b"".join(lines)
    found.check(same, "a run that went on after a full disk recorded something else")
    found.count("runs completed")


def _fill_index(place: Place, number: int) -> None:
    """Fill the disk while an index is built over another."""
    corpus, index = place.folder / "corpus.jsonl", place.folder / f"index-{number}"
    if not corpus.exists():
        rows = ({"id": str(n), "contents": f'"Town {n}"\n{"A river. " * 30}'} for n in range(300))
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    _fill_over(place, index, "data", "build", "searchqa", str(corpus), "--out", str(index))


def _fill_catalogue(place: Place, number: int) -> None:
    """Fill the disk while a WebShop catalogue is built over another."""
    from ...envs.webshop.generate import generate_catalog

    source, shop = place.folder / "source", place.folder / f"shop-{number}"
    if not source.exists():
        generate_catalog(source, products=_PRODUCTS)
    words = ("data", "build", "webshop", str(source), "--out", str(shop), "--nouns", "lexical")
    _fill_over(place, shop, *words)


def _fill_push(place: Place, number: int) -> None:
    """Fill the disk while a run is pushed over what was pushed to a folder before."""
    target = place.folder / f"pushed-{number}"
    words = ("hub", "push", "trajectories", str(place.folder / "whole"), f"local:{target}")
    _fill_over(place, target, *words, "--licence", "mit")


def _fill_over(place: Place, target: Path, *words: str) -> None:
    """Fill the disk while a command writes a folder over another, which must stay whole."""
    found, name = place.found, " ".join(words[:3])
    drafts = place.folder / f"{target.name}-drafts"
    drafts.mkdir()
    first = _command(None, *words)
    if not found.check(first.returncode == 0, f"{name} failed: {first.stderr[-300:]}"):
        return
    before = _contents(target)
    room = place.room(target.rglob("*"))
    done = _command(room, *words, environment={"TMPDIR": str(drafts)})
    _check_told(found, done, f"{name} with room for {room} bytes")
    found.check(before == _contents(target), f"a full disk changed what {name} had made")
    left = [
        file.name for file in place.folder.iterdir() if file.name.startswith(f".{target.name}-")
    ]
    left += [file.name for file in drafts.iterdir()]
    found.check(not left, f"a full disk under {name} left {left} behind")


def _contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def _fill_record(place: Place, number: int) -> None:
    """Fill the disk while a language model is recorded, replay what is there, and go on."""
    from ...lm.replay import ReplayLanguageModel

    found, whole = place.found, place.folder / "whole-record"
    if not whole.exists():
        _write(None, "record", whole)
    lines = (whole / "record.jsonl").read_bytes().splitlines(keepends=True)
    folder = place.folder / f"record-{number}"
    room = place.room(whole.iterdir())
    _check_told(found, _write(room, "record", folder), f"a record with room for {room} bytes")
    path = folder / "record.jsonl"
    kept = path.read_bytes() if path.exists() else b""
    held = kept in [b"".join(lines[:count]) for count in range(len(lines) + 1)]
    if found.check(held, "a full disk left something else than whole answers in a record") and kept:
        ReplayLanguageModel(path)
        found.count("answers kept", kept.count(b"\n") - 1)
    again = _write(None, "record", folder)
    found.check(again.returncode == 0, f"a record did not go on: {again.stderr[-300:]}")
    same = path.read_bytes().count(b"\n") == ASKED + 1 and path.read_bytes() == b"".join(lines)
    found.check(same, "a record that went on after a full disk is another")


def _fill_training(place: Place, number: int) -> None:
    """Fill the disk under a training's checkpoints and results, look at what is left, and go on."""
    found, whole = place.found, place.folder / "whole-training"
    if not whole.exists():
        _write(None, "train", whole)
    folder = place.folder / f"training-{number}"
    room = place.room(whole.rglob("*"))
    _check_told(found, _write(room, "train", folder), f"a training with room for {room} bytes")
    found.count("stages kept", _stages(found, folder))
    again = _write(None, "train", folder)
    found.check(again.returncode == 0, f"a training did not go on: {again.stderr[-300:]}")
    same = _stages(found, folder) == STAGES
    found.check(same, "a training that went on after a full disk has not all of its stages")


def _stages(found: Findings, folder: Path) -> int:
    """Return how many stages of a training have ended; those and their checkpoints must be right."""
    from ...trainers.run_folder import RunFolder
    from ...trainers.trainer_checkpoints import last_checkpoint, read_weights

    ended = 0
    try:
        for number in range(STAGES if folder.is_dir() else 0):
            stage = RunFolder(folder).stage(number, f"stage-{number}")
            told = stage.result()
            if told is not None:
                ended += 1
                same = {name: told.get(name) for name in result(number)} == result(number)
                found.check(same, f"stage {number} of a training has another result")
            if last_checkpoint(stage.path) is not None:
                into = {name: part.clone() * 0 for name, part in checkpoint(number)["own"].items()}
                read_weights(stage.path / "checkpoint-1", {"own": into}, "own")
                right = all(
                    (into[name] == one).all() for name, one in checkpoint(number)["own"].items()
                )
                found.check(right, f"the checkpoint of stage {number} is another")
    except CoMapError as error:
        found.lose(f"a training cannot be read after a full disk: {error}")
    return ended


def _check_told(found: Findings, done: subprocess.CompletedProcess[str], what: str) -> None:
    """Look at how a command told of a full disk: exit status 1, one line, no traceback."""
    said = [line for line in done.stderr.splitlines() if line.startswith("comap")]
    right = done.returncode == 1 and len(said) == 1 and "Traceback" not in done.stderr
    if found.check(right, f"{what} ended with {done.returncode}: {done.stderr[-300:]}"):
        found.tell("one line and exit status 1")
        clear = "File too large" in said[0] or "full" in said[0]
        found.check(clear, f"{what} does not tell of a full disk: {said[0]}")


def play(room: int | None, folder: Path) -> subprocess.CompletedProcess[str]:
    """Play the run into a folder, on a disk with so much room for each file (None: all)."""
    return _command(room, *RUN, "--live", "2", "--out", str(folder))


def _write(room: int | None, what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Let a function of `disk_writers` write into a folder, on a disk with so much room."""
    return _command(room, what, str(folder), module=_WRITERS)


def _command(
    room: int | None, *words: str, module: str = _CLI, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of comap, on a disk with so much room for each file (None: all)."""
    program = _LIMITED if room is not None else _FREE
    start = [] if room is None else [str(room)]
    return subprocess.run(
        [sys.executable, "-c", program.format(module=module), *start, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        env=os.environ | dict(environment or {}),
    )


KINDS: Mapping[str, tuple[Callable[[Place, int], None], tuple[str, ...]]] = {
    "runs": (_fill_run, ()),
    "indexes": (_fill_index, ()),
    "records of language models": (_fill_record, ()),
    "pushes": (_fill_push, ()),
    "catalogues": (_fill_catalogue, ()),
    "trainings": (_fill_training, ("torch",)),
}
"""What is written while the disk fills, and the modules that it needs."""
