"""Taking descriptions into a belief: which of the listed things are known, which new, which gone."""

from __future__ import annotations

from collections.abc import Sequence

from .belief import Belief, base_name
from .sentences_things import WORDS, Thing

__all__ = ["describe", "show"]

_IGNORED = frozenset(WORDS["ignored"])
_REPLACED = ("phase", "stage", "slid", "burning")


def show(belief: Belief, place: str, things: Sequence[Thing]) -> None:
    """Take in that these things and no others are in a place.

    Of several of one name, those with the same things in them are taken for the same; what is
    missing in one place and new in another was moved.

    Example:
        >>> belief = Belief([("in", "cup", "table"), ("in", "tea", "cup")])
        >>> cups = [Thing("cup", contents=()), Thing("cup", contents=(Thing("tea"),))]
        >>> show(belief, "table", cups)
        >>> sorted(fact[1:] for fact in belief.facts() if fact[0] == "in")
        [('cup', 'table'), ('cup #2', 'table'), ('tea', 'cup')]
    """
    listing = _Listing(belief)
    listing.match(place, things)
    for thing, where in listing.fresh:  # it grows by what is in the new things
        gone = listing.missing.get(thing.name)
        if gone:
            name = gone.pop(0)
            belief.move(name, where)
        else:
            name = belief.new(thing.name, where)
        listing.take(name, thing)
    for names in listing.missing.values():
        for name in names:
            if name in belief.parent:
                belief.forget(name)


def describe(belief: Belief, name: str, thing: Thing) -> None:
    """Take in what a description says of a known thing.

    Example:
        >>> belief = Belief([("in", "oven", "kitchen"), ("closed", "oven")])
        >>> describe(belief, "oven", Thing("oven", (("open",),), ()))
        >>> sorted(belief.facts())
        [('in', 'oven', 'kitchen'), ('open', 'oven'), ('seen', 'oven')]
    """
    _say(belief, name, thing)
    if thing.contents is not None:
        show(belief, name, thing.contents)


class _Listing:
    """What one description lists.

    Attributes:
        missing: Known things that were not listed where they were, by bare name.
        fresh: Listed things that were not known there, and the place.
    """

    def __init__(self, belief: Belief):
        self.belief = belief
        self.missing: dict[str, list[str]] = {}
        self.fresh: list[tuple[Thing, str]] = []

    def match(self, place: str, things: Sequence[Thing]) -> None:
        """Tell which known things the listed ones are."""
        known: dict[str, list[str]] = {}
        for name in self.belief.inside(place):
            known.setdefault(base_name(name), []).append(name)
        listed: dict[str, list[Thing]] = {}
        for thing in things:
            if thing.name not in _IGNORED:
                listed.setdefault(thing.name, []).append(thing)
        for base, group in listed.items():
            names = known.get(base, [])
            before = [*names]
            others = self._others(names, group)
            if others and len(before) > 1:  # which is which is a guess, and wires tell no more
                for name in before:
                    self.belief.unlink(name)
            for thing in others:
                if names:
                    self.take(_likest(self.belief, names, thing), thing)
                else:
                    self.fresh.append((thing, place))
        for base, names in known.items():
            self.missing.setdefault(base, []).extend(names)
        self.belief.seen.add(place)

    def _others(self, names: list[str], group: list[Thing]) -> list[Thing]:
        """Take things that have in them what known ones have; return the others."""
        others = []
        for thing in group:
            inside = _told(thing)
            same = (name for name in names if inside == _inside(self.belief, name))
            name = None if inside is None else next(same, None)
            if name is None:
                others.append(thing)
            else:
                names.remove(name)
                self.take(name, thing)
        return others

    def take(self, name: str, thing: Thing) -> None:
        """Take in what is said of a listed thing, and match what is in it."""
        _say(self.belief, name, thing)
        if thing.contents is not None:
            self.match(name, thing.contents)


def _told(thing: Thing) -> list[str] | None:
    """Return what a description tells to be in a thing, by bare names."""
    return None if thing.contents is None else sorted(child.name for child in thing.contents)


def _inside(belief: Belief, name: str) -> list[str]:
    return sorted(base_name(child) for child in belief.inside(name))


def _likest(belief: Belief, names: list[str], thing: Thing) -> str:
    """Take the known thing that shares most with a description out of `names`, or the first."""
    told = set(_told(thing) or ())
    found = names[0]
    if told:
        found = max(names, key=lambda name: len(told.intersection(_inside(belief, name))))
    names.remove(found)
    return found


def _say(belief: Belief, name: str, thing: Thing) -> None:
    belief.told.add(name)
    belief.unmark(name, *_REPLACED)
    for kind, *value in thing.marks:
        belief.mark(name, kind, *value)
    for terminal, other in thing.links:
        if not other:
            belief.unlink(name, terminal)
