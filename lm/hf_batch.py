"""How requests become batches: which go together, padding, masks, and running out of memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LanguageModelError
from .hf_cache import new_cache

__all__ = ["Engine", "chunks"]


def chunks(lengths: Sequence[int], rows: int, tokens: int) -> list[list[int]]:
    """Return which items go together: alike in length, the longest first.

    Args:
        lengths: The tokens of each item.
        rows: The most items in a chunk.
        tokens: The most tokens in a chunk, padding included; an item longer than that is alone.

    Example:
        >>> chunks([3, 90, 5, 4], rows=2, tokens=100)
        [[1], [2, 3], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    found: list[list[int]] = []
    for i in order:
        last = found[-1] if found else []
        if last and len(last) < rows and (len(last) + 1) * lengths[last[0]] <= tokens:
            last.append(i)
        else:
            found.append([i])
    return found


@dataclass(slots=True)
class Engine:
    """A model with the limits of its batches.

    Attributes:
        model: A causal language model of the transformers library, without wrappers.
        device: Where it is.
        rows: The most sequences in a batch.
        tokens: The most tokens in a batch, padding included.
        context: The most tokens in a sequence, or None.
        short_of_memory: Whether it has already been said that a batch did not fit.
    """

    model: Any
    device: Any
    rows: int
    tokens: int
    context: int | None = None
    short_of_memory: bool = False

    def run(
        self,
        lengths: Sequence[int],
        work: Callable[[list[int]], None],
        fail: Callable[[int, LanguageModelError], None],
    ) -> None:
        """Do the work on all items, in chunks that are halved when the GPU has not enough memory.

        Args:
            lengths: The tokens of each item.
            work: Answers the items of these indices; it may be called again for the same ones.
            fail: Called for an item that does not fit even alone.
        """
        import torch

        waiting = chunks(lengths, self.rows, self.tokens)[::-1]
        while waiting:
            chunk = waiting.pop()
            try:
                work(chunk)
                continue
            except torch.OutOfMemoryError:
                pass  # dealt with below, where the error's frames no longer hold tensors
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if len(chunk) == 1:
                fail(chunk[0], _too_large(lengths[chunk[0]]))
                continue
            self._warn(len(chunk))
            half = len(chunk) // 2
            waiting += [chunk[half:], chunk[:half]]

    def _warn(self, rows: int) -> None:
        if not self.short_of_memory:
            self.short_of_memory = True
            warnings.warn(
                f"a batch of {rows} sequences does not fit into the GPU's memory and is halved; "
                "smaller batch_tokens or batch_rows avoid the wasted attempt",
                ResourceWarning,
                stacklevel=2,
            )

    def pad(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Any, Any]:
        """Return prompts as one batch, padded on the left.

        Returns:
            Token ids, their positions, and where there are tokens: three tensors of rows by length.
        """
        import torch

        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor(
            [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=self.device
        )
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        positions = torch.arange(width, device=self.device) + (lengths - width)[:, None]
        return ids, positions.clamp(min=0), positions >= 0

    def additive(self, allowed: Any) -> Any:
        """Return a mask that is 0 where `allowed` and hugely negative elsewhere."""
        import torch

        dtype = self.model.dtype
        mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        # Eager attention looks at double precision in single; half of its range is far enough.
        least = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min) / 2
        return mask.masked_fill_(~allowed, least)

    def causal(self, valid: Any, before: int = 0) -> Any:
        """Return the mask of padded prompts, or None where none is needed.

        Args:
            valid: Where there are tokens, rows by length.
            before: Number of tokens in the cache, which all rows see.
        """
        if not before and bool(valid.all()):
            return None
        import torch

        width = valid.shape[1]
        earlier = torch.ones(width, width, dtype=torch.bool, device=self.device).tril_()
        seen = torch.nn.functional.pad(earlier & valid[:, None, :], (before, 0), value=True)
        return self.additive(seen[:, None])

    def new_cache(self) -> Any:
        """Return an empty cache for this model."""
        return new_cache(self.model.config.get_text_config(decoder=True).num_hidden_layers)


def _too_large(tokens: int) -> LanguageModelError:
    return LanguageModelError(
        f"a sequence of {tokens:,} tokens does not fit into the GPU's memory by itself; shorten the "
        "conversation, or use a smaller model or dtype bfloat16"
    )
