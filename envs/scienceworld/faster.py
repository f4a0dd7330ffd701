"""Sparing the simulator work that it does over and over: a jar that goes before its own.

Most of a step goes into the names of things. For each of its verbs the simulator lists the names of
each thing in sight, by "X", "X in Y" and "X on Y", and splits each of them into words by
regular expressions; and after the step once more, to print what nobody reads. Here

- splitting looks into a table of words first: it depends on nothing but the text;
- listing looks into a table of things, which is emptied before each command is read: things do not
  change while one is read, and nothing else lists names in this way;
- listing what is only printed is left out.

What is not in a table is asked of the original, and everybody gets a copy; all answers stay what they
are, byte for byte. What is patched is the user's own copy of the simulator's classes. Only the
release that this was written for is: with any other, the simulator runs as it is.
"""

from __future__ import annotations

import hashlib
import io
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from ..storage import comap_home
from .classfile import ClassFile, Code

__all__ = ["classpath", "patched_classes"]

_KNOWN = "f4e1fdce0cdabe1bab7128a7e78ea820210d9db3c28d7272bcbbc3f3a1c5f0d7"  # scienceworld 1.2.3
_NAMES, _PARSER = "scienceworld/input/InputParser$", "scienceworld/input/InputParser"
_ENTRIES = 1 << 13  # there are some 2,000 names, and 300 things
_TABLE_TYPE = "[Ljava/util/Map$Entry;"
_WORDS_OF, _NAMES_OF = "comap$words", "comap$names"  # the tables
_OLD = "comap$"  # before the names of what got something in front
_ANY, _TEXT, _TEXTS = "Ljava/lang/Object;", "Ljava/lang/String;", "[Ljava/lang/String;"
_THING = "Lscienceworld/struct/EnvObject;"
_GIVE_BACK = 0xB0


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
        >>> sorted(patched_classes(zipfile.ZipFile(jar).read))  # doctest: +SKIP
        ['scienceworld/input/InputParser$.class', 'scienceworld/input/InputParser.class']
    """
    patches = {_NAMES: _remember_names, _PARSER: _forget_names}
    done = {}
    for name, patch in patches.items():
        cls = ClassFile(read(f"{name}.class"))
        patch(cls)
        done[f"{name}.class"] = cls.data()
    return done


@lru_cache(maxsize=4)
def _jar_before(jar: Path) -> Path | None:
    """Return a jar with the patched class, or None where the simulator is not the known one."""
    try:
        data = jar.read_bytes()
    except OSError:
        return None  # who runs the simulator will say so
    if hashlib.sha256(data).hexdigest() != _KNOWN:
        return None
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        patched = patched_classes(archive.read)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in patched.items():
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


def _remember_names(cls: ClassFile) -> None:
    """Put tables in front of what splits a name, and of what lists the names of a thing."""
    entry = cls.constant("class", "java/util/Map$Entry")
    tables = [cls.constant("field", _NAMES, it, _TABLE_TYPE) for it in (_WORDS_OF, _NAMES_OF)]
    for name in (_WORDS_OF, _NAMES_OF):
        cls.add_field(name, _TABLE_TYPE)
    made = cls.constant("method", _NAMES, f"{_OLD}made", "()V")
    making = [((0x11, _ENTRIES), (0xBD, entry), (0xB3, table)) for table in tables]
    code = Code(_assembled(*making[0], *making[1], (0xB8, made), 0xB1), 1, 0)
    cls.wrap("<clinit>", "()V", f"{_OLD}made", code)
    digest = (0xB6, cls.constant("method", "java/lang/String", "hashCode", "()I"))
    split = f"({_TEXT}){_TEXTS}"
    cls.wrap("tokenize", split, f"{_OLD}words", _looking_up(cls, "words", split, (digest,)))
    number = (0xB6, cls.constant("method", _THING[1:-1], "uuid", "()J")), 0x88
    of_thing = f"({_THING}{_THING}){_TEXTS}"
    code = _looking_up(cls, "names", of_thing, number)
    cls.wrap("getObjectReferents", of_thing, f"{_OLD}names", code)
    nothing = _assembled(0x03, (0xBD, cls.constant("class", "java/lang/String")), _GIVE_BACK)
    cls.wrap("getPossibleReferents", of_thing, f"{_OLD}printed", Code(nothing, 1, 3))


def _forget_names(cls: ClassFile) -> None:
    """Have the names of things forgotten before a command is read: they change between commands."""
    sight, others = f"{_THING}{_THING}", ("objects/agent/Agent", "tasks/goals/ObjMonitor")
    taken = [*others, "tasks/goals/GoalSequence", "struct/EnvObject"]
    shape = f"({_TEXT}{sight}{''.join(f'Lscienceworld/{it};' for it in taken)})Lscala/Tuple4;"
    table = cls.constant("field", _NAMES, _NAMES_OF, _TABLE_TYPE)
    fill = cls.constant("method", "java/util/Arrays", "fill", f"([{_ANY}{_ANY})V")
    read = cls.constant("method", _PARSER, f"{_OLD}parse", shape)
    arguments = bytes([0x2A, 0x2B, 0x2C, 0x2D, 0x19, 4, 0x19, 5, 0x19, 6, 0x19, 7])
    code = _assembled((0xB2, table), 0x01, (0xB8, fill)) + arguments
    code += _assembled((0xB6, read), _GIVE_BACK)
    cls.wrap("parse", shape, f"{_OLD}parse", Code(code, 8, 8))


def _looking_up(
    cls: ClassFile, what: str, shape: str, digest: tuple[int | tuple[int, ...], ...]
) -> Code:
    """Return code that takes the texts of something from a table, or has them made and puts them there.

    Args:
        cls: The class, with the table.
        what: The end of the names of the table and of the original method.
        shape: What the method takes: what is looked up, and perhaps from where a thing is seen,
            which is the same for a whole command.
        digest: Code that makes a number of that object; its last bits are the place in the table.

    An entry holds an object and its texts; entries are never changed, only replaced. Everybody gets
    a copy of the texts.
    """
    arguments = shape.partition(")")[0].count(";")
    entry, pair = "java/util/Map$Entry", "java/util/AbstractMap$SimpleImmutableEntry"
    texts_type, found_at = cls.constant("class", _TEXTS), arguments + 1  # a variable
    table = (0xB2, cls.constant("field", _NAMES, f"{_OLD}{what}", _TABLE_TYPE))
    place = (table, 0x2B, *digest, (0x11, _ENTRIES - 1), 0x7E)
    equal = cls.constant("method", "java/lang/Object", "equals", f"({_ANY})Z")
    key = (0xB9, cls.constant("interface", entry, "getKey", f"(){_ANY}"), 0x0100)
    value = (0xB9, cls.constant("interface", entry, "getValue", f"(){_ANY}"), 0x0100)
    clone = (0xB6, cls.constant("method", _TEXTS, "clone", f"(){_ANY}"))
    copied = (clone, (0xC0, texts_type), _GIVE_BACK)
    original = (0xB6, cls.constant("method", _NAMES, f"{_OLD}{what}", shape))
    both = cls.constant("method", pair, "<init>", f"({_ANY}{_ANY})V")
    load = bytes([0x19, found_at])
    hit = load + _assembled(value, (0xC0, texts_type), *copied)
    same = load + _assembled(key, 0x2B, (0xB6, equal), (0x99, 3 + len(hit)))
    asked = _assembled(*place, 0x32) + bytes([0x3A, found_at])
    asked += load + _assembled((0xC6, 3 + len(same) + len(hit))) + same + hit
    made = bytes([0x2A, 0x2B, 0x2C][: arguments + 1]) + _assembled(original)
    made += bytes([0x3A, found_at + 1]) + _assembled(*place)
    made += _assembled((0xBB, cls.constant("class", pair)), 0x59, 0x2B)
    made += bytes([0x19, found_at + 1]) + _assembled((0xB7, both), 0x53)
    made += bytes([0x19, found_at + 1]) + _assembled(*copied)
    frame = struct.pack(">BHBH", 252, len(asked), 7, cls.constant("class", entry))
    return Code(asked + made, 6, found_at + 2, (frame,))


def _assembled(*instructions: int | tuple[int, ...]) -> bytes:
    """Return byte code: operations, and pairs of one with its 16-bit operands."""
    parts = [(it,) if isinstance(it, int) else it for it in instructions]
    return b"".join(
        bytes([op]) + b"".join(struct.pack(">H", it) for it in rest) for op, *rest in parts
    )
