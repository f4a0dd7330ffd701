"""Environments: the shared base, canonicalizers, task panels, vectors, a folder a benchmark."""

from __future__ import annotations

from .base import Info, Outcome, Snapshot, TextEnv, restore, snapshot
from .briefing import Briefing
from .canon import Canonicalizer, Describer, Revealer
from .panel import Panel
from .registry import canonical_action, state_text

__all__ = [
    "Briefing",
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
