"""What ScienceWorld alone can tell: what is found, measured or comes about by itself."""

from __future__ import annotations

from ...facts import Fact, State
from ..canon import names
from .belief import Belief, base_name
from .belief_time import pass_time

__all__ = ["reveals"]

_LOOKING = ("look", "examine", "inventory", "read", "task", "wait", "use thermometer")
_TOLD = ("seen", "temp", "phase", "stage", "slid", "burning", "pending")
_LABELS = {"in": 2, "door": 3}  # how many arguments name things; else the first


def reveals(before: State, action: str, after: State) -> bool:
    """Return whether a change tells what neither the belief, nor time, nor the action did.

    What passing time alone takes from a belief follows. Of the rest nothing does after an action
    that only looks, measures or waits; and else not what a place holds that is seen for the first
    time (``seen``), temperatures, phases, stages of life, what burns, the answer that a request is
    not clear (``pending``), a thing that was not known (but for liquid water, which taps give), and
    whatever the action does not name. So what was asked for and done follows, and so do refusals.

    Args:
        before: The belief before the action.
        action: The action in its canonical form; a number stands for what it chooses.
        after: The belief after it.

    Example:
        >>> before = State(frozenset({("in", "pot", "stove"), ("room", "agent", "kitchen")}))
        >>> held = State(frozenset({("holding", "pot"), ("room", "agent", "kitchen")}))
        >>> reveals(before, "pick up pot", held), reveals(before, "inventory", held)
        (False, True)
    """
    later = Belief(before.facts)
    pass_time(later)
    aged = later.facts()
    added = after.facts - before.facts - aged
    removed = before.facts - after.facts - (before.facts - aged)
    choices = {fact[1]: fact[2] for fact in before.facts if fact[0] == "pending" and len(fact) == 3}
    done = choices.get(action, action)
    changed = added | {fact for fact in removed if fact[:1] != ("pending",)}
    if done.startswith(_LOOKING):
        return bool(changed)
    known = {base_name(fact[1]) for fact in before.facts if fact[0] in ("in", "holding")}
    added = frozenset(fact for fact in added if not _is_liquid_water(fact))
    return any(fact[0] in _TOLD for fact in added) or not all(
        _follows(fact, done, known) for fact in changed
    )


def _is_liquid_water(fact: Fact) -> bool:
    return fact[::2] == ("phase", "liquid") and base_name(fact[1]) == "water"


def _follows(fact: Fact, action: str, known: set[str]) -> bool:
    """Return whether an action names what a fact is about; what is put somewhere must be known."""
    if fact[0] == "room" or _is_liquid_water(fact):
        return True  # only going leads elsewhere, and what a tap gives is liquid
    things = [base_name(part.partition(".")[0]) for part in fact[1 : _LABELS.get(fact[0], 2) + 1]]
    if fact[0] in ("in", "holding") and things[0] not in known | {"water"}:
        return False
    return any(names(action, thing) for thing in things)
