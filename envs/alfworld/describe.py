"""Putting belief facts back into ALFWorld's words.

World models that predict facts answer with this text. Where the change is one that an action of the
game can make, reading the text gives the same facts again.
"""

from __future__ import annotations

import re
from collections import defaultdict

from ...facts import Fact, State
from .wording import NOTHING_HAPPENS, Dialect, join_names, listing

__all__ = ["describe"]

_LENGTHS = dict.fromkeys(("at", "in", "near"), 3) | dict.fromkeys(
    ("exists", "seen", "open", "closed", "holding", "clean", "hot", "cool", "sliced", "lit"), 2
)
_SHORT = re.compile(r"[0-9]{1,9}")
_WORDS = {"hot": "hot", "cool": "cool", "clean": "clean", "sliced": "sliced"}


def describe(before: State, action: str, after: State, dialect: Dialect = "move") -> str:
    """Return an observation that leads from `before` to `after`.

    Example:
        >>> before = State(frozenset({("holding", "pen 1"), ("at", "agent", "desk 1")}))
        >>> after = State(frozenset({("in", "pen 1", "desk 1"), ("at", "agent", "desk 1")}))
        >>> describe(before, "move pen 1 to desk 1", after)
        'You move the pen 1 to the desk 1.'
    """
    if before.facts == after.facts:
        return NOTHING_HAPPENS
    return " ".join(_Description(before, after, dialect).sentences()) or NOTHING_HAPPENS


def _place_in_list(name: str) -> tuple[str, int, str]:
    """Return what the game's lists are sorted by: the kind, then numbers downward."""
    kind, _, number = name.rpartition(" ")
    return kind, -int(number) if _SHORT.fullmatch(number) else 0, name


class _Description:
    """The sentences for one change."""

    def __init__(self, before: State, after: State, dialect: Dialect):
        self.dialect = dialect
        self.old, self.new = (
            frozenset(f for f in state.facts if len(f) == _LENGTHS.get(f[0]))
            for state in (before, after)
        )
        self.added, self.removed = self.new - self.old, self.old - self.new
        self.contents: defaultdict[str, list[str]] = defaultdict(list)
        for fact in self.new:
            if fact[0] == "in" and len(fact) == 3:
                self.contents[fact[2]].append(fact[1])
        for things in self.contents.values():
            things.sort(key=_place_in_list)

    def sentences(self) -> list[str]:
        """Return them in the order in which reading them makes the change."""
        handling, handled = self._handling()
        arrival = self._arrival(handled)
        return [*arrival, *handling, *self._views(handled), *self._conditions(), *self._rest()]

    def _of(self, facts: frozenset[Fact], predicate: str) -> list[Fact]:
        return sorted(fact for fact in facts if fact[0] == predicate)

    def _arrival(self, handled: set[str]) -> list[str]:
        old, new = ({f[2] for f in self._of(facts, "at")} for facts in (self.old, self.new))
        near = sorted(
            {f[1] for f in self._of(self.added, "near")}
            - {f[1] for f in self._of(self.added, "lit")}
        )
        if near or (new != old and (len(new) != 1 and not new - old <= handled)):
            places = join_names(sorted(new)) if new else "nothing"
            return (
                [f"You are facing the {places}. Next to it, you see {listing(near)}."]
                if new
                else ["You are in the middle of a room."]
            )
        if new == old or (old <= new and new - old <= handled):
            return []
        return [f"You arrive at {min(new)}."] if new else ["You are in the middle of a room."]

    def _handling(self) -> tuple[list[str], set[str]]:
        """Return the sentences for what was picked up or put down, and the receptacles they name."""
        sentences, named = [], set()
        picked = {f[1] for f in self._of(self.added, "holding")}
        dropped = {f[1] for f in self._of(self.removed, "holding")}
        for _, thing, *place in self._of(self.removed, "in"):
            if thing in picked and place:
                sentences.append(f"You pick up the {thing} from the {place[0]}.")
                named.add(place[0])
                picked.discard(thing)
        for _, thing, *place in self._of(self.added, "in"):
            if thing in dropped and place:
                verb, where = ("move", "to") if self.dialect == "move" else ("put", "in/on")
                sentences.append(f"You {verb} the {thing} {where} the {place[0]}.")
                named.add(place[0])
                dropped.discard(thing)
        sentences += [f"You are carrying: a {thing}." for thing in sorted(picked)]
        if dropped and not self._of(self.new, "holding"):
            sentences.append("You are not carrying anything.")
        return sentences, named

    def _views(self, handled: set[str]) -> list[str]:
        changed = self.added | self.removed
        places = {f[1] for f in changed if f[0] in ("seen", "open", "closed")}
        moved = {f[2] for f in changed if f[0] == "in" and len(f) == 3} - handled
        sentences = []
        for place in sorted(places | moved):
            shows = place in moved or ("seen", place) in self.added
            things = listing(self.contents[place])
            if ("open", place) in self.new:
                sentences.append(f"The {place} is open." + f" In it, you see {things}." * shows)
            elif ("closed", place) in self.new:
                if shows:
                    sentences.append(f"The {place} is open. In it, you see {things}.")
                sentences.append(f"The {place} is closed.")
            elif shows and ("seen", place) in self.new:
                sentences.append(f"On the {place}, you see {things}.")
            elif shows:  # a container such as a bowl: a thing, not a place that one has seen
                sentences.append(f"This is a normal {place}. In it, you see {things}.")
        return sentences

    def _conditions(self) -> list[str]:
        changed = {f[1] for f in self.added | self.removed if f[0] in _WORDS and len(f) == 2}
        sentences = []
        for thing in sorted(changed):
            words = [word for word in _WORDS if (word, thing) in self.new]
            if not words:
                sentences.append(f"There's nothing special about {thing}.")
                continue
            sliced = "sliced " if "sliced" in words else ""
            shown = " and ".join(word for word in words if word != "sliced")
            sentences.append(f"This is a {shown}{' ' if shown else ''}{sliced}{thing}.")
        return sentences

    def _rest(self) -> list[str]:
        lit = [f"You turn on the {f[1]}." for f in self._of(self.added, "lit")]
        dark = [f"You turn off the {f[1]}." for f in self._of(self.removed, "lit")]
        return lit + dark
