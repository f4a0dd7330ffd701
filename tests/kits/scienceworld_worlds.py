"""A program that builds random worlds of things, with the simulator's classes as they are and patched.

It prints how many lists of things it compared and how long the longest was;
`test_scienceworld_fast_classes.py` runs it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from typing import Any

import jpype
import jpype.imports  # makes jpype.java

import comap  # noqa: F401
from comap.envs.scienceworld.simulator import FLAGS, classpath, find_java, simulator_jar

SIZES = (5, 40, 700)
TRUTHS = (True, False)


class World:
    """Things of one copy of the simulator's classes."""

    def __init__(self, jars: list[Any]):
        urls = [jpype.java.io.File(str(it)).toURI().toURL() for it in jars]
        parent = jpype.java.lang.ClassLoader.getSystemClassLoader().getParent()
        self.loader = jpype.java.net.URLClassLoader(urls, parent)
        self.thing = self.named("scienceworld.struct.EnvObject")
        self.parser = getattr(self.named("scienceworld.input.InputParser$"), "MODULE$")

    def named(self, name: str) -> Any:
        return jpype.JClass(name, loader=self.loader)

    def made(self, size: int, seed: int) -> list[Any]:
        """Return things in, beside and behind each other; the first holds the others."""
        draw = random.Random(f"{size} {seed}")
        some, portal = self.named("scala.Some"), self.named("scienceworld.objects.portal.Door")
        container = self.named("scienceworld.properties.ContainerProperties")
        kinds = [self.named(f"scienceworld.objects.electricalcomponent.{it}") for it in KINDS]
        things = [self.thing("all", "t", False)]
        flat = draw.random() < 0.5  # few that hold many, or the other way round
        for number in range(size):
            kind = draw.randrange(8)
            it = (
                kinds[kind]()
                if kind < len(kinds)
                else self.thing(f"thing {number}", "t", draw.random() < 0.6)
            )
            it.setHidden(draw.random() < 0.1)
            getattr(it, "propContainer_$eq")(some(container(True, draw.random() < 0.8, False)))
            things[draw.randrange(min(3, len(things)) if flat else len(things))].addObject(it)
            things.append(it)
        for _ in range(size // 8):
            one, other = draw.choice(things), draw.choice(things)
            door = portal(one, other)
            door.setHidden(draw.random() < 0.3)
            one.addPortal(door)
            other.addPortal(door)
        for _ in range(size // 4):
            draw.choice(things[1:]).removeAndResetContainer()
            place = draw.randrange(1, len(things))
            things[0].addObject(things[place])  # nothing comes to be within itself
        return things

    def lists(self, thing: Any) -> list[tuple[str, list[int]]]:
        """Return everything that can be asked of what is in a thing: the kind of set, and what."""
        asked = [thing.getContainedObjects(it) for it in TRUTHS]
        asked += [thing.getPortals(it) for it in TRUTHS]
        asked += [thing.getContainedObjectsAndPortals(it) for it in TRUTHS]
        for hidden in TRUTHS:
            for more in TRUTHS:
                asked.append(thing.getContainedObjectsAndPortalsRecursive(hidden, more))
                asked.append(thing.getContainedAccessibleObjects(hidden, more))
            asked.append(self.parser.collectObjects(thing, hidden))
            asked.append(self.parser.collectAccessibleObjects(thing, hidden))
            more = self.thing("more", "t", False)
            for grown in asked[-2:]:  # mutable ones, which others may add to
                grown.add(more)
                grown.remove(more) if hidden else None
        asked += [it.clone() for it in (asked[-1], asked[-2])]
        return [(str(it.getClass().getName()), self.numbers(it)) for it in asked]

    def numbers(self, things: Any) -> list[int]:
        """Return the identifiers of things in their order, from that of the first thing made on."""
        told, left = [], things.iterator()
        while left.hasNext():
            told.append(int(left.next().uuid()))
        return told


KINDS = ("Battery", "ElectricBuzzer", "Wire")


def main() -> None:
    jar = simulator_jar()
    shutil.copy(jar.with_name("object_type_ids.tsv"), ".")  # it reads its table of types here
    home = find_java().executable.resolve().parent.parent
    jpype.startJVM(str(home / "lib" / "server" / "libjvm.so"), *FLAGS, convertStrings=False)
    jpype.java.lang.System.setOut(jpype.java.io.PrintStream(os.devnull))
    jars = classpath(jar)
    assert len(jars) == 2, "expected the known simulator"
    worlds = [World(list(it)) for it in ((jar,), jars)]
    compared, longest = 0, 0
    for size in SIZES:
        for seed in range(2 if size < 500 else 1):
            made = [world.made(size, seed) for world in worlds]
            assert int(made[0][0].uuid()) == int(made[1][0].uuid())
            for place in range(0, size + 1, max(1, size // 4)):
                ours, theirs = (w.lists(it[place]) for w, it in zip(worlds, made, strict=True))
                assert ours == theirs, (size, seed, place)
                compared += len(ours)
                longest = max(longest, *(len(it) for _, it in ours))
    print(json.dumps({"compared": compared, "longest": longest}))


if __name__ == "__main__":
    main()
