"""`Simulator`: a JVM for each environment, called over a local socket; and the pool of idle ones."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
import weakref
from typing import IO, Any

from ...errors import EngineError, OptionError, needs_extra
from .simulator import FLAGS, Java, classpath, clean_environment, find_java, simulator_jar

HEAP = "-Xmx256m"
"""Room for objects; the greatest need over all 30 tasks was measured, see the speed benchmark."""

_START_SECONDS, _ANSWER_SECONDS = 60.0, 300.0
_INTERFACE = "scienceworld.runtime.pythonapi.PythonInterface"
_LIVE: weakref.WeakSet[Simulator] = weakref.WeakSet()


class Simulator:
    """The object ``PythonInterface`` of ScienceWorld's jar, in a JVM of its own."""

    def __init__(self, java: Java):
        self.alive = False
        self.process = os.getpid()  # a forked child finds its parent's here: see `check`
        self._socket: socket.socket | None = None
        self._unread = bytearray()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the JVM lives)
        self._jvm = _start(java, self._errors)
        _LIVE.add(self)
        self._kill_jvm = weakref.finalize(self, _end_jvm, self._jvm, self.process)

        # Whatever happens, an interrupt included, no JVM is left behind.
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
        """Return what a method of the simulator returns: a text, a number, a truth value or None."""
        self.check()
        return self._guarded(self._server, method, *arguments)

    def texts(self, method: str) -> tuple[str, ...]:
        """Return what a method that lists texts returns: it is joined over there, and comes as one."""
        self.check()
        text_list = self._guarded(self._server, method)
        joined: str = self._guarded("z:java.lang.String", "join", "\n", text_list)
        self._ask(f"m\nd\n{text_list.name}\ne\n")  # frees the list over there
        return tuple(joined.split("\n")) if joined else ()

    def draw(self, *, aside: bool) -> None:
        """Have the simulator draw random numbers from a fresh source, or again from the world's."""
        self.check()
        if aside:
            self._guarded(self._own_source, "setSeed", 0)
        source = self._own_source if aside else self._world_source
        self._guarded(self._source_field, "set", self._random, source)

    def close(self) -> None:
        self.alive = False
        _LIVE.discard(self)
        self._abandon()
        self._kill_jvm()

    @property
    def usable(self) -> bool:
        """Whether it runs, and belongs to this process."""
        return self.alive and self.process == os.getpid()

    def load(self, task: str, variation: int, simplification: str, gold: bool = False) -> None:
        if answer := self.call("load", task, variation, simplification, gold):
            raise EngineError(
                f"expected the task {task}/{variation} to load, found {answer!r:.300}"
            )

    def valid(self) -> tuple[str, ...]:
        """Return the actions that can be carried out now, sorted."""
        self.draw(aside=True)
        actions = self.texts("getValidActionObjectCombinations")
        self.draw(aside=False)
        return tuple(sorted(set(actions)))

    def tree(self) -> dict[str, Any]:
        """Return all objects of the world, nested as they contain each other."""
        tree: dict[str, Any] = json.loads(self.call("getObjectTree", ""))
        return tree

    def check(self) -> None:
        if self.process != os.getpid():
            raise EngineError(
                "expected a simulator of this process, found one of the process that this one was "
                "forked from; call env.reset(), or make the environment in this process"
            )
        if not self.alive:
            raise EngineError(
                "expected a running simulator, found one that ended; call env.reset()"
            )

    def _abandon(self) -> None:
        """Close this process's ends of everything that leads to the JVM."""
        for stream in (self._socket, self._jvm.stdin, self._jvm.stdout, self._errors):
            if stream is not None:
                stream.close()

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

        # Texts list things in the order of hashes: with one for all objects it is the same anywhere.
        objects = [self._make("java.lang.Object") for _ in range(2)]
        hashes = {
            self._guarded("z:java.lang.System", "identityHashCode", reference)
            for reference in objects
        }
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
        reference: _Reference = _value(self._ask(f"i\n{cls}\n{parts}e\n"))
        return reference

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
        while (end := self._unread.find(b"\n")) < 0:
            # Spares long answers 40 ms: the JVM sends their end only when their beginning has arrived.
            if hasattr(socket, "TCP_QUICKACK"):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionError("the JVM closed the connection")
            self._unread += received
        answer = self._unread[:end].decode("utf-8")
        del self._unread[: end + 1]
        if not answer.startswith("!y"):
            raise RuntimeError(f"the JVM answered {answer!r:.500}")
        return answer[2:]

    def _failed(self, aim: str, error: Exception) -> str:
        """Return what to say of a failure: the JVM's exit and last words, where there are any."""
        try:
            code = self._jvm.wait(0.2)
            state = f"killed by signal {-code}" if code < 0 else f"it ended with exit status {code}"
        except subprocess.TimeoutExpired:
            state = "it is still running"
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 500))
        last_words = self._errors.read().decode("utf-8", "replace").strip()
        failure = f"{type(error).__name__}: {error}; {state}"
        if last_words:
            failure += f"; it said: {last_words}"
        return f"expected the simulator's JVM {aim}, found {failure}"


class _Reference:
    """An object over there."""

    def __init__(self, name: str):
        self.name = name


def _start(java: Java, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the JVM; it tells its port and its token on standard output."""
    with needs_extra("scienceworld", "ScienceWorld's simulator"):
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
    """Return what an answer in py4j's form says: a letter for the type, then the value."""
    kind = answer[:1]
    text = answer[1:]
    if kind == "s":
        if "\\" not in text:
            return text
        # A backslash is escaped as two: split there, so that an escaped one before "n" is no line end.
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


_idle: list[tuple[str | None, Simulator]] = []
_idle_limit = 0


def make_simulator(java: str | None = None) -> Simulator:
    """Return a simulator: one that waits, or else a new one."""
    for index, (its_java, simulator) in enumerate(_idle):
        if its_java == java and simulator.usable:
            del _idle[index]
            return simulator
    return Simulator(find_java(java))


def hand_back(simulator: Simulator, java: str | None) -> None:
    """Close a simulator, or let it wait for its next use, if `keep_idle` says so."""
    _idle.append((java, simulator))
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
    global _idle_limit
    if type(number) is not int or number < 0:
        raise OptionError(f"expected a number of simulators, 0 or more, found {number!r}")
    limit_before = _idle_limit
    _idle_limit = number
    _shrink()
    return limit_before


def _shrink() -> None:
    """Close what is too much, and what cannot be used: the oldest first."""
    usable = [entry for entry in _idle if entry[1].usable]
    staying = usable[max(0, len(usable) - _idle_limit) :]
    for entry in [entry for entry in _idle if entry not in staying]:
        _idle.remove(entry)
        _, simulator = entry
        simulator.close()
