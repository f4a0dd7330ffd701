"""Sparing the simulator work that it does over and over: a jar that is put before its own.

Most of a step goes into splitting the same few thousand names into words, by regular expressions,
for every verb and every thing in sight. Here the class that does so gets a method in front of the
one that splits: it looks into a table first, and asks the original for what is not there. Another
method gathers names that are only printed, to where nobody reads; that one is left out. All answers
stay what they are, byte for byte.

What is patched is the user's own copy of the simulator, in memory. Only the jar that this was
written for is: with any other, the simulator runs as it is.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from ..storage import comap_home
from .classfile import ClassFile, Code

__all__ = ["classpath", "patched_class"]

_KNOWN = "f4e1fdce0cdabe1bab7128a7e78ea820210d9db3c28d7272bcbbc3f3a1c5f0d7"  # scienceworld 1.2.3
_FILE = "scienceworld/input/InputParser$.class"
_OWNER = _FILE.removesuffix(".class")
_ENTRIES = 4096  # a power of two; there are some 2,000 names
_WORDS = "[Ljava/lang/String;"
_TABLE, _TABLE_TYPE = "comap$words", "[Ljava/util/Map$Entry;"
_MADE, _SPLIT = "comap$made", "comap$tokenize"


def classpath(jar: Path) -> tuple[Path, ...]:
    """Return the jars of the simulator, those first that go before the others.

    Example:
        >>> classpath(Path("no/such.jar"))
        (PosixPath('no/such.jar'),)
    """
    before = _jar_before(jar)
    return (jar,) if before is None else (before, jar)


def patched_class(data: bytes) -> bytes:
    """Return the class that splits names into words, with a table in front.

    Args:
        data: The class file of the simulator's ``InputParser$``.

    Raises:
        ValueError: It is another class, or none.
    """
    cls = ClassFile(data)
    cls.add_field(_TABLE, _TABLE_TYPE)
    cls.wrap("<clinit>", "()V", _MADE, _making(cls))
    cls.wrap("tokenize", f"(Ljava/lang/String;){_WORDS}", _SPLIT, _looking_up(cls))
    things = "Lscienceworld/struct/EnvObject;"
    nothing = _assembled(0x03, (0xBD, cls.constant("class", "java/lang/String")), 0xB0)
    cls.wrap(
        "getPossibleReferents", f"({things}{things}){_WORDS}", "comap$printed", Code(nothing, 1, 3)
    )
    return cls.data()


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
        patched = patched_class(archive.read(_FILE))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_FILE), patched)  # with a date that is always the same
    return _kept(packed.getvalue())


def _kept(data: bytes) -> Path | None:
    """Return a file of ours with this content; None where none can be written."""
    name = f"words-{hashlib.sha256(data).hexdigest()[:16]}.jar"
    file = comap_home() / "scienceworld" / name
    try:
        if file.is_file() and file.read_bytes() == data:
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
        os.replace(temporary, file)
    except OSError:
        return None  # slower, with the same answers
    return file


def _making(cls: ClassFile) -> Code:
    """Return code that makes the table, and then does what the class does when it is loaded."""
    entry = cls.constant("class", "java/util/Map$Entry")
    table = cls.constant("field", _OWNER, _TABLE, _TABLE_TYPE)
    made = cls.constant("method", _OWNER, _MADE, "()V")
    return Code(_assembled((0x11, _ENTRIES), (0xBD, entry), (0xB3, table), (0xB8, made), 0xB1), 1, 0)


def _looking_up(cls: ClassFile) -> Code:
    """Return code that takes the words of a text (variable 1) from the table, or puts them there.

    An entry (variable 2) holds a text and its words (variable 3 for new ones); entries are never
    changed, only replaced. Everybody gets a copy of the words.
    """
    entry, pair = "java/util/Map$Entry", "java/util/AbstractMap$SimpleImmutableEntry"
    text_type, words_type = "Ljava/lang/String;", cls.constant("class", _WORDS)
    table = (0xB2, cls.constant("field", _OWNER, _TABLE, _TABLE_TYPE))
    digest = (0xB6, cls.constant("method", "java/lang/String", "hashCode", "()I"))
    place = (table, 0x2B, digest, (0x11, _ENTRIES - 1), 0x7E)
    equal = cls.constant("method", "java/lang/Object", "equals", "(Ljava/lang/Object;)Z")
    both = "(Ljava/lang/Object;Ljava/lang/Object;)V"
    key = (0xB9, cls.constant("interface", entry, "getKey", "()Ljava/lang/Object;"), 0x0100)
    value = (0xB9, cls.constant("interface", entry, "getValue", "()Ljava/lang/Object;"), 0x0100)
    copied = (
        (0xB6, cls.constant("method", _WORDS, "clone", "()Ljava/lang/Object;")),
        (0xC0, words_type),
        0xB0,
    )
    split = cls.constant("method", _OWNER, _SPLIT, f"({text_type}){_WORDS}")
    found = _assembled(0x2C, value, (0xC0, words_type), *copied)
    same = _assembled(0x2C, key, 0x2B, (0xB6, equal))
    asked = _assembled(*place, 0x32, 0x4D)
    hit = same + _assembled((0x99, 3 + len(found))) + found
    asked += _assembled(0x2C, (0xC6, 3 + len(hit))) + hit
    new = _assembled(
        *(0x2A, 0x2B, (0xB6, split), 0x4E, *place),
        *((0xBB, cls.constant("class", pair)), 0x59, 0x2B, 0x2D),
        *((0xB7, cls.constant("method", pair, "<init>", both)), 0x53, 0x2D, *copied),
    )
    frame = struct.pack(">BHBH", 252, len(asked), 7, cls.constant("class", entry))
    return Code(asked + new, 6, 4, (frame,))


def _assembled(*instructions: int | tuple[int, ...]) -> bytes:
    """Return byte code: operations, and pairs of one with its 16-bit operands."""
    parts = [(it,) if isinstance(it, int) else it for it in instructions]
    return b"".join(bytes([op]) + b"".join(struct.pack(">H", it) for it in rest) for op, *rest in parts)
