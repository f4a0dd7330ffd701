"""A belief in a few words: for agents and world models with little room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...facts import State
from ...trajectory import Turn
from .goal import Goal, kind_of
from .wording import NOTHING_HAPPENS

__all__ = ["narrate", "narrate_scene"]

_LAST = 2
_APPLIANCES = {"clean": ("sinkbasin", "sink"), "hot": ("microwave",), "cool": ("fridge",)}
_CONDITIONS = ("clean", "hot", "cool", "sliced")


def narrate(goal: str, history: Sequence[Turn], state: State) -> str:
    """Return what matters for the next action.

    That is: the goal; what is held; where the agent is; the receptacles seen that hold something
    which the goal is about, or that the goal needs, with those things; the closed ones not seen into;
    the ones not visited; the last two actions, and whether nothing happened. A receptacle that the
    agent could not go to counts as visited: it shares its place with another.

    Example:
        >>> state = State(frozenset({("holding", "pen 1"), ("exists", "desk 1"), ("hot", "pen 1")}))
        >>> print(narrate("put a pen in desk.", (), state))
        goal: put a pen in desk.
        held: pen 1 (hot)
        here: nowhere
        new: desk 1
    """
    belief = _Belief(state)
    wanted = Goal.from_sentence(goal)
    kinds, places = _relevant(wanted)
    known = []
    for place in sorted(belief.seen, key=_order):
        things = [t for t in belief.contents.get(place, ()) if kind_of(t) in kinds]
        if things or kind_of(place) in places:
            known.append(f"{belief.place(place)} has {belief.things(things)}")
    failed = {action[6:] for action in _refused(history) if action.startswith("go to ")}
    unknown = belief.exists - belief.seen
    visited = (belief.closed & unknown) | belief.here | failed
    lines = [f"goal: {goal}", *belief.self_lines()]
    lines += [f"known: {'; '.join(known)}"] if known else []
    lines += [f"closed: {_grouped(belief.closed & unknown)}"] if belief.closed & unknown else []
    lines += [f"new: {_grouped(unknown - visited)}"] if unknown - visited else []
    return "\n".join([*lines, *_lately(history)])


def narrate_scene(goal: str, history: Sequence[Turn], state: State, action: str) -> str:
    """Return what matters for predicting what follows `action`.

    That is: what is held, where the agent is, and all that is believed of the receptacles here and of
    the one that the action names; then the last two actions.

    Example:
        >>> state = State(frozenset({("closed", "safe 1"), ("exists", "safe 1")}))
        >>> print(narrate_scene("put a pen in safe.", (), state, "go to safe 1"))
        goal: put a pen in safe.
        held: nothing
        here: nowhere
        scene: safe 1 (closed)
    """
    belief = _Belief(state)
    words = action.split()
    named = {" ".join(words[i : i + 2]) for i in range(len(words))} & belief.exists
    scene = []
    for place in sorted(named | belief.here, key=_order):
        shown = belief.place(place)
        if place in belief.seen:
            shown += f" has {belief.things(belief.contents.get(place, ()))}"
        scene.append(shown)
    lines = [f"goal: {goal}", *belief.self_lines()]
    if scene:
        lines.append(f"scene: {'; '.join(scene)}")
    return "\n".join([*lines, *_lately(history)])


def _relevant(goal: Goal | None) -> tuple[set[str], set[str]]:
    """Return the kinds of things and of receptacles that a goal is about."""
    if goal is None:
        return set(), set()
    if goal.lamp:
        return {goal.object_kind, goal.target_kind}, set()
    return {goal.object_kind}, {goal.target_kind, *_APPLIANCES.get(goal.state or "", ())}


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
        """Return a receptacle with its door's state."""
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
    return kind, int(number) if number.isascii() and number.isdecimal() else 0, name


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


def _refused(history: Sequence[Turn]) -> list[str]:
    return [turn.action for turn in history if turn.action and _failed(turn)]


def _failed(turn: Turn) -> bool:
    return turn.observation.lstrip().startswith(NOTHING_HAPPENS)


def _lately(history: Sequence[Turn]) -> list[str]:
    told = [f"{t.action} (nothing happened)" if _failed(t) else f"{t.action}" for t in history[1:]]
    return [f"last: {'; '.join(told[-_LAST:])}"] if told else []
