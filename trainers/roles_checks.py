"""What a set of roles must be, and what another's weights must be to take the place of a role's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataNotFound, OptionError
from .roles_folder import recover

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["checked_names", "difference", "fill", "saved_folders", "student_of"]

_TEACHER = "_ema"


def student_of(role: str) -> str | None:
    """Return whose teacher a role is, or None.

    Example:
        >>> student_of("wm_ema"), student_of("wm")
        ('wm', None)
    """
    return role.removesuffix(_TEACHER) if role.endswith(_TEACHER) else None


def checked_names(roles: Sequence[str]) -> tuple[str, ...]:
    """Return the names of roles.

    Raises:
        OptionError: They are no names, are not different, or a teacher's student is not among them.

    Example:
        >>> checked_names(["agent", "wm_ema"])
        Traceback (most recent call last):
        comap.errors.OptionError: 'wm_ema' is the teacher of 'wm', which is not among the roles
    """
    names = (roles,) if isinstance(roles, str) else tuple(roles)
    for role in names:
        named = isinstance(role, str) and re.fullmatch(r"[A-Za-z0-9_-]+", role)
        if not named or "lora_" in role:
            raise OptionError(
                f"a role's name has letters, digits, _ and -, and no 'lora_' in it; found {role!r:.80}"
            )
        student = student_of(role)
        if student is not None and (student not in names or student_of(student)):
            why = "is a teacher itself" if student in names else "is not among the roles"
            raise OptionError(f"{role!r} is the teacher of {student!r}, which {why}")
    if not names or len(set(names)) < len(names):
        raise OptionError(f"expected roles of different names, at least one, found {names!r}")
    return names


def saved_folders(saved: str | Path | None, names: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each role that was saved; a teacher need not be.

    Raises:
        DataNotFound: A role is not there.

    Example:
        >>> saved_folders(None, ["agent"])
        {}
    """
    if saved is None:
        return {}
    folder = Path(saved).expanduser()
    recover(folder)
    found = {role: folder / role for role in names if (folder / role).is_dir()}
    missing = [role for role in names if role not in found and student_of(role) is None]
    if missing:
        raise DataNotFound(
            f"expected the roles {', '.join(names)} in {str(folder)!r}, found no {missing[0]!r}; give "
            "a folder that Roles.save wrote with these roles"
        )
    return found


def difference(own: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str:
    """Return how other weights differ in names or shapes from a role's own; nothing if they do not.

    Example:
        >>> difference({}, {"A": None})
        '0 weights are missing and 1 have no place (A)'
    """
    missing = [name for name in own if name not in other]
    unknown = [str(name) for name in other if name not in own]
    if missing or unknown:
        shown = (missing or unknown)[0]
        return f"{len(missing)} weights are missing and {len(unknown)} have no place ({shown:.200})"
    for name, weight in own.items():
        shape = getattr(other[name], "shape", None)
        if shape != weight.shape:
            return f"{name} has the shape {tuple(shape or ())}, not {tuple(weight.shape)}"
    return ""


def fill(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copy weights into a role's own, which have the same names and shapes.

    Example:
        >>> import torch
        >>> own = {"A": torch.zeros(2)}
        >>> fill(own, {"A": torch.ones(2)})
        >>> own["A"].tolist()
        [1.0, 1.0]
    """
    import torch

    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(given[name])
