"""A ScienceWorld belief in words, for prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...facts import State
from ...trajectory import Turn
from .belief import INVENTORY, Belief

__all__ = ["narrate"]

_LAST = 2
_WORDS = {"active": "on", "inactive": "off"}


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return a belief in few words.

    Args:
        goal: The task in words.
        history: The turns so far.
        state: The belief of the present.
        action: If given, the text is for predicting what follows it, and leaves out rooms that it
            does not name.

    Example:
        >>> facts = {("room", "agent", "kitchen"), ("in", "metal pot", "stove"), ("active", "stove"),
        ...          ("in", "stove", "kitchen"), ("in", "water", "metal pot"), ("seen", "table"),
        ...          ("holding", "thermometer"), ("door", "hallway", "kitchen", "open")}
        >>> print(narrate("Boil water.", (), State(frozenset(facts))))
        goal: Boil water.
        room: kitchen; door to hallway (open)
        held: thermometer
        here: stove (on) [metal pot [water]]
    """
    belief = Belief(state.facts)
    lines = [f"goal: {' '.join(goal.split())}"]
    doors = [_door(belief, ends, status) for ends, status in sorted(belief.doors.items())]
    lines.append("; ".join([f"room: {belief.room or 'unknown'}", *filter(None, doors)]))
    held = _things(belief, INVENTORY)
    lines.append(f"held: {held or ('nothing' if INVENTORY in belief.seen else 'not looked')}")
    lines.append(f"here: {_things(belief, belief.room) or 'not looked'}")
    for room in sorted(belief.children):
        is_room = room not in belief.parent and room not in (INVENTORY, belief.room)
        things = _things(belief, room) if is_room and (action is None or room in action) else ""
        if things:
            lines.append(f"{room}: {things}")
    if belief.links:
        pairs = (f"{first} to {second}" for first, second in sorted(belief.links))
        lines.append(f"connected: {'; '.join(pairs)}")
    if belief.focus:
        lines.append(f"focus: {belief.focus}")
    if belief.pending:
        told = (f"{n}: {text}" for n, text in sorted(belief.pending.items()) if n.isdecimal())
        lines.append(f"choose: {'; '.join(told)}")
    lines += [f"last: {turn.action} -> {_short(turn)}" for turn in history[1:][-_LAST:]]
    return "\n".join(lines)


def _short(turn: Turn) -> str:
    """Return what an answer says, without the lists that the belief tells as well."""
    return turn.observation.strip().partition("\n")[0]


def _door(belief: Belief, ends: tuple[str, str], status: str) -> str:
    if belief.room not in ends:
        return ""
    other = ends[0] if ends[1] == belief.room else ends[1]
    return f"door to {other} ({status})"


def _things(belief: Belief, place: str) -> str:
    """Return what is in a place, and in that."""
    text = ""
    depth, opened = {place: 0}, 0
    for thing in belief.below(place):
        level = depth[belief.parent[thing]]
        depth[thing] = level + 1
        text += "]" * (opened - level) + (" [" if level > opened else ", " if text else "")
        text += thing + _marks(belief, thing)
        opened = level
    return text + "]" * opened


def _marks(belief: Belief, thing: str) -> str:
    """Return what is said of a thing, in brackets."""
    words = _words(belief.marks.get(thing, {}).values())
    if thing in belief.seen and not belief.children.get(thing):
        words.append("empty")
    return f" ({', '.join(words)})" if words else ""


def _words(marks: Iterable[tuple[str, ...]]) -> list[str]:
    return sorted(mark[2] if len(mark) > 2 else _WORDS.get(mark[0], mark[0]) for mark in marks)
