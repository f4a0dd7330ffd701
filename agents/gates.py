"""CoMap's two gates, as pure functions (arXiv 2606.02372; METHODS.md 1.2 and 1.4)."""

from __future__ import annotations

from typing import NamedTuple

from ..facts import Delta

__all__ = ["WorldStateGate", "action_gate", "agreement", "world_state_gate"]


def action_gate(p: float, q: float, same: bool, tau_p: float = 0.5, tau_q: float = 0.6) -> bool:
    """Return whether the reflected action is taken in place of the draft (METHODS.md 1.2, step 5).

    ``g = [p > tau_p] [q > tau_q] [Canon(a_ref) != Canon(a_draft)]``, with strict inequalities.

    Args:
        p: The refinement probability.
        q: The confidence in the reflected action; 0 where it could not be read.
        same: Whether the two actions are the same, canonically.
        tau_p: Threshold of `p`.
        tau_q: Threshold of `q`.

    Example:
        >>> action_gate(0.7, 0.9, same=False), action_gate(0.5, 0.9, same=False)
        (True, False)
    """
    return p > tau_p and q > tau_q and not same


class WorldStateGate(NamedTuple):
    """What the world-state gate says of a prediction.

    Attributes:
        agreement: ``r``, how well student and teacher agree on what changes, 0 to 1.
        open: Whether the student's prediction may be used as the future context.
    """

    agreement: float
    open: bool


def agreement(
    student: Delta, teacher: Delta, *, student_parsed: bool = True, teacher_parsed: bool = True
) -> float:
    """Return the F1 of the signed fact changes that two predictions make (METHODS.md 1.4).

    It is 0 where one of them could not be read, and 1 where both were read and change nothing.

    Args:
        student: What the student's prediction changes.
        teacher: What the teacher's prediction changes.
        student_parsed: Whether the student's prediction could be read as facts.
        teacher_parsed: Whether the teacher's could.

    Example:
        >>> there, here = ("at", "agent", "safe 1"), ("at", "agent", "desk 1")
        >>> moved = Delta(frozenset({there}), frozenset({here}))
        >>> agreement(moved, moved), agreement(moved, Delta())
        (1.0, 0.0)
    """
    if not (student_parsed and teacher_parsed):
        return 0.0
    shared = len(student.added & teacher.added) + len(student.removed & teacher.removed)
    sizes = [len(delta.added) + len(delta.removed) for delta in (student, teacher)]
    return 2 * shared / sum(sizes) if sum(sizes) else 1.0


def world_state_gate(
    student: Delta,
    teacher: Delta,
    *,
    student_parsed: bool = True,
    teacher_parsed: bool = True,
    tau: float = 0.6,
) -> WorldStateGate:
    """Return whether a student's prediction is reliable enough: ``r >= tau`` (METHODS.md 1.4).

    Args:
        student: What the student's prediction changes.
        teacher: What the privileged teacher's prediction changes.
        student_parsed: Whether the student's prediction could be read as facts.
        teacher_parsed: Whether the teacher's could.
        tau: The threshold; at the threshold the gate is open.

    Example:
        >>> world_state_gate(Delta(), Delta())
        WorldStateGate(agreement=1.0, open=True)
    """
    value = agreement(
        student, teacher, student_parsed=student_parsed, teacher_parsed=teacher_parsed
    )
    return WorldStateGate(value, value >= tau)
