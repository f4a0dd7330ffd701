"""Whether a belief is true in the simulator's object tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from comap.envs.scienceworld.belief import INVENTORY, Belief, base_name
from comap.envs.scienceworld.engine import Node, nodes, tree_facts
from comap.envs.scienceworld.sentences import WORDS
from comap.facts import Fact, State

_SILENT = frozenset(("door", "focused", "pending", "seen", "slid"))
_PORTAL = re.compile(r"drain(?: #\d+)?(?:\..+)?")
_HIDDEN = frozenset(("air", "agent"))


@dataclass
class Truth:
    """One object tree, and which of its things a belief speaks of."""

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
        tree_nodes = [node for node in self._children.get(key, ()) if node.name not in _HIDDEN]
        scores = sorted(
            (-self._score(name, node), name, number)
            for name in names
            for number, node in enumerate(tree_nodes)
            if _is_called(base_name(name), node)
        )
        used_numbers: set[int] = set()
        for _, name, number in scores:
            if name not in self.names and number not in used_numbers:
                used_numbers.add(number)
                self.names[name] = tree_nodes[number].key
                self._assign(name, tree_nodes[number].key)

    def _score(self, name: str, node: Node) -> int:
        """Return how well a thing of the tree fits a known one."""
        believed = self._belief.inside(name)
        children = self._children.get(node.key, ())
        inside = sum(any(_is_called(base_name(c), n) for n in children) for c in believed)
        same = 8 * (self.before.get(name) == node.key)
        marks = self._belief.marks.get(name, {}).values()
        true = sum(self._holds((m[0], node.key, *m[2:]), node) is True for m in marks)
        return same + 10 * inside - 3 * abs(len(believed) - len(children)) * bool(believed) + true

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
            terminals = (f"{key}.{end}" for key, (_, _, end) in zip(keys, ends, strict=True))
            return (kind, *sorted(terminals))
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
