"""What one measures with: the demo, reports and the viewer, experiments, and recorded results."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison import compare_runs
    from .display import quiet
    from .evaluation_set import load_evaluation_set
    from .set_rows import scores_of_set
    from .training_report import write_report
    from .view import view_run

_LAZY = {
    "compare_runs": "comparison",
    "load_evaluation_set": "evaluation_set",
    "quiet": "display",
    "scores_of_set": "set_rows",
    "view_run": "view",
    "write_report": "training_report",
}

__all__ = [
    "compare_runs",
    "load_evaluation_set",
    "quiet",
    "scores_of_set",
    "view_run",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
