"""Whether a second run of a lab's jobs gave the same bits: weights, and episodes that were played.

``python benchmarks/measure/second_run.py FIRST SECOND FILE`` compares the jobs that ended in both folders
of ``comap bench run`` and writes the hashes of both to FILE. Both folders are to be of one machine:
another processor rounds otherwise.
The exit status is 1 where a hash differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from comap.benchmarks.record import circumstances, write_result
from comap.errors import DataNotFound

COMPARED = (
    "out/model/*.safetensors",
    "out/models/*/*.safetensors",
    "out/*/trajectories.jsonl",
)
"""Files that hold what a job learned or played; others hold times."""


def main(first: Path, second: Path, file: Path) -> bool:
    """Write the hashes of both runs to a file; return whether all are the same."""
    jobs = {}
    is_same = True
    for name in sorted(jobs_that_ended(first) & jobs_that_ended(second)):
        first_hashes = hashes_of(first / "jobs" / name)
        second_hashes = hashes_of(second / "jobs" / name)
        jobs[name] = {
            "code": [code_of(out / "jobs" / name) for out in (first, second)],
            "first": first_hashes,
            "second": second_hashes,
        }

        is_equal = first_hashes == second_hashes
        is_same = is_same and is_equal
        print(f"{name}: {'equal' if is_equal else 'different'}")

    if not jobs:
        raise DataNotFound(f"expected jobs that ended in both {first} and {second}, found none")

    record: dict[str, Any] = {
        "benchmark": "second run of a seed",
        "hash": "the first 16 digits of SHA-256",
        "jobs": jobs,
    }
    write_result(file, {**record, **circumstances()})
    return is_same


def jobs_that_ended(out: Path) -> set[str]:
    """Return the names of the jobs of a folder that ended well."""
    return {
        record.parent.name
        for record in out.glob("jobs/*/ended.json")
        if json.loads(record.read_bytes())["exit"] == 0
    }


def code_of(job: Path) -> str:
    """Return the version and commit of the code that ran a job."""
    code: str = json.loads((job / "job.json").read_bytes())["code"]
    return code


def hashes_of(job: Path) -> dict[str, str]:
    """Return the hash of each file that holds what a job learned or played, by its name in the job."""
    hashes = {}
    for pattern in COMPARED:
        for path in sorted(job.glob(pattern)):
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256")
            hashes[str(path.relative_to(job))] = digest.hexdigest()[:16]
    return hashes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    sys.exit(not main(options.first, options.second, options.file))
