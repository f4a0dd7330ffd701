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
        urls = [jpype.java.io.File(str(jar)).toURI().toURL() for jar in jars]
        parent = jpype.java.lang.ClassLoader.getSystemClassLoader().getParent()
        self.loader = jpype.java.net.URLClassLoader(urls, parent)
        self.thing = self.named("scienceworld.struct.EnvObject")
        self.parser = getattr(self.named("scienceworld.input.InputParser$"), "MODULE$")

    def named(self, name: str) -> Any:
        return jpype.JClass(name, loader=self.loader)

    def made(self, size: int, seed: int) -> list[Any]:
        """Return things in, beside and behind each other; the first holds the others."""
        draw = random.Random(f"{size} {seed}")
        scala_some, portal = (
            self.named("scala.Some"),
            self.named("scienceworld.objects.portal.Door"),
        )
        container = self.named("scienceworld.properties.ContainerProperties")
        kinds = [
            self.named(f"scienceworld.objects.electricalcomponent.{kind_name}")
            for kind_name in KINDS
        ]
        things = [self.thing("all", "t", False)]
        flat = draw.random() < 0.5  # few that hold many, or the other way round
        for number in range(size):
            kind = draw.randrange(8)
            thing = (
                kinds[kind]()
                if kind < len(kinds)
                else self.thing(f"thing {number}", "t", draw.random() < 0.6)
            )
            thing.setHidden(draw.random() < 0.1)
            getattr(thing, "propContainer_$eq")(
                scala_some(container(True, draw.random() < 0.8, False))
            )
            things[draw.randrange(min(3, len(things)) if flat else len(things))].addObject(thing)
            things.append(thing)
        for _ in range(size // 8):
            first_side, second_side = draw.choice(things), draw.choice(things)
            door = portal(first_side, second_side)
            door.setHidden(draw.random() < 0.3)
            first_side.addPortal(door)
            second_side.addPortal(door)
        for _ in range(size // 4):
            draw.choice(things[1:]).removeAndResetContainer()
            place = draw.randrange(1, len(things))
            things[0].addObject(things[place])  # nothing comes to be within itself
        return things

    def lists(self, thing: Any) -> list[tuple[str, list[int]]]:
        """Return everything that can be asked of what is in a thing: the kind of set, and what."""
        sets = [thing.getContainedObjects(truth) for truth in TRUTHS]
        sets += [thing.getPortals(truth) for truth in TRUTHS]
        sets += [thing.getContainedObjectsAndPortals(truth) for truth in TRUTHS]
        for hidden in TRUTHS:
            for with_portals in TRUTHS:
                sets.append(thing.getContainedObjectsAndPortalsRecursive(hidden, with_portals))
                sets.append(thing.getContainedAccessibleObjects(hidden, with_portals))
            sets.append(self.parser.collectObjects(thing, hidden))
            sets.append(self.parser.collectAccessibleObjects(thing, hidden))
            extra_thing = self.thing("more", "t", False)
            for grown in sets[-2:]:  # mutable ones, which others may add to
                grown.add(extra_thing)
                grown.remove(extra_thing) if hidden else None
        sets += [thing_set.clone() for thing_set in (sets[-1], sets[-2])]
        return [
            (str(thing_set.getClass().getName()), self.numbers(thing_set)) for thing_set in sets
        ]

    def numbers(self, things: Any) -> list[int]:
        """Return the identifiers of things in their order, from that of the first thing made on."""
        identifiers, iterator = [], things.iterator()
        while iterator.hasNext():
            identifiers.append(int(iterator.next().uuid()))
        return identifiers


KINDS = ("Battery", "ElectricBuzzer", "Wire")


def main() -> None:
    jar = simulator_jar()
    shutil.copy(jar.with_name("object_type_ids.tsv"), ".")  # it reads its table of types here
    home = find_java().executable.resolve().parent.parent
    jpype.startJVM(str(home / "lib" / "server" / "libjvm.so"), *FLAGS, convertStrings=False)
    jpype.java.lang.System.setOut(jpype.java.io.PrintStream(os.devnull))
    jars = classpath(jar)
    assert len(jars) == 2, "expected the known simulator"
    worlds = [World(list(classpath_jars)) for classpath_jars in ((jar,), jars)]
    compared, longest = 0, 0
    for size in SIZES:
        for seed in range(2 if size < 500 else 1):
            things_by_world = [world.made(size, seed) for world in worlds]
            assert int(things_by_world[0][0].uuid()) == int(things_by_world[1][0].uuid())
            for place in range(0, size + 1, max(1, size // 4)):
                ours, theirs = (
                    w.lists(things[place])
                    for w, things in zip(worlds, things_by_world, strict=True)
                )
                assert ours == theirs, (size, seed, place)
                compared += len(ours)
                longest = max(longest, *(len(identifiers) for _, identifiers in ours))
    print(json.dumps({"compared": compared, "longest": longest}))


if __name__ == "__main__":
    main()
