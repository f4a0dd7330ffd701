"""Sparing the simulator work that it does over and over: a jar that goes before its own.

Most of a step goes into sets of things, and into their names. Things all have the same hash code here
(see `FLAGS`), so that a set of them costs the square of its size, and the simulator makes sets of all
that there is several times a step. For each of its verbs it lists the names of each thing in sight,
splits them by regular expressions, and after the step once more, to print what nobody reads.

Our own classes, in ``data/comap``, tell the same in less time: ``Things`` for what is where, in the
order of the simulator's sets; ``Names`` for what things are called, which is kept. Here methods of the
simulator are made to ask them; all answers stay what they are, byte for byte. What is patched is the
user's own copy of the simulator's classes. Only the release that this was written for is: with any
other, the simulator runs as it is.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from ..storage import comap_home
from .classfile import ClassFile, Code

__all__ = ["OURS", "classpath", "patched_classes"]

OURS = Path(__file__).parent / "data" / "comap"
"""Our own classes, and what they were compiled from (for Java 8; see CONTRIBUTING.md)."""

_KNOWN = "f4e1fdce0cdabe1bab7128a7e78ea820210d9db3c28d7272bcbbc3f3a1c5f0d7"  # scienceworld 1.2.3
_OLD = "comap$"  # before the names of the methods that got something in front
_PARSER, _LISTING = "scienceworld/input/InputParser", "scienceworld/input/InputParser$"
_THING, _TEXT = "Lscienceworld/struct/EnvObject;", "Ljava/lang/String;"
_SET, _GROWING = "Lscala/collection/immutable/Set;", "Lscala/collection/mutable/Set;"
_READ = "".join(
    f"Lscienceworld/{it};"
    for it in ("objects/agent/Agent", "tasks/goals/ObjMonitor", "tasks/goals/GoalSequence")
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
    (_LISTING, "getObjectReferents", f"({_THING}{_THING})[{_TEXT}", "Names", "tokenized"),
    (_LISTING, "getPossibleReferents", f"({_THING}{_THING})[{_TEXT}", "Names", "possible"),
    (
        _PARSER,
        "parse",
        f"({_TEXT}{_THING}{_THING}{_READ}{_THING})Lscala/Tuple4;",
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
    """Return the jars of the simulator, those first that go before the others.

    Example:
        >>> classpath(Path("no/such.jar"))
        (PosixPath('no/such.jar'),)
    """
    before = _jar_before(jar)
    return (jar,) if before is None else (before, jar)


def patched_classes(read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return the class files that go before the simulator's own, by name.

    Args:
        read: Returns one of the simulator's class files by its name.

    Raises:
        ValueError: They are not those of the known simulator.

    Example:
        >>> len(patched_classes(zipfile.ZipFile(jar).read))  # doctest: +SKIP
        3
    """
    classes = {name: ClassFile(read(f"{name}.class")) for name, *_ in _INSTEAD}
    for name, methods in _PUBLISHED.items():
        for method in methods:
            classes[name].publish(method, f"(){_GROWING}")
    for name, method, shape, ours, ask in _INSTEAD:
        cls = classes[name]
        asked = shape.replace("(", f"(L{name};", 1)  # ours are static
        call = cls.constant("method", f"comap/{ours}", ask, asked)
        cls.wrap(method, shape, f"{_OLD}{method}", _passing_on(asked, call))
    return {f"{name}.class": cls.data() for name, cls in classes.items()}


def _passing_on(shape: str, call: int) -> Code:
    """Return code that calls a static method with all that it was given, and returns its answer."""
    taken = re.findall(r"\[?L[^;]+;|\[?[A-Z]", shape[1 : shape.index(")")])
    load = [(0x15 if it == "Z" else 0x19, place) for place, it in enumerate(taken)]
    code = b"".join(map(bytes, load)) + struct.pack(">BHB", 0xB8, call, 0xB0)
    return Code(code, len(taken), len(taken))


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
