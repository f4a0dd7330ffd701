"""Putting methods in front of those of a compiled Java class, in memory.

A class file is a table of constants, some headers, fields and methods (The Java Virtual Machine
Specification, chapter 4). New constants and methods go to the ends of their tables, so that what is
there stays as it is; a method that gets another in front of it is only renamed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["ClassFile", "Code"]

_MAGIC = 0xCAFEBABE
_PUBLIC, _PRIVATE = 0x0001, 0x0002
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4}
_SIZES |= {18: 4, 19: 2, 20: 2}  # how long a constant of each kind is; texts, kind 1, tell it
_TEXT, _CLASS, _METHOD, _NAME_AND_TYPE, _WIDE = 1, 7, 10, 12, (5, 6)


@dataclass(frozen=True, slots=True)
class Code:
    """The body of a method without jumps, which would need a stack map.

    Attributes:
        instructions: The byte code.
        stack: How many values it keeps at most.
        local: How many local variables it has, its arguments among them.

    Example:
        >>> Code(bytes([0x04, 0xAC]), stack=1, local=0).stack  # return 1
        1
    """

    instructions: bytes
    stack: int
    local: int


class ClassFile:
    """One class.

    Args:
        data: The class file.

    Raises:
        ValueError: It is no class file of Java 8 or older, or of a form not known here.

    Example:
        >>> ClassFile(b"no class")
        Traceback (most recent call last):
        ...
        ValueError: expected a class file, found 8 bytes that are none
    """

    def __init__(self, data: bytes):
        if len(data) < 10 or struct.unpack_from(">I", data)[0] != _MAGIC:
            raise ValueError(f"expected a class file, found {len(data)} bytes that are none")
        self._data, self._count = data, struct.unpack_from(">H", data, 8)[0]
        self._constants: dict[bytes, int] = {}
        self._texts: dict[int, str] = {}
        self._added: list[bytes] = []
        self._end = self._read_constants()
        header = struct.unpack_from(">HHHH", data, self._end)
        _, self._methods = self._members(self._end + 8 + 2 * header[3])  # after the fields
        self._known, self._rest = self._members(self._methods)
        self._renamed: dict[int, int] = {}
        self._published: set[int] = set()
        self._new_methods: list[bytes] = []

    def constant(self, kind: str, *parts: str) -> int:
        """Return the place of a constant, which is added if need be.

        Args:
            kind: ``"text"``, ``"class"`` or ``"method"``.
            parts: The text; the class; or the class, the name and the descriptor.
        """
        if kind == "text":
            text = parts[0].encode()
            return self._place(struct.pack(">BH", _TEXT, len(text)) + text)
        owner = self._place(struct.pack(">BH", _CLASS, self.constant("text", parts[0])))
        if kind == "class":
            return owner
        names = [self.constant("text", part) for part in parts[1:]]
        pair = self._place(struct.pack(">BHH", _NAME_AND_TYPE, *names))
        return self._place(struct.pack(">BHH", _METHOD, owner, pair))

    def wrap(self, name: str, descriptor: str, renamed: str, code: Code) -> None:
        """Rename a method and add one with its old name, its access flags and this code.

        Raises:
            ValueError: There is no such method.
        """
        place, access, named, described = self._found(name, descriptor)
        self._renamed[place] = self.constant("text", renamed)
        self._new_methods.append(self._method(access, named, described, code))

    def publish(self, name: str, descriptor: str) -> None:
        """Make a method public that was private.

        Raises:
            ValueError: There is no such method.
        """
        self._published.add(self._found(name, descriptor)[0])

    def data(self) -> bytes:
        """Return the class file as it is now."""
        body = bytearray(self._data[self._end :])
        for place in self._published:
            access = struct.unpack_from(">H", body, place - self._end)[0]
            struct.pack_into(">H", body, place - self._end, access & ~_PRIVATE | _PUBLIC)
        for place, name in self._renamed.items():
            struct.pack_into(">H", body, place - self._end + 2, name)
        methods = self._methods - self._end
        parts = [
            self._data[:8] + struct.pack(">H", self._count) + self._data[10 : self._end],
            *self._added,
            bytes(body[:methods]),
            _longer(body[methods : self._rest - self._end], self._new_methods),
            bytes(body[self._rest - self._end :]),
        ]
        return b"".join(parts)

    def _found(self, name: str, descriptor: str) -> tuple[int, int, int, int]:
        """Return place, access, name and descriptor of a method."""
        for method in self._known:
            if (self._texts[method[2]], self._texts[method[3]]) == (name, descriptor):
                return method
        raise ValueError(f"expected a method {name}{descriptor}, found none")

    def _read_constants(self) -> int:
        """Note where the constants are; return where their table ends."""
        data, at, place = self._data, 10, 1
        while place < self._count:
            kind = data[at]
            if kind != _TEXT and kind not in _SIZES:
                raise ValueError(f"expected a known kind of constant, found {kind}")
            size = _SIZES[kind] if kind != _TEXT else 2 + struct.unpack_from(">H", data, at + 1)[0]
            constant = data[at : at + 1 + size]
            self._constants.setdefault(constant, place)
            if kind == _TEXT:
                self._texts[place] = constant[3:].decode("utf-8", "replace")
            at += 1 + size
            place += 2 if kind in _WIDE else 1
        return at

    def _members(self, at: int) -> tuple[list[tuple[int, int, int, int]], int]:
        """Return place, access, name and descriptor of fields or methods, and where they end."""
        found = []
        number, at = struct.unpack_from(">H", self._data, at)[0], at + 2
        for _ in range(number):
            access, name, descriptor, attributes = struct.unpack_from(">HHHH", self._data, at)
            found.append((at, access, name, descriptor))
            at += 8
            for _ in range(attributes):
                at += 6 + struct.unpack_from(">I", self._data, at + 2)[0]
        return found, at

    def _place(self, constant: bytes) -> int:
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


def _longer(table: bytearray, new: list[bytes]) -> bytes:
    """Return a table, which begins with the number of its entries, with further ones."""
    number = struct.unpack_from(">H", table)[0] + len(new)
    return struct.pack(">H", number) + bytes(table[2:]) + b"".join(new)
