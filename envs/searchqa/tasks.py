"""Which questions there are, by which names, and in which splits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ...errors import DataNotFound, OptionError, suggest
from ..panel import Panel
from ..storage import comap_home
from .embedded import embedded_questions
from .questions import DATASETS, Question, find_datasets, read_questions, split_by_id

__all__ = ["SOURCES", "SPLITS", "Tasks", "open_tasks", "questions_home"]

SPLITS = ("train", "dev", "test", "all")
"""All splits."""

SOURCES = ("auto", "official", "generated")
"""Where questions and passages may come from."""

_PREFIX = "generated/"


@dataclass(frozen=True)
class Tasks:
    """The questions of one split.

    Attributes:
        split: One of `SPLITS`.
        questions: All questions that can be played, by task id.
        listed: The ids of those that are of the split.
        generated: Whether they are the embedded ones.
    """

    split: str
    questions: Mapping[str, Question]
    listed: Sequence[str]
    generated: bool

    @cached_property
    def panel(self) -> Panel:
        """The ids of the split's tasks."""
        return Panel.of(self.listed, self.split, SPLITS)

    def question(self, task: str) -> Question:
        """Return the question of a task, of this split or another.

        Raises:
            TaskNotFound: There is no such task.
        """
        found = self.questions.get(task)
        if found is None:
            raise self.panel.missing(task)
        return found


def questions_home() -> Path:
    """Return the folder where questions are looked for if none is named.

    Example:
        >>> questions_home().name
        'questions'
    """
    return comap_home() / "searchqa" / "questions"


def open_tasks(
    questions: str | os.PathLike[str] | None,
    datasets: Sequence[str],
    split: str | None,
    generated: bool,
    seed: int,
) -> Tasks:
    """Return the questions of a file, of a folder of data sets, or the generated ones.

    Args:
        questions: A file or a folder; None for `questions_home`, unless they are generated.
        datasets: Of a folder, the data sets to take; none for all that are there.
        split: One of `SPLITS`; None for ``all`` of a file, and else ``train``.
        generated: Whether to take the generated ones.
        seed: Of these.

    Raises:
        OptionError: An option has a value that it cannot have.
        DataNotFound, DataCorrupt: A file is missing or broken.
    """
    if split is not None and split not in SPLITS:
        raise OptionError(f"search QA's split cannot be {split!r}; {suggest(str(split), SPLITS)}")
    for name in datasets:
        if name not in DATASETS:
            raise OptionError(f"there is no data set {name!r}; {suggest(str(name), DATASETS)}")
    if generated:
        if datasets:
            raise OptionError("generated questions are no data set; leave dataset out")
        return _listed(split or "train", _generated(seed), True)
    folder = questions_home() if questions is None else Path(questions)
    if folder.is_file():
        if datasets:
            raise OptionError(f"dataset chooses among the files of a folder, not in {folder}")
        stamp = folder.stat()
        return _listed(split or "all", _of_file(folder, stamp.st_mtime_ns, stamp.st_size), False)
    if not folder.is_dir():
        raise DataNotFound(
            f"expected questions at {folder}, found nothing; name a file or a folder: questions=..."
        )
    split = split or "train"
    found, wanted = {}, "test" if split == "dev" else split
    for name, part, path in find_datasets(folder, datasets, wanted):
        for question in read_questions(path, part):
            found[f"{name}/{question.id}"] = question
    return Tasks(split, found, list(found), False)


def _listed(split: str, questions: Mapping[str, Question], generated: bool) -> Tasks:
    """Return the tasks of a split, where each question tells its own."""
    ids = [name for name, one in questions.items() if split in ("all", one.split)]
    return Tasks(split, questions, ids, generated)


@lru_cache(maxsize=4)
def _generated(seed: int) -> dict[str, Question]:
    return {f"{_PREFIX}{name}": one for name, one in embedded_questions(seed).items()}


@lru_cache(maxsize=4)
def _of_file(path: Path, changed: int, size: int) -> dict[str, Question]:
    """Return a file's questions by id, each with the split that its id falls into."""
    from dataclasses import replace

    return {one.id: replace(one, split=split_by_id(one.id)) for one in read_questions(path)}
