"""Writing a generated game as a PDDL problem, in the form of the official files."""

from __future__ import annotations

from collections.abc import Iterator

from .furnishing import Target, Thing
from .goal import Goal
from .rooms import Layout, load_table

__all__ = ["write_problem"]

_PREDICATES = {
    "pickupable": "pickupable",
    "container": "isReceptacleObject",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "sliceable": "sliceable",
    "toggleable": "toggleable",
}
_TREATMENTS = {"clean": ("cleanable", "isClean"), "hot": ("heatable", "isHot")} | {
    "cool": ("coolable", "isCool")
}


def write_problem(name: str, room: Layout, start: str, things: list[Thing], target: Target) -> str:
    """Return the PDDL problem of a game.

    Args:
        name: The problem's name.
        room: The room.
        start: Where the agent starts: one of the room's free locations.
        things: The objects.
        target: The goal.

    Example:
        >>> from comap.envs.alfworld.rooms import layout
        >>> room = layout("bathroom", 1, (6, 54))
        >>> target = Target("pick_and_place_simple", "Candle", "Toilet")
        >>> write_problem("demo", room, room.free[0], [], target).splitlines()[:2]
        ['(define (problem demo)', '(:domain alfred)']
    """
    facts = "\n".join(f"({fact})" for fact in _facts(room, start, things))
    objects = "\n".join(f"{name} - {kind}" for name, kind in _objects(room, things))
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{objects}\n)\n"
        f"(:init\n{facts}\n)\n(:goal (and {_goal(target)} ))\n)\n"
    )


def _objects(room: Layout, things: list[Thing]) -> Iterator[tuple[str, str]]:
    """Yield every name with its PDDL type."""
    constants = load_table("generator")["constants"]
    yield "agent1", "agent"
    for kind in sorted({*constants["otype"], *(f"{thing.kind}Type" for thing in things)}):
        yield kind, "otype"
    for kind in sorted({*constants["rtype"], *(f"{kind}Type" for kind in room.by_kind)}):
        yield kind, "rtype"
    for thing in things:
        yield thing.id, "object"
    for receptacle in room.receptacles:
        yield receptacle.id, "receptacle"
    for location in dict.fromkeys([*(r.location for r in room.receptacles), *room.free]):
        yield location, "location"


def _facts(room: Layout, start: str, things: list[Thing]) -> Iterator[str]:
    """Yield the facts that hold at the start."""
    table = load_table("statistics")
    yield from (f"receptacleType {r.id} {r.kind}Type" for r in room.receptacles)
    yield from (f"objectType {thing.id} {thing.kind}Type" for thing in things)
    present = {thing.kind for thing in things}
    for place in sorted(room.by_kind):
        for kind in table["can_contain"].get(place, ()):
            if kind in present:
                yield f"canContain {place}Type {kind}Type"
    for name, predicate in _PREDICATES.items():
        having = set(table["properties"][name])
        yield from (f"{predicate} {thing.id}" for thing in things if thing.kind in having)
    yield from (f"openable {r.id}" for r in room.receptacles if r.kind in table["openable"])
    yield f"atLocation agent1 {start}"
    yield from (f"isCool {thing.id}" for thing in things if thing.cold)
    yield from (f"inReceptacle {thing.id} {r.id}" for thing in things for r in thing.places)
    yield from (f"inReceptacleObject {thing.id} {thing.inside}" for thing in things if thing.inside)
    yield from (f"receptacleAtLocation {r.id} {r.location}" for r in room.receptacles)
    yield from (f"objectAtLocation {thing.id} {thing.location}" for thing in things)


def _goal(target: Target) -> str:
    """Return the goal as the official files word it, by the family's template."""
    goal = Goal(target.family, "", "")
    template = "look" if goal.lamp else "two" if goal.count == 2 else "place"
    able = treated = ""
    if goal.state is not None:
        template = "treat"
        able, treated = _TREATMENTS[goal.state]
    text: str = load_table("generator")["goals"][template]
    return text.format(thing=target.thing, target=target.place, able=able, treated=treated)
