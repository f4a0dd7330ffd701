"""`comap verify`: recorded episodes are played again, and recorded numbers made again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..agents.run_summary import Tally
from ..envs import TextEnv
from ..errors import CoMapError, DataCorrupt, OptionError
from ..trajectory import Trajectory
from .record import circumstances
from .verify_episode import Difference, Verdict, check_episode
from .verify_files import Recorded, Room, find_files, guessed_options, open_record
from .verify_numbers import check_numbers

__all__ = ["AGREES", "DIFFERS", "FORMAT", "NOT_CHECKED", "OTHER", "verify"]

FORMAT = "comap verification 1"
"""What a result begins with."""
AGREES, DIFFERS, OTHER, NOT_CHECKED = "agrees", "differs", "other version", "not checked"
"""What is said of an episode; `OTHER` is a difference in what other versions or data recorded."""

_PACKAGES = ("gymnasium", "numpy", "scienceworld", "textworld")
_OUTSIDE = ("retriever", "backends", "overlay")  # settings that name who answered outside


def verify(
    results: str | Path,
    *,
    sample: int = 20,
    seed: int = 0,
    data: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    on_done: Callable[[Mapping[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Play a sample of recorded episodes again, make the recorded numbers again, and compare.

    Nobody outside is asked: what a server or a model answered is taken from the record.

    Args:
        results: The folder of a run or a training, one that holds such, or a file of trajectories.
        sample: How many episodes, drawn at random of all; 0 for all of them.
        seed: Of the draw.
        data: Folder of official data for each environment's id; that of ``""`` is for all others.
        options: Further options of the environments.
        on_done: Told each episode's result.

    Returns:
        The result as JSON data: ``agree`` says whether all agrees, ``counts`` how many episodes came
        to what, ``episodes`` and ``files`` the particulars.

    Raises:
        DataNotFound: There are no trajectories.
        OptionError: `sample` is negative.

    Example:
        >>> import tempfile, gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent, Run, run_to
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> run = Run(make_env=make_env, agent=ExpertAgent(), tasks=make_env().unwrapped.tasks.ids[:2])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     summary = run_to(folder, run)
        ...     verify(folder)["counts"]
        {'agrees': 2}
    """
    if sample < 0:
        raise OptionError(f"sample must be 0 (all) or more, not {sample}")
    place = Path(results)
    files = find_files(place)
    lines = [_count(path) for path in files]
    total = sum(lines)
    chosen = (
        range(total) if not 0 < sample < total else random.Random(seed).sample(range(total), sample)
    )
    wanted, before = set(chosen), 0
    told: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    with closing(Room(data, options)) as room:
        for path, number in zip(files, lines, strict=True):
            name = path.relative_to(place).as_posix() if place.is_dir() else path.name
            here = {at - before for at in range(before, before + number) if at in wanted}
            check = _File(path, place, name, room, on_done or (lambda episode: None))
            told.append(check.run(here))
            episodes += check.episodes
            before += number
    return _result(place, {"sample": sample, "seed": seed, "recorded": total}, told, episodes)


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _result(
    place: Path,
    drawn: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    episodes: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    said = [entry["status"] for entry in episodes]
    statuses = [*said, *(file["status"] for file in files)]
    return {
        "format": FORMAT,
        **circumstances(_PACKAGES),
        "results": place.resolve().name,
        **drawn,
        "agree": bool(said) and all(status == AGREES for status in statuses),
        "differ": any(status in (DIFFERS, OTHER) for status in statuses),
        "counts": {status: said.count(status) for status in sorted(set(said))},
        "steps": sum(entry["steps"] for entry in episodes),
        "files": list(files),
        "episodes": list(episodes),
    }


@dataclass
class _File:
    """The check of one file of trajectories."""

    path: Path
    results: Path
    name: str
    room: Room
    on_done: Callable[[Mapping[str, Any]], object]
    episodes: list[dict[str, Any]] = field(default_factory=list)

    def run(self, wanted: set[int]) -> dict[str, Any]:
        """Check the wanted lines and the numbers; return what is told of the file."""
        try:
            record = open_record(self.path, self.results)
        except DataCorrupt as error:
            problem = Difference(0, "files", "readable", str(error))
            return self._told(DIFFERS, problem, "", 0, "")
        tally, tasks = Tally(), dict[str, None]()
        broken: Difference | None = None
        made = ""
        for number, line in enumerate(self._lines()):
            try:
                trajectory = _parsed(line)
                tally.add(trajectory)
                tasks[trajectory.task] = None
            except DataCorrupt as error:
                broken = broken or Difference(0, f"line {number + 1}", "a trajectory", str(error))
                if number in wanted:
                    difference = Difference(0, "line", "a trajectory", str(error))
                    self._note(number, None, Verdict(DIFFERS, difference=difference), "")
                continue
            if not made:
                made = str(trajectory.fingerprint.get("comap", ""))
            if number in wanted:
                self._note(number, trajectory, *self._verdict(record, trajectory))
        if broken is not None:
            return self._told(DIFFERS, broken, "", tally.trials, made)
        return self._told(*check_numbers(record, tally, list(tasks)), tally.trials, made)

    def _lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from file

    def _told(
        self, status: str, difference: Difference | None, reason: str, trials: int, made: str
    ) -> dict[str, Any]:
        from .. import __version__

        if status == DIFFERS and made not in ("", __version__):
            status, reason = OTHER, f"comap {made} there, {__version__} here"
        return {
            "file": self.name,
            "status": status,
            "trajectories": trials,
            "difference": difference and asdict(difference),
            "reason": reason,
        }

    def _note(
        self, number: int, trajectory: Trajectory | None, verdict: Verdict, other: str
    ) -> None:
        status = OTHER if verdict.status == DIFFERS and other else verdict.status
        told = {
            "file": self.name,
            "line": number + 1,
            "task": None if trajectory is None else str(trajectory.task),
            "trial": 1 if trajectory is None else trajectory.trial,
            **asdict(verdict),
            "status": status,
            "other": other,
        }
        self.episodes.append(told)
        self.on_done(told)

    def _verdict(self, record: Recorded, trajectory: Trajectory) -> tuple[Verdict, str]:
        """Return what comes of replaying an episode, and what is of another version here."""
        other = ""
        try:
            env_id = trajectory.env_id if record.env_id is None else record.env_id
            if env_id != trajectory.env_id:
                different = Difference(0, "env_id", env_id, str(trajectory.env_id))
                return Verdict(DIFFERS, difference=different), other
            generated = str(trajectory.task).startswith("generated/")
            options = record.options
            guessed = options is None
            if options is None:
                options = guessed_options(trajectory)
            split = str(record.split or trajectory.fingerprint.get("split", trajectory.split))
            env = self.room.env(env_id, options, split, generated)
            inner = env.unwrapped
            assert isinstance(inner, TextEnv)
            other = _other(inner, options, trajectory)
            verdict = check_episode(env, trajectory, record.horizon)
            if guessed and verdict.difference is not None:
                verdict = self._with_limit(verdict, trajectory, options, split, generated)
        except CoMapError as error:
            verdict = Verdict(NOT_CHECKED, reason=str(error))
        except (
            Exception
        ) as error:  # a record may hold anything: it is told, and the next is checked
            found = f"{type(error).__name__}: {error}"
            verdict = Verdict(
                DIFFERS, difference=Difference(0, "record", "one that replays", found)
            )
        return _explained(verdict, record, other), other

    def _with_limit(
        self,
        verdict: Verdict,
        trajectory: Trajectory,
        options: Mapping[str, Any],
        split: str,
        generated: bool,
    ) -> Verdict:
        """Try again with the step limit that the record itself shows, where nobody wrote it down."""
        if verdict.difference is None or verdict.difference.field not in ("truncated", "step"):
            return verdict
        steps = len(trajectory.steps)
        limit = steps if trajectory.steps[-1].truncated else 10**6
        chosen = {**options, "max_episode_steps": limit}
        env = self.room.env(trajectory.env_id, chosen, split, generated)
        again = check_episode(env, trajectory)
        return again if again.status == AGREES else verdict


def _parsed(line: bytes) -> Trajectory:
    """Return the trajectory of a line.

    Raises:
        DataCorrupt: It is none.
    """
    try:
        found = Trajectory.from_line(line)
        hash(found.task)
        dict(found.fingerprint)
    except (ValueError, TypeError, RecursionError) as error:
        raise DataCorrupt(f"{error}"[:500]) from error
    return found


def _other(env: TextEnv, options: Mapping[str, Any], trajectory: Trajectory) -> str:
    """Return in what this environment is not the one that was played in; empty where it is."""
    there, here = dict(trajectory.fingerprint), env.fingerprint()
    replaced = type(env).offline(options) != dict(options)
    skipped = set(_OUTSIDE) if replaced or _is_outside(there) else set[str]()
    return "; ".join(
        f"{name}: {there.get(name)} there, {here.get(name)} here"
        for name in sorted({*there, *here} - skipped)
        if there.get(name) != here.get(name)
    )


def _is_outside(fingerprint: Mapping[str, Any]) -> bool:
    """Return whether servers or models outside took part."""
    backends = str(fingerprint.get("backends", "")).split(",")
    return bool({"live", "sim", "overlay"} & set(backends)) or "http" in str(
        fingerprint.get("retriever", "")
    )


def _explained(verdict: Verdict, record: Recorded, other: str) -> Verdict:
    """Say what would help where data is missing: another task list is no damage."""
    missing = verdict.difference is not None and verdict.difference.field == "task" and bool(other)
    if missing and verdict.difference is not None:
        verdict = Verdict(NOT_CHECKED, reason=verdict.difference.found)
    if verdict.status == NOT_CHECKED and record.data is not None:
        hint = f" (it was played on a folder named {record.data!r}: give --data-dir)"
        verdict = replace(verdict, reason=verdict.reason + hint)
    return verdict
