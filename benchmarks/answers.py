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
        return [key for key, one in self.attempts.items() if is_blank(one)]

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The keys of each group's queries; of those without a group under an empty name."""
        found: dict[str, list[str]] = {}
        for key in self.scored:
            found.setdefault(group_of(key), []).append(key)
        return dict(sorted(found.items()))

    def about(self) -> dict[str, Any]:
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
        chosen = list(keys)
        return replace(
            self,
            attempts={key: self.attempts[key] for key in chosen if key in self.attempts},
            queries={key: self.queries[key] for key in chosen if key in self.queries},
        )

    def judge(self, given: Judge | None) -> Judge | None:
        if given is not None or not self.attempts.keys() <= self.checked.keys():
            return given
        return CallableJudge(
            lambda one, run: "solved" if self.checked[one.query_id] else "unsolved", CHECKER
        )


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
    played = path / TRAJECTORIES if path.is_dir() else path
    if played.suffix == ".jsonl" and played.is_file():
        return _of_run(path.name or str(path), played, home / _QUERIES)
    if path.is_dir() and (path / RUN).exists():
        raise DataNotFound(
            f"expected {TRAJECTORIES} in the run's folder {path}, found none; no task has ended yet"
        )
    if path.is_file() and path.suffix != ".json":
        raise OptionError(f"expected a folder of answers, a .json or a .jsonl file, found {path}")
    return _of_reference(path, home / _QUERIES)


def _of_run(name: str, played: Path, queries_folder: Path) -> Answers:
    """Return the answers of a run: to all tasks that it was to play, where its record says how many."""
    last = {one.task: one for one in _episodes(played)}
    if not last:
        raise DataNotFound(f"expected episodes in {played}, found none; has a task ended yet?")
    attempts = {task: replace(attempt_of(one), query_id=task) for task, one in last.items()}
    checked = {task: one.success for task, one in last.items() if is_generated(task)}
    queries: dict[str, str] = {}
    if planned := _planned(played.with_name(RUN)):
        queries = {task: one.goal for task, one in last.items()}
        queries |= {
            f"a task that has not ended, {n}": "" for n in range(len(last) + 1, planned + 1)
        }
    official = {group_of(task) for task in attempts if not is_generated(task)}
    sizes = _sizes(_queries_of(queries_folder, official))
    return Answers(name, "run", attempts, queries, checked, sizes=sizes)


def _planned(run: Path) -> int:
    """Return how many tasks a run was to play; 0 where it has no record of that."""
    if not run.is_file():
        return 0
    try:
        planned = number(read_json(run), "tasks", "number") or 0
    except (DataCorrupt, ValueError):
        return 0
    return int(planned) if planned <= _MOST_TASKS else 0


def _episodes(played: Path) -> Iterator[Trajectory]:
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


def _of_reference(path: Path, queries: Path) -> Answers:
    """Return a reference pipeline's answers: to all queries of its groups, where these are there."""
    found: dict[str, Attempt] = {}
    for group, file in _files(path):
        for query, attempt in read_attempts(file).items():
            where = group or _group_with(queries, query, attempt.query)
            key = f"{where}/{query}" if where else query
            if key in found:
                raise OptionError(
                    f"expected one answer to each query, found a second to {key[:80]!r} in {file}; "
                    "give a folder of one method"
                )
            found[key] = replace(attempt, query_id=key)
    if not found:
        raise DataNotFound(f"expected answers in {path}, found files without any")
    known = _queries_of(queries, {group_of(key) for key in found})
    is_whole = all((queries / f"{group_of(key)}.json").is_file() for key in found)
    attempts = {key: one for key, one in found.items() if key in known or not known or not is_whole}
    others = tuple(key for key in found if key not in attempts)
    if not attempts:
        raise OptionError(
            f"expected answers to the queries in {queries}, found answers to others (such as "
            f"{others[0]!r:.60}); give the --data-dir that they belong to"
        )
    name = path.name or str(path)
    queries_known = known if is_whole else {}
    return Answers(name, "reference", attempts, queries_known, others=others, sizes=_sizes(known))


def _queries_of(folder: Path, groups: Iterable[str]) -> dict[str, str]:
    """Return the text of each query of some groups, of those whose queries are there."""
    files = [folder / f"{group}.json" for group in sorted(groups) if group]
    return {
        f"{file.stem}/{key}": str(record["query"])
        for file in files
        if file.is_file()
        for key, record in read_queries(file).items()
    }


def _sizes(queries: Iterable[str]) -> dict[str, int]:
    """Return how many queries there are of each group."""
    return dict(Counter(map(group_of, queries)))


def _group_with(folder: Path, key: str, text: str) -> str:
    """Return the group that has a query of this id and text; empty where none here has.

    An empty answer does not tell the text: then the id must be of one group alone.
    """
    groups = []
    for path in (folder / f"{group}.json" for group in GROUPS):
        record = read_queries(path).get(key) if path.is_file() else None
        if record is None:
            continue
        if text and record["query"].split() == text.split():
            return path.stem
        groups.append(path.stem)
    return groups[0] if len(groups) == 1 and not text else ""


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield files of answers with their groups, empty where a name has none."""

    def group_in(*names: str) -> str:
        return next((name for name in names if name in GROUPS), "")

    if path.is_file():
        yield group_in(path.stem, path.parent.name), path
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
    yield from ((group_in(file.stem, path.name), file) for file in own)
    for group in parts:
        yield from ((group, file) for file in sorted((path / group).glob("*.json")))


def recorded_judge(path: str | os.PathLike[str], answers: Answers) -> RecordedJudge:
    judge = RecordedJudge(path)
    known = judge.verdicts.keys()
    if not any(key in known or key.rpartition("/")[2] in known for key in answers.attempts):
        raise OptionError(
            f"expected verdicts on the answers of {answers.name} in {path}, found those on other "
            f"queries ({one_line(', '.join(sorted(known)[:3]), 60) or 'none'})"
        )
    return judge
