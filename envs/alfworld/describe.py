"""Beliefs in ALFWorld's words: as observations, and in short as prompts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...facts import Fact, State
from ...trajectory import Turn
from .goal import APPLIANCES, NOTHING_HAPPENS, Dialect, Goal, join_names, kind_of, listing

_CONDITIONS = ("clean", "hot", "cool", "sliced")
_SPOKEN_CONDITIONS = ("hot", "cool", "clean", "sliced")
"""The conditions in the order in which the game's "This is a hot and clean ..." names them."""

_LENGTHS = dict.fromkeys(("at", "in", "near"), 3) | dict.fromkeys(
    ("exists", "seen", "open", "closed", "holding", "lit", *_CONDITIONS), 2
)
"""How many words a fact of each predicate has; a world model may predict others."""

_NUMBER = re.compile(r"[0-9]{1,9}")


def describe(before: State, action: str, after: State, dialect: Dialect = "move") -> str:
    """Return an observation that leads from `before` to `after`."""
    if before.facts == after.facts:
        return NOTHING_HAPPENS
    return " ".join(_Description(before, after, dialect).sentences()) or NOTHING_HAPPENS


def _well_formed(state: State) -> frozenset[Fact]:
    return frozenset(fact for fact in state.facts if len(fact) == _LENGTHS.get(fact[0]))


def _facts_of(facts: frozenset[Fact], predicate: str) -> list[Fact]:
    """Return the facts of one predicate, sorted, so that no sentence depends on hashes."""
    return sorted(fact for fact in facts if fact[0] == predicate)


class _Description:
    """The sentences for one change."""

    def __init__(self, before: State, after: State, dialect: Dialect):
        self.dialect = dialect
        self.facts_before = _well_formed(before)
        self.facts_after = _well_formed(after)
        self.added = self.facts_after - self.facts_before
        self.removed = self.facts_before - self.facts_after

        self.contents: defaultdict[str, list[str]] = defaultdict(list)
        for fact in self.facts_after:
            if fact[0] == "in" and len(fact) == 3:
                self.contents[fact[2]].append(fact[1])
        for things in self.contents.values():
            things.sort(key=_listing_order)

    def sentences(self) -> list[str]:
        """Return them in the order in which reading them makes the change."""
        handling, handled_places = self._handling()
        arrival = self._arrival(handled_places)
        lamps = [f"You turn on the {fact[1]}." for fact in _facts_of(self.added, "lit")]
        lamps += [f"You turn off the {fact[1]}." for fact in _facts_of(self.removed, "lit")]
        return [*arrival, *handling, *self._views(handled_places), *self._conditions(), *lamps]

    def _arrival(self, handled_places: set[str]) -> list[str]:
        """Return the sentence that says where the agent is now, if it must be said."""
        old_places = {fact[2] for fact in _facts_of(self.facts_before, "at")}
        new_places = {fact[2] for fact in _facts_of(self.facts_after, "at")}
        entered = new_places - old_places

        # A lamp that was turned on is read as near; other things need "Next to it, you see".
        near = {fact[1] for fact in _facts_of(self.added, "near")}
        beside = sorted(near - {fact[1] for fact in _facts_of(self.added, "lit")})

        # "You pick up ..." and the like place the agent at the receptacle that they name.
        entry_is_told = entered <= handled_places
        # "You arrive at" names one receptacle: none, or several, need other sentences.
        needs_facing = new_places != old_places and len(new_places) != 1 and not entry_is_told
        if beside or needs_facing:
            if new_places:
                facing = join_names(sorted(new_places))
                return [f"You are facing the {facing}. Next to it, you see {listing(beside)}."]
        elif new_places == old_places or (old_places <= new_places and entry_is_told):
            return []

        if not new_places:
            return ["You are in the middle of a room."]
        return [f"You arrive at {min(new_places)}."]

    def _handling(self) -> tuple[list[str], set[str]]:
        """Return the sentences for what was picked up or put down, and the receptacles they name."""
        sentences = []
        named_places = set()

        picked = {fact[1] for fact in _facts_of(self.added, "holding")}
        for _, thing, *place in _facts_of(self.removed, "in"):
            if thing in picked and place:
                sentences.append(f"You pick up the {thing} from the {place[0]}.")
                named_places.add(place[0])
                picked.discard(thing)

        dropped = {fact[1] for fact in _facts_of(self.removed, "holding")}
        for _, thing, *place in _facts_of(self.added, "in"):
            if thing in dropped and place:
                if self.dialect == "move":
                    sentences.append(f"You move the {thing} to the {place[0]}.")
                else:
                    sentences.append(f"You put the {thing} in/on the {place[0]}.")
                named_places.add(place[0])
                dropped.discard(thing)

        # What came from nowhere, or went nowhere, is said as the inventory says it.
        sentences += [f"You are carrying: a {thing}." for thing in sorted(picked)]
        if dropped and not _facts_of(self.facts_after, "holding"):
            sentences.append("You are not carrying anything.")
        return sentences, named_places

    def _views(self, handled_places: set[str]) -> list[str]:
        """Return the sentences about doors and contents that no other sentence implies."""
        changed = self.added | self.removed
        changed_places = {fact[1] for fact in changed if fact[0] in ("seen", "open", "closed")}
        moved = {fact[2] for fact in changed if fact[0] == "in" and len(fact) == 3}
        moved -= handled_places

        sentences = []
        for place in sorted(changed_places | moved):
            shows_contents = place in moved or ("seen", place) in self.added
            things = listing(self.contents[place])
            if ("open", place) in self.facts_after:
                sentence = f"The {place} is open."
                if shows_contents:
                    sentence += f" In it, you see {things}."
                sentences.append(sentence)
            elif ("closed", place) in self.facts_after:
                if shows_contents:
                    # Only an open receptacle shows what is in it; it is closed again at once.
                    sentences.append(f"The {place} is open. In it, you see {things}.")
                sentences.append(f"The {place} is closed.")
            elif shows_contents and ("seen", place) in self.facts_after:
                sentences.append(f"On the {place}, you see {things}.")
            elif shows_contents:
                # A container such as a bowl: a thing, not a place that one has seen.
                sentences.append(f"This is a normal {place}. In it, you see {things}.")
        return sentences

    def _conditions(self) -> list[str]:
        """Return what ``examine`` answers for each thing whose condition changed."""
        things = set()
        for fact in self.added | self.removed:
            if fact[0] in _SPOKEN_CONDITIONS and len(fact) == 2:
                things.add(fact[1])

        sentences = []
        for thing in sorted(things):
            words = [word for word in _SPOKEN_CONDITIONS if (word, thing) in self.facts_after]
            if not words:
                sentences.append(f"There's nothing special about {thing}.")
                continue

            # "sliced" is a part of the name: "This is a hot and clean sliced apple 1."
            phrase = " and ".join(word for word in words if word != "sliced")
            spoken = [phrase] if phrase else []
            if "sliced" in words:
                spoken.append("sliced")
            sentences.append(f"This is a {' '.join([*spoken, thing])}.")
        return sentences


_LAST_ACTIONS = 2


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return what matters for the next action or, with an action, for predicting what follows it."""
    belief = _Belief(state)
    lines = [f"goal: {goal}", *belief.self_lines()]
    lines += _survey(belief, goal, history) if action is None else _scene(belief, action)

    last_actions = []
    for turn in history[1:][-_LAST_ACTIONS:]:
        last_actions.append(
            f"{turn.action} (nothing happened)" if _is_refused(turn) else f"{turn.action}"
        )
    if last_actions:
        lines.append(f"last: {'; '.join(last_actions)}")
    return "\n".join(lines)


def _survey(belief: _Belief, goal: str, history: Sequence[Turn]) -> list[str]:
    """Return the lines that an agent needs: where things for the goal are, and what is unexplored."""
    thing_kinds, place_kinds = _relevant_kinds(Goal.from_sentence(goal))
    contents = []
    for place in sorted(belief.seen, key=_order):
        things = [
            thing for thing in belief.contents.get(place, ()) if kind_of(thing) in thing_kinds
        ]
        if things or kind_of(place) in place_kinds:
            contents.append(f"{belief.place(place)} has {belief.things(things)}")

    # "go to" does nothing at a receptacle that shares the agent's location: it is not new then.
    refused = [turn.action or "" for turn in history if _is_refused(turn)]
    refused_goals = {
        command.removeprefix("go to ") for command in refused if command.startswith("go to ")
    }
    unseen = belief.exists - belief.seen
    closed = belief.closed & unseen
    new = unseen - (closed | belief.here | refused_goals)

    lines = []
    if contents:
        lines.append(f"known: {'; '.join(contents)}")
    if closed:
        lines.append(f"closed: {_grouped(closed)}")
    if new:
        lines.append(f"new: {_grouped(new)}")
    return lines


def _scene(belief: _Belief, action: str) -> list[str]:
    """Return the line that a prediction needs: the places here and in the action, and their contents."""
    # Names of receptacles are two words, a kind and a number, wherever they stand in the command.
    words = action.split()
    named_places = {
        " ".join(words[start : start + 2]) for start in range(len(words))
    } & belief.exists
    places = []
    for place in sorted(named_places | belief.here, key=_order):
        text = belief.place(place)
        if place in belief.seen:
            text += f" has {belief.things(belief.contents.get(place, ()))}"
        places.append(text)
    return [f"scene: {'; '.join(places)}"] if places else []


def _relevant_kinds(goal: Goal | None) -> tuple[set[str], set[str]]:
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
        self.exists: set[str] = set()
        self.seen: set[str] = set()
        self.open: set[str] = set()
        self.closed: set[str] = set()

        names_by_predicate = {
            "exists": self.exists,
            "seen": self.seen,
            "open": self.open,
            "closed": self.closed,
        }
        for predicate, *arguments in state.facts:
            if predicate in names_by_predicate:
                names_by_predicate[predicate].add(arguments[-1])
            elif predicate == "in" and len(arguments) == 2:
                self.contents[arguments[1]].append(arguments[0])
            elif predicate == "at":
                self.here.add(arguments[-1])
            elif predicate == "holding":
                self.held.append(arguments[-1])
            elif predicate == "lit":
                self.lit.append(arguments[-1])
            elif predicate in _CONDITIONS:
                self.conditions[arguments[-1]].append(predicate)

    def self_lines(self) -> list[str]:
        """Return the lines about the agent itself, and lamps that are on."""
        places = ", ".join(self.place(place) for place in sorted(self.here, key=_order))
        lines = [f"held: {self.things(self.held)}", f"here: {places or 'nowhere'}"]
        if self.lit:
            lines.append(f"lit: {', '.join(sorted(self.lit, key=_order))}")
        return lines

    def place(self, name: str) -> str:
        """Return a receptacle with the state of its door."""
        if name in self.open:
            return f"{name} (open)"
        if name in self.closed:
            return f"{name} (closed)"
        return name

    def things(self, names: Iterable[str]) -> str:
        """Return things with their conditions, or ``nothing``."""
        texts = []
        for name in sorted(names, key=_listing_order):
            conditions_of_thing = self.conditions.get(name, ())
            conditions = [
                condition for condition in _CONDITIONS if condition in conditions_of_thing
            ]
            texts.append(f"{name} ({' '.join(conditions)})" if conditions else name)
        return ", ".join(texts) or "nothing"


def _order(name: str) -> tuple[str, int, str]:
    """Return what things are sorted by: kind, then number."""
    kind, _, number = name.rpartition(" ")
    return kind, int(number) if _NUMBER.fullmatch(number) else 0, name


def _listing_order(name: str) -> tuple[str, int, str]:
    """Return what the game's own lists are sorted by: kind, then numbers downward."""
    kind, number, _ = _order(name)
    return kind, -number, name


def _grouped(names: Iterable[str]) -> str:
    """Return names with each kind written once: ``cabinet 1 2 drawer 1``."""
    numbers_by_kind: dict[str, list[str]] = {}
    for name in sorted(names, key=_order):
        kind, _, number = name.rpartition(" ")
        if kind:
            numbers_by_kind.setdefault(kind, []).append(number)
        else:
            numbers_by_kind.setdefault(number, []).append("")
    groups = (" ".join([kind, *numbers]).strip() for kind, numbers in numbers_by_kind.items())
    return " ".join(groups)


def _is_refused(turn: Turn) -> bool:
    return turn.observation.lstrip().startswith(NOTHING_HAPPENS)
