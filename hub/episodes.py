"""Trajectories on the Hub: a data set that `datasets` reads, and a run's folder again when loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..agents.run import RUN, SUMMARY, TIMINGS, TRAJECTORIES
from ..agents.run_summary import check_count
from ..checksums import seal, unseal
from ..envs.storage import write_json
from ..errors import DataCorrupt, DataNotFound, MissingExtra, OptionError
from ..trajectory import Trajectory
from .cards import card
from .episodes_card import About
from .manifest import MOST_BYTES, Loaded, Pushed, checked_licence, fetched, push_folder
from .names import check_content, without_places
from .told import Origin

__all__ = ["load_trajectories", "push_trajectories"]

_KEPT = (RUN, SUMMARY, TIMINGS)
_GROUP = 256  # episodes in a row group
_PART = 2**28  # bytes of records in a file


def push_trajectories(
    source: str | Path,
    target: str | Path,
    *,
    licence: str,
    title: str | None = None,
    private: bool = False,
) -> Pushed:
    """Push a run's trajectories as a data set, with a card.

    Each episode is a row: ``env_id``, ``task``, ``split``, ``goal``, ``agent``, ``success``, ``score``
    and others to look at, ``actions``, ``observations`` and ``rewards`` to learn from, and ``record``,
    the whole line of JSON. ``datasets.load_dataset("OWNER/NAME", split="episodes")`` reads it.

    Args:
        source: A run's folder, or a file of trajectories.
        target: ``OWNER/NAME`` on the Hub, or ``local:DIR``.
        licence: Under which licence others may use it, as the Hub writes it: it is yours to choose.
        title: The card's heading; None for the source's name.
        private: Whether a new repository is to be private.

    Raises:
        CoMapError: Something is not right; the message says what.

    Example:
        >>> import tempfile
        >>> from comap.facts import State
        >>> from comap.trajectory import write_trajectories
        >>> with tempfile.TemporaryDirectory() as home:
        ...     file, place = Path(home, "trajectories.jsonl"), f"local:{home}/pushed"
        ...     episode = Trajectory("id", "task", "dev", "goal", "agent", "Hello.", State())
        ...     write_trajectories(file, [episode])
        ...     pushed = push_trajectories(file, place, licence="mit")
        ...     loaded = load_trajectories(place, Path(home, "back"))
        ...     (loaded.path / "trajectories.jsonl").read_bytes() == file.read_bytes()
        True
    """
    given = Path(source)
    file = given / TRAJECTORIES if given.is_dir() else given
    checked_licence(licence)
    origin = Origin.of(file.parent)

    def fill(folder: Path) -> tuple[str, ...]:
        about = About()
        _write_rows(folder / "data", file, about)
        for name in _KEPT:
            kept = file.parent / name
            if given.is_dir() and kept.is_file():
                _keep(kept, folder / "run" / name)
        text = card(about.front(licence), title or given.resolve().name, about.parts(origin))
        (folder / "README.md").write_text(text, "utf-8")
        return ()

    return push_folder(target, "dataset", "trajectories", fill, private=private)


def load_trajectories(
    source: str | Path,
    out: str | Path,
    *,
    revision: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> Loaded:
    """Load trajectories that were pushed into a folder that is like a run's.

    ``trajectories.jsonl`` is there byte for byte as it was pushed, and ``hub.json`` says where it came
    from: `comap view` and `comap verify` take the folder as any other.

    Args:
        source: ``OWNER/NAME`` on the Hub, or ``local:DIR``.
        out: The folder; it may not be there yet, or be empty.
        revision: A commit, branch or tag; None for the newest.
        most_bytes: The most to load, before and after unpacking.

    Raises:
        CoMapError: Something is not right; then `out` is as it was.
    """
    with fetched(source, "dataset", "trajectories", out, revision, most_bytes) as opened:
        files, draft, place, listing = opened
        size = 0
        with (draft / TRAJECTORIES).open("w", encoding="ascii", newline="\n") as file:
            for line in _records(sorted((files / "data").glob("*.parquet")), most_bytes):
                size += file.write(line + "\n")
        for name in (*_KEPT, "README.md"):
            kept = files / ("" if name == "README.md" else "run") / name
            if kept.is_file():
                kept.replace(draft / name)
        _empty(files)
        write_json(draft / "hub.json", {"from": str(place), "revision": listing.revision})
    return Loaded(Path(out), str(place), listing.revision, size)


def _keep(path: Path, target: Path) -> None:
    """Copy a file of a run, if it is what it should be."""
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(path.read_bytes())
    check_content(target, path.name)
    if path.suffix == ".json":
        try:
            told = without_places(unseal(path.read_bytes()))
        except ValueError as error:
            raise DataCorrupt(f"{path}: {error}") from error
        target.write_text(seal(json.dumps(told, indent=2)) + "\n")


def _write_rows(folder: Path, file: Path, about: About) -> None:
    """Write all episodes as Parquet, in files of some hundred megabytes."""
    pa, pq = _arrow()
    folder.mkdir()
    schema, lines, part = _schema(pa), _lines(file), 0
    rows = list(islice(lines, _GROUP))
    if not rows:
        raise DataNotFound(f"expected episodes in {file}, found none; nothing was pushed")
    while rows:
        name, size = f"part-{part:05d}.parquet", 0
        with pq.ParquetWriter(folder / name, schema, compression="zstd") as writer:
            while rows and size < _PART:
                made = [_row(line, episode) for line, episode in rows]
                for _, episode in rows:
                    about.add(episode)
                writer.write_table(pa.Table.from_pylist(made, schema))
                size += sum(len(line) for line, _ in rows)
                rows = list(islice(lines, _GROUP))
        part += 1


def _lines(file: Path) -> Iterator[tuple[str, Trajectory]]:
    """Yield each line of a file, and the episode in it."""
    try:
        opened = file.open("rb")
    except OSError as error:
        raise DataNotFound(f"cannot read trajectories at {file}: {error.strerror}") from error
    with opened:
        number = 0
        for number, line in enumerate(opened, 1):
            try:
                text = line.decode("ascii").rstrip("\n")
                yield text, Trajectory.from_line(text)
            except (ValueError, RecursionError) as error:
                raise DataCorrupt(f"{file}, line {number}: {error}") from error
    check_count(file, number)


def _row(line: str, episode: Trajectory) -> dict[str, Any]:
    """Return an episode's row."""
    told = {
        "env_id": episode.env_id,
        "task": episode.task,
        "split": episode.split,
        "goal": episode.goal,
        "agent": episode.agent,
        "model": str(episode.settings.get("model") or ""),
        "world_model": episode.world_model or "",
        "error": episode.error or "",
        "observation": episode.observation,
    }
    clean = {name: _text(value) for name, value in told.items()}
    return {
        **clean,
        "trial": episode.trial,
        "success": episode.success,
        "score": float(episode.score),
        "length": len(episode.steps),
        "actions": [_text(step.action) for step in episode.steps],
        "observations": [_text(step.observation) for step in episode.steps],
        "rewards": [float(step.reward) for step in episode.steps],
        "record": line,
    }


def _text(text: str) -> str:
    """Return a text that can be written as UTF-8; `record` has it as it was."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _schema(pa: Any) -> Any:
    words = ("env_id", "task", "split", "goal", "agent", "model", "world_model", "error")
    return pa.schema(
        [(name, pa.string()) for name in (*words, "observation")]
        + [("trial", pa.int32()), ("success", pa.bool_()), ("score", pa.float64())]
        + [("length", pa.int32())]
        + [(name, pa.list_(pa.string())) for name in ("actions", "observations")]
        + [("rewards", pa.list_(pa.float64())), ("record", pa.string())]
    )


def _records(files: list[Path], most_bytes: int) -> Iterator[str]:
    """Yield the lines in files of Parquet; each is a trajectory."""
    pa, pq = _arrow()
    size = 0
    for path in files:
        try:
            with pq.ParquetFile(path) as opened:
                if any(
                    opened.metadata.row_group(number).total_byte_size > most_bytes
                    for number in range(opened.num_row_groups)
                ):
                    raise _too_large(most_bytes)
                for batch in opened.iter_batches(batch_size=_GROUP, columns=["record"]):
                    for line in batch.column(0).to_pylist():
                        size += len(line)
                        if size > most_bytes:
                            raise _too_large(most_bytes)
                        yield _checked(line)
        except (pa.ArrowException, IndexError, KeyError, TypeError, OSError) as error:
            raise DataCorrupt(
                f"expected episodes in data/{path.name}, found something else ({error!s:.120})"
            ) from error


def _checked(line: str) -> str:
    """Return a line, if it is one of a trajectory's file."""
    try:
        if not line.isascii() or "\n" in line or "\r" in line:
            raise ValueError("more than a line of ASCII")
        Trajectory.from_line(line)
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(f"expected a trajectory in each record, found {error!s:.200}") from error
    return line


def _too_large(most_bytes: int) -> OptionError:
    return OptionError(
        f"expected at most {most_bytes:,} bytes of episodes, found more; allow more, if you trust them "
        "(--most-bytes)"
    )


def _empty(folder: Path) -> None:
    """Remove the files that a repository had, which are no more needed."""
    for base, folders, names in os.walk(folder, topdown=False):
        for name in names:
            Path(base, name).unlink()
        for name in folders:
            Path(base, name).rmdir()
    folder.rmdir()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra.of("hub", "trajectories as a data set") from error
    return pyarrow, pyarrow.parquet
