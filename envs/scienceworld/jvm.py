"""The backend ``"jpype"``: one JVM in this Python process, and a class loader for each environment.

A class loader has its own copy of the simulator's classes, so that environments do not share the
singletons that hold its random numbers and identifiers. A process has one JVM at most. It cannot be
started again, nor be used by forked children, and if it crashes it takes Python with it; the backend
``"py4j"`` has none of these limits.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from ...errors import EngineError, MissingExtra
from .faster import classpath
from .handles import METHODS, Handles, bound_handles
from .java import FLAGS, Java, simulator_jar
from .simulator import Simulator

__all__ = ["JPypeSimulator"]

_HEAP = ("-Xms32m", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=30")
_OURS = "-Xrs"  # signals stay Python's; else the JVM takes SIGTERM, and crashes in JPype's clean-up
_EXTRA = "scienceworld"
_NATIVE = "--enable-native-access=ALL-UNNAMED"  # else newer Javas warn of JPype
_owner: int | None = None


class JPypeSimulator(Simulator):
    """A simulator in the JVM of this process.

    Args:
        java: Which Java to start, if none was started in this process.

    Raises:
        MissingExtra: The packages ``scienceworld`` and ``JPype1`` are not installed.
        EngineError: There is no JVM and none starts, or the one that is here cannot be used.

    Example:
        >>> from comap.envs.scienceworld.java import find_java
        >>> simulator = JPypeSimulator(find_java())  # doctest: +SKIP
        >>> simulator.load("boil", 0, "easy")  # doctest: +SKIP
    """

    def __init__(self, java: Java):
        self.alive, self.process = False, os.getpid()
        self._jpype = jpype = _jvm(java)
        jar = simulator_jar()
        urls = [jpype.java.io.File(str(it)).toURI().toURL() for it in classpath(jar)]
        # Not below the class path of the JVM: what others have put there is none of our business.
        parent = jpype.java.lang.ClassLoader.getSystemClassLoader().getParent()
        loader = jpype.java.net.URLClassLoader(urls, parent)
        try:
            self._handles = bound_handles(jpype, loader, jar.with_name("object_type_ids.tsv"))
        except jpype.JException as error:
            loader.close()
            raise EngineError(f"expected the simulator to start, found {error}") from error
        self._world_source = self._handles["source"].invokeWithArguments()
        self._own_source = jpype.java.util.Random()
        self._unload = weakref.finalize(self, _unload, jpype, self._handles, self.process)
        self._unload.atexit = False
        self.alive = True

    def call(self, method: str, *arguments: str | int | bool) -> Any:
        """See `Simulator.call`."""
        told = self._invoke(method, *arguments)
        kind = METHODS[method][0]
        if told is None:
            return None
        if kind == "text":
            return str(told)
        return {"truth": bool, "fraction": float}.get(kind, int)(told)

    def texts(self, method: str) -> tuple[str, ...]:
        """See `Simulator.texts`: the list comes as one text."""
        joined = str(self._invoke(method))
        return tuple(joined.split("\n")) if joined else ()

    def draw(self, *, aside: bool) -> None:
        """See `Simulator.draw`."""
        if aside:
            self._own_source.setSeed(0)
        self._invoke("set source", self._own_source if aside else self._world_source)

    def close(self) -> None:
        """Have the simulator and its classes unloaded; the JVM stays. See `Simulator.close`."""
        self.alive = False
        self._unload()

    def _invoke(self, method: str, *arguments: Any) -> Any:
        self.check()
        try:
            return self._handles[method].invokeWithArguments(*map(self._boxed, arguments))
        except self._jpype.JException as error:
            self.alive = False
            raise EngineError(
                f"expected the simulator to answer {method!r}, found {error}"
            ) from error

    def _boxed(self, value: Any) -> Any:
        """Return an argument as the Java type that it is meant for: JPype takes int for Long."""
        return self._jpype.JInt(value) if type(value) is int else value


def _unload(jpype: Any, handles: Handles, owner: int) -> None:
    """Drop everything that leads to a simulator's classes, and have Java collect them."""
    if os.getpid() == owner and jpype.isJVMStarted():
        handles["forget"].invokeWithArguments()
        handles.pop("loader").close()
        handles.clear()
        jpype.java.lang.System.gc()


def _jvm(java: Java) -> Any:
    """Return the module jpype; its JVM runs, and is fit for the simulator."""
    global _owner
    try:
        import jpype
        import jpype.imports  # makes jpype.java
    except ImportError:
        raise MissingExtra.of(_EXTRA, "the backend 'jpype'") from None
    if not jpype.isJVMStarted():
        try:
            flags = (*FLAGS, *_HEAP, _OURS, *([_NATIVE] if java.version >= 22 else []))
            jpype.startJVM(str(java.library), *flags, convertStrings=False, interrupt=False)
        except Exception as error:
            raise EngineError(
                f"expected the JVM {java.library} to start in this process, found {error}; "
                "use backend='py4j'"
            ) from error
        _owner = os.getpid()
    if _owner not in (None, os.getpid()):
        raise EngineError(
            "expected a JVM of this process, found one of the process that this one was forked "
            "from, which cannot be used; use backend='py4j', or start processes by context='spawn'"
        )
    _let_python_collect_by_itself(jpype)
    hashes = {jpype.java.lang.System.identityHashCode(jpype.java.lang.Object()) for _ in range(2)}
    if len(hashes) > 1:
        raise EngineError(
            "expected a JVM with -XX:hashCode=2, found that other code has started one without; "
            f"start it with {' '.join(FLAGS[:2])}, or use backend='py4j'"
        )
    return jpype


def _let_python_collect_by_itself(jpype: Any) -> None:
    """Keep JPype from starting Python's garbage collector after each of Java's collections.

    The simulator makes garbage so fast that this came up several times a step, in a thread that
    holds Python's lock: half of all CPU time, and far more beside a large program. JPype notices
    Java's collections by a reference that each of them enqueues; here it gets one that none does.
    """
    queue = jpype.JClass("org.jpype.ref.JPypeReferenceQueue")
    if "sentinel" not in {str(it.getName()) for it in queue.class_.getDeclaredFields()}:
        return  # another JPype: it may be slow, but it works
    field = queue.class_.getDeclaredField("sentinel")
    field.setAccessible(True)
    reference = jpype.java.lang.ref
    kept = reference.PhantomReference(jpype.java.lang.Object.class_, reference.ReferenceQueue())
    field.set(queue.getInstance(), kept)
