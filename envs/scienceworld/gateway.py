"""The backend ``"py4j"``: one JVM for each environment, asked over a local socket.

The JVM runs py4j's ``GatewayServer``, and this module speaks py4j's protocol to it, without py4j's
own client: that one starts threads, sends messages when Python collects garbage (in forked children
too) and waits 40 ms for long texts. The simulator keeps its random numbers and its identifiers in
singletons, so that two environments in one such JVM would disturb each other.

The JVM lives as long as its standard input is open. The owner holds the other end: however it dies,
the operating system closes it, and the JVM ends. Forked children close their copy.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import weakref
from typing import IO, Any

from ...errors import EngineError, MissingExtra
from .faster import classpath
from .java import FLAGS, Java, clean_environment, simulator_jar
from .simulator import Simulator

__all__ = ["HEAP", "Py4JSimulator"]

HEAP = "-Xmx256m"
"""Room for objects; the greatest need over all 30 tasks was measured, see the speed benchmark."""

_START_SECONDS, _ANSWER_SECONDS = 60.0, 300.0
_INTERFACE = "scienceworld.runtime.pythonapi.PythonInterface"
_LIVE: weakref.WeakSet[Py4JSimulator] = weakref.WeakSet()


class Py4JSimulator(Simulator):
    """A simulator in a JVM of its own.

    Args:
        java: Which Java runs it.

    Raises:
        MissingExtra: The packages ``scienceworld`` and ``py4j`` are not installed.
        EngineError: The JVM does not start.

    Example:
        >>> from comap.envs.scienceworld.java import find_java
        >>> simulator = Py4JSimulator(find_java())  # doctest: +SKIP
        >>> simulator.load("boil", 0, "easy")  # doctest: +SKIP
    """

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
            told = self._failed("to start", error)
            self.close()
            raise EngineError(told) from error
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return self._jvm.pid

    def call(self, method: str, *arguments: str | int | bool) -> Any:
        """See `Simulator.call`."""
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
        """See `Simulator.draw`."""
        self.check()
        if aside:
            self._guarded(self._own_source, "setSeed", 0)
        source = self._own_source if aside else self._world_source
        self._guarded(self._source_field, "set", self._random, source)

    def close(self) -> None:
        """End the JVM; see `Simulator.close`."""
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
        told = _lines(self._jvm.stdout, 2, _START_SECONDS)
        port, token = int(told[0]), told[1]
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_START_SECONDS)
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
            _acknowledge_at_once(self._socket)
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
        said = f"{type(error).__name__}: {error}; {state}" + (
            f"; it said: {words}" if words else ""
        )
        return f"expected the simulator's JVM {what}, found {said}"


class _Reference:
    """An object over there."""

    def __init__(self, name: str):
        self.name = name


def _start(java: Java, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the JVM; it tells its port and its token on standard output."""
    try:
        from py4j.java_gateway import find_jar_path
    except ImportError:
        raise MissingExtra.of("scienceworld", "the backend 'py4j'") from None
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
    told: list[str] = []
    reader = threading.Thread(
        target=lambda: told.extend(stream.readline().decode().strip() for _ in range(number)),
        daemon=True,
    )
    reader.start()
    reader.join(seconds)
    if len(told) < number or not all(told):
        raise TimeoutError(f"no port and token within {seconds:.0f} s, but {told!r}")
    return told


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
    """Return what an answer holds."""
    kind, text = answer[:1], answer[1:]
    if kind == "s":
        return _unescaped(text)
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


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts = text.split("\\\\")
    return "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in parts)


def _acknowledge_at_once(connection: socket.socket) -> None:
    """Spare long answers 40 ms: the JVM sends their end only when their beginning has arrived."""
    if hasattr(socket, "TCP_QUICKACK"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _forget_in_child() -> None:
    """Close a forked child's copies, so that the JVMs end with their owner and not with it."""
    for simulator in list(_LIVE):
        simulator.alive = False
        simulator._abandon()
    _LIVE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
