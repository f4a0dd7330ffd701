"""ScienceWorld's object tree as facts: the whole world as it truly is.

The tree is what the simulator's ``getObjectTree`` returns: nested dictionaries, some 150 kB of them.
Doors, the agent's focus and the stages of life are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...facts import Fact
from .sentences_things import bucket, canonical_name

__all__ = ["Node", "nodes", "tree_facts"]

_TERMINALS = re.compile(r"terminal \d|anode|cathode")


class Node(NamedTuple):
    """One thing of the tree.

    Attributes:
        name: What the simulator calls it, in lower case, without its phase.
        key: Its identifier, ``"metal pot@36"``: the number is its own, less the universe's.
        place: The identifier of what it is in; a room's bare name, ``"inventory"``, or empty.
        data: What the tree says of it.
    """

    name: str
    key: str
    place: str
    data: Mapping[str, Any]


def nodes(tree: Mapping[str, Any]) -> Iterator[Node]:
    """Yield the things of a tree, each before what is in it; terminals and the agent are left out.

    Example:
        >>> tree = {"name": "universe", "uuid": "9", "contents": {"kitchen-12": {
        ...     "name": "kitchen", "uuid": "12", "contents": {"jug-15": {
        ...         "name": "jug", "uuid": "15", "contents": {}}}}}}
        >>> [(node.key, node.place) for node in nodes(tree)]
        [('kitchen', ''), ('jug@6', 'kitchen')]
    """
    origin = int(tree["uuid"])
    for room in tree["contents"].values():
        if not _TERMINALS.fullmatch(room["name"]):
            name = str(room["name"]).lower()
            yield Node(name, name, "", room)
            yield from _below(room, name, origin)


def _below(data: Mapping[str, Any], place: str, origin: int) -> Iterator[Node]:
    for child in data["contents"].values():
        name = str(child["name"]).lower()
        if _TERMINALS.fullmatch(name):
            continue
        if name in ("agent", "inventory"):
            yield Node(name, name, place if name == "agent" else "", child)
            yield from _below(child, name, origin)
            continue
        key = f"{canonical_name(name)[0]}@{int(child['uuid']) - origin}"
        yield Node(canonical_name(name)[0], key, place, child)
        yield from _below(child, key, origin)


def tree_facts(tree: Mapping[str, Any]) -> frozenset[Fact]:
    """Return what an object tree says, in the words of belief facts.

    Args:
        tree: What ``getObjectTree`` returns, as parsed JSON.

    Example:
        >>> tree = {"name": "universe", "uuid": "9", "contents": {"kitchen-12": {
        ...     "name": "kitchen", "uuid": "12", "contents": {"oven-15": {
        ...         "name": "oven", "uuid": "15", "contents": {},
        ...         "propContainer": {"isOpen": False, "isClosable": True}}}}}}
        >>> sorted(tree_facts(tree))
        [('closed', 'oven@6'), ('in', 'oven@6', 'kitchen')]
    """
    facts: set[Fact] = set()
    ends: dict[str, str] = {}
    links: list[tuple[str, str]] = []
    for node in nodes(tree):
        if node.name == "agent":
            facts.add(("room", "agent", node.place))
        elif node.place == "inventory":
            facts.add(("holding", node.key))
        elif node.place:
            facts.add(("in", node.key, node.place))
        facts.update(_told(node))
        for child in node.data["contents"].values():
            wired = child.get("propElectricalConnection")
            if wired is not None and _TERMINALS.fullmatch(child["name"]):
                ends[child["uuid"]] = f"{node.key}.{child['name']}"
                links += [(child["uuid"], other) for other in wired["connectedTo"]]
    for first, second in links:
        if first in ends and second in ends:
            pair = sorted((ends[first], ends[second]))
            facts.add(("connected", *pair))
    return frozenset(facts)


def _told(node: Node) -> Iterator[Fact]:
    """Yield what the tree says of one thing beside its place."""
    data, key = node.data, node.key
    container, device = data.get("propContainer"), data.get("propDevice")
    material, life = data.get("propMaterial"), data.get("propLife")
    if container and container["isClosable"]:
        yield ("open" if container["isOpen"] else "closed", key)
    if device and (device["isActivable"] or device["isActivated"]):
        yield ("active" if device["isActivated"] else "inactive", key)
    if material:
        yield ("phase", key, str(material["stateOfMatter"]))
        yield ("temp", key, bucket(float(material["temperatureC"])))
        if material["isCombusting"]:
            yield ("burning", key)
        if material["hasCombusted"]:
            yield ("burnt", key)
    if life and life["isDead"]:
        yield ("stage", key, "dead")
