"""Answers to tool tasks that are to be scored: reference pipelines' folders, and runs of comap."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..agents.run import RUN, TRAJECTORIES
from ..agents.run_summary import recorded
from ..envs.stabletoolbench import StableToolBenchEnv
from ..envs.stabletoolbench.attempts import Attempt, attempt_of, read_attempts
from ..envs.stabletoolbench.generate import GROUPS, SIZES, generated_task
from ..envs.stabletoolbench.tasks import read_queries
from ..envs.storage import comap_home
from ..errors import DataCorrupt, DataNotFound, OptionError
from ..trajectory import Trajectory

__all__ = ["Answers", "read_answers"]

_QUERIES = "test_instruction"


@dataclass
class Answers:
    """Attempts at queries, and what is known of these.

    Attributes:
        name: What the folder or file is called.
        kind: ``"reference"`` (a reference pipeline's) or ``"run"`` (of `comap run`).
        compat: How functions were offered.
        attempts: By ``<group>/<query_id>``, or a generated task's id; by ``<query_id>`` alone where
            the group is not known.
        records: The queries' records, of those that are at hand.
        checked: Whether a generated task was solved, by its own checker.
    """

    name: str
    kind: str
    compat: str
    attempts: dict[str, Attempt] = field(default_factory=dict)
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    checked: dict[str, bool] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The keys of each group's attempts; of those without a group under an empty name."""
        found: dict[str, list[str]] = {}
        for key in self.attempts:
            group = key.rpartition("/")[0].rpartition("/")[2]
            found.setdefault(group if group in SIZES else "", []).append(key)
        return dict(sorted(found.items()))

    @property
    def is_checked(self) -> bool:
        """Whether every attempt was checked without a judge."""
        return self.checked.keys() == self.attempts.keys()


def read_answers(
    path: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> Answers:
    """Return the answers in a folder or file.

    Args:
        path: A reference pipeline's folder of one method: answer files (``<query_id>_<method>.json``),
            also in folders named after groups; or its converted answers (``<group>.json``); or one of
            these files. Or a folder of `comap run`, or its file of trajectories.
        data_dir: Folder with the official ``test_instruction/``; None looks in
            ``COMAP_HOME/stabletoolbench``, and does without where there is none.

    Raises:
        DataNotFound: There are no answers, or not the queries' file that was asked for.
        DataCorrupt: A file is not what it should be.
        OptionError: The folder has other things, or answers of several methods.

    Example:
        >>> read_answers("no such folder")
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected answers at no such folder, found nothing there
    """
    path = Path(path)
    if not path.exists():
        raise DataNotFound(f"expected answers at {path}, found nothing there")
    queries = _Queries(data_dir)
    played = path / TRAJECTORIES if path.is_dir() else path
    if played.suffix == ".jsonl" and played.is_file():
        return _run(path, played, queries)
    if path.is_dir() and (path / RUN).exists():
        raise DataNotFound(
            f"expected {TRAJECTORIES} in the run's folder {path}, found none; no task has ended yet"
        )
    return _reference(path, queries)


class _Queries:
    """The official queries' records, where these are on the machine."""

    def __init__(self, data_dir: str | os.PathLike[str] | None):
        home = comap_home() / "stabletoolbench" if data_dir is None else Path(data_dir)
        self._folder, self._wanted = home / _QUERIES, data_dir is not None
        if self._wanted and not self._folder.is_dir():
            raise DataNotFound(
                f"expected the official queries in {self._folder}, found no such folder; name the "
                f"folder that holds {_QUERIES}/ with --data-dir"
            )

    def of(self, group: str) -> dict[str, dict[str, Any]] | None:
        """Return the queries of a group by id; None where they are not here, nor asked for."""
        path = self._folder / f"{group}.json"
        if not path.is_file() and not self._wanted:
            return None
        return read_queries(path)

    def group_of(self, key: str, text: str) -> str:
        """Return the group that has a query of this id and text; empty where none of those here has."""
        for group in GROUPS:
            if (self._folder / f"{group}.json").is_file():
                record = (self.of(group) or {}).get(key)
                if record is not None and record["query"].split() == text.split():
                    return group
        return ""


def _reference(path: Path, queries: _Queries) -> Answers:
    answers = Answers(path.name or str(path), "reference", "reference")
    if path.is_file() and path.suffix != ".json":
        raise OptionError(f"expected a folder of answers, a .json or a .jsonl file, found {path}")
    for group, file in _files(path):
        for key, attempt in read_attempts(file).items():
            where = group or queries.group_of(key, attempt.query)
            _add(answers, f"{where}/{key}" if where else key, attempt, file)
    if not answers.attempts:
        raise DataNotFound(f"expected answers in {path}, found files without any")
    _look_up(answers, queries)
    return answers


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield files of answers with their groups, empty where a name tells none."""
    if path.is_file():
        yield _named(path.stem) or _named(path.parent.name), path
        return
    own = sorted(path.glob("*.json"))
    parts = [group for group in GROUPS if (path / group).is_dir()]
    if not own and not parts:
        inside = sorted(child.name for child in path.iterdir() if child.is_dir())
        hint = f"; it has the folders {', '.join(inside[:4])}: name one of these" if inside else ""
        raise DataNotFound(
            f"expected answer files (<query_id>_<method>.json), folders of groups ({GROUPS[0]}, ...) "
            f"or a run of comap in {path}, found none{hint}"
        )
    for file in own:
        yield _named(file.stem) or _named(path.name), file
    for group in parts:
        for file in sorted((path / group).glob("*.json")):
            yield group, file


def _named(name: str) -> str:
    return name if name in GROUPS else ""


def _add(answers: Answers, key: str, attempt: Attempt, file: Path) -> None:
    if key in answers.attempts:
        raise OptionError(
            f"expected one answer to each query, found a second to {key[:80]!r} in {file}; give a "
            "folder of one method"
        )
    answers.attempts[key] = replace(attempt, query_id=key)


def _look_up(answers: Answers, queries: _Queries) -> None:
    """Look for the records of official queries."""
    for group, keys in answers.groups.items():
        known = queries.of(group) if group else None
        for key in keys if known is not None else ():
            assert known is not None
            record = known.get(key.rpartition("/")[2])
            if record is None:
                raise DataCorrupt(
                    f"expected query {key[:80]!r} among the queries of {group}, found none; are the "
                    "answers and the queries of one version?"
                )
            answers.records[key] = record


def _run(path: Path, played: Path, queries: _Queries) -> Answers:
    answers = Answers(path.name or str(path), "run", "strict")
    last = {one.task: one for one in _episodes(played)}
    if not last:
        raise DataNotFound(f"expected episodes in {played}, found none; has a task ended yet?")
    modes = {str(one.fingerprint.get("compat", "strict")) for one in last.values()}
    if len(modes) > 1:
        raise OptionError(f"expected episodes of one compat in {played}, found {sorted(modes)}")
    (answers.compat,) = modes
    for task, episode in last.items():
        answers.attempts[task] = replace(attempt_of(episode), query_id=task)
        prefix, _, rest = task.partition("/")
        if prefix == "generated":
            answers.records[task] = _generated(episode, rest, played)
            answers.checked[task] = episode.success
    official = {key: one for key, one in answers.attempts.items() if key not in answers.checked}
    found = replace(answers, attempts=official, records={})
    _look_up(found, queries)
    answers.records |= found.records
    return answers


def _episodes(played: Path) -> Iterable[Trajectory]:
    for episode in recorded(played):
        if episode.env_id != StableToolBenchEnv.env_id:
            raise OptionError(
                f"expected episodes of {StableToolBenchEnv.env_id} in {played}, found one of "
                f"{episode.env_id!r:.60}; other environments need no such scores"
            )
        if episode.imagined:
            raise OptionError(
                f"expected real episodes in {played}, found an imagined one: what tools answered "
                "there was predicted; run without --imagined"
            )
        yield episode


def _generated(episode: Trajectory, rest: str, played: Path) -> Mapping[str, Any]:
    group, _, number = rest.partition("/")
    seed = str(episode.fingerprint.get("generator_seed", "0"))
    if not (group in SIZES and number.isdecimal() and int(number) < SIZES[group]):
        raise DataCorrupt(f"expected a generated task's id in {played}, found {episode.task!r:.80}")
    if not (seed.isascii() and seed.isdecimal()):
        raise DataCorrupt(f"expected a generator_seed in {played}, found {seed!r:.40}")
    return generated_task(group, int(number), int(seed)).record
