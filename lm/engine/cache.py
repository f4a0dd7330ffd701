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
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...errors import LanguageModelError
from .ngrams import NGrams

States: TypeAlias = list[Any]
"""Keys and values of some tokens of one sequence: two tensors ``(layers, heads, tokens, size)``."""

_SPARE = 2**28  # bytes of keys, or of values, that are kept for the next call


class Node:
    """Some tokens in a row, and what a model computed for them after those of its parents."""

    __slots__ = ("children", "last_use", "parent", "states", "tokens")

    def __init__(self, tokens: tuple[int, ...], states: States, parent: Node | None, last_use: int):
        self.tokens = tokens
        self.states = states
        self.parent = parent
        self.last_use = last_use
        self.children: dict[int, Node] = {}  # by their first tokens

    @property
    def size(self) -> int:
        """Bytes of the states."""
        return sum(tensor.nbytes for tensor in self.states)


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
        self._root = Node((), [], None, 0)
        self._clock = 0  # counts lookups: a node's last use is a number of it
        self.size = 0
        self.ngrams = NGrams()  # of the texts that the model wrote

    def find(self, tokens: Sequence[int]) -> list[tuple[Node, int]]:
        """Return the nodes that hold the longest known beginning, each with how many of its tokens."""
        self._clock += 1
        node = self._root
        position = 0
        path: list[tuple[Node, int]] = []
        tokens = tuple(tokens)

        while position < len(tokens) and (child := node.children.get(tokens[position])):
            # Mostly the whole node matches: one comparison of tuples is faster than a search.
            part = tokens[position : position + len(child.tokens)]
            node_part = child.tokens[: len(part)]
            alike = len(part) if part == node_part else common(node_part, part)

            child.last_use = self._clock
            path.append((child, alike))
            position += alike
            if alike < len(child.tokens):
                break
            node = child
        return path

    def add(self, tokens: Sequence[int], copy: Callable[[int, int], States]) -> None:
        """Keep tokens; `copy` returns the states of those from one number to another."""
        path = self.find(tokens)
        position = sum(count for _, count in path)
        if position == len(tokens):
            return

        parent = self._root
        if path:
            parent, count = path[-1]
            if count < len(parent.tokens):
                parent = self._split(parent, count)
            elif not parent.children:
                # It grows with its conversation: at the next turn one part is copied into a batch
                # faster than one for each turn so far.
                self.size -= parent.size
                parent.tokens = tuple(tokens[position - count :])
                parent.states = copy(position - count, len(tokens))
                self.size += parent.size
                return

        states = copy(position, len(tokens))
        child = Node(tuple(tokens[position:]), states, parent, self._clock)
        parent.children[tokens[position]] = child
        self.size += child.size

    def _split(self, node: Node, count: int) -> Node:
        """Cut a node in two, and return the first part, which takes its place."""
        assert node.parent is not None

        # Copies: a view of a part would hold the memory of the whole, when the other part is forgotten.
        first_states = [tensor[:, :, :count].clone() for tensor in node.states]
        first = Node(node.tokens[:count], first_states, node.parent, node.last_use)
        node.parent.children[node.tokens[0]] = first

        node.states = [tensor[:, :, count:].clone() for tensor in node.states]
        node.tokens = node.tokens[count:]
        node.parent = first
        first.children[node.tokens[0]] = node
        return first

    def shrink(self) -> None:
        """Forget leaves, the least recently used first, until the rest keeps to the limit."""
        if self.size <= self.limit:
            return

        # A tenth more than needed: the next calls need not search the tree again. Several rounds, for a
        # parent becomes a leaf when its last child goes.
        while self.size > 0.9 * self.limit:
            leaves = sorted(self._leaves(self._root), key=lambda node: node.last_use)
            for leaf in leaves:
                if self.size <= 0.9 * self.limit:
                    break
                assert leaf.parent is not None
                del leaf.parent.children[leaf.tokens[0]]
                self.size -= leaf.size

    def _leaves(self, root: Node) -> Iterator[Node]:
        # No recursion: the tree may be as deep as a conversation has turns.
        waiting = [root]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if not node.children and node is not root:
                yield node


def common(first: Any, second: Any) -> int:
    """Return with how many equal tokens two texts begin."""
    size = min(len(first), len(second))
    differences = np.flatnonzero(np.asarray(first)[:size] != np.asarray(second)[:size])
    return int(differences[0]) if len(differences) else size


def to_device(numbers: Any, device: Any) -> Any:
    """Return an array of numbers as a tensor on a device, without waiting for a GPU."""
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


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
            """Store the next tokens' keys and values; return all that attention looks at.

            Models call it in each layer; their further arguments are for other kinds of caches.
            """
            cache = self.cache
            new_states = (key_states, value_states)
            if cache.views is None:
                cache.make_views(new_states)

            for views, states in zip(cache.views, new_states, strict=True):
                shape = (states.shape[1], states.shape[3])
                if shape != views.shape:
                    raise LanguageModelError(
                        "expected a model whose layers have keys and values of one shape, found "
                        f"{views.shape} and {shape} (heads, size); ask such a model on a server"
                    )

                # A slice is a plain copy; slots that differ by row are scattered, which is slower.
                written = views.written[self.number]
                if cache.index is None:
                    written.copy_(states)
                else:
                    written.index_copy_(0, cache.index, states.reshape(-1, states.shape[3]))

            if cache.index is None and cache.slots == slice(0, cache.upto):
                return new_states  # all there is, and laid out better than the room
            keys, values = cache.views
            return keys.read[self.number], values.read[self.number]

        def get_seq_length(self) -> int:
            """Return the slot of the next token; where the rows' slots differ, how many are read."""
            slots = self.cache.slots
            return int(slots.start if isinstance(slots, slice) else self.cache.upto)

        def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
            """Return how many slots attention looks at, and the first of them."""
            return int(self.cache.upto), 0

    return SlotLayer


class _Views(NamedTuple):
    """What each layer writes and reads of a room in one pass.

    Attributes:
        shape: How many heads there are, and the size of each.
        written: Of each layer, the block of slots of the next tokens; or all slots of all rows and heads
            in a line.
        read: Of each layer, what attention looks at.
    """

    shape: tuple[int, int]
    written: Sequence[Any]
    read: Sequence[Any]


def _views_of(room: Any, slots: Any, upto: int) -> _Views:
    """Return views of all layers of a room, by one operation: one for each layer costs more than it does.

    Args:
        room: Keys or values, ``(layers, rows, heads, slots, size)``.
        slots: Where the next tokens go: a slice, or a tensor.
        upto: The slots before this one are read.
    """
    layers, _, heads, _, features = room.shape
    if isinstance(slots, slice):
        written = room[:, :, :, slots]
    else:
        written = room.view(layers, -1, features)
    return _Views((heads, features), written.unbind(0), room[:, :, :, :upto].unbind(0))


def _index(heads: int, slot_count: int, slots: Any, row_numbers: Any) -> Any:
    """Return where tokens of rows go in a line of all rows, heads and slots, for all of their heads."""
    import torch

    head_numbers = torch.arange(heads, device=slots.device)[:, None]
    lines = row_numbers[:, None] * heads + head_numbers
    return (lines * slot_count + slots[:, None]).flatten()


def _reused(spare: dict[int, Any], kind: int, example: Any, size: int) -> Any:
    """Return memory for so many numbers: that of the call before, where it is enough.

    On a CPU fresh pages are slow.
    """
    memory = spare.get(kind)
    if memory is None or memory.numel() < size or memory.dtype != example.dtype:
        # A quarter more, since the next call's prompts are mostly a little longer.
        memory = spare[kind] = example.new_empty(size + size // 4)
    return memory


def _new_room(
    spare: dict[int, Any], kind: int, example: Any, shape: tuple[int, ...], filled: int
) -> Any:
    """Return room for all keys (kind 0) or values (1), of the type and on the device of an example.

    It has zeros, where nothing will be filled in: an unseen NaN times a weight of zero is NaN.
    """
    size = math.prod(shape)
    if example.device.type != "cpu" or size * example.element_size() > _SPARE:
        return example.new_zeros(shape)

    room = _reused(spare, kind, example, size)[:size].view(shape)
    room[:, :, :, filled:] = 0
    return room


def _compacted(row_numbers: Sequence[int]) -> list[int]:
    """Return which row each place gets: those that stay in front keep theirs, the others fill the gaps."""
    count = len(row_numbers)
    order = list(range(count))
    later_numbers = (number for number in row_numbers if number >= count)
    for free_place in sorted(set(order).difference(row_numbers)):
        order[free_place] = next(later_numbers)
    return order


class _Rooms:
    """Rows of any lengths side by side: what is at position n of a row is in its slot n.

    Attributes:
        slot_count: How many slots each row has. The last is never read: padding goes there.
        filled: How many slots of every row `fill` will fill.
        rooms: Keys and values, two tensors ``(layers, rows, heads, slots, size)``.
        slots: Where the next tokens go: a slice, or a tensor ``(rows, tokens)``.
        row_numbers: The rows' numbers, beside `slots` where that is a tensor.
        upto: The slots before this one are read.
        views: Of keys and of values, what the layers write and read in this pass; None until the first
            layer has made them.
        index: Where in a line of all rows, heads and slots the next tokens go; None for a slice.
    """

    def __init__(
        self, layer_count: int, rows: int, slots: int, filled: int, spare: dict[int, Any]
    ) -> None:
        self.layer_count = layer_count
        self.rows = rows
        self.slot_count = slots + 1
        self.upto = 0
        self.filled = filled
        self.spare = spare
        self.rooms: list[Any] = []
        self.slots: Any = slice(0, 0)
        self.row_numbers: Any = None
        self.views: list[_Views] | None = None
        self.index: Any = None

    def make_rooms(self, examples: Sequence[Any]) -> None:
        """Make room for all keys and all values, like an example of each, ``(_, heads, _, size)``.

        Examples, since they alone have the sizes for certain: configs name them in many ways.
        """
        self.rooms = []
        for kind, example in enumerate(examples):
            _, heads, _, features = example.shape
            shape = (self.layer_count, self.rows, heads, self.slot_count, features)
            self.rooms.append(_new_room(self.spare, kind, example, shape, self.filled))

    def place(self, slots: Any, row_numbers: Any = None) -> None:
        """Say where the next tokens go: into a slice of all rows, or each into a slot of its row.

        Args:
            slots: A slice, or a tensor ``(rows, tokens)``.
            row_numbers: The rows' numbers, a tensor that fits to `slots`.
        """
        self.slots = slots
        self.row_numbers = row_numbers
        self.views = None

    def make_views(self, examples: Sequence[Any]) -> None:
        """Make the views of this pass, and rooms like the first states where there are none."""
        if not self.rooms:
            self.make_rooms(examples)

        self.index = None
        if not isinstance(self.slots, slice):
            heads = self.rooms[0].shape[2]
            self.index = _index(heads, self.slot_count, self.slots, self.row_numbers)
        self.views = [_views_of(room, self.slots, self.upto) for room in self.rooms]

    def fill(self, row: int, path: Sequence[tuple[Node, int]]) -> None:
        """Copy known states into a row, from its start."""
        start = 0
        for node, count in path:
            if not self.rooms:
                self.make_rooms(node.states)
            for room, states in zip(self.rooms, node.states, strict=True):
                room[:, row, :, start : start + count] = states[:, :, :count]
            start += count

    def states(self, row: int, start: int, end: int) -> States:
        """Return a copy of a row's states from one slot to another."""
        return [room[:, row, :, start:end].clone() for room in self.rooms]

    def select(self, indices: Any) -> None:
        """Keep some rows, also several times."""
        self.rooms = [room.index_select(1, indices) for room in self.rooms]

    def drop_others(self, row_numbers: Sequence[int]) -> list[int]:
        """Drop all rows but those of some ascending numbers; return these in their new order.

        Rows move to where others leave: a copy of all would be slower than the model.
        """
        order = _compacted(row_numbers)
        for room in self.rooms:
            # Row by row: on a CPU `index_select` of such a view takes longer than the model.
            read = room[:, :, :, : self.upto]
            for place, number in enumerate(order):
                if place != number:
                    read[:, place] = read[:, number]
        self.rooms = [room[:, : len(order)] for room in self.rooms]
        return order


@lru_cache(maxsize=1)
def cache_class() -> Any:
    """Return the class of a batch's cache, which transformers' models write and read."""
    from transformers.cache_utils import Cache

    parent: Any = Cache

    class RowCache(_Rooms, parent):  # type: ignore[misc]
        """The rooms of all layers, in the form that models expect."""

        def __init__(
            self, layers: int, rows: int, slots: int, filled: int, spare: dict[int, Any]
        ) -> None:
            _Rooms.__init__(self, layers, rows, slots, filled, spare)
            parent.__init__(self, [_layer_class()(self, number) for number in range(layers)])

    return RowCache


class _LinePart(NamedTuple):
    """A row's new tokens in a line.

    Attributes:
        start: Where in the line they start.
        end: Where they end.
        text_length: How many tokens the row has, new and old; these are its first slots.
        mask: What is added to the scores of these slots for each new token: 0 or, where it does not see
            one, minus infinity. None if all tokens are new: each sees those before it.
    """

    start: int
    end: int
    text_length: int
    mask: Any


@lru_cache(maxsize=1)
def line_mask() -> Any:
    """Return the class of the attention mask of a line: the new tokens of all rows, row after row.

    Tokens of one row see nothing of others, so that a mask of all pairs would be mostly of pairs that do
    not see each other, and attention would be computed for them. This mask is a tensor in form alone:
    torch calls it in place of attention, as it does its own `CausalBias`, and it attends row by row.
    """
    import torch

    attention = torch.nn.functional.scaled_dot_product_attention
    tensor: Any = torch.Tensor

    class LineMask(tensor):  # type: ignore[misc]
        parts: list[_LinePart]  # one for each row

        @classmethod
        def of(cls, old_lengths: Sequence[int], text_lengths: Sequence[int], dtype: Any) -> Any:
            """Return the mask for rows of these lengths, of which the first tokens were read before."""
            parts = []
            start = 0
            for old_length, text_length in zip(old_lengths, text_lengths, strict=True):
                new_length = text_length - old_length
                end = start + new_length

                # The first new token sees the old ones and itself, each further one one more. Without
                # old ones the kernel's own causal mask is the same, and faster.
                mask = None
                if old_length:
                    hidden = torch.full((new_length, text_length), -math.inf, dtype=dtype)
                    mask = hidden.triu(old_length + 1)
                parts.append(_LinePart(start, end, text_length, mask))
                start = end

            # One zero seen as a mask of the shape that the model expects: it takes no memory.
            line_length = start
            line = torch.zeros(1).expand(1, 1, line_length, max(text_lengths)).as_subclass(cls)
            line.parts = parts
            return line

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is attention:
                return by_rows(*args, **(kwargs or {}))
            return super().__torch_function__(func, types, args, kwargs or {})

    # The parameters have the names of those of `scaled_dot_product_attention`. Queries come in one line;
    # keys and values are the cache's, a row each.
    def by_rows(query: Any, key: Any, value: Any, attn_mask: Any, **options: Any) -> Any:
        outputs = []
        for row, part in enumerate(attn_mask.parts):
            row_query = query[:, :, part.start : part.end]
            row_key = key[row : row + 1, :, : part.text_length]
            row_value = value[row : row + 1, :, : part.text_length]
            options["is_causal"] = part.mask is None
            outputs.append(attention(row_query, row_key, row_value, part.mask, **options))
        return torch.cat(outputs, 2)

    return LineMask
