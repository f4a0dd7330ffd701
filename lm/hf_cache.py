"""The keys and values of a batch under way, in memory that is taken in blocks.

The cache of the transformers library copies everything at every step in order to grow by one token;
with long prompts in large batches that costs as much as the model itself. This one copies only when
a block is full.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["new_cache"]

BLOCK = 64


def new_cache(layers: int) -> Any:
    """Return an empty cache for a model of so many layers, all of which attend to everything."""
    from transformers.cache_utils import Cache

    layer = _layer_class()
    return Cache(layers=[layer() for _ in range(layers)])


@lru_cache(maxsize=1)
def _layer_class() -> Any:
    from transformers.cache_utils import DynamicLayer

    parent: Any = DynamicLayer

    class BlockLayer(parent):  # type: ignore[misc]
        """A layer whose `keys` and `values` are views of the used part of larger tensors."""

        keys: Any
        values: Any

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                self._room = [key_states[:, :, :0], value_states[:, :, :0]]
            used, new = self.get_seq_length(), key_states.shape[-2]
            if used + new > self._room[0].shape[-2]:
                size = used + new + BLOCK
                self._room = [
                    _larger(self.keys if used else key_states, size, used, key_states),
                    _larger(self.values if used else value_states, size, used, value_states),
                ]
            else:
                self._room[0][:, :, used : used + new] = key_states
                self._room[1][:, :, used : used + new] = value_states
            self.keys, self.values = (room[:, :, : used + new] for room in self._room)
            # What was just computed is laid out better for attention than the view of it.
            return (self.keys, self.values) if used else (key_states, value_states)

        def batch_select_indices(self, indices: Any) -> None:
            if self.get_seq_length():
                used = self.get_seq_length()
                self._room = [room.index_select(0, indices) for room in self._room]
                self.keys, self.values = (room[:, :, :used] for room in self._room)

    return BlockLayer


def _larger(old: Any, size: int, used: int, new: Any) -> Any:
    """Return a tensor with room for `size` tokens that begins with the old ones and the new."""
    batch, heads, count, width = new.shape
    room = new.new_empty(batch, heads, size, width)
    room[:, :, :used] = old[:, :, :used]
    room[:, :, used : used + count] = new
    return room
