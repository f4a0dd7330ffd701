"""Which questions and which retriever an environment gets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ...errors import DataNotFound, OptionError, check_choice, suggest
from ..panel import Panel
from ..storage import comap_home, named_folder
from .generated import generated_folder, generated_questions
from .index import KINDS, MANIFEST, open_index, read_manifest
from .protocol import Style
from .questions import DATASETS, Question, find_datasets, read_questions, split_by_id
from .retriever import (
    CallableRetriever,
    HybridRetriever,
    RememberingRetriever,
    RemoteRetriever,
    Retriever,
)

SPLITS = ("train", "dev", "test", "all")
SOURCES = ("auto", "official", "generated")
_PREFIX = "generated/"


@dataclass(frozen=True)
class Tasks:
    """The questions of one split."""

    split: str
    questions: Mapping[str, Question]
    listed: Sequence[str]

    @cached_property
    def panel(self) -> Panel:
        """The questions of the split as a panel."""
        return Panel.of(self.listed, self.split, SPLITS)

    def question(self, task: str) -> Question:
        """Return a question, of this split or another."""
        question = self.questions.get(task)
        if question is None:
            raise self.panel.missing(task)
        return question


def questions_home() -> Path:
    """Return the folder where questions are looked for."""
    return comap_home() / "searchqa" / "questions"


def open_tasks(
    questions: str | os.PathLike[str] | None,
    datasets: Sequence[str],
    split: str | None,
    generated: bool,
    seed: int,
) -> Tasks:
    """Return the questions of a file, of a folder of data sets, or the generated ones."""
    if split is not None:
        check_choice("search QA's split", split, SPLITS)
    for name in datasets:
        if name not in DATASETS:
            raise OptionError(f"there is no data set {name!r}; {suggest(str(name), DATASETS)}")

    if generated:
        if datasets:
            raise OptionError("generated questions are no data set; leave dataset out")
        return _tasks(split or "train", _generated(seed))

    folder = questions_home() if questions is None else Path(questions)
    if folder.is_file():
        if datasets:
            raise OptionError(f"dataset chooses among the files of a folder, not in {folder}")
        stamp = folder.stat()
        return _tasks(split or "all", _of_file(folder, stamp.st_mtime_ns, stamp.st_size))

    if not folder.is_dir():
        raise DataNotFound(
            f"expected questions at {folder}, found nothing; name a file or a folder: questions=..."
        )

    split = split or "train"
    # Each data set has one file to evaluate on, whether its publisher calls it "dev" or "test".
    file_split = "test" if split == "dev" else split
    by_id = {}
    for name, part, path in find_datasets(folder, datasets, file_split):
        for question in read_questions(path, part):
            by_id[f"{name}/{question.id}"] = question
    return Tasks(split, by_id, list(by_id))


def _tasks(split: str, questions: Mapping[str, Question]) -> Tasks:
    """Return the questions with those of a split listed."""
    ids = [name for name, question in questions.items() if split in ("all", question.split)]
    return Tasks(split, questions, ids)


@lru_cache(maxsize=4)
def _generated(seed: int) -> dict[str, Question]:
    return {f"{_PREFIX}{name}": question for name, question in generated_questions(seed).items()}


@lru_cache(maxsize=4)
def _of_file(path: Path, changed: int, size: int) -> dict[str, Question]:
    """Return a file's questions by id, each with its split; `changed` and `size` are for the cache."""
    # A file states no splits: the id decides, so that a question stays where it is as the file grows.
    questions = {}
    for question in read_questions(path):
        questions[question.id] = replace(question, split=split_by_id(question.id))
    return questions


RETRIEVERS = ("auto", *KINDS, "hybrid")
"""The names of retrievers; any other text is the URL of a server."""


def index_home() -> Path:
    """Return the folder where an index is looked for."""
    return comap_home() / "searchqa" / "index"


def choose_retriever(
    retriever: Any,
    data_dir: str | os.PathLike[str] | None,
    generated: bool = False,
    seed: int = 0,
    timeout: float = 10.0,
    style: Style = "search_r1",
) -> Retriever:
    """Return the retriever that an environment's option names or is.

    Args:
        retriever: An object with `search`, a function, the URL of a server, or one of `RETRIEVERS`:
            then an index is opened.
        data_dir: The folder of the index; None for the usual one.
        generated: Whether it is the index of the generated encyclopedia instead.
        seed: The encyclopedia's.
        timeout: Seconds that a server may take.
        style: How a server is asked.
    """
    if not isinstance(retriever, str):
        return retriever if isinstance(retriever, Retriever) else CallableRetriever(retriever)

    # Search-R1's server is asked many queries at a time, verl-agent's one.
    if retriever.startswith(("http://", "https://")):
        return RemoteRetriever(retriever, "query" if style == "verl" else "queries", timeout)
    if retriever not in RETRIEVERS:
        raise OptionError(
            f"retriever cannot be {retriever!r:.80}; {suggest(retriever, RETRIEVERS)}, or a URL, an object "
            "with search(queries, k), or a function"
        )

    # Questions about the encyclopedia have their answers in its own articles alone.
    if generated:
        folder = generated_folder(seed) / "index"
    else:
        folder = index_home() if data_dir is None else named_folder(data_dir)

    if retriever == "hybrid":
        return _hybrid(folder)
    kind = read_manifest(folder)["kind"]
    if retriever not in ("auto", kind):
        raise OptionError(
            f"expected an index of kind {retriever!r} in {folder}, found {kind!r}; build one: "
            f"comap data build searchqa CORPUS --kind {retriever}, or leave retriever out"
        )

    # Absolute, since the process may change its folder, and opened indexes are found by their paths.
    return _opened(folder.absolute())


def _hybrid(folder: Path) -> Retriever:
    """Return all indexes in a folder's folders, fused."""
    folders = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    if len(folders) < 2:
        raise DataNotFound(
            f"expected two indexes or more in folders of {folder}, found {len(folders)}; build them: "
            f"comap data build searchqa CORPUS --out {folder}/KIND --kind KIND"
        )
    return HybridRetriever([_opened(path.absolute()) for path in folders])


def _opened(folder: Path) -> Retriever:
    """Return an index that many environments share, with a memory of answers."""
    # With the manifest's time: an index that was built anew is another.
    return _shared(folder, (folder / MANIFEST).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _shared(folder: Path, changed: int) -> Retriever:
    return RememberingRetriever(open_index(folder))
