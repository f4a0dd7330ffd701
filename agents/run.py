"""`run_to`: play tasks into a folder, which can be stopped at any time and gone on with.

A run's folder holds ``run.json`` (what was run, with what), ``trajectories.jsonl`` (one line a trial;
it grows as tasks end, and is in the order of the tasks at the end, byte for byte the same however many
episodes ran at once), ``timings.jsonl`` (when each task ended) and ``summary.json``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

from ..checksums import seal, unseal
from ..envs.storage import locked
from ..errors import DownloadError, OptionError
from ..trajectory import Trajectory
from .base import Agent, Retrying
from .records import Records, writing
from .run_description import FORMAT, Run, known_sessions
from .run_summary import SUMMARY, TRAJECTORIES, summarize
from .runner import stream_episodes

__all__ = ["RUN", "SUMMARY", "TIMINGS", "TRAJECTORIES", "Play", "Run", "run_to"]

Play: TypeAlias = (
    "Callable[[Run, Sequence[str], int, bool], Generator[tuple[int, list[Trajectory]], None, None]]"
)
"""Plays tasks of a run, so many at a time, overlapped or not (see `run_to`), and yields each one's
number and trials as it ends."""

RUN = "run.json"
"""The file that says what was run."""
TIMINGS = "timings.jsonl"
"""The file that says when each task ended."""


def run_to(
    directory: str | Path,
    run: Run,
    *,
    live: int = 32,
    overlap: bool = False,
    retry_failed: bool = False,
    about: Mapping[str, Any] | None = None,
    play: Play | None = None,
    on_start: Callable[[int], object] | None = None,
    on_done: Callable[[list[Trajectory]], object] | None = None,
) -> dict[str, Any]:
    """Play tasks, record them in a folder, and return the summary that is also written there.

    Where the folder holds the beginning of the same run, what has ended is kept and the rest is
    played. A kill at any moment loses the episodes that are running then, and no more.

    Args:
        directory: The folder; made where it is missing.
        run: What is run.
        live: How many episodes run at the same time; it may differ from session to session.
        overlap: Whether the world model predicts for some episodes while the policy drafts for others
            (see `stream_episodes`); it may differ likewise.
        retry_failed: Play the tasks again that a fault ended.
        about: What else to write down of this session: versions, hardware.
        play: Plays tasks in another way than in this process: a `comap.agents.ray_pool.RayPool`.
        on_start: Told how many tasks had ended before.
        on_done: Told the trials of each task as it ends.

    Raises:
        OptionError: The folder is another run's, in use by another process or cannot be written, or
            an option cannot be.
        DataCorrupt: The folder's files are not what they should be.

    Example:
        >>> import tempfile, gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> tasks = make_env().unwrapped.tasks.ids[:2]
        >>> run = Run(make_env=make_env, agent=ExpertAgent(), tasks=tasks)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_to(folder, run)["success"]["value"]
        1.0
    """
    folder = Path(directory)
    with ExitStack() as stack:
        _lock(stack, folder)
        described = run.describe()
        sessions = known_sessions(folder / RUN, described)
        with writing(folder):
            records = Records(folder / TRAJECTORIES, _unfinished(folder, run.agent))
            if retry_failed and records.failed:
                (folder / SUMMARY).unlink(missing_ok=True)
                records.drop(records.failed)
        rest = [task for task in run.tasks if task not in records.tasks]
        playing = stack.enter_context(closing((play or _play)(run, rest, live, overlap)))
        sessions.append({**(about or {}), "live": live})
        with writing(folder):
            _write_json(folder / RUN, {"format": FORMAT, **described, "sessions": sessions})
            if rest:
                (folder / SUMMARY).unlink(missing_ok=True)
        if on_start is not None:
            on_start(len(run.tasks) - len(rest))
        clock = _Clock(folder / TIMINGS, len(sessions))
        for number, trials in playing:
            with writing(folder):
                records.add(trials)
                clock.note(rest[number])
            if on_done is not None:
                on_done(trials)
        with writing(folder):
            records.sort(run.tasks)
            summary = summarize(folder / TRAJECTORIES, clock.seconds())
            _write_json(folder / SUMMARY, summary)
    return summary


def _play(
    run: Run, tasks: Sequence[str], live: int, overlap: bool
) -> Generator[tuple[int, list[Trajectory]], None, None]:
    return stream_episodes(
        run.make_env,
        run.agent,
        tasks,
        lm=run.lm,
        world_model=run.world_model,
        live=live,
        overlap=overlap,
        seed=run.seed,
        keep=run.keep,
    )


def _lock(stack: ExitStack, folder: Path) -> None:
    """Make the folder where it is missing, and see to it that nobody else writes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"cannot make the folder {folder} for the run: {error.strerror}; give another folder"
        ) from error
    try:
        stack.enter_context(locked(folder / "lock", wait=0))
    except DownloadError as error:
        raise OptionError(f"cannot write a run into {folder}: {error}") from error


def _unfinished(folder: Path, agent: Agent) -> bool:
    """Return whether the last task in the folder may lack trials."""
    return isinstance(agent, Retrying) and not (folder / SUMMARY).exists()


class _Clock:
    """When each task ended, in seconds since its session began: in a file of its own."""

    def __init__(self, path: Path, session: int):
        self._path, self._session, self._start = path, session, time.monotonic()

    def note(self, task: str) -> None:
        """Note that a task has ended."""
        seconds = round(time.monotonic() - self._start, 3)
        line = {"session": self._session, "task": task, "seconds": seconds}
        with self._path.open("a", encoding="ascii") as file:
            file.write(seal(json.dumps(line)) + "\n")

    def seconds(self) -> float:
        """Return for how long tasks were played, over all sessions."""
        ends: dict[int, float] = {}
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for line in lines:
            try:
                record = unseal(line)
                session, seconds = int(record["session"]), float(record["seconds"])
            except (ValueError, KeyError, TypeError):
                continue  # half written when the process was killed, or changed: it tells of time alone
            ends[session] = max(ends.get(session, 0.0), seconds)
        return round(sum(ends.values()), 3)


def _write_json(path: Path, value: object) -> None:
    """Write a file so that a reader finds the old one or the new one, whole."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(seal(json.dumps(value, indent=2, ensure_ascii=True)) + "\n", "ascii")
    draft.replace(path)
