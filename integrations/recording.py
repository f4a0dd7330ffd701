"""Episodes that clients of a server play, recorded in a folder as `comap run` records an agent's.

- `Recording`: the folder, with what has ended in it and what is under way
- `RecordedEpisode`: one episode, from its reset to its end or to where its client left it
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .. import jsonl
from ..agents.run import (
    DIGESTS,
    FORMAT,
    RUN,
    SUMMARY,
    TRAJECTORIES,
    known_sessions,
    lock_folder,
    refuse_foreign,
    writing,
)
from ..agents.runner import reported
from ..agents.tally import Tally
from ..envs import TextEnv
from ..errors import CoMapError, DataCorrupt
from ..redaction import public_options, without_secrets
from ..trajectory import ENV_INFO, Step, Trajectory, read_trajectories
from .sessions import Moment, Offered, Session, text_env_class

UNFINISHED = "unfinished"
"""The folder with a file for each episode that is under way: its start, then a line for each step."""
_LONGEST_NAME = 200


class Place(NamedTuple):
    """Which episode one is: its task, its seed, and which attempt at both."""

    task: str
    seed: int
    trial: int


def _say(text: str) -> None:
    print(f"comap: {text}", file=sys.stderr, flush=True)


class Recording:
    """A folder in which the episodes of a server's clients are recorded, in the form of `comap run`'s.

    An episode is written as it ends, and its summary with it. What is under way lies in the folder
    ``unfinished``, step by step: after a kill the next recording in the folder takes it over, as an
    episode that was interrupted. A disk that cannot be written to ends no episode: what is missing is
    kept in memory, told to `on_note`, and written as soon as that is possible.

    Args:
        directory: The folder; made where it is missing. One that was recorded with the same options is
            gone on with.
        offered: What the server lets clients make; its first environment is recorded.
        agent: Name of who plays.
        about: What else to write down of this session: versions, hardware, options.
        on_note: Told in words what could not be written, and when it was.

    Raises:
        OptionError: The folder is another run's, in use by another process, or cannot be written.
        DataCorrupt: The folder's files are not what they should be.

    Example:
        >>> import tempfile
        >>> from comap.integrations import Offered
        >>> from comap.integrations.mcp import EpisodeTools
        >>> offered = Offered(["comap/ALFWorld-v0"], {"source": "generated"})
        >>> folder = tempfile.mkdtemp()
        >>> with Recording(folder, offered, agent="mine") as recording:
        ...     tools = EpisodeTools(offered, recording)
        ...     _ = tools.call("reset", {"data_idx": 0}), tools.call("act", {"action": "look"})
        ...     tools.close()
        >>> [episode.error for episode in read_trajectories(f"{folder}/trajectories.jsonl")]
        ['Abandoned: the client left it after 1 step']
    """

    def __init__(
        self,
        directory: str | Path,
        offered: Offered,
        *,
        agent: str = "mcp",
        about: Mapping[str, Any] | None = None,
        on_note: Callable[[str], object] = _say,
    ):
        self.folder = Path(directory)
        self.agent = agent[:_LONGEST_NAME]
        self.is_stopping = False  # episodes that are closed now were not left by their clients
        self._on_note = on_note
        self._is_told = False  # that it cannot be written
        self._is_writing = False
        self._lock = threading.RLock()
        self._open: list[RecordedEpisode] = []
        self._unwritten: list[RecordedEpisode] = []  # ended, but not in the file
        self._begun: dict[str, Counter[int]] = {}  # of each task: episodes by seed
        self._count = 0

        with closing(offered.make()) as env:
            inner: Any = env.unwrapped
            self._fingerprint: dict[str, str] = inner.fingerprint()
        self._stack = ExitStack()
        try:
            self._begin_session(offered, dict(about or {}))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def unwritten(self) -> int:
        """How many episodes have ended and could not be written."""
        return len(self._unwritten)

    def reserve(self, tasks: Sequence[str], task: str | None, seed: int | None) -> Place:
        """Return which episode is to be played next, of a task or of the one that was played least.

        Without a seed it is the first one that the task was not played with, from 0 on.
        """
        with self._lock:
            if task is None:
                task = min(tasks, key=lambda name: self._begun.get(name, Counter()).total())
            seeds = self._begun.setdefault(task, Counter())
            if seed is None:
                seed = next(number for number in range(len(seeds) + 1) if not seeds[number])
            seeds[seed] += 1
            return Place(task, seed, seeds[seed])

    def release(self, place: Place) -> None:
        """Take back what was reserved and not played."""
        with self._lock:
            seeds = self._begun[place.task]
            if seeds[place.seed] == place.trial:  # else another one was reserved since
                seeds[place.seed] -= 1
                self._begun[place.task] = +seeds

    def begin(
        self, place: Place, session: Session, client: str, *, is_asked: bool
    ) -> RecordedEpisode:
        """Return the record of an episode that a session has just reset.

        Args:
            place: What was reserved for it.
            session: Its `moment` is the episode's first.
            client: Name and version of the client, where it gave them.
            is_asked: Whether the client asked for it. One that merely began with its session is on
                record only once the client has looked at it, or acted in it.
        """
        moment = session.moment
        assert moment is not None
        info = moment.info
        start = Trajectory(
            env_id=self._fingerprint["env"],
            task=info["task"],
            split=info["split"],
            goal=info["goal"],
            agent=self.agent,
            observation=moment.observation,
            facts=info["facts"],
            seed=place.seed,
            trial=place.trial,
            fingerprint=self._fingerprint,
            settings=without_secrets({"client": client[:_LONGEST_NAME]}) if client else {},
        )
        with self._lock:
            self._count += 1
            file = self.folder / UNFINISHED / f"{self._session_number}-{self._count}.jsonl"
            episode = RecordedEpisode(self, place, start, session.env.unwrapped, file)
            self._open.append(episode)
        if is_asked:
            episode.take_part()
        return episode

    def close(self) -> None:
        """End the episodes that are under way, write what is to be written, and release the folder."""
        self.is_stopping = True
        with self._lock:
            for episode in list(self._open):
                episode.leave()
            self.save()
            self._stack.close()

    def save(self) -> None:
        """Write what is not on the disk yet: episodes that ended, and steps of those under way.

        A fault of the disk is told, and raises nothing.
        """
        with self._lock:
            if self._is_writing:  # a signal came while this thread was at it
                return
            self._is_writing = True
            try:
                self._write()
            except (OSError, CoMapError) as fault:
                self._tell(fault)
            else:
                self._tell(None)
            finally:
                self._is_writing = False

    def end(self, episode: RecordedEpisode) -> None:
        """Write an episode that has ended; one in which no client took part is forgotten."""
        with self._lock:
            self._open.remove(episode)
            if not episode.has_client:
                self.release(episode.place)
                return
            self._unwritten.append(episode)
            self.save()

    def _write(self) -> None:
        while self._unwritten:
            episode = self._unwritten[0]
            # A summary beside more episodes than it counts would be taken for damage.
            (self.folder / SUMMARY).unlink(missing_ok=True)
            self._append(episode.trajectory())
            del self._unwritten[0]
            episode.file.unlink(missing_ok=True)

        for episode in self._open:
            episode.write_steps()
        if not (self.folder / SUMMARY).exists():
            self._summarize()

    def _tell(self, fault: Exception | None) -> None:
        """Say once that the record cannot be written, and once that it can again."""
        if fault is not None and not self._is_told:
            reason = getattr(fault, "strerror", None) or str(fault)
            self._on_note(
                f"cannot write the record in {self.folder}: {reason}; episodes go on, and what is missing "
                "is written as soon as that is possible: make room, and keep this server running"
            )
        if fault is None and self._is_told:
            self._on_note(f"the record in {self.folder} is written again: nothing is missing")
        self._is_told = fault is not None

    def _append(self, trajectory: Trajectory) -> None:
        path = self.folder / TRAJECTORIES
        ((start, end),) = jsonl.append(path, [trajectory.to_json()], sync=True)
        self._tally.add(trajectory)

        # The digest goes on with the new bytes: a file of thousands of episodes is not read again.
        with path.open("rb") as file:
            file.seek(start)
            self._sha256.update(file.read(end - start))
        self._size = end

    def _summarize(self) -> None:
        summary = self._tally.summary()
        summary[DIGESTS] = jsonl.digests_of(self.folder, [RUN]) | {
            TRAJECTORIES: {"size": self._size, "sha256": self._sha256.hexdigest()}
        }
        jsonl.write_json(self.folder / SUMMARY, summary)

    def _begin_session(self, offered: Offered, about: dict[str, Any]) -> None:
        """Take the folder, and what earlier sessions left in it."""
        lock_folder(self._stack, self.folder)
        described = self._described(offered)
        sessions = known_sessions(self.folder / RUN, described)
        trajectories = self.folder / TRAJECTORIES
        refuse_foreign(trajectories, is_new=not sessions)

        with writing(self.folder):
            sessions.append(about)
            self._session_number = len(sessions)
            (self.folder / SUMMARY).unlink(missing_ok=True)
            jsonl.refuse_link(self.folder / UNFINISHED)  # what is taken over is removed there
            (self.folder / UNFINISHED).mkdir(exist_ok=True)
            jsonl.write_json(
                self.folder / RUN, {"format": FORMAT, **described, "sessions": sessions}
            )
            jsonl.append(trajectories, [])  # makes it, or cuts a torn last line off
            self._read(trajectories)
            self._take_over()
            self._summarize()

    def _described(self, offered: Offered) -> dict[str, Any]:
        """Return what this recording is, as `Run.describe` does; which tasks, its clients choose."""
        options = dict(offered.options)
        env_id = offered.env_ids[0]
        recorded = {
            name: part for name, part in options.items() if name not in ("data_dir", "split")
        }
        described = {
            "config": {
                "env": env_id,
                "split": options.get("split"),
                "env_options": public_options(recorded, text_env_class(env_id)),
            },
            "environment": self._fingerprint,
            "imagined": None,
            "agent": {"name": self.agent},
            "language_model": None,
            "world_model": None,
            "world_model_in_words": None,
            "seed": None,
        }
        plain: dict[str, Any] = without_secrets(json.loads(json.dumps(described)))
        return plain

    def _read(self, trajectories: Path) -> None:
        """Count what is recorded."""
        self._tally = Tally()
        self._sha256 = hashlib.sha256()
        for trajectory in read_trajectories(trajectories):
            self._count_in(trajectory)
        with trajectories.open("rb") as file:
            while block := file.read(1 << 20):
                self._sha256.update(block)
        self._size = trajectories.stat().st_size

    def _count_in(self, trajectory: Trajectory) -> None:
        self._tally.add(trajectory)
        seeds = self._begun.setdefault(trajectory.task, Counter())
        seed = trajectory.seed or 0
        seeds[seed] = max(seeds[seed], trajectory.trial)

    def _take_over(self) -> None:
        """Record the episodes that a killed server left under way."""
        for file in sorted((self.folder / UNFINISHED).glob("*.jsonl")):
            trajectory = unfinished_episode(file)

            # A kill may have come between the writing of an episode and the removal of its steps.
            if trajectory is not None:
                seeds = self._begun.setdefault(trajectory.task, Counter())
                if trajectory.trial > seeds[trajectory.seed or 0]:
                    self._append(trajectory)
                    seeds[trajectory.seed or 0] = trajectory.trial
            file.unlink()


class RecordedEpisode:
    """An episode under way, and what of it is on the disk."""

    def __init__(self, recording: Recording, place: Place, start: Trajectory, env: Any, file: Path):
        self.place = place
        self.file = file
        self.has_client = False
        self._recording = recording
        self._start = start
        self._env: TextEnv = env
        self._steps: list[Step] = []
        self._written = 0  # lines of the file
        self._error: str | None = None
        self._has_ended = False

    def take_part(self) -> None:
        """Note that the client has seen the task: from now on the episode is on record."""
        if not self.has_client:
            self.has_client = True
            self._recording.save()

    def step(self, action: str, moment: Moment) -> None:
        """Add a step, and what it led to."""
        env_info = reported(self._env, moment.info)
        notes = {ENV_INFO: env_info} if env_info else {}
        self._steps.append(Step.of(action, moment, notes=notes))
        self.has_client = True
        if moment.done:
            error = moment.info.get("error")
            self.end(None if error is None else str(error))
        else:
            self._recording.save()

    def leave(self, reason: str = "the client left it") -> None:
        """End the episode where it is, as one that its client did not play to the end."""
        kind = "Abandoned"
        if self._recording.is_stopping:
            kind, reason = "Interrupted", "the server was stopped"
        self.end(f"{kind}: {reason} after {_steps_in_words(len(self._steps))}")

    def end(self, error: str | None = None) -> None:
        """End the episode; once is enough."""
        if not self._has_ended:
            self._has_ended = True
            self._error = error
            self._recording.end(self)

    def trajectory(self) -> Trajectory:
        return replace(self._start, steps=tuple(self._steps), error=self._error)

    def write_steps(self) -> None:
        """Write what is not on the disk yet, so that a kill costs no step that has ended."""
        if not self.has_client or self._has_ended:
            return
        # The first line is the start, so the number of lines is that of the steps, and one.
        lines = [] if self._written else [self._start.to_json()]
        new_steps = self._steps[max(self._written - 1, 0) :]
        lines += replace(self._start, steps=tuple(new_steps)).to_json()["steps"]
        if lines:
            jsonl.append(self.file, lines)
            self._written += len(lines)


def _steps_in_words(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def unfinished_episode(file: Path) -> Trajectory | None:
    """Return the episode that a file of `UNFINISHED` has, as one that was interrupted.

    None where not even its start was written.
    """

    def lines() -> Iterator[Any]:
        return jsonl.read(file, expected="a step of an episode")

    start = next(lines(), None)
    if start is None:
        return None
    steps = list(lines())[1:]
    record = {**start, "steps": steps} if isinstance(start, Mapping) else start
    try:
        trajectory = Trajectory.from_json(record)
    except DataCorrupt as fault:
        raise DataCorrupt(
            f"expected an episode that was under way in {file}, found something else ({fault}); remove the "
            "file to go on without it"
        ) from fault
    error = f"Interrupted: the server was killed after {_steps_in_words(len(steps))}"
    return replace(trajectory, error=error)
