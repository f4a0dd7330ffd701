"""Small heads on a hidden state: CoMap's refinement head and ITP's depth head, and their files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError, needs_extra
from ..jsonl import draft_of

Head = TypeVar("Head")


def _state(hidden: Sequence[float], size: int) -> NDArray[np.float64]:
    """Return a hidden state as an array; raise where it is not of this size, or not finite."""
    state = np.asarray(hidden, dtype=np.float64)
    if state.shape != (size,):
        raise LanguageModelError(
            f"expected a hidden state of {size} numbers for this head, found {state.size}; use the "
            "head that was trained with this model"
        )
    if not (np.abs(state) <= np.finfo(np.float32).max).all():  # nor of nan
        raise LanguageModelError("expected a finite hidden state, found one with inf or nan")
    return state


def _save(path: str | Path, weight: NDArray[Any], bias: NDArray[Any]) -> Path:
    """Write a head so that a reader finds the old file or the new one, whole."""
    with needs_extra("local", "saving a head"):
        from safetensors.numpy import save_file

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path)
    save_file({"weight": weight, "bias": bias}, draft)
    draft.replace(path)
    return path


def _load(path: str | Path, kind: str, make: Callable[[Any, Any], Head]) -> Head:
    """Return the head in a file, made by `make` of its weight and bias."""
    if not Path(path).is_file():
        raise DataNotFound(f"expected a {kind} at {path}, found no file")
    with needs_extra("local", f"loading a {kind}"):
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
        return make(tensors["weight"], tensors["bias"])
    except (SafetensorError, LookupError, TypeError, ValueError, OSError, OptionError) as error:
        raise DataCorrupt(
            f"expected a {kind} (safetensors with weight and bias) at {path}, found "
            f"{type(error).__name__}: {error}"
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class RefinementHead:
    """``p = sigmoid(w . h + b)`` of a hidden state ``h`` (CoMap, section 3.2).

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

        # Single precision also where it was made from a list: what is saved is what was used.
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "bias", float(self.bias))

    @classmethod
    def zeros(cls, size: int) -> RefinementHead:
        """Return the head that training starts from: it says 0.5 of everything."""
        return cls(np.zeros(size, dtype=np.float32))

    @property
    def size(self) -> int:
        """The hidden size that it is for."""
        return int(self.weight.size)

    def probability(self, hidden: Sequence[float]) -> float:
        """Return the probability of revising, 0 to 1."""
        state = _state(hidden, self.size)
        logit = float(self.weight.astype(np.float64) @ state) + self.bias

        # The exponential of a large number overflows, so its argument is never positive.
        if logit >= 0:
            return 1 / (1 + math.exp(-logit))
        return math.exp(logit) / (1 + math.exp(logit))

    def save(self, path: str | Path) -> Path:
        """Write the head as safetensors, with the tensors ``weight`` and ``bias``."""
        return _save(path, self.weight, np.array([self.bias], np.float32))

    @classmethod
    def load(cls, path: str | Path) -> RefinementHead:
        """Read what `save` wrote."""
        return _load(path, "refinement head", lambda w, bias: cls(w, float(bias.reshape(-1)[0])))


def pseudo_label_k(log_probs: Sequence[float], cost: float = 0.2) -> int:
    """Return the depth that pays best: the K that maximises ``log_probs[K] - cost * K``.

    The labels of ITP's first training stage (ITP_R).
    """
    if not log_probs or any(math.isnan(value) for value in log_probs):
        raise OptionError(
            f"expected a log-probability for each depth from 0 up, found {list(log_probs)!r:.200}"
        )

    gains = [log_prob - cost * depth for depth, log_prob in enumerate(log_probs)]
    return max(range(len(gains)), key=lambda depth: (gains[depth], -depth))  # the first of equals


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

        object.__setattr__(self, "weight", rows)  # the class is frozen
        object.__setattr__(self, "bias", shifts)

    @property
    def k_max(self) -> int:
        """The greatest depth."""
        return len(self.bias) - 1

    def logits(self, vector: Sequence[float]) -> tuple[float, ...]:
        """Return the logit of each depth for a hidden state."""
        state = _state(vector, self.weight.shape[1])
        return tuple(float(value) for value in self.weight.astype(np.float64) @ state + self.bias)

    def choose(self, vector: Sequence[float]) -> int:
        """Return the depth with the greatest logit, the first of equals."""
        return int(np.argmax(self.logits(vector)))

    def save(self, path: str | Path) -> Path:
        """Write the head as safetensors, with the tensors ``weight`` and ``bias``."""
        return _save(path, self.weight, self.bias)

    @classmethod
    def load(cls, path: str | Path) -> KHead:
        """Read what `save` wrote."""
        return _load(path, "K head", cls)
