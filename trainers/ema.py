"""The teacher's weights: an exponential moving average of the student's (METHODS.md 1.7, item 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import MissingExtra, OptionError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ema_update"]


def ema_update(teacher: Sequence[Tensor], student: Sequence[Tensor], mu: float) -> None:
    """Move the teacher's weights towards the student's: teacher <- mu teacher + (1-mu) student.

    It is done in place and without gradients. Matrices of adapters are averaged each by itself: the
    average of products is not the product of averages, which METHODS.md 1.7 accepts. The teacher's
    weights should have single precision at least; in half precision a step of one per cent is often
    rounded away.

    Args:
        teacher: The teacher's weights.
        student: The student's, in the same order.
        mu: How much of the teacher stays, 0 to 1.

    Raises:
        OptionError: `mu` is out of its range, or the weights are not as many or of other shapes.
        MissingExtra: torch is not installed.

    Example:
        >>> import torch
        >>> teacher, student = [torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])]
        >>> ema_update(teacher, student, 0.75)
        >>> teacher[0].tolist()
        [0.75, 0.25]
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("train", "a teacher's weights") from error
    teacher, student = list(teacher), list(student)
    _check(teacher, student, mu)
    with torch.no_grad():
        alike = all(
            one.dtype == other.dtype and one.device == other.device
            for one, other in zip(teacher, student, strict=True)
        )
        if alike and teacher:
            torch._foreach_lerp_(teacher, student, 1 - mu)
            return
        for one, other in zip(teacher, student, strict=True):
            one.lerp_(other.to(one.device, one.dtype), 1 - mu)


def _check(teacher: Sequence[Tensor], student: Sequence[Tensor], mu: float) -> None:
    if not 0 <= mu <= 1:
        raise OptionError(f"mu must be at least 0 and at most 1, not {mu!r}")
    if len(teacher) != len(student):
        raise OptionError(
            f"expected as many weights of the student as of the teacher, {len(teacher)}, found "
            f"{len(student)}; teacher and student must be models of one kind"
        )
    for number, (one, other) in enumerate(zip(teacher, student, strict=True)):
        if one.shape != other.shape:
            raise OptionError(
                f"expected weight {number} of the student to have the teacher's shape, "
                f"{tuple(one.shape)}, found {tuple(other.shape)}"
            )
