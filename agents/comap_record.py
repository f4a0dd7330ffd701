"""What stays of one of CoMap's decisions: its notes, and the reply that the conversation shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..worldmodel import Imagined
from .acting import Draft
from .parsing import first_line
from .reflecting import Reflected

__all__ = ["Foreseen", "history_reply", "step_notes"]


class Foreseen(NamedTuple):
    """What is known of the future before a reflection.

    Attributes:
        text: What the reflection is told would follow the draft; empty where nothing is known.
        imagined: What the world model said of the draft, if it was asked.
        notes: What the trajectory keeps of this, in addition to or in place of `step_notes`.
        reflect: Whether there is a reflection at all; else the draft is taken.

    Example:
        >>> Foreseen("It is dark.").reflect
        True
    """

    text: str = ""
    imagined: Imagined | None = None
    notes: Mapping[str, Any] = {}
    reflect: bool = True


def history_reply(draft: Draft, reply: Reflected | None, action: str) -> str:
    r"""Return what goes into the conversation as the agent's reply (METHODS.md 1.2).

    Args:
        draft: The draft, whose thought stands in where there is no reflection.
        reply: The reflection, if there was one.
        action: The action that is taken.

    Example:
        >>> history_reply(Draft("Thought: Hm.\nAction: look", "look", True, "free"), None, "look")
        'Thought: Hm.\nAction: look'
    """
    said = None if reply is None else reply.said.text
    thought = first_line(said or draft.thought or "")
    return f"Thought: {thought}\nAction: {action}" if thought else f"Action: {action}"


def step_notes(
    draft: Draft, path: str, shown: str, future: str = "", reply: Reflected | None = None
) -> dict[str, Any]:
    """Return what a trajectory keeps of a decision (METHODS.md 1.0.1, StepRecord), as JSON data.

    It is that of a draft which is taken; what the gate says replaces its last entries.

    Args:
        draft: The draft.
        path: How the decision was made: ``draft_only_fallback``, ``reflection_skipped``, ``reflected``.
        shown: The reply as later conversations show it.
        future: What was predicted to follow the draft.
        reply: The reflection, if there was one.

    Example:
        >>> step_notes(Draft("look", "look", True, "free"), "reflected", "look")["exec_action"]
        'look'
    """
    said = None if reply is None else reply.said
    return {
        "path": path,
        "decoding": draft.decoding,
        "draft_action": draft.action,
        "draft_parsed": draft.parsed,
        "draft_response": draft.text,
        "predicted_next_state": future or None,
        "reflect_response": None if reply is None else reply.text,
        "reflection_text": said and said.text,
        "decision": said and said.decision,
        "ref_action": said and said.action,
        "p": None,
        "p_source": None,
        "q": None,
        "q_source": None,
        "gate": False,
        "gate_parts": None,
        "exec_action": draft.action,
        "shown": shown,
    }
