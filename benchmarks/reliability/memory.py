"""Whether memory grows: a line through what a process held over its second half."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..record import resident_bytes

__all__ = ["Memory", "growth_mb", "resident_mb_of"]

_LEAST = 6


def growth_mb(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return by how much memory grew over the second half of the samples, by linear regression.

    The first half fills caches and is left out. Caches are bounded, so that what still grows later is
    a leak or a cache that is too large.

    Args:
        samples: When (seconds, steps) and how much (MB), in order.

    Returns:
        Megabytes, or None where there are too few samples to tell.

    Example:
        >>> growth_mb([(float(n), 100.0 + max(0, n - 10)) for n in range(21)])
        10.0
    """
    half = samples[len(samples) // 2 :]
    if len(half) < _LEAST or half[0][0] == half[-1][0]:
        return None
    when, held = np.array(half).T
    slope = np.polyfit(when - when[0], held, 1)[0]
    return round(float(slope * (when[-1] - when[0])), 2)


def resident_mb_of(process: int) -> float | None:
    """Return how much memory a process holds, in MB; None where the system does not say.

    Example:
        >>> import os
        >>> (resident_mb_of(os.getpid()) or 1.0) > 0
        True
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    told = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(told[0]) / 1024 if told else None


class Memory:
    """Samples of what this process holds.

    Example:
        >>> memory = Memory()
        >>> memory.sample(0.0)
        >>> memory.growth() is None
        True
    """

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []

    def sample(self, when: float) -> None:
        """Note what is held now, garbage left out."""
        gc.collect()
        held = resident_bytes()
        if held is not None:
            self.samples.append((when, held / 2**20))

    def growth(self) -> float | None:
        """Return the growth over the second half, in MB; None where that cannot be told."""
        return growth_mb(self.samples)

    def most(self) -> float | None:
        """Return the most that was held, in MB."""
        return round(max(held for _, held in self.samples), 1) if self.samples else None
