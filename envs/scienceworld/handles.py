"""Calling a simulator under JPype without Python ever seeing an object of the simulator's classes.

JPype remembers, for ever, each Java class of which it has seen an object, and with the class its
loader. So the calls go through method handles that are tied together inside the JVM: a handle makes
the simulator and puts it into a box, the others take it out of the box and call it, and what comes
back are texts, numbers and lists. A closed environment's classes, some 15 MB, can then be unloaded.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["METHODS", "Handles", "bound_handles"]

Handles: TypeAlias = dict[str, Any]
"""A Java method handle for each name in `METHODS`; ``"source"`` and ``"set source"`` for the source
of random numbers; ``"forget"`` to be called at the end; and the class ``"loader"`` itself, which
nothing else may hold."""

METHODS = {
    "load": ("text", "text", "number", "text", "truth"),
    "step": ("text", "text"),
    "getObjectTree": ("text", "text"),
    "freeActionLook": ("text",),
    "freeActionInventory": ("text",),
    "getTaskDescription": ("text",),
    "getGoalProgressStr": ("text",),
    "getScore": ("fraction",),
    "getCompleted": ("truth",),
    "getNumMoves": ("boxed number",),
    "getTaskNames": ("list",),
    "getTaskMaxVariations": ("number", "text"),
    "getVariationsTrain": ("list",),
    "getVariationsDev": ("list",),
    "getVariationsTest": ("list",),
    "getGoldActionSequence": ("list",),
    "getValidActionObjectCombinations": ("list",),
}
"""The methods of the simulator that are used: what each returns, and what it takes.

The handles of those that return lists return one text, with a line for each item.
"""

_INTERFACE = "scienceworld.runtime.pythonapi.PythonInterface"


def bound_handles(jpype: Any, loader: Any, type_ids: Path) -> Handles:
    """Make a simulator from a loader's classes and return handles that call it.

    Args:
        jpype: The module jpype, with its JVM running.
        loader: A Java class loader that has the simulator's jar.
        type_ids: The simulator's table of object types.

    Example:
        >>> bound_handles(jpype, loader, table)["getNumMoves"].invokeWithArguments()  # doctest: +SKIP
        0
    """
    tools = _Tools(jpype, loader)
    tools.read_type_ids(type_ids)
    box = jpype.java.util.concurrent.atomic.AtomicReference()
    put = tools.method(box.getClass(), "set", "none", "any").bindTo(box)
    get = tools.method(box.getClass(), "get", "any").bindTo(box)
    cls = loader.loadClass(_INTERFACE)
    make = tools.lookup.findConstructor(cls, tools.shape("none")).asType(tools.shape("any"))
    tools.quietly(tools.handles.filterReturnValue(make, put))
    simulator = get.asType(tools.shape(cls))
    bound: Handles = {"forget": tools.forgetting(), "loader": loader} | tools.random_source()
    for name, types in METHODS.items():
        handle = tools.method(cls, name, *types)
        if types[0] == "list":
            handle = tools.joined(handle)
        bound[name] = tools.handles.collectArguments(handle, 0, simulator)
    return bound


class _Tools:
    """Java's own classes for method handles."""

    def __init__(self, jpype: Any, loader: Any):
        lang = jpype.java.lang
        self.jpype, self.loader, self.lang = jpype, loader, lang
        self.handles, self._method_type = lang.invoke.MethodHandles, lang.invoke.MethodType
        self.lookup = self.handles.publicLookup()
        self._types = {
            "any": lang.Object.class_,
            "class": lang.Class.class_,
            "none": lang.Void.TYPE,
            "text": lang.String.class_,
            "number": lang.Integer.TYPE,
            "boxed number": lang.Integer.class_,
            "truth": lang.Boolean.TYPE,
            "fraction": lang.Double.TYPE,
            "list": jpype.java.util.List.class_,
        }

    def shape(self, returned: Any, *taken: Any) -> Any:
        """Return the type of a method from the types, or their names, of what it has to do with."""
        known = [
            self._types.get(it, it) if isinstance(it, str) else it for it in (returned, *taken)
        ]
        return self._method_type.methodType(known[0], self.jpype.JArray(self.lang.Class)(known[1:]))

    def method(self, cls: Any, name: str, *types: Any) -> Any:
        """Return the handle of a method; its first argument is the object."""
        return self.lookup.findVirtual(cls, name, self.shape(*types))

    def joined(self, handle: Any) -> Any:
        """Return a handle that joins the list of texts that another one returns, a line each."""
        iterable = self.lang.Iterable.class_
        letters = self.lang.CharSequence.class_
        shape = self.shape("text", letters, iterable)
        join = self.lookup.findStatic(self.lang.String.class_, "join", shape)
        join = self.handles.insertArguments(join, 0, "\n")
        taken = list(handle.type().parameterArray())
        return self.handles.filterReturnValue(handle.asType(self.shape(iterable, *taken)), join)

    def quietly(self, make: Any) -> None:
        """Call a handle while standard output leads nowhere: this copy of Scala keeps that for good.

        The simulator prints a great deal, which would land on Python's own standard output.
        """
        system = self.lang.System
        out = system.out
        system.setOut(self.jpype.java.io.PrintStream(os.devnull))
        try:
            self.lang.Class.forName("scala.Console$", True, self.loader)
            make.invokeWithArguments()
        finally:
            system.setOut(out)

    def read_type_ids(self, table: Path) -> None:
        """Give the simulator its table of object types.

        It looks for the table in the current folder, which is the user's, and would write one there.
        """
        module = self._module("util.UniqueTypeID$")
        cls = module.type().returnType()
        field = cls.getDeclaredField("lut")
        field.setAccessible(True)
        reading = self.method(cls, "load", field.getType(), "text")
        reading = self.handles.insertArguments(
            self.handles.collectArguments(reading, 0, module), 0, str(table)
        )
        setting = self.handles.collectArguments(self.lookup.unreflectSetter(field), 0, module)
        self.quietly(self.handles.collectArguments(setting, 0, reading))

    def random_source(self) -> Handles:
        """Return handles that get and set the source of Scala's one generator of random numbers."""
        module = self._module("scala.util.Random$")
        general = self.loader.loadClass("scala.util.Random")
        field = general.getDeclaredField("self")
        field.setAccessible(True)
        module = module.asType(self.shape(general))
        getting, setting = self.lookup.unreflectGetter(field), self.lookup.unreflectSetter(field)
        return {
            "source": self.handles.collectArguments(getting, 0, module),
            "set source": self.handles.collectArguments(setting, 0, module),
        }

    def forgetting(self) -> Any:
        """Return a handle that makes Java's own classes forget this copy of Scala.

        Scala notes a tag with each class that it makes arrays of, by `java.lang.ClassValue`. A note
        with one of Java's classes would keep the loader for ever.
        """
        module = self._module("scala.reflect.ClassTag$")
        field = module.type().returnType().getDeclaredField("cache")
        field.setAccessible(True)
        getting = self.handles.collectArguments(self.lookup.unreflectGetter(field), 0, module)
        remove = self.method(self.lang.ClassValue.class_, "remove", "none", "class")
        getting = getting.asType(self.shape(self.lang.ClassValue.class_))
        remove = self.handles.collectArguments(remove, 0, getting)
        names = ("Boolean", "Byte", "Character", "Short", "Integer", "Long", "Float", "Double")
        boxes = [getattr(self.lang, name) for name in names]
        known = [self.lang.String.class_, self.lang.Object.class_]
        known += [it for box in boxes for it in (box.class_, box.TYPE)]
        arrays = [self.lang.reflect.Array.newInstance(it, 0).getClass() for it in known]
        void = self.lang.Void
        known += [*arrays, void.class_, void.TYPE]
        parts = [self.handles.insertArguments(remove, 0, it) for it in known]
        return functools.reduce(self.handles.foldArguments, parts)

    def _module(self, name: str) -> Any:
        """Return the handle that gets a Scala object."""
        cls = self.loader.loadClass(name)
        return self.lookup.findStaticGetter(cls, "MODULE$", cls)
