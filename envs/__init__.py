"""Environments: the shared base, canonicalizers, task panels, vectors, a folder a benchmark."""

from __future__ import annotations

from .actions import canonical_action
from .base import Info, Outcome, Snapshot, TextEnv
from .canon import Canonicalizer, Describer, Revealer
from .moments import restore, snapshot
from .panel import Panel
from .state_text import state_text

__all__ = [
    "Canonicalizer",
    "Describer",
    "Info",
    "Outcome",
    "Panel",
    "Revealer",
    "Snapshot",
    "TextEnv",
    "canonical_action",
    "restore",
    "snapshot",
    "state_text",
]
