"""A corpus of five passages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOOK = (
    ("c", "Emma (novel)", "Emma is a novel by Jane Austen about youthful pride."),
    ("a", "Jane Austen", "Jane Austen was born in Steventon, in the county of Hampshire."),
    ("b", "Steventon", "Steventon is a village at the river Test."),
    ("e", "Test (river)", "The Test is a chalk stream."),
    ("d", "Oder", "The Oder is a river in Central Europe."),
)


def write_book(folder: Path, passages: Any = BOOK) -> Path:
    path = folder / "corpus.jsonl"
    lines = [json.dumps({"id": i, "contents": f'"{t}"\n{x}'}) + "\n" for i, t, x in passages]
    path.write_text("".join(lines), encoding="utf-8")
    return path
