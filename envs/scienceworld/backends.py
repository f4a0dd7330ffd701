"""The two ways to run the simulator, and the pool of idle simulators.

`Py4JSimulator` starts a JVM for each environment and calls it over a local socket. `JPypeSimulator` runs
one JVM in this process, with a class loader for each environment.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path
from typing import IO, Any, TypeAlias

from ...errors import EngineError, OptionError, needs_extra
from .simulator import (
    FLAGS,
    Java,
    Simulator,
    classpath,
    clean_environment,
    find_java,
    simulator_jar,
)

HEAP = "-Xmx256m"
"""Room for objects; the greatest need over all 30 tasks was measured, see the speed benchmark."""

_START_SECONDS, _ANSWER_SECONDS = 60.0, 300.0
_INTERFACE = "scienceworld.runtime.pythonapi.PythonInterface"
_LIVE: weakref.WeakSet[Py4JSimulator] = weakref.WeakSet()


class Py4JSimulator(Simulator):
    """A simulator in a JVM of its own."""

    def __init__(self, java: Java):
        self.alive, self.process = False, os.getpid()
        self._socket: socket.socket | None = None
        self._rest = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the JVM lives)
        self._jvm = _start(java, self._errors)
        _LIVE.add(self)
        self._end = weakref.finalize(self, _end_jvm, self._jvm, self.process)
        try:
            self._connect()
        except (OSError, RuntimeError, ValueError) as error:
            message = self._failed("to start", error)
            self.close()
            raise EngineError(message) from error
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._jvm.pid

    def call(self, method: str, *arguments: str | int | bool) -> Any:
        self.check()
        return self._guarded(self._server, method, *arguments)

    def texts(self, method: str) -> tuple[str, ...]:
        """See `Simulator.texts`: the list is joined over there, and comes as one text."""
        self.check()
        listed = self._guarded(self._server, method)
        joined: str = self._guarded("z:java.lang.String", "join", "\n", listed)
        self._ask(f"m\nd\n{listed.name}\ne\n")
        return tuple(joined.split("\n")) if joined else ()

    def draw(self, *, aside: bool) -> None:
        self.check()
        if aside:
            self._guarded(self._own_source, "setSeed", 0)
        source = self._own_source if aside else self._world_source
        self._guarded(self._source_field, "set", self._random, source)

    def close(self) -> None:
        self.alive = False
        _LIVE.discard(self)
        self._abandon()
        self._end()

    def _abandon(self) -> None:
        """Close this process's ends of everything that leads to the JVM."""
        for end in (self._socket, self._jvm.stdin, self._jvm.stdout, self._errors):
            if end is not None:
                end.close()

    def _connect(self) -> None:
        """Read where the JVM listens, and get ready to ask."""
        assert self._jvm.stdout is not None
        port, token = _lines(self._jvm.stdout, 2, _START_SECONDS)
        self._socket = socket.create_connection(("127.0.0.1", int(port)), timeout=_START_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask(f"A\n{token}\n")
        # The simulator prints a great deal. Nobody would read it, and a full pipe stops the JVM.
        nowhere = self._make("java.io.PrintStream", os.devnull)
        self._guarded("z:java.lang.System", "setOut", nowhere)
        objects = [self._make("java.lang.Object") for _ in range(2)]
        hashes = {self._guarded("z:java.lang.System", "identityHashCode", it) for it in objects}
        if len(hashes) > 1:
            raise EngineError(
                "expected a JVM that knows -XX:hashCode=2 (HotSpot, as in OpenJDK), found another; "
                "give the environment another one: java=PATH"
            )
        self._server = self._make(_INTERFACE)
        self._find_random_numbers()
        self._socket.settimeout(_ANSWER_SECONDS)
        self.alive = True

    def _find_random_numbers(self) -> None:
        """Find the field from which Scala's one generator of random numbers takes its source."""
        module = self._guarded("z:java.lang.Class", "forName", "scala.util.Random$")
        field = self._guarded(module, "getDeclaredField", "MODULE$")
        self._random = self._guarded(field, "get", None)
        general = self._guarded("z:java.lang.Class", "forName", "scala.util.Random")
        self._source_field = self._guarded(general, "getDeclaredField", "self")
        self._guarded(self._source_field, "setAccessible", True)
        self._world_source = self._guarded(self._source_field, "get", self._random)
        self._own_source = self._make("java.util.Random")

    def _make(self, cls: str, *arguments: Any) -> _Reference:
        parts = "".join(map(_part, arguments))
        made: _Reference = _value(self._ask(f"i\n{cls}\n{parts}e\n"))
        return made

    def _guarded(self, target: _Reference | str, method: str, *arguments: Any) -> Any:
        """Call a method; after any failure this simulator is not to be asked again."""
        name = target if isinstance(target, str) else target.name
        parts = "".join(map(_part, arguments))
        try:
            return _value(self._ask(f"c\n{name}\n{method}\n{parts}e\n"))
        except BaseException as error:
            self.alive = False
            if isinstance(error, Exception):
                raise EngineError(self._failed(f"to answer {method!r}", error)) from error
            raise  # an interrupt: the answer is still to come, and would be taken for the next one

    def _ask(self, command: str) -> str:
        """Send a command and return the answer: one line."""
        assert self._socket is not None
        self._socket.sendall(command.encode("utf-8"))
        while (end := self._rest.find(b"\n")) < 0:
            # Spares long answers 40 ms: the JVM sends their end only when their beginning has arrived.
            if hasattr(socket, "TCP_QUICKACK"):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the JVM closed the connection")
            self._rest += more
        answer = self._rest[:end].decode("utf-8")
        del self._rest[: end + 1]
        if not answer.startswith("!y"):
            raise RuntimeError(f"the JVM answered {answer!r:.500}")
        return answer[2:]

    def _failed(self, what: str, error: Exception) -> str:
        """Return what to say of a failure: the JVM's exit and last words, where there are any."""
        try:
            code = self._jvm.wait(0.2)
            state = f"killed by signal {-code}" if code < 0 else f"it ended with exit status {code}"
        except subprocess.TimeoutExpired:
            state = "it is still running"
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 500))
        words = self._errors.read().decode("utf-8", "replace").strip()
        found = f"{type(error).__name__}: {error}; {state}{'; it said: ' * bool(words)}{words}"
        return f"expected the simulator's JVM {what}, found {found}"


class _Reference:
    """An object over there."""

    def __init__(self, name: str):
        self.name = name


def _start(java: Java, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the JVM; it tells its port and its token on standard output."""
    with needs_extra("scienceworld", "the backend 'py4j'"):
        from py4j.java_gateway import find_jar_path
    jar = simulator_jar()
    jars = os.pathsep.join((find_jar_path(), *map(str, classpath(jar))))
    command = [str(java.executable), *FLAGS, HEAP, "-XX:+ExitOnOutOfMemoryError"]
    command += ["-classpath", jars, "py4j.GatewayServer"]
    command += ["--die-on-broken-pipe", "--enable-auth", "0"]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=clean_environment(),
            cwd=jar.parent,  # it reads a table there, and would write one where there is none
            start_new_session=True,  # a Ctrl-C is for Python: the episode can go on after it
        )
    except OSError as error:
        raise EngineError(f"expected to run {java.executable}, found: {error}") from error


def _end_jvm(jvm: subprocess.Popen[bytes], owner: int) -> None:
    """Kill a JVM, which has nothing to save; a forked child leaves its parent's alone."""
    if os.getpid() == owner:
        jvm.kill()
        jvm.wait()


def _lines(stream: IO[bytes], number: int, seconds: float) -> list[str]:
    """Return so many lines of a pipe; fail where they do not come in time."""
    lines: list[str] = []
    reader = threading.Thread(
        target=lambda: lines.extend(stream.readline().decode().strip() for _ in range(number)),
        daemon=True,
    )
    reader.start()
    reader.join(seconds)
    if len(lines) < number or not all(lines):
        raise TimeoutError(f"no port and token within {seconds:.0f} s, but {lines!r}")
    return lines


def _part(value: Any) -> str:
    """Return an argument in py4j's form: its type's letter, itself, a line end."""
    if isinstance(value, _Reference):
        return f"r{value.name}\n"
    if value is None:
        return "n\n"
    if isinstance(value, bool):
        return f"b{value}\n"
    if isinstance(value, int):
        return f"i{value}\n"
    escaped = value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
    return f"s{escaped}\n"


def _value(answer: str) -> Any:
    kind, text = answer[:1], answer[1:]
    if kind == "s":
        if "\\" not in text:
            return text
        parts = text.split("\\\\")
        return "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in parts)
    if kind in "rl" and text:
        return _Reference(text)
    if kind in "iL":
        return int(text)
    if kind in "dD":
        return float(text)
    if kind == "b":
        return text.lower() == "true"
    if kind in "nv":
        return None
    raise RuntimeError(f"the JVM answered {answer!r:.200}, which is of no type we know")


def _forget_in_child() -> None:
    """Close a forked child's copies, so that the JVMs end with their owner and not with it."""
    for simulator in list(_LIVE):
        simulator.alive = False
        simulator._abandon()
    _LIVE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


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


def bound_handles(jpype: Any, loader: Any, type_ids: Path) -> Handles:
    """Make a simulator from a loader's classes and return handles that call it."""
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
        first, *rest = (self._types[t] if isinstance(t, str) else t for t in (returned, *taken))
        return self._method_type.methodType(first, self.jpype.JArray(self.lang.Class)(rest))

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
        """Call a handle while standard output leads nowhere: this copy of Scala keeps that for good."""
        system = self.lang.System
        out = system.out
        system.setOut(self.jpype.java.io.PrintStream(os.devnull))
        try:
            self.lang.Class.forName("scala.Console$", True, self.loader)
            make.invokeWithArguments()
        finally:
            system.setOut(out)

    def read_type_ids(self, table: Path) -> None:
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
        """Return a handle that makes Java's own classes forget this copy of Scala."""
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
        cls = self.loader.loadClass(name)
        return self.lookup.findStaticGetter(cls, "MODULE$", cls)


_HEAP = ("-Xms32m", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=30")
_OURS = "-Xrs"  # signals stay Python's; else the JVM takes SIGTERM, and crashes in JPype's clean-up
_NATIVE = "--enable-native-access=ALL-UNNAMED"  # else newer Javas warn of JPype
_owner: int | None = None


class JPypeSimulator(Simulator):
    """A simulator in the JVM of this process."""

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
        answer = self._invoke(method, *arguments)
        kinds: dict[str, Any] = {"text": str, "truth": bool, "fraction": float}
        return None if answer is None else kinds.get(METHODS[method][0], int)(answer)

    def texts(self, method: str) -> tuple[str, ...]:
        """See `Simulator.texts`: the list comes as one text."""
        joined = str(self._invoke(method))
        return tuple(joined.split("\n")) if joined else ()

    def draw(self, *, aside: bool) -> None:
        if aside:
            self._own_source.setSeed(0)
        self._invoke("set source", self._own_source if aside else self._world_source)

    def close(self) -> None:
        """Have the simulator and its classes unloaded; the JVM stays. See `Simulator.close`."""
        self.alive = False
        self._unload()

    def _invoke(self, method: str, *arguments: Any) -> Any:
        self.check()
        # JPype takes int for Long.
        boxed = [self._jpype.JInt(it) if type(it) is int else it for it in arguments]
        try:
            return self._handles[method].invokeWithArguments(*boxed)
        except self._jpype.JException as error:
            self.alive = False
            raise EngineError(
                f"expected the simulator to answer {method!r}, found {error}"
            ) from error


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
    with needs_extra("scienceworld", "the backend 'jpype'"):
        import jpype
        import jpype.imports  # makes jpype.java
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
    """Keep JPype from starting Python's garbage collector after each of Java's collections."""
    queue = jpype.JClass("org.jpype.ref.JPypeReferenceQueue")
    if "sentinel" not in {str(it.getName()) for it in queue.class_.getDeclaredFields()}:
        return  # another JPype: it may be slow, but it works
    field = queue.class_.getDeclaredField("sentinel")
    field.setAccessible(True)
    reference = jpype.java.lang.ref
    kept = reference.PhantomReference(jpype.java.lang.Object.class_, reference.ReferenceQueue())
    field.set(queue.getInstance(), kept)


BACKENDS = {"py4j": Py4JSimulator, "jpype": JPypeSimulator}
_idle: list[tuple[tuple[str, str | None], Simulator]] = []
_kept = 0


def make_simulator(backend: str, java: str | None = None) -> Simulator:
    """Return a simulator: one that waits, or else a new one."""
    for index, (kind, simulator) in enumerate(_idle):
        if kind == (backend, java) and simulator.usable:
            del _idle[index]
            return simulator
    return BACKENDS[backend](find_java(java))


def hand_back(simulator: Simulator, backend: str, java: str | None) -> None:
    """Close a simulator, or let it wait for its next use, if `keep_idle` says so."""
    _idle.append(((backend, java), simulator))
    _shrink()


def keep_idle(number: int) -> int:
    """Let so many simulators of closed environments wait for the next ones; none by default.

    A JVM takes 1.4 CPU seconds to start and is slow at first. Programs that make many environments,
    one after the other, save that. What is kept ends with the process.

    Args:
        number: How many, in this process.

    Returns:
        How many it were before.

    Raises:
        OptionError: It is negative or no whole number.

    Example:
        >>> before = keep_idle(2)
        >>> keep_idle(before)
        2
    """
    global _kept
    if type(number) is not int or number < 0:
        raise OptionError(f"expected a number of simulators, 0 or more, found {number!r}")
    before, _kept = _kept, number
    _shrink()
    return before


def _shrink() -> None:
    """Close what is too much, and what cannot be used: the oldest first."""
    usable = [it for it in _idle if it[1].usable]
    kept = usable[max(0, len(usable) - _kept) :]
    for one in [it for it in _idle if it not in kept]:
        _idle.remove(one)
        one[1].close()
