"""CoMap's refinement head: the probability that a drafted action should be revised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataCorrupt, DataNotFound, LanguageModelError, MissingExtra, OptionError
from .tensor_file import read_tensors, write_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RefinementHead"]


@dataclass(frozen=True, slots=True, eq=False)
class RefinementHead:
    """``p = sigmoid(w . h + b)`` of a hidden state ``h`` (METHODS.md 1.3).

    ``h`` is the last layer's hidden state at the last token of the prompt that asks for a reflection.

    Attributes:
        weight: ``w``, single precision, of the model's hidden size.
        bias: ``b``.

    Raises:
        OptionError: The weight is no vector, or a number is not finite.

    Example:
        >>> RefinementHead.zeros(3).probability([0.5, -1.0, 2.0])
        0.5
    """

    weight: NDArray[np.float32]
    bias: float = 0.0

    def __post_init__(self) -> None:
        weight = np.asarray(self.weight, dtype=np.float32)
        if weight.ndim != 1 or not weight.size or not np.isfinite(weight).all():
            raise OptionError(
                f"expected a vector of finite weights, found an array of shape {weight.shape}"
            )
        if not math.isfinite(self.bias):
            raise OptionError(f"expected a finite bias, found {self.bias!r}")
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", float(self.bias))

    @classmethod
    def zeros(cls, size: int) -> RefinementHead:
        """Return the head that training starts from: it says 0.5 of everything.

        Args:
            size: The model's hidden size.
        """
        return cls(np.zeros(size, dtype=np.float32))

    @property
    def size(self) -> int:
        """The hidden size that it is for."""
        return int(self.weight.size)

    def probability(self, hidden: Sequence[float]) -> float:
        """Return the probability of revising, 0 to 1.

        Args:
            hidden: The hidden state, of length `size`.

        Raises:
            LanguageModelError: The hidden state is of another size, or not finite.
        """
        state = np.asarray(hidden, dtype=np.float64)
        if state.shape != self.weight.shape:
            raise LanguageModelError(
                f"expected a hidden state of {self.size} numbers for this refinement head, found "
                f"{state.size}; use the head that was trained with this model"
            )
        if not (np.abs(state) <= np.finfo(np.float32).max).all():  # nor of nan
            raise LanguageModelError("expected a finite hidden state, found one with inf or nan")
        logit = float(self.weight.astype(np.float64) @ state) + self.bias
        if logit >= 0:
            return 1 / (1 + math.exp(-logit))
        return math.exp(logit) / (1 + math.exp(logit))

    def save(self, path: str | Path) -> Path:
        """Write the head as safetensors, with the tensors ``weight`` and ``bias``, and a checksum.

        Raises:
            MissingExtra: safetensors is not installed.
        """
        try:
            target = Path(path)
            bias = np.array([self.bias], np.float32)
            write_tensors(target, {"weight": self.weight, "bias": bias})
        except ImportError as error:
            raise MissingExtra.of("llm", "saving a refinement head") from error
        return target

    @classmethod
    def load(cls, path: str | Path) -> RefinementHead:
        """Read what `save` wrote.

        Raises:
            DataNotFound: There is no such file.
            DataCorrupt: It is not a head, or was changed.
            MissingExtra: safetensors is not installed.
        """
        source = Path(path)
        if not source.is_file():
            raise DataNotFound(f"expected a refinement head at {source}, found no file")
        try:
            tensors = read_tensors(source)
            return cls(tensors["weight"], float(tensors["bias"].reshape(-1)[0]))
        except ImportError as error:
            raise MissingExtra.of("llm", "loading a refinement head") from error
        except Exception as error:
            raise DataCorrupt(
                f"expected a refinement head (tensors weight and bias) at {source}, found "
                f"{type(error).__name__}: {error}"
            ) from error
