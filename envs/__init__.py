"""Environments: the shared base, canonicalizers, task panels, vectors, a folder a benchmark."""

from __future__ import annotations

from .base import Info, Outcome, Snapshot, TextEnv, restore, snapshot
from .canon import Canonicalizer, Describer
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
