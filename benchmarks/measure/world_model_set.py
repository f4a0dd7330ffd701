"""The frozen sets that world models are scored on, and the rows that are recorded of them.

``python benchmarks/measure/world_model_set.py freeze NAME`` draws a new set (12 minutes, with Java) and
writes it to benchmarks/sets. A set that is there never changes: it is refused.

``python benchmarks/measure/world_model_set.py rows NAME FILE...`` scores the results of ``comap score
world-model --set NAME --out FILE`` again from their predicted texts, and writes their rows to
benchmarks/results/world_model_set_NAME.json, beside the rows of other names that it has.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from comap.benchmarks.evaluation_set import FOLDER, SETS, freeze, load_evaluation_set
from comap.benchmarks.record import write_result
from comap.benchmarks.set_rows import ROWS, checked_row, row_of, write_rows


def freeze_set(name: str) -> None:
    """Draw a set and write it; refuse one that is there."""
    path = FOLDER / f"{name}.json"
    if path.exists():
        expected = json.loads(path.read_bytes())
        raise SystemExit(
            f"{path} is there, and never changes (SHA-256 {expected['sha256'][:16]}); name a new set"
        )
    if name not in SETS:
        raise SystemExit(f"add {name!r} to SETS in benchmarks/evaluation_set.py first")
    write_result(path, freeze(name))


def record_rows(name: str, files: list[Path]) -> None:
    """Write the rows of some results, and keep those of other world models."""
    evaluation_set = load_evaluation_set(name, drawn=True, tell=print)
    path = ROWS / f"world_model_set_{name}.json"
    rows = {}
    if path.exists():
        rows = {row["name"]: row for row in json.loads(path.read_bytes())["rows"]}
    for file in files:
        result = checked_row(file, evaluation_set)
        rows[result["name"]] = row_of(result, file)
    write_rows(path, name, rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("freeze", "rows"))
    parser.add_argument("name")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    if options.what == "freeze":
        freeze_set(options.name)
    else:
        record_rows(options.name, options.files)


if __name__ == "__main__":
    main()
