"""What a belief alone says about what can be done: for imagined steps."""

from __future__ import annotations

from ...facts import State
from .kinds import can, fits
from .wording import Dialect

__all__ = ["admissible_of"]

_APPLIANCES = {
    "microwave": ("heat", "heatable"),
    "fridge": ("cool", "coolable"),
    "sinkbasin": ("clean", "cleanable"),
    "sink": ("clean", "cleanable"),
}
_KNIVES = ("knife", "butterknife")


def admissible_of(state: State, dialect: Dialect = "move") -> tuple[str, ...]:
    """Return the commands that the facts allow, sorted.

    Beside the facts this uses what is generally known of kinds of things: that a mug can be heated
    and fits a shelf. It may differ from the engine's list where a belief knows less (receptacles
    that share a location, doors not yet seen).

    Example:
        >>> state = State(frozenset({("exists", "safe 1"), ("at", "agent", "safe 1"),
        ...                          ("closed", "safe 1")}))
        >>> admissible_of(state)
        ('examine safe 1', 'help', 'inventory', 'look', 'open safe 1')
    """
    facts = state.facts
    here = {fact[2] for fact in facts if fact[0] == "at" and len(fact) == 3}
    held = min((fact[-1] for fact in facts if fact[0] == "holding"), default=None)
    commands = {"inventory", "look"} | ({"help"} if dialect == "move" else set())
    commands |= {f"go to {f[-1]}" for f in facts if f[0] == "exists" and f[-1] not in here}
    for place in here:
        commands.add(f"examine {place}")
        closed = ("closed", place) in facts
        if closed:
            commands.add(f"open {place}")
        elif ("open", place) in facts:
            commands.add(f"close {place}")
        if held is not None:
            commands |= _with_held(held, place, closed, dialect)
    things = {(f[1], f[2]) for f in facts if f[0] == "in" and len(f) == 3 and f[2] in here}
    for thing, place in things:
        if can(thing, "toggleable"):
            commands.add(f"use {thing}")
        elif held is None and ("closed", place) not in facts and can(thing, "pickupable"):
            commands.add(f"take {thing} from {place}")
        if held is not None and held.startswith(_KNIVES) and can(thing, "sliceable"):
            commands.add(f"slice {thing} with {held}")
    if held is not None:
        commands.add(f"examine {held}")
    return tuple(sorted(commands))


def _with_held(held: str, place: str, closed: bool, dialect: Dialect) -> set[str]:
    """Return what can be done with the held thing at one receptacle."""
    commands = set()
    if not closed and fits(held, place):
        put = f"move {held} to {place}" if dialect == "move" else f"put {held} in/on {place}"
        commands.add(put)
    verb, ability = _APPLIANCES.get(place.rpartition(" ")[0], ("", ""))
    if verb and can(held, ability):
        commands.add(f"{verb} {held} with {place}")
    return commands
