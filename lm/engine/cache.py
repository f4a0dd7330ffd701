"""Keys and values of tokens that were read before, so that only what follows them is read.

A tree keeps what a model computed for the tokens of earlier prompts and replies (as SGLang's
RadixAttention does, Zheng et al., 2024): a conversation that grows, its branches, and prompts with a
common beginning share what they have in common, and a shorter prompt uses the beginning of a longer one.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ...errors import LanguageModelError
from .ngrams import NGrams

States: TypeAlias = list[Any]
"""Keys and values of some tokens of one sequence: two tensors ``(layers, heads, tokens, size)``."""


_SPARE = 2**28  # bytes of keys, or of values, that are kept for the next call


class Node:
    """Some tokens in a row, and what a model computed for them after those of its parents."""

    __slots__ = ("children", "parent", "states", "tokens", "used")

    def __init__(self, tokens: tuple[int, ...], states: States, parent: Node | None, used: int):
        self.tokens, self.states, self.parent, self.used = tokens, states, parent, used
        self.children: dict[int, Node] = {}

    @property
    def size(self) -> int:
        """Bytes of the states."""
        return sum(one.nbytes for one in self.states)


class PrefixTree:
    """What a model computed for earlier tokens; the parts that were used least recently go first.

    Args:
        limit: The most bytes that it keeps from one call to the next.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget all: the weights have changed, or memory is short."""
        self._root, self._clock, self.size = Node((), [], None, 0), 0, 0
        self.ngrams = NGrams()  # of the texts that the model wrote

    def find(self, tokens: Sequence[int]) -> list[tuple[Node, int]]:
        """Return the nodes that hold the longest known beginning, each with how many of its tokens."""
        self._clock += 1
        node, done, path = self._root, 0, list[tuple[Node, int]]()
        tokens = tuple(tokens)
        while done < len(tokens) and (child := node.children.get(tokens[done])):
            part = tokens[done : done + len(child.tokens)]
            known = child.tokens[: len(part)]
            alike = len(part) if part == known else common(known, part)
            child.used = self._clock
            path.append((child, alike))
            done += alike
            if alike < len(child.tokens):
                break
            node = child
        return path

    def add(self, tokens: Sequence[int], copy: Callable[[int, int], States]) -> None:
        """Keep tokens; `copy` returns the states of those from one number to another."""
        path = self.find(tokens)
        done = sum(count for _, count in path)
        if done == len(tokens):
            return
        parent = self._root
        if path:
            parent, count = path[-1]
            if count < len(parent.tokens):
                parent = self._split(parent, count)
            elif not parent.children:  # it grows: one part is copied faster than several
                self.size -= parent.size
                parent.tokens = tuple(tokens[done - count :])
                parent.states = copy(done - count, len(tokens))
                self.size += parent.size
                return
        states = copy(done, len(tokens))
        child = Node(tuple(tokens[done:]), states, parent, self._clock)
        parent.children[tokens[done]] = child
        self.size += child.size

    def _split(self, node: Node, count: int) -> Node:
        """Cut a node in two, and return the first part, which takes its place."""
        assert node.parent is not None
        before = [one[:, :, :count].clone() for one in node.states]
        first = Node(node.tokens[:count], before, node.parent, node.used)
        node.parent.children[node.tokens[0]] = first
        node.states = [one[:, :, count:].clone() for one in node.states]
        node.tokens, node.parent = node.tokens[count:], first
        first.children[node.tokens[0]] = node
        return first

    def shrink(self) -> None:
        """Forget leaves, the least recently used first, until the rest keeps to the limit."""
        if self.size <= self.limit:
            return
        while self.size > 0.9 * self.limit:
            leaves = sorted(self._leaves(self._root), key=lambda node: node.used)
            for leaf in leaves:
                if self.size <= 0.9 * self.limit:
                    break
                assert leaf.parent is not None
                del leaf.parent.children[leaf.tokens[0]]
                self.size -= leaf.size

    def _leaves(self, root: Node) -> Iterator[Node]:
        waiting = [root]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if not node.children and node is not root:
                yield node


def common(one: Any, other: Any) -> int:
    """Return with how many equal tokens two texts begin."""
    size = min(len(one), len(other))
    unlike = np.flatnonzero(np.asarray(one)[:size] != np.asarray(other)[:size])
    return int(unlike[0]) if len(unlike) else size


@lru_cache(maxsize=1)
def _layer_class() -> Any:
    from transformers.cache_utils import DynamicLayer

    layer: Any = DynamicLayer

    class SlotLayer(layer):  # type: ignore[misc]
        """A layer of `RowCache`."""

        def __init__(self, cache: Any, number: int) -> None:
            super().__init__()
            # Weak: a circle would keep the rooms, tens of megabytes each, until Python looks for
            # circles, which is seldom. With many passes (RAP) that was three gigabytes.
            self.cache: Any = weakref.proxy(cache)
            self.number = number

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            new, cache = (key_states, value_states), self.cache
            if not cache.rooms:
                cache.rooms = [
                    cache.new_room(n, one, one.shape[1], one.shape[3]) for n, one in enumerate(new)
                ]
            rooms = [room[self.number] for room in cache.rooms]
            for room, one in zip(rooms, new, strict=True):
                if (room.shape[1], room.shape[3]) != (one.shape[1], one.shape[3]):
                    raise LanguageModelError(
                        "expected a model whose layers have keys and values of one shape, found "
                        f"{(room.shape[1], room.shape[3])} and {(one.shape[1], one.shape[3])} (heads, "
                        "size); ask such a model on a server"
                    )
                if isinstance(cache.slots, slice):
                    room[:, :, cache.slots] = one
                else:
                    room[cache.numbers, :, cache.slots] = one.transpose(1, 2)
            if isinstance(cache.slots, slice) and cache.slots == slice(0, cache.upto):
                return new  # all there is, and laid out better than the room
            return rooms[0][:, :, : cache.upto], rooms[1][:, :, : cache.upto]

        def get_seq_length(self) -> int:
            slots = self.cache.slots
            return int(slots.start if isinstance(slots, slice) else self.cache.upto)

        def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
            return int(self.cache.upto), 0

    return SlotLayer


@lru_cache(maxsize=1)
def cache_class() -> Any:
    """Return the class of a batch's cache, which transformers' models write and read."""
    from transformers.cache_utils import Cache

    parent: Any = Cache

    class RowCache(parent):  # type: ignore[misc]
        """Rows of any lengths side by side: what is at position n of a row is in its slot n.

        Attributes:
            room: How many slots each row has. The last is never read: padding goes there.
            known: How many slots of every row `fill` will fill.
            rooms: Keys and values, two tensors ``(layers, rows, heads, slots, size)``.
            slots: Where the next tokens go: a slice, or a tensor ``(rows, tokens)``.
            upto: The slots before this one are read.
        """

        def __init__(
            self, layers: int, rows: int, room: int, known: int, spare: dict[int, Any]
        ) -> None:
            self.rows, self.room, self.upto = rows, room + 1, 0
            self.known, self.spare = known, spare
            self.rooms: list[Any] = []
            self.slots: Any = slice(0, 0)
            self.numbers: Any = None
            super().__init__(layers=[_layer_class()(self, number) for number in range(layers)])

        def new_room(self, which: int, like: Any, heads: int, features: int) -> Any:
            """Return zeros, but for slots that will be filled: a slot that is not seen may hold no NaN.

            On a CPU it is the memory of the call before, if that is little: fresh pages are slow.
            """
            shape = (len(self.layers), self.rows, heads, self.room, features)
            flat, size = self.spare.get(which), math.prod(shape)
            if like.device.type != "cpu" or size * like.element_size() > _SPARE:
                return like.new_zeros(shape)
            if flat is None or flat.numel() < size or flat.dtype != like.dtype:
                flat = self.spare[which] = like.new_empty(size + size // 4)
            room = flat[:size].view(shape)
            room[:, :, :, self.known :] = 0
            return room

        def fill(self, row: int, path: Sequence[tuple[Node, int]]) -> None:
            """Copy known states into a row, from its start."""
            start = 0
            for node, count in path:
                if not self.rooms:
                    self.rooms = [
                        self.new_room(n, one, one.shape[1], one.shape[3])
                        for n, one in enumerate(node.states)
                    ]
                for room, one in zip(self.rooms, node.states, strict=True):
                    room[:, row, :, start : start + count] = one[:, :, :count]
                start += count

        def states(self, row: int, start: int, end: int) -> States:
            """Return a copy of a row's states from one slot to another."""
            return [room[:, row, :, start:end].clone() for room in self.rooms]

        def select(self, indices: Any) -> None:
            """Keep some rows, also several times."""
            self.rooms = [room.index_select(1, indices) for room in self.rooms]

        def only(self, numbers: Sequence[int]) -> list[int]:
            """Keep some rows, of ascending numbers; return their numbers in the new order.

            Rows move to where others leave: a copy of all would be slower than the model.
            """
            count = len(numbers)
            order = list(range(count))
            late = (number for number in numbers if number >= count)
            for free in sorted(set(order).difference(numbers)):
                order[free] = next(late)
                for room in self.rooms:
                    room[:, free] = room[:, order[free]]
            self.rooms = [room[:, :count] for room in self.rooms]
            return order

    return RowCache


@lru_cache(maxsize=1)
def line_mask() -> Any:
    """Return the class of the mask of a line: the new tokens of all rows, each after those of its row.

    It does the attention that it is given to, row by row, as torch's `CausalBias` does its own.
    """
    import torch

    attention, tensor = torch.nn.functional.scaled_dot_product_attention, torch.Tensor

    class LineMask(tensor):  # type: ignore[misc, valid-type]
        parts: list[tuple[int, int, int, Any]]  # of each row: its tokens in the line, slots, mask

        @classmethod
        def of(cls, known: Sequence[int], lengths: Sequence[int], dtype: Any) -> Any:
            """Return the mask of rows of so many slots, of which so many are known."""
            parts, first = [], 0
            for before, upto in zip(known, lengths, strict=True):
                end, mask = first + upto - before, None
                if before:
                    mask = torch.full((end - first, upto), -math.inf, dtype=dtype).triu(before + 1)
                parts.append((first, end, upto, mask))
                first = end
            found = torch.zeros(1).expand(1, 1, first, max(lengths)).as_subclass(cls)
            found.parts = parts
            return found

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), named: Any = None
        ) -> Any:
            if func is attention:
                return by_rows(*args, **(named or {}))
            return super().__torch_function__(func, types, args, named or {})

    def by_rows(query: Any, key: Any, value: Any, attn_mask: Any, **options: Any) -> Any:
        found = []
        for row, (first, end, upto, mask) in enumerate(attn_mask.parts):
            known = (one[row : row + 1, :, :upto] for one in (key, value))
            options["is_causal"] = mask is None
            found.append(attention(query[:, :, first:end], *known, mask, **options))
        return torch.cat(found, 2)

    return LineMask
