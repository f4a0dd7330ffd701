"""Answers to tool tasks, of a run of comap or a reference pipeline, and which queries have none."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..agents.run import RUN, TRAJECTORIES, recorded
from ..envs.generated import is_generated
from ..envs.stabletoolbench import StableToolBenchEnv
from ..envs.stabletoolbench.scoring import (
    Attempt,
    CallableJudge,
    Judge,
    RecordedJudge,
    Verdict,
    attempt_of,
    read_attempts,
)
from ..envs.stabletoolbench.tasks import GROUPS, SIZES, read_queries
from ..envs.storage import comap_home
from ..errors import DataCorrupt, DataNotFound, OptionError
from ..jsonl import read_json
from ..trajectory import Trajectory
from .tables import one_line
from .training_record import number

CHECKER = "the generated tasks' checker"
"""The judge of generated tasks."""

_QUERIES = "test_instruction"
_MOST_TASKS = 10**6  # of a run; what says more is no run.json of ours


@dataclass(frozen=True)
class Answers:
    """Attempts at queries by ``group/id``, and what is known of these.

    Attributes:
        name: Of the folder or file.
        kind: ``run`` or ``reference``.
        attempts: What was found.
        queries: The text of each query that should have an answer; empty where nobody says which these
            are.
        checked: What the checkers of generated tasks say.
        others: The ids of answers to queries that are not of the split; they are left out.
        sizes: How many queries each group has, where these are there.
    """

    name: str
    kind: str
    attempts: Mapping[str, Attempt]
    queries: Mapping[str, str] = field(default_factory=dict)
    checked: Mapping[str, bool] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def scored(self) -> dict[str, Attempt]:
        """An attempt at each query: an empty one where none was found."""
        blank = {key: Attempt(key, self.queries[key], ()) for key in self.missing}
        return {**self.attempts, **blank}

    @cached_property
    def missing(self) -> list[str]:
        """The queries without an answer."""
        return [key for key in self.queries if key not in self.attempts]

    @cached_property
    def empty(self) -> list[str]:
        """The queries whose answer says nothing: no call, no answer, not even the query."""
        return [key for key, attempt in self.attempts.items() if is_blank(attempt)]

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The keys of each group's queries; of those without a group under an empty name."""
        keys_by_group: dict[str, list[str]] = {}
        for key in self.scored:
            keys_by_group.setdefault(group_of(key), []).append(key)
        return dict(sorted(keys_by_group.items()))

    def about(self) -> dict[str, Any]:
        """Return what a result says of these answers, as JSON data."""
        # A group of which no query is answered is there all the same, with 0.
        groups: dict[str, int] = dict.fromkeys(self.groups, 0)
        for key in self.attempts:
            groups[group_of(key)] += 1
        return {
            "name": self.name,
            "kind": self.kind,
            "n": len(self.attempts),
            "groups": groups,
            "generated": sum(map(is_generated, self.attempts)),
            "queries": len(self.queries) or None,
            "missing": self.missing,
            "empty": self.empty,
            "others": list(self.others),
            "sizes": dict(self.sizes),
        }

    def only(self, keys: Iterable[str]) -> Answers:
        """Return the answers to these queries alone."""
        kept_keys = list(keys)
        return replace(
            self,
            attempts={key: self.attempts[key] for key in kept_keys if key in self.attempts},
            queries={key: self.queries[key] for key in kept_keys if key in self.queries},
        )

    def judge(self, judge: Judge | None) -> Judge | None:
        """Return the judge that is passed, or else the checker, where it has checked all answers."""
        if judge is not None or not self.attempts.keys() <= self.checked.keys():
            return judge

        def verdict(attempt: Attempt, run: int) -> Verdict:
            return "solved" if self.checked[attempt.query_id] else "unsolved"

        return CallableJudge(verdict, CHECKER)


def is_blank(attempt: Attempt) -> bool:
    """Return whether nothing was attempted: no call and no answer."""
    return not (attempt.calls or attempt.finish or attempt.answer)


def group_of(key: str) -> str:
    """Return the group in a key; empty where it has none."""
    group = key.rpartition("/")[0].rpartition("/")[2]
    return group if group in SIZES else ""


def read_answers(
    path: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> Answers:
    """Return the answers in a folder or file: of a run of comap, or in the reference's format."""
    path = Path(path)
    if not path.exists():
        raise DataNotFound(f"expected answers at {path}, found nothing there; name a folder")
    home = comap_home() / "stabletoolbench" if data_dir is None else Path(data_dir)
    if data_dir is not None and not (home / _QUERIES).is_dir():
        raise DataNotFound(
            f"expected the official queries in {home / _QUERIES}, found no such folder; name the "
            f"folder that holds {_QUERIES}/ with --data-dir"
        )

    # A folder is a run if it has trajectories; one with a run.json alone has not ended a task.
    trajectories = path / TRAJECTORIES if path.is_dir() else path
    if trajectories.suffix == ".jsonl" and trajectories.is_file():
        return _of_run(path.name or str(path), trajectories, home / _QUERIES)
    if path.is_dir() and (path / RUN).exists():
        raise DataNotFound(
            f"expected {TRAJECTORIES} in the run's folder {path}, found none; no task has ended yet"
        )
    if path.is_file() and path.suffix != ".json":
        raise OptionError(f"expected a folder of answers, a .json or a .jsonl file, found {path}")
    return _of_reference(path, home / _QUERIES)


def _of_run(name: str, trajectories: Path, queries_folder: Path) -> Answers:
    """Return the answers of a run: to all tasks that it was to play, where its record says how many."""
    # Of a task that was tried again the last trial counts.
    episodes = {episode.task: episode for episode in _episodes(trajectories)}
    if not episodes:
        raise DataNotFound(
            f"expected episodes in {trajectories}, found none; has a task ended yet?"
        )

    attempts: dict[str, Attempt] = {}
    checked: dict[str, bool] = {}
    for task, episode in episodes.items():
        attempts[task] = replace(attempt_of(episode), query_id=task)
        if is_generated(task):
            checked[task] = episode.success

    # A run that was stopped has fewer episodes than tasks: the missing ones count as unsolved.
    queries: dict[str, str] = {}
    if task_count := _task_count(trajectories.with_name(RUN)):
        queries = {task: episode.goal for task, episode in episodes.items()}
        for task_number in range(len(episodes) + 1, task_count + 1):
            queries[f"a task that has not ended, {task_number}"] = ""

    official = {group_of(task) for task in attempts if not is_generated(task)}
    sizes = _sizes(_queries_of(queries_folder, official))
    return Answers(name, "run", attempts, queries, checked, sizes=sizes)


def _task_count(run: Path) -> int:
    """Return how many tasks a run was to play; 0 where it has no record of that."""
    if not run.is_file():
        return 0
    try:
        task_count = number(read_json(run), "tasks", "number") or 0
    except (DataCorrupt, ValueError):
        return 0
    return int(task_count) if task_count <= _MOST_TASKS else 0


def _episodes(trajectories: Path) -> Iterator[Trajectory]:
    """Yield the episodes of a run; raise at one that is not a real one of this benchmark."""
    for episode in recorded(trajectories):
        if episode.env_id != StableToolBenchEnv.env_id:
            raise OptionError(
                f"expected episodes of {StableToolBenchEnv.env_id} in {trajectories}, found one of "
                f"{episode.env_id!r:.60}; other environments need no such scores"
            )
        if episode.imagined:
            raise OptionError(
                f"expected real episodes in {trajectories}, found an imagined one: what tools answered "
                "there was predicted; run without --imagined"
            )
        yield episode


def _of_reference(path: Path, queries: Path) -> Answers:
    """Return a reference pipeline's answers: to all queries of its groups, where these are there."""
    all_attempts: dict[str, Attempt] = {}
    for file_group, file in _files(path):
        for query_id, attempt in read_attempts(file).items():
            # Ids are unique in a group alone.
            group = file_group or _group_with(queries, query_id, attempt.query)
            key = f"{group}/{query_id}" if group else query_id
            if key in all_attempts:
                raise OptionError(
                    f"expected one answer to each query, found a second to {key[:80]!r} in {file}; "
                    "give a folder of one method"
                )
            all_attempts[key] = replace(attempt, query_id=key)
    if not all_attempts:
        raise DataNotFound(f"expected answers in {path}, found files without any")

    # Only where the queries of all groups are there is it known which answers belong to none.
    groups = {group_of(key) for key in all_attempts}
    split_queries = _queries_of(queries, groups)
    is_whole = all((queries / f"{group}.json").is_file() for group in groups)
    attempts = all_attempts
    if split_queries and is_whole:
        attempts = {key: all_attempts[key] for key in all_attempts if key in split_queries}
    others = tuple(key for key in all_attempts if key not in attempts)
    if not attempts:
        raise OptionError(
            f"expected answers to the queries in {queries}, found answers to others (such as "
            f"{others[0]!r:.60}); give the --data-dir that they belong to"
        )

    return Answers(
        name=path.name or str(path),
        kind="reference",
        attempts=attempts,
        queries=split_queries if is_whole else {},
        others=others,
        sizes=_sizes(split_queries),
    )


def _queries_of(folder: Path, groups: Iterable[str]) -> dict[str, str]:
    """Return the text of each query of some groups, of those whose queries are there."""
    queries = {}
    for group in sorted(groups):
        file = folder / f"{group}.json"
        if group and file.is_file():
            for query_id, record in read_queries(file).items():
                queries[f"{group}/{query_id}"] = str(record["query"])
    return queries


def _sizes(queries: Iterable[str]) -> dict[str, int]:
    """Return how many queries there are of each group."""
    return dict(Counter(map(group_of, queries)))


def _group_with(folder: Path, key: str, text: str) -> str:
    """Return the group that has a query of this id and text; empty where none here has.

    An empty answer does not tell the text: then the id must be of one group alone.
    """
    groups = []
    for group in GROUPS:
        path = folder / f"{group}.json"
        record = read_queries(path).get(key) if path.is_file() else None
        if record is None:
            continue
        if text and record["query"].split() == text.split():
            return group
        groups.append(group)
    return groups[0] if len(groups) == 1 and not text else ""


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield files of answers with their groups, empty where a name has none."""

    def group_in(*names: str) -> str:
        return next((name for name in names if name in GROUPS), "")

    if path.is_file():
        yield group_in(path.stem, path.parent.name), path
        return

    answer_files = sorted(path.glob("*.json"))
    groups = [group for group in GROUPS if (path / group).is_dir()]
    if not answer_files and not groups:
        # The reference pipeline writes a folder for each method, with the groups in it.
        folders = sorted(child.name for child in path.iterdir() if child.is_dir())
        hint = ""
        if folders:
            hint = f"; it has the folders {', '.join(folders[:4])}: name one of these"
        raise DataNotFound(
            f"expected answer files (<query_id>_<method>.json), folders of groups ({GROUPS[0]}, ...) "
            f"or a run of comap in {path}, found none{hint}"
        )

    for file in answer_files:
        yield group_in(file.stem, path.name), file
    for group in groups:
        for file in sorted((path / group).glob("*.json")):
            yield group, file


def recorded_judge(path: str | os.PathLike[str], answers: Answers) -> RecordedJudge:
    """Return the judge of recorded verdicts; raise where none of them is on one of these answers."""
    judge = RecordedJudge(path)
    judged = judge.verdicts.keys()  # by group/id, or by id alone
    if not any(key in judged or key.rpartition("/")[2] in judged for key in answers.attempts):
        raise OptionError(
            f"expected verdicts on the answers of {answers.name} in {path}, found those on other "
            f"queries ({one_line(', '.join(sorted(judged)[:3]), 60) or 'none'})"
        )
    return judge
