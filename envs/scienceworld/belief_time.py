"""What a belief no longer tells once time has passed.

Every action but looking around and the like lets ScienceWorld's world go on: things warm up and melt,
bees fly about, plants grow. What may have changed unseen is forgotten, so that a belief stays true;
what only the agent changes is kept for as long as it is. An answer tells of the moment before: what
it told is kept until the next action.
"""

from __future__ import annotations

from .belief import Belief, base_name
from .sentences_things import WORDS

__all__ = ["pass_time"]

_TAPS = frozenset(WORDS["taps"])
_COOLERS = frozenset(WORDS["coolers"])
_SHORT_LIVED = frozenset(WORDS["short_lived"])
_PLANTS = (" tree", " plant")


def pass_time(belief: Belief) -> None:
    """Forget what may have changed while an action took its time, and fill what is under a tap.

    Example:
        >>> belief = Belief([("in", "water", "metal pot"), ("temp", "water", "cold")])
        >>> pass_time(belief)
        >>> sorted(belief.facts())
        [('in', 'water', 'metal pot')]
    """
    for thing in [name for name in belief.parent if base_name(name) == "water"]:
        belief.unlink(thing)
    linked = {end.rpartition(".")[0] for pair in belief.links for end in pair}
    for thing, marks in [*belief.marks.items()]:
        for group in [*marks]:
            if (thing, group) not in belief.told and not _lasts(belief, thing, group, linked):
                belief.unmark(thing, group)
    for thing in sorted(belief.parent):
        if thing in belief.parent and _is_fleeting(belief, thing):
            belief.forget(thing)
    _fill(belief)


def _lasts(belief: Belief, thing: str, group: str, linked: set[str]) -> bool:
    """Return whether what is said of a thing surely stays so for a while."""
    base = base_name(thing)
    if group == "active":
        return base == "switch" or not (base in _SHORT_LIVED or thing in linked)
    if group == "phase":
        return belief.has(thing, "phase", "liquid") and base == "water" and _is_calm(belief, thing)
    return group not in ("temp", "slid")


def _is_calm(belief: Belief, thing: str) -> bool:
    """Return whether a thing is far from what heats and cools."""
    return not any(
        base_name(place) in _COOLERS
        or (belief.has(place, "active") and base_name(place) not in _TAPS)
        for place in belief.above(thing)
    )


def _is_fleeting(belief: Belief, thing: str) -> bool:
    """Return whether a thing may be gone, elsewhere or of another name after a while."""
    base, place = base_name(thing), belief.parent[thing]
    if base == "water" and _has_beside(belief, place, _PLANTS):
        return True  # plants drink at once
    if base == "bee":
        return (thing, "stage") not in belief.told
    if thing in belief.told:
        return False
    if belief.has(thing, "burning"):
        return (thing, "burning") not in belief.told
    if base_name(place).endswith(_PLANTS):
        return True
    if base == "water":
        wet = base_name(place) in (*_TAPS, "toilet") or "flower pot" in place
        return wet or _has_beside(belief, place, ("soil",))
    return base.endswith(" seed") and _has_beside(belief, place, ("soil",))


def _has_beside(belief: Belief, place: str, ends: tuple[str, ...]) -> bool:
    return any(base_name(other).endswith(ends) for other in belief.children.get(place, ()))


def _fill(belief: Belief) -> None:
    """Put water into the open vessels under running taps."""
    for tap in sorted(belief.parent):
        if base_name(tap) not in _TAPS or not belief.has(tap, "active"):
            continue
        for vessel in belief.inside(tap):
            held = {base_name(thing) for thing in belief.inside(vessel)}
            if vessel in belief.seen and "water" not in held and not belief.has(vessel, "closed"):
                belief.mark(belief.new("water", vessel), "phase", "liquid")
