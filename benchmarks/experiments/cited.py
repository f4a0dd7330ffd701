"""The published numbers of both papers, as far as a source shows them: ``cited/*.json``.

They stand beside ours, never among them. A number is there only if it was read somewhere: each file
says where, what of the table could not be seen, and in footnotes what is wrong with the printed
numbers (METHODS.md 1.12, 1.15 and 2.10).
"""

from __future__ import annotations

import json
from importlib.resources import files

from ...errors import DataCorrupt
from .cited_check import read_cited
from .cited_rows import CitedRow, CitedTable, Footnote

__all__ = ["CitedRow", "CitedTable", "Footnote", "cited_ids", "load_cited", "read_cited"]

_FOLDER = "cited"


def cited_ids() -> tuple[str, ...]:
    """Return the names of the tables and figures that there are files of.

    Example:
        >>> "comap-t1" in cited_ids()
        True
    """
    folder = files(__package__) / _FOLDER
    names = (path.name for path in folder.iterdir())
    return tuple(sorted(name[:-5] for name in names if name.endswith(".json")))


def load_cited(name: str) -> CitedTable | None:
    """Return the published numbers of a table or figure; None where there is no file of it.

    A table with a file of which no number could be seen has no rows, and says what is missing.

    Args:
        name: Its name, such as ``comap-t1``.

    Raises:
        DataCorrupt: The file is not what it should be.

    Example:
        >>> load_cited("comap-t6").table
        'Table 6'
        >>> load_cited("comap-t99") is None
        True
    """
    if name not in cited_ids():
        return None
    file = f"{name}.json"
    try:
        data = json.loads((files(__package__) / _FOLDER / file).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(
            f"cited/{file}: expected JSON, found {error}; install comap again"
        ) from error
    return read_cited(data, name)
