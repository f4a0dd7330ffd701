"""What a folder of results holds: the file that ``comap bench run`` writes before anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound

__all__ = ["PLAN", "known_plan"]

PLAN = "plan.json"
"""The file."""


def known_plan(results: Path) -> dict[str, Any]:
    """Return what was run in a folder: ``scale``, ``experiments``, ``seeds``.

    Raises:
        DataNotFound: Nothing was.
        DataCorrupt: Its file is no such plan.

    Example:
        >>> known_plan(Path("no/such/results"))
        Traceback (most recent call last):
        comap.errors.DataNotFound: expected results of 'comap bench run' in no/such/results, found none
    """
    path = results / PLAN
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        _ = [found["scale"] + "", *found["experiments"], *found["seeds"]]
        return found
    except FileNotFoundError:
        raise DataNotFound(
            f"expected results of 'comap bench run' in {results}, found none"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupt(f"expected what was run in {path}, found {error!r:.100}") from error
