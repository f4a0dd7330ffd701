"""Asking the object tree whether a belief is true: for tests and measurements, never for agents.

A belief has names, the tree has identifiers. Which thing is which follows from where it is, what it is
called, what is in it, and which it was a moment ago.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...facts import Fact, State
from .belief import INVENTORY, Belief, base_name
from .sentences_things import WORDS
from .tree import Node, nodes, tree_facts

__all__ = ["Changes", "Truth", "changes"]

_SILENT = frozenset(("door", "focused", "pending", "seen", "slid"))
_VISIBLE = frozenset(
    (
        "active",
        "burning",
        "closed",
        "connected",
        "holding",
        "in",
        "inactive",
        "open",
        "phase",
        "room",
    )
)
_PORTAL = re.compile(r"drain(?: #\d+)?(?:\..+)?")
_PARTS = frozenset(("flower", "pollen"))
_HIDDEN = frozenset(("air", "agent"))


@dataclass
class Truth:
    """One object tree, and which of its things a belief speaks of.

    Args:
        tree: What ``getObjectTree`` returns, as parsed JSON.
        state: The belief.
        before: Which thing was which a moment ago.

    Example:
        >>> jug = {"name": "jug", "uuid": "15", "contents": {}}
        >>> tree = {"name": "universe", "uuid": "9", "contents": {"kitchen-12": {
        ...     "name": "kitchen", "uuid": "12", "contents": {"jug-15": jug}}}}
        >>> truth = Truth(tree, State(frozenset({("in", "jug", "kitchen"), ("in", "cup", "kitchen")})))
        >>> truth.names, truth.false()
        ({'jug': 'jug@6'}, [('in', 'cup', 'kitchen')])
    """

    tree: Mapping[str, Any]
    state: State
    before: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts = tree_facts(self.tree)
        self.things = {node.key: node for node in nodes(self.tree)}
        self._children: dict[str, list[Node]] = {}
        for node in self.things.values():
            self._children.setdefault(node.place, []).append(node)
        self._belief = Belief(self.state.facts)
        self.names: dict[str, str] = {}
        for place in [*self._belief.children]:
            if place in self.things or place == INVENTORY:
                self._assign(place, place)

    def _assign(self, place: str, key: str) -> None:
        """Find the things of one place among those that the tree has there."""
        names = self._belief.inside(place)
        found = [node for node in self._children.get(key, ()) if node.name not in _HIDDEN]
        scores = sorted(
            (-self._score(name, node), name, number)
            for name in names
            for number, node in enumerate(found)
            if _is_called(base_name(name), node)
        )
        taken: set[int] = set()
        for _, name, number in scores:
            if name not in self.names and number not in taken:
                taken.add(number)
                self.names[name] = found[number].key
                self._assign(name, found[number].key)

    def _score(self, name: str, node: Node) -> int:
        """Return how well a thing of the tree fits a known one."""
        told = self._belief.inside(name)
        there = self._children.get(node.key, ())
        inside = sum(any(_is_called(base_name(c), n) for n in there) for c in told)
        same = 8 * (self.before.get(name) == node.key)
        marks = self._belief.marks.get(name, {}).values()
        true = sum(self._holds((m[0], node.key, *m[2:]), node) is True for m in marks)
        return same + 10 * inside - 3 * abs(len(told) - len(there)) * bool(told) + true

    def _holds(self, fact: Fact, node: Node) -> bool | None:
        """Return whether the tree has a fact, which is told with identifiers; None if it is silent."""
        kind = fact[0]
        if fact in self.facts:
            return True
        container, device = node.data.get("propContainer"), node.data.get("propDevice")
        if kind in ("open", "closed"):
            return False if container and container["isClosable"] else None
        if kind in ("active", "inactive"):
            return (device["isActivated"] == (kind == "active")) if device else None
        if kind in ("phase", "temp"):
            return False if node.data.get("propMaterial") else None
        if kind == "stage":
            return None
        return False

    def keyed(self, fact: Fact) -> Fact | None:
        """Return a belief fact with the tree's identifiers; None where a thing is not in the tree."""
        kind, *words = fact
        if kind == "connected":
            ends = [word.rpartition(".") for word in words]
            keys = [self._key(owner) for owner, _, _ in ends]
            if not all(keys):
                return None
            # What is on the ground, and its terminals, the tree has in the garden itself.
            keys = ["outside" if key.startswith("ground@") else key for key in keys]
            named = (f"{key}.{end}" for key, (_, _, end) in zip(keys, ends, strict=True))
            return (kind, *sorted(named))
        if kind == "room":
            return fact
        if words[0] not in self.names:
            return None
        if kind == "in":
            return (kind, self.names[words[0]], self._key(words[1]))
        return (kind, self.names[words[0]], *words[1:])

    def _key(self, name: str) -> str:
        """Return the tree's identifier of a thing or room; empty where there is none."""
        return name if name in self.things and "@" not in name else self.names.get(name, "")

    def is_true(self, fact: Fact) -> bool | None:
        """Return whether a belief fact is true; None where the tree does not speak of it."""
        if fact[0] in _SILENT or any(_PORTAL.fullmatch(word) for word in fact[1:]):
            return None
        keyed = self.keyed(fact)
        if keyed is None:
            return False
        if fact[0] in ("in", "holding", "room", "connected"):
            return keyed in self.facts
        return self._holds(keyed, self.things[keyed[1]])

    def false(self) -> list[Fact]:
        """Return the belief facts that are not true, sorted."""
        return sorted(fact for fact in self.state.facts if self.is_true(fact) is False)

    def sight(self) -> frozenset[str]:
        """Return the identifiers of what the agent can see: around it or held, not in closed things."""
        here = self.things["agent"].place
        found, open_places = set(), [here, INVENTORY]
        while open_places:
            for node in self._children.get(open_places.pop(), ()):
                if node.name not in _HIDDEN:
                    found.add(node.key)
                    if ("closed", node.key) not in self.facts:
                        open_places.append(node.key)
        return frozenset(found)

    def is_alive(self, key: str) -> bool:
        """Return whether a thing lives or is part of what lives."""
        node = self.things.get(key)
        while node is not None and not node.data.get("propLife"):
            if node.name in _PARTS:
                return True
            node = self.things.get(node.place)
        return node is not None

    def told(self) -> frozenset[Fact]:
        """Return the belief facts with the tree's identifiers, true or not."""
        keyed = (self.keyed(fact) for fact in self.state.facts if fact[0] not in _SILENT)
        return frozenset(fact for fact in keyed if fact is not None)


class Changes(NamedTuple):
    """How much of what changed in sight a belief tells.

    Attributes:
        things: Changed facts about lifeless things and living ones that the agent moved.
        things_told: Those of them that the belief tells.
        life: Changed facts about what lives, and what is in it: bees that fly, plants that grow.
        life_told: Those of them that the belief tells.
    """

    things: int = 0
    things_told: int = 0
    life: int = 0
    life_told: int = 0


def changes(before: Truth, after: Truth) -> Changes:
    """Compare what changed in the tree with what changed in the belief.

    What counts is what the tree has and texts can tell: places, open and closed, on and off, fire,
    phases of what was there before, connections and the agent's room; and of these, what is about
    things in sight before or after. A fact that became true is told if the belief gains it, one that
    ceased to be if the belief loses it.

    Args:
        before: The moment before an action.
        after: The moment after it, made with ``before.names``.
    """
    sight = before.sight() | after.sight()
    counts = [0, 0, 0, 0]
    for old, new in ((before, after), (after, before)):
        told = new.told() - old.told()
        for fact in new.facts - old.facts:
            subjects = _subjects(fact)
            if fact[0] not in _VISIBLE or (fact[0] != "room" and not subjects & sight):
                continue
            if fact[0] == "phase" and fact[1] not in old.things:
                continue
            kind = 2 * (fact[0] != "room" and any(map(new.is_alive, subjects)))
            counts[kind] += 1
            counts[kind + 1] += fact in told
    return Changes(*counts)


def _subjects(fact: Fact) -> set[str]:
    if fact[0] == "connected":
        return {end.rpartition(".")[0] for end in fact[1:]}
    return {fact[1]}


def _is_called(name: str, node: Node) -> bool:
    """Return whether a description may call a thing of the tree by this name."""
    if name == node.name:
        return True
    words = set(name.split(" "))
    life = node.data.get("propLife")
    if not life:
        return set(node.name.split(" ")) <= words and not node.name[-1:].isdigit()
    kind = str(life.get("lifeformType", "")).lower()
    kind = WORDS["lookalikes"].get(kind, kind)
    return bool(kind) and set(kind.split(" ")) <= words
