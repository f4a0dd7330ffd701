"""Whether a model's weights have changed since the last call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

_SAMPLES = 8  # values of each weight


class WeightWatch:
    """Notices that weights have changed: by an optimizer, or by what writes to a weight's `data`.

    The latter leaves no mark of it: some values of each weight are compared, too. They are read where they
    are, so that a GPU is waited for once.
    """

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []
        self._samples: list[Any] = []

    def changed(self, weights: Sequence[Any]) -> bool:
        """Return whether weights are others than at the last call; at the first they are."""
        import torch

        marks = [(weight.data_ptr(), weight._version) for weight in weights]
        samples = _samples_of(weights)
        is_changed = marks != self._marks
        if not is_changed:
            pairs = zip(samples, self._samples, strict=True)
            is_changed = not all(torch.equal(now, before) for now, before in pairs)

        self._marks = marks
        self._samples = samples
        return is_changed


def _samples_of(weights: Sequence[Any]) -> list[Any]:
    """Return a few values of each weight, those of one device and type together."""
    import torch

    parts: defaultdict[tuple[Any, Any], list[Any]] = defaultdict(list)
    with torch.no_grad():
        for weight in weights:
            step = weight.numel() // _SAMPLES + 1
            parts[weight.device, weight.dtype].append(weight.flatten()[::step])
        return [torch.cat(together) for together in parts.values()]
