"""`Unicode`, the space of texts, and how vector environments carry it.

Gymnasium's own `Text` space lists every allowed character, which rules out full Unicode, and its
shared-memory form returns stale text (Gymnasium 1.4). `Unicode` allows any text up to a length.
Gymnasium dispatches shared memory on the type of the space; the functions at the end of this module
are what it finds for `Unicode`, so that ``gym.make_vec(id, vectorization_mode="async")`` works with
its default ``shared_memory=True`` too.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from numpy.typing import NDArray

from .errors import OptionError, check_number

_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz 0123456789"
_BYTES_PER_CHARACTER = 4  # the most that UTF-8 needs


class Unicode(gymnasium.Space[str]):
    """All texts of at most `max_length` characters (code points), the empty text included.

    Args:
        max_length: The greatest length, in characters.
        seed: Seed of the space's own generator, used by `sample`.

    Raises:
        OptionError: `max_length` is not a positive whole number.

    Example:
        >>> space = Unicode(100)
        >>> "go to fridge 1" in space, 3 in space, "x" * 101 in space
        (True, False, False)
    """

    def __init__(self, max_length: int = 32_768, seed: int | np.random.Generator | None = None):
        check_number("max_length", max_length)
        self.max_length = max_length
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: texts have no fixed-size array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Return a random text of 1 to 16 letters, digits and blanks; the arguments do nothing."""
        length = int(self.np_random.integers(1, min(16, self.max_length) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[pick] for pick in picks)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((Unicode, self.max_length))

    def too_long(self, text: str) -> OptionError:
        """Return the error for a text that does not fit.

        Example:
            >>> print(Unicode(3).too_long("four"))
            expected a text of at most 3 characters, found 4; a larger max_text_length makes room
        """
        return OptionError(
            f"expected a text of at most {self.max_length} characters, found {len(text)}; "
            "a larger max_text_length makes room"
        )

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Return the texts as a list, which JSON can hold."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Return the texts of a list that JSON held."""
        return [str(text) for text in sample_n]


class _SharedTexts(Sequence[str]):
    """The texts in a shared-memory buffer, decoded when they are looked at.

    Gymnasium makes it once and returns it (copied, unless it is told not to) after every step.
    """

    def __init__(self, buffer: Any, size: int, count: int):
        self.buffer = buffer
        self._lengths = np.frombuffer(buffer[0].get_obj(), dtype=np.int64)
        self._bytes = np.frombuffer(buffer[1].get_obj(), dtype=np.uint8).reshape(count, size)

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]

        # Half a surrogate pair is a text in Python, and JSON from a server may hold one.
        raw: NDArray[np.uint8] = self._bytes[index, : self._lengths[index]]
        return raw.tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        # A copy outlives the next step, which overwrites the buffer: it is of plain texts.
        return tuple(self)


@create_shared_memory.register(Unicode)
def _create(space: Unicode, n: int = 1, ctx: Any = multiprocessing) -> tuple[Any, Any]:
    size = space.max_length * _BYTES_PER_CHARACTER
    return ctx.Array("q", n), ctx.Array("B", n * size)


@read_from_shared_memory.register(Unicode)
def _read(space: Unicode, shared_memory: Any, n: int = 1) -> _SharedTexts:
    return _SharedTexts(shared_memory, space.max_length * _BYTES_PER_CHARACTER, n)


@write_to_shared_memory.register(Unicode)
def _write(space: Unicode, index: int, value: str, shared_memory: Any) -> None:
    if len(value) > space.max_length:
        raise space.too_long(value)

    # The length beside the bytes: a shorter text than before leaves the end of the old one there.
    lengths, buffer = shared_memory
    raw = value.encode("utf-8", "surrogatepass")
    start = index * space.max_length * _BYTES_PER_CHARACTER
    np.frombuffer(buffer.get_obj(), dtype=np.uint8)[start : start + len(raw)] = np.frombuffer(
        raw, dtype=np.uint8
    )
    np.frombuffer(lengths.get_obj(), dtype=np.int64)[index] = len(raw)
