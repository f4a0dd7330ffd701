"""Beliefs in ALFWorld's words: as observations, and in short as prompts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...facts import Fact, State
from ...trajectory import Turn
from .goal import APPLIANCES, NOTHING_HAPPENS, Dialect, Goal, join_names, kind_of, listing

_LENGTHS = dict.fromkeys(("at", "in", "near"), 3) | dict.fromkeys(
    ("exists", "seen", "open", "closed", "holding", "clean", "hot", "cool", "sliced", "lit"), 2
)
_SHORT = re.compile(r"[0-9]{1,9}")
_WORDS = {"hot": "hot", "cool": "cool", "clean": "clean", "sliced": "sliced"}


def describe(before: State, action: str, after: State, dialect: Dialect = "move") -> str:
    """Return an observation that leads from `before` to `after`."""
    if before.facts == after.facts:
        return NOTHING_HAPPENS
    return " ".join(_Description(before, after, dialect).sentences()) or NOTHING_HAPPENS


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
            things.sort(key=_listed)

    def sentences(self) -> list[str]:
        """Return them in the order in which reading them makes the change."""
        handling, handled = self._handling()
        arrival = self._arrival(handled)
        lamps = [f"You turn on the {f[1]}." for f in self._of(self.added, "lit")]
        lamps += [f"You turn off the {f[1]}." for f in self._of(self.removed, "lit")]
        return [*arrival, *handling, *self._views(handled), *self._conditions(), *lamps]

    def _of(self, facts: frozenset[Fact], predicate: str) -> list[Fact]:
        return sorted(fact for fact in facts if fact[0] == predicate)

    def _arrival(self, handled: set[str]) -> list[str]:
        old, new = ({f[2] for f in self._of(facts, "at")} for facts in (self.old, self.new))
        near = sorted(
            {f[1] for f in self._of(self.added, "near")}
            - {f[1] for f in self._of(self.added, "lit")}
        )
        if near or (new != old and (len(new) != 1 and not new - old <= handled)):
            if new:
                places = join_names(sorted(new))
                return [f"You are facing the {places}. Next to it, you see {listing(near)}."]
        elif new == old or (old <= new and new - old <= handled):
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


_LAST = 2
_CONDITIONS = ("clean", "hot", "cool", "sliced")


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return what matters for the next action or, with an action, for predicting what follows it."""
    belief = _Belief(state)
    lines = [f"goal: {goal}", *belief.self_lines()]
    lines += _survey(belief, goal, history) if action is None else _scene(belief, action)
    done = [f"{t.action}{' (nothing happened)' * _failed(t)}" for t in history[1:]][-_LAST:]
    return "\n".join([*lines, *([f"last: {'; '.join(done)}"] if done else [])])


def _survey(belief: _Belief, goal: str, history: Sequence[Turn]) -> list[str]:
    kinds, places = _relevant(Goal.from_sentence(goal))
    known = []
    for place in sorted(belief.seen, key=_order):
        things = [t for t in belief.contents.get(place, ()) if kind_of(t) in kinds]
        if things or kind_of(place) in places:
            known.append(f"{belief.place(place)} has {belief.things(things)}")
    refused = [turn.action or "" for turn in history if _failed(turn)]
    unknown = belief.exists - belief.seen
    closed = belief.closed & unknown
    failed = {action[6:] for action in refused if action.startswith("go to ")}
    new = unknown - (closed | belief.here | failed)
    lines = [f"known: {'; '.join(known)}"] if known else []
    lines += [f"closed: {_grouped(closed)}"] if closed else []
    return lines + ([f"new: {_grouped(new)}"] if new else [])


def _scene(belief: _Belief, action: str) -> list[str]:
    words = action.split()
    named = {" ".join(words[i : i + 2]) for i in range(len(words))} & belief.exists
    scene = []
    for place in sorted(named | belief.here, key=_order):
        has = f" has {belief.things(belief.contents.get(place, ()))}"
        scene.append(belief.place(place) + has * (place in belief.seen))
    return [f"scene: {'; '.join(scene)}"] if scene else []


def _relevant(goal: Goal | None) -> tuple[set[str], set[str]]:
    """Return the kinds of things and of receptacles that a goal is about."""
    if goal is None:
        return set(), set()
    if goal.lamp:
        return {goal.object_kind, goal.target_kind}, set()
    appliances = APPLIANCES[goal.state][1] if goal.state else ()
    return {goal.object_kind}, {goal.target_kind, *appliances}


class _Belief:
    """A belief, sorted by what it is about."""

    def __init__(self, state: State):
        self.held: list[str] = []
        self.here: set[str] = set()
        self.lit: list[str] = []
        self.contents: defaultdict[str, list[str]] = defaultdict(list)
        self.conditions: defaultdict[str, list[str]] = defaultdict(list)
        sets: dict[str, set[str]] = {name: set() for name in ("exists", "seen", "open", "closed")}
        self.exists, self.seen, self.open, self.closed = sets.values()
        for fact in state.facts:
            name, arguments = fact[0], fact[1:]
            if name in sets:
                sets[name].add(arguments[-1])
            elif name == "in" and len(arguments) == 2:
                self.contents[arguments[1]].append(arguments[0])
            elif name == "at":
                self.here.add(arguments[-1])
            elif name == "holding":
                self.held.append(arguments[-1])
            elif name == "lit":
                self.lit.append(arguments[-1])
            elif name in _CONDITIONS:
                self.conditions[arguments[-1]].append(name)

    def self_lines(self) -> list[str]:
        """Return the lines about the agent itself, and lamps that are on."""
        here = ", ".join(self.place(place) for place in sorted(self.here, key=_order))
        lines = [f"held: {self.things(self.held)}", f"here: {here or 'nowhere'}"]
        return lines + ([f"lit: {', '.join(sorted(self.lit, key=_order))}"] if self.lit else [])

    def place(self, name: str) -> str:
        door = " (open)" if name in self.open else " (closed)" if name in self.closed else ""
        return f"{name}{door}"

    def things(self, names: Iterable[str]) -> str:
        """Return things with their conditions, or ``nothing``."""
        shown = []
        for name in sorted(names, key=_listed):
            conditions = [c for c in _CONDITIONS if c in self.conditions.get(name, ())]
            shown.append(f"{name} ({' '.join(conditions)})" if conditions else name)
        return ", ".join(shown) or "nothing"


def _order(name: str) -> tuple[str, int, str]:
    """Return what things are sorted by: kind, then number."""
    kind, _, number = name.rpartition(" ")
    return kind, int(number) if _SHORT.fullmatch(number) else 0, name


def _listed(name: str) -> tuple[str, int, str]:
    """Return what the game's own lists are sorted by: kind, then numbers downward."""
    kind, number, _ = _order(name)
    return kind, -number, name


def _grouped(names: Iterable[str]) -> str:
    """Return names with each kind told once: ``cabinet 1 2 drawer 1``."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names, key=_order):
        kind, _, number = name.rpartition(" ")
        groups.setdefault(kind or number, []).append(number if kind else "")
    return " ".join(" ".join([kind, *numbers]).strip() for kind, numbers in groups.items())


def _failed(turn: Turn) -> bool:
    return turn.observation.lstrip().startswith(NOTHING_HAPPENS)
