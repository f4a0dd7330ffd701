"""The names of the stages of CoMap's training: of their folders, results and reports."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """What is done once, before the rounds."""

    WARMUP_POLICY = "warmup-policy"
    """The policy learns demonstrations (CoMap, eq. 4)."""
    WARMUP_ROLLOUTS = "warmup-rollouts"
    """The policy plays for transitions off the expert's way."""
    WARMUP_WORLD_MODEL = "warmup-world-model"
    """The world model learns real transitions (CoMap, eq. 5)."""
    FROZEN_TRANSITIONS = "frozen-transitions"
    """The transitions are fixed that every world model is scored on."""
    ENTRY_CONDITIONS = "entry-conditions"
    """The policy plays, to find out whether the training can show anything."""
    REFLECTION_DRAFTS = "reflection-drafts"
    """The policy drafts in states of demonstrations (CoMap, App. C.2)."""
    REFLECTION_PLAY = "reflection-play"
    """The policy plays, and an expert's action is noted in each of its states (ours)."""
    REFLECTION_SUFFIXES = "reflection-suffixes"
    """Drafts and expert's actions are played out and labeled (CoMap, App. C.2)."""
    REFLECTION_INIT = "reflection-init"
    """The policy learns these labels (CoMap, App. C.2)."""


class RoundPart(StrEnum):
    """What is done in each round; round 0 is an evaluation alone."""

    ROLLOUTS = "rollouts"
    """The policy plays with probes, the teacher and both gates (CoMap, Figure 2)."""
    WORLD_MODEL = "world-model"
    """The world model learns from the rollouts (CoMap, eq. 6)."""
    POLICY = "policy"
    """The policy learns from the rollouts (CoMap, eq. 8)."""
    EVALUATION = "evaluation"
    """Both play test tasks, and are measured."""


def round_stage(number: int, part: RoundPart) -> str:
    """Return the name of a part of a round.

    Example:
        >>> round_stage(1, RoundPart.WORLD_MODEL)
        'round-1-world-model'
    """
    return f"round-{number}-{part}"
