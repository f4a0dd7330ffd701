"""ALFWorld's canonicalizer: from text to belief facts, and from facts back to text.

Facts (schema ``alfworld-1``; ``O`` an object, ``R`` a receptacle, by display name):

========================  ==========================================================================
``exists(R)``             the first observation names R
``at(agent, R)``          the agent is where R is
``seen(R)``               what R holds has been shown
``open(R) closed(R)``     R's door, where it has been told
``in(O, R)``              O is in or on R (or inside the container R)
``near(O, R)``            O is at the place of R, without being in R for all one knows
``holding(O)``            the agent holds O
``clean hot cool sliced`` conditions of O, ``hot(O)``
``lit(O)``                the lamp O has been turned on
========================  ==========================================================================

"Nothing happens." changes no fact. A thing may be in two receptacles at once (an oddity of the
official games): taking it from one leaves it in the other, in the engine and in the belief.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from ...facts import Fact, State
from ...trajectory import Turn
from ..canon import collapse
from .sentences import Event, read_intro, read_observation
from .wording import Dialect

__all__ = ["ALFWorldCanonicalizer"]

_ARTICLES = re.compile(r"\b(?:the|an?)\s+")
_SYNONYMS = (
    (
        re.compile(r"^(?:pick up|grab|get|take)\s+(.+?)\s+(?:from|off|out of)\s+(.+)$"),
        r"take \1 from \2",
    ),
    (re.compile(r"^(?:walk|go|move) to\s+(.+)$"), r"go to \1"),
    (
        re.compile(r"^(?:put|place|move)\s+(.+?)\s+(?:in/on|into|onto|in|on|to)\s+(.+)$"),
        r"put \1 in/on \2",
    ),
    (re.compile(r"^(?:turn on|toggle|switch on|use)\s+(.+)$"), r"use \1"),
    (re.compile(r"^(clean|heat|cool|slice)\s+(.+?)\s+(?:with|using|in)\s+(.+)$"), r"\1 \2 with \3"),
)


_NONE: frozenset[Fact] = frozenset()


class _Fold:
    """One belief, grouped as events need it, and what the events of one observation change in it.

    There is a method for each kind of `Event`; kinds without one change nothing.
    """

    __slots__ = ("at", "changed", "current", "going", "holding", "inside", "near")

    def __init__(self, facts: frozenset[Fact]):
        self.current = set(facts)
        self.at = frozenset(fact for fact in facts if fact[0] == "at")
        self.holding = frozenset(fact for fact in facts if fact[0] == "holding")
        inside: defaultdict[str, set[Fact]] = defaultdict(set)
        near: defaultdict[str, set[Fact]] = defaultdict(set)
        for fact in facts:
            if fact[0] == "in" and len(fact) == 3:
                inside[fact[2]].add(fact)
            elif fact[0] == "near" and len(fact) == 3:
                near[fact[1]].add(fact)
        # Frozen, since they are shared with the events that put them in.
        self.inside = {place: frozenset(group) for place, group in inside.items()}
        self.near = {thing: frozenset(group) for thing, group in near.items()}

    def fold(self, events: tuple[Event, ...], action: str) -> bool:
        """Take in the events that followed `action`; return whether anything changed."""
        self.changed = False
        for event in events:
            method = _METHODS.get(event[0])
            if method is not None:
                method(self, event)
        if events[0][0] in _SHOWN and action.lstrip()[:6].lower() == "go to ":
            # Agents may be shown no arrival, only what is there: then they have left where they were.
            self.at = self._replace(self.at, frozenset({("at", "agent", events[0][1])}))
        return self.changed

    def _add(self, fact: Fact) -> None:
        if fact not in self.current:
            self.current.add(fact)
            self.changed = True

    def _drop(self, fact: Fact) -> None:
        if fact in self.current:
            self.current.discard(fact)
            self.changed = True

    def _replace(self, old: frozenset[Fact], new: frozenset[Fact]) -> frozenset[Fact]:
        if old != new:
            self.current -= old
            self.current |= new
            self.changed = True
        return new

    def _be_at(self, name: str) -> None:
        place: Fact = ("at", "agent", name)
        if place not in self.at:
            self.at |= {place}
            self._add(place)

    def _hold(self, name: str) -> None:
        new = frozenset({("holding", name)}) if name else _NONE
        self.holding = self._replace(self.holding, new)

    def _contain(self, event: Event) -> None:
        place = event.name
        self.inside[place] = self._replace(self.inside.get(place, _NONE), event.facts)

    def _be_near(self, thing: str) -> None:
        new = frozenset(("near", thing, place[-1]) for place in self.at)
        for fact in new:
            self._add(fact)
        self.near[thing] = self.near.get(thing, _NONE) | new

    def arrive(self, event: Event) -> None:
        self.at = self._replace(self.at, event.facts)

    def surface(self, event: Event) -> None:
        self._be_at(event.name)
        self._add(("seen", event.name))
        self._contain(event)

    def open(self, event: Event) -> None:
        self._be_at(event.name)
        self._add(("open", event.name))
        self._drop(("closed", event.name))

    def closed(self, event: Event) -> None:
        self._be_at(event.name)
        self._add(("closed", event.name))
        self._drop(("open", event.name))

    def inside_it(self, event: Event) -> None:
        if ("open", event.name) in self.current:
            self._add(("seen", event.name))
        self._contain(event)

    def pick(self, event: Event) -> None:
        self._be_at(event.other)
        self._hold(event.name)
        gone: Fact = ("in", event.name, event.other)
        self.inside[event.other] = self.inside.get(event.other, _NONE) - {gone}
        self._drop(gone)
        for fact in self.near.pop(event.name, _NONE):
            self._drop(fact)

    def put(self, event: Event) -> None:
        self._be_at(event.other)
        self._hold("")
        placed: Fact = ("in", event.name, event.other)
        self.inside[event.other] = self.inside.get(event.other, _NONE) | {placed}
        self._add(placed)

    def treat(self, event: Event) -> None:
        self._be_at(event.other)
        self._hold(event.name)
        self._add((event.kind, event.name))
        if event.kind != "clean":
            self._drop(("cool" if event.kind == "hot" else "hot", event.name))

    def sliced(self, event: Event) -> None:
        self._hold(event.other)
        self._add(("sliced", event.name))

    def lit(self, event: Event) -> None:
        self._add(("lit", event.name))
        self._be_near(event.name)

    def dark(self, event: Event) -> None:
        self._drop(("lit", event.name))

    def beside(self, event: Event) -> None:
        for thing in event.things:
            self._be_near(thing)

    def carry(self, event: Event) -> None:
        self._hold(event.name)

    def facing(self, event: Event) -> None:
        self.at = self._replace(self.at, event.facts)

    def room(self, event: Event) -> None:
        self.at = self._replace(self.at, _NONE)

    def around(self, event: Event) -> None:
        for name in event.things:
            self._add(("exists", name))

    def condition(self, event: Event) -> None:
        for state in ("clean", "hot", "cool", "sliced"):
            change = self._add if state in event.things else self._drop
            change((state, event.name))


_SHOWN = frozenset(("surface", "open", "closed"))
_METHODS: dict[str, Callable[[_Fold, Event], None]] = {
    "arrive": _Fold.arrive,
    "surface": _Fold.surface,
    "open": _Fold.open,
    "opens": _Fold.open,
    "closed": _Fold.closed,
    "closes": _Fold.closed,
    "inside": _Fold.inside_it,
    "pick": _Fold.pick,
    "put": _Fold.put,
    "clean": _Fold.treat,
    "hot": _Fold.treat,
    "cool": _Fold.treat,
    "sliced": _Fold.sliced,
    "lit": _Fold.lit,
    "dark": _Fold.dark,
    "beside": _Fold.beside,
    "carry": _Fold.carry,
    "facing": _Fold.facing,
    "room": _Fold.room,
    "around": _Fold.around,
    "condition": _Fold.condition,
}


class ALFWorldCanonicalizer:
    """Folds ALFWorld's text, of either dialect, into a belief.

    Args:
        dialect: The dialect that `describe` writes; both are read.

    Example:
        >>> canon = ALFWorldCanonicalizer()
        >>> state = canon.update(State(), "go to safe 1", "You arrive at safe 1. The safe 1 is closed.")
        >>> print(state.to_text())
        at(agent, safe 1)
        closed(safe 1)
        >>> canon.action("Move the apple 1 into the fridge 1.")
        'put apple 1 in/on fridge 1'
    """

    version = "alfworld-1"

    def __init__(self, dialect: Dialect = "move"):
        self.dialect = dialect
        self._memory: tuple[State, _Fold] | None = None

    def initial(self, goal: str, observation: str) -> State:
        """Return the receptacles that the first observation names."""
        names = read_intro(observation)
        if names is None:
            return State(frozenset(), parsed=False)
        return State(frozenset(("exists", name) for name in names))

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        events = read_observation(observation)
        if events is None:
            return State(state.facts, parsed=False)
        if not events:
            return state if state.parsed else State(state.facts)
        memory = self._memory
        self._memory = None  # the grouping follows the newest belief; any other is grouped anew
        fold = memory[1] if memory is not None and memory[0] is state else _Fold(state.facts)
        if fold.fold(events, action):
            state = State(frozenset(fold.current))
        elif not state.parsed:
            state = State(state.facts)
        self._memory = (state, fold)
        return state

    def action(self, text: str) -> str:
        """Return the canonical form of an action: lower case, no articles, one verb for each act."""
        words = _ARTICLES.sub("", collapse(text))
        for pattern, form in _SYNONYMS:
            if pattern.match(words):
                return pattern.sub(form, words)
        return words

    def describe(self, before: State, action: str, after: State) -> str:
        """Return an observation from which `update` reads `after`: see `Describer`."""
        from .describe import describe

        return describe(before, action, after, self.dialect)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a change tells what nobody could foresee: see `comap.envs.Revealer`."""
        from .revealing import reveals

        return reveals(before, self.action(action), after)
