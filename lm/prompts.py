"""Prompt templates from files, and text cut to fit.

A template is a text file of messages, each after a line ``[system]``, ``[user]`` or ``[assistant]``,
with slots such as ``$goal``. Slots are filled once: text from environments and models is never read
as a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from string import Template

from ..errors import OptionError
from ..trajectory import Turn
from .base import Message

OVERHEAD = 8
"""Tokens that a chat template puts around a message, generously."""

_ROLE = re.compile(r"^\[(system|user|assistant)\]$", re.MULTILINE)
_CUT = " [...]"


@lru_cache(maxsize=256)
def load_template(package: str, style: str, name: str) -> tuple[tuple[str, str], ...]:
    """Return the messages of a template, with their slots, as pairs of role and text."""
    path = files(package) / "prompts" / style / f"{name}.txt"
    if not re.fullmatch(r"[\w.-]+", name) or not path.is_file():
        raise OptionError(f"there is no prompt {name!r} in the style {style!r} of {package}")
    _, *parts = _ROLE.split(path.read_text("utf-8"))
    return tuple(
        (role, text.strip("\n")) for role, text in zip(parts[::2], parts[1::2], strict=True)
    )


def fill_template(package: str, style: str, name: str, **slots: str) -> tuple[Message, ...]:
    return tuple(
        Message(role, Template(text).substitute(slots))
        for role, text in load_template(package, style, name)
    )


def recent_turns(
    turns: Sequence[Turn], budget: int, count: Callable[[str], int], overhead: int = OVERHEAD
) -> tuple[Turn, ...]:
    """Return the newest turns that fit a budget, oldest first; the last is kept, cut if it must be."""
    kept: list[Turn] = []
    for turn in reversed(turns):
        cost = count(turn.action or "") + count(turn.observation) + overhead
        if cost > budget:
            if not kept:
                room = budget - count(turn.action or "") - overhead
                kept.append(turn._replace(observation=cut_text(turn.observation, room, count)))
            break
        kept.append(turn)
        budget -= cost
    return tuple(reversed(kept))


def cut_text(text: str, budget: int, count: Callable[[str], int]) -> str:
    """Return the beginning of a text that fits a budget, marked where it was cut."""
    if count(text) <= budget:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[:middle] + _CUT) <= budget:
            low = middle
        else:
            high = middle - 1
    return text[:low] + _CUT
