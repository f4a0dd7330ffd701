"""Questions: FlashRAG's JSON lines and verl's rows, seven data sets by name, and generated ones."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import DataCorrupt, DataNotFound

DATASETS: Mapping[str, tuple[str, ...]] = {
    "nq": ("train", "test"),
    "triviaqa": ("test",),
    "popqa": ("test",),
    "hotpotqa": ("train", "dev"),
    "2wikimultihopqa": ("dev",),
    "musique": ("dev",),
    "bamboogle": ("test",),
}
"""The data sets, each with the files that Search-R1's training and evaluation take: it trains on NQ and
HotpotQA, and where no answers of a test split are public, the dev split is evaluated."""

_LONGEST_LINE = 2**20
_REFERENCE = "#{}"


class Hop(NamedTuple):
    """One step of a decomposition."""

    question: str
    title: str
    answer: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question."""

    id: str
    text: str
    golden: tuple[str, ...]
    split: str = "test"
    titles: tuple[str, ...] = ()
    hops: tuple[Hop, ...] = ()
    support: tuple[str, ...] = ()


def read_questions(path: str | os.PathLike[str], split: str = "test") -> list[Question]:
    """Return the questions of a file, in its order; all of them are of one split."""
    path = Path(path)
    questions: dict[str, Question] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
                if not line.strip():
                    continue
                question = _read(line, f"line {number} of {path}", split, number)
                if question.id in questions:
                    raise DataCorrupt(
                        f"expected ids that differ, found {question.id!r:.80} again in line "
                        f"{number} of {path}; give each question its own"
                    )
                questions[question.id] = question
    except OSError as error:
        raise DataNotFound(
            f"expected questions at {path}, found: {error.strerror}; name a file of JSON lines, each "
            '{"id": ..., "question": ..., "golden_answers": [...]}'
        ) from error

    if not questions:
        raise DataCorrupt(f"expected questions in {path}, found none")
    return list(questions.values())


def _read(line: bytes, place: str, split: str, number: int) -> Question:
    """Return the question in a line, of FlashRAG's form or of verl's."""
    if len(line) > _LONGEST_LINE:
        raise DataCorrupt(
            f"expected a question of at most {_LONGEST_LINE:,} bytes in {place}, found more"
        )

    try:
        record = json.loads(line)
        if "reward_model" in record:
            record = _of_verl(record, number)
        name = record["id"]
        text = record["question"]
        golden = record["golden_answers"]
        if isinstance(name, bool) or not isinstance(name, str | int) or not isinstance(text, str):
            raise TypeError("an id or a question that is no text")
        if not isinstance(golden, list) or not all(isinstance(gold, str) for gold in golden):
            raise TypeError("golden_answers that are no list of texts")

        name = str(name)
        text = " ".join(text.split())
        "".join([name, text, *golden]).encode("utf-8")  # raises for half a character
        if not (name and text and golden):
            raise ValueError("an empty id, question or list of answers")
        titles, hops, support = _support(record.get("metadata") or {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataCorrupt(
            f'expected {{"id", "question", "golden_answers"}} in {place}, found {line[:60]!r} '
            f"({type(error).__name__}: {error})"
        ) from error

    # As in Search-R1's preparation of its data.
    if not text.endswith("?"):
        text = f"{text}?"
    return Question(name, text, tuple(dict.fromkeys(golden)), split, titles, hops, support)


def _of_verl(record: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a row of verl's in FlashRAG's form."""
    extra = record.get("extra_info") or {}
    target = record["reward_model"]["ground_truth"]["target"]
    question = record.get("question") or (record.get("env_kwargs") or {}).get("question")
    name = record.get("id") or f"{record.get('data_source', 'row')}-{extra.get('index', number)}"
    golden = [target] if isinstance(target, str) else target
    return {"id": name, "question": question, "golden_answers": golden}


def _support(metadata: Any) -> tuple[tuple[str, ...], tuple[Hop, ...], tuple[str, ...]]:
    """Return titles, hops and ids of the passages that answer, as far as metadata tell them."""
    if not isinstance(metadata, dict):
        return (), (), ()
    # MuSiQue's sub-questions name earlier answers by number ("#1") and relations by " >> ".
    hops: list[Hop] = []
    for part in metadata.get("decomposition") or ():
        text = str(part["question"])
        for number, earlier in enumerate(hops, 1):
            text = text.replace(_REFERENCE.format(number), earlier.answer)
        hops.append(Hop(text.replace(" >> ", " "), "", str(part["answer"])))

    titles = tuple(str(title) for title in metadata.get("supporting_titles") or ())
    ids = tuple(str(passage_id) for passage_id in metadata.get("supporting_ids") or ())
    return titles, tuple(hops), ids


def find_datasets(
    folder: Path, names: Sequence[str], split: str
) -> Iterator[tuple[str, str, Path]]:
    """Yield name, split and file of data sets in a folder."""
    any_found = False
    for name, splits in DATASETS.items():
        if names and name not in names:
            continue

        # Each data set has one split to evaluate, "dev" or "test": either name means it.
        for part in splits:
            if split != "all" and (part == "train") != (split == "train"):
                continue
            files = (folder / f"{name}_{part}.jsonl", folder / name / f"{part}.jsonl")
            path = next((file for file in files if file.is_file()), None)
            if path is not None:
                any_found = True
                yield name, part, path
            elif names and split != "all":
                raise DataNotFound(
                    f"expected {files[0].name} or {name}/{part}.jsonl in {folder}, found none"
                )

    if not any_found:
        raise DataNotFound(
            f"expected questions of the split {split!r} of {', '.join(names or DATASETS)} in {folder}, "
            f"such as nq_{split}.jsonl, found none; FlashRAG_datasets on Hugging Face has them"
        )


def split_by_id(name: str) -> str:
    """Return the split of a question in a file that has no splits: 80, 10 and 10 %."""
    share = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 16**8
    if share < 0.8:
        return "train"
    return "dev" if share < 0.9 else "test"
