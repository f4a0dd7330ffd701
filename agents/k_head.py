"""ITP's depth head: how far to look ahead, read from a hidden state; and how it is taught."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataCorrupt, DataNotFound, LanguageModelError, MissingExtra, OptionError
from .tensor_file import read_tensors, write_tensors

__all__ = ["KHead", "pseudo_label_k"]


def pseudo_label_k(log_probs: Sequence[float], cost: float = 0.2) -> int:
    """Return the depth that pays best: the K that maximises ``log_probs[K] - cost * K``.

    The labels of ITP's first training stage (METHODS.md 3, ITP_R).

    Args:
        log_probs: Log-probability of the expert's action, given K imagined steps, for K = 0, 1, ...
        cost: What each imagined step costs.

    Raises:
        OptionError: There are no values, or one is not a number.

    Example:
        >>> pseudo_label_k([-2.0, -0.5, -0.4])
        1
    """
    if not log_probs or any(math.isnan(value) for value in log_probs):
        raise OptionError(
            f"expected a log-probability for each depth from 0 up, found {list(log_probs)!r:.200}"
        )
    gains = [value - cost * depth for depth, value in enumerate(log_probs)]
    return max(range(len(gains)), key=lambda depth: (gains[depth], -depth))


@dataclass(frozen=True, slots=True, eq=False)
class KHead:
    """A linear layer from a hidden state to one logit for each depth 0 to K_max.

    Attributes:
        weight: Shape ``(K_max + 1, hidden)``, single precision.
        bias: Shape ``(K_max + 1,)``, single precision.

    Raises:
        OptionError: The shapes do not fit, or a value is not finite.

    Example:
        >>> KHead([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.5]).choose([1.0, 0.7])
        1
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def __init__(self, weight: ArrayLike, bias: ArrayLike):
        rows = np.array(weight, dtype=np.float32)
        shifts = np.array(bias, dtype=np.float32)
        if rows.ndim != 2 or 0 in rows.shape or shifts.shape != rows.shape[:1]:
            raise OptionError(
                "expected a weight of shape (K_max + 1, hidden) and a bias of shape (K_max + 1,), "
                f"found {rows.shape} and {shifts.shape}"
            )
        if not (np.isfinite(rows).all() and np.isfinite(shifts).all()):
            raise OptionError("expected finite weights and biases, found infinite ones or NaN")
        object.__setattr__(self, "weight", rows)
        object.__setattr__(self, "bias", shifts)

    @property
    def k_max(self) -> int:
        """The greatest depth."""
        return len(self.bias) - 1

    def logits(self, vector: Sequence[float]) -> tuple[float, ...]:
        """Return the logit of each depth for a hidden state.

        Raises:
            OptionError: The state is not of the size that this head was made for.
            LanguageModelError: It is not finite.
        """
        state = np.asarray(vector, dtype=np.float64)
        if state.shape != self.weight.shape[1:]:
            raise OptionError(
                f"this K head reads hidden states of {self.weight.shape[1]} values, found "
                f"{state.shape}; use it with the language model that it was trained on"
            )
        if not (np.abs(state) <= np.finfo(np.float32).max).all():  # nor of nan
            raise LanguageModelError("expected a finite hidden state, found one with inf or nan")
        return tuple(float(value) for value in self.weight.astype(np.float64) @ state + self.bias)

    def choose(self, vector: Sequence[float]) -> int:
        """Return the depth with the greatest logit, the first of equals."""
        return int(np.argmax(self.logits(vector)))

    def save(self, path: Path) -> None:
        """Write the head as safetensors, with the names ``weight`` and ``bias``, and a checksum.

        Raises:
            MissingExtra: safetensors is not installed.
        """
        try:
            write_tensors(path, {"weight": self.weight, "bias": self.bias})
        except ImportError as error:
            raise MissingExtra.of("llm", "a K head's file") from error

    @classmethod
    def load(cls, path: Path) -> KHead:
        """Read what `save` wrote.

        Raises:
            MissingExtra: safetensors is not installed.
            DataNotFound: There is no such file.
            DataCorrupt: It is no such file, or was changed.
        """
        try:
            found = read_tensors(path)
            return cls(found["weight"], found["bias"])
        except ImportError as error:
            raise MissingExtra.of("llm", "a K head's file") from error
        except OSError as error:
            raise DataNotFound(
                f"cannot read the K head at {path}: {error.strerror or error}"
            ) from error
        except (KeyError, OptionError, TypeError, ValueError) as error:
            raise DataCorrupt(
                f"expected a K head (safetensors with 'weight' and 'bias') at {path}, found "
                f"{type(error).__name__}: {error}"
            ) from error
