"""Environments: the shared base, canonicalizers, task panels, vectors, a folder a benchmark."""

from __future__ import annotations

from .base import Info, Outcome, Snapshot, TextEnv
from .canon import Canonicalizer, Describer
from .moments import restore, snapshot
from .panel import Panel

__all__ = [
    "Canonicalizer",
    "Describer",
    "Info",
    "Outcome",
    "Panel",
    "Snapshot",
    "TextEnv",
    "restore",
    "snapshot",
]
